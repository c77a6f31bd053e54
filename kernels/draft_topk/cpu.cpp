#include "../common/numbers.h"
#include "../common/topk_cpu.h"
#include "draft_topk.h"

namespace vf {
namespace {

int64_t id_of(const DraftTopkArguments& a, int row, int column) {
  int64_t id = column;
  if (a.ids != nullptr) {
    const int64_t at = row * a.ids_stride + column;
    id = a.ids_wide ? static_cast<const int64_t*>(a.ids)[at] : static_cast<const int32_t*>(a.ids)[at];
  }
  if (id < 0 || a.target_ids == nullptr) return id < 0 ? -1 : id;
  return id < a.map_size ? a.target_ids[id] : -1;
}

}  // namespace

void draft_topk_cpu(const DraftTopkArguments& a) {
  std::vector<std::pair<float, int64_t>> found;  // (-logit, id): ascending is what is wanted
  for (int row = 0; row < a.rows; ++row) {
    found.clear();
    for (int column = 0; column < a.columns; ++column) {
      const float value = cpu::number_at(a.logits, a.type, static_cast<int64_t>(row) * a.columns + column);
      const int64_t id = id_of(a, row, column);
      if (id >= 0 && value > -INFINITY) found.emplace_back(-value, id);
    }
    cpu::answer(found, a.k, a.logprobs + row * a.k, a.chosen + row * a.k);
  }
}

}  // namespace vf
