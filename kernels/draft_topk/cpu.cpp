#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "../common/numbers.h"
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
    const int some = std::min<int>(a.k, static_cast<int>(found.size()));
    std::partial_sort(found.begin(), found.begin() + some, found.end());
    const float maximum = found.empty() ? 0.0f : -found[0].first;
    double sum = 0.0;
    for (const auto& entry : found) sum += std::exp(static_cast<double>(-entry.first - maximum));
    for (int place = 0; place < a.k; ++place) {
      const float logprob =
          place < some ? static_cast<float>(-found[place].first - maximum - std::log(sum)) : -INFINITY;
      a.logprobs[row * a.k + place] = std::isnan(logprob) ? -INFINITY : std::min(logprob, 0.0f);
      a.chosen[row * a.k + place] = place < some ? found[place].second : 0;
    }
  }
}

}  // namespace vf
