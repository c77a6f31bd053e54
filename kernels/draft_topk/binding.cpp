#include "../common/binding.h"
#include "draft_topk.h"

namespace {

using namespace vf;

void check_integers(const Tensor& tensor, const char* what) {
  const ScalarType type = tensor.scalar_type();
  VF_CHECK(type == ScalarType::Int || type == ScalarType::Long, what, ": expected int32 or int64");
  VF_CHECK(tensor.is_contiguous(), what, ": expected a contiguous tensor");
}

std::tuple<Tensor, Tensor> draft_topk(Tensor logits, int64_t k, std::optional<Tensor> ids, std::optional<Tensor> map) {
  check_matrix(logits, 2, "draft_topk: logits");
  const int64_t rows = logits.size(0), columns = logits.size(1);
  VF_CHECK(rows > 0 && columns > 0 && rows * columns < (int64_t{1} << 31), "draft_topk: ", rows, " rows of ", columns);
  VF_CHECK(k > 0 && k <= 64, "draft_topk: k of ", k);
  DraftTopkArguments a{};
  a.logits = data<void>(logits);
  a.type = type_of(logits, "draft_topk: logits");
  a.rows = static_cast<int>(rows);
  a.columns = static_cast<int>(columns);
  a.k = static_cast<int>(k);
  if (ids.has_value()) {
    check_same_device(logits, *ids, "draft_topk: ids");
    check_integers(*ids, "draft_topk: ids");
    const bool own = ids->dim() == 2;
    VF_CHECK(own ? ids->size(0) == rows && ids->size(1) == columns : ids->dim() == 1 && ids->size(0) == columns,
             "draft_topk: ids: one a column, shared or of each row");
    a.ids = data<void>(*ids);
    a.ids_wide = ids->scalar_type() == ScalarType::Long;
    a.ids_stride = own ? columns : 0;
  }
  if (map.has_value()) {
    check_same_device(logits, *map, "draft_topk: target_ids");
    check_matrix(*map, 1, "draft_topk: target_ids");
    check_type(*map, ScalarType::Long, "draft_topk: target_ids");
    a.target_ids = data<int64_t>(*map);
    a.map_size = map->size(0);
  }
  Tensor logprobs = new_tensor(logits, {rows, k}, ScalarType::Float);
  Tensor chosen = new_tensor(logits, {rows, k}, ScalarType::Long);
  a.logprobs = data<float>(logprobs);
  a.chosen = data<int64_t>(chosen);
  if (!on_device(logits)) {
    draft_topk_cpu(a);
    return {logprobs, chosen};
  }
#ifndef VF_NO_CUDA
  const DeviceScope scope(logits);
  a.splits = draft_topk_splits(a.rows, a.columns);
  Tensor sums = new_tensor(logits, {2, rows, a.splits}, ScalarType::Float);
  Tensor best = new_tensor(logits, {rows, a.splits, k}, ScalarType::Long);
  a.maxima = data<float>(sums);
  a.sums = a.maxima + rows * a.splits;
  a.best = data<unsigned long long>(best);
  draft_topk_cuda(a, scope.stream());
#endif
  return {logprobs, chosen};
}

}  // namespace

VF_DEFINE(m) { m.def("draft_topk(Tensor logits, int k, Tensor? ids, Tensor? target_ids) -> (Tensor, Tensor)"); }
VF_IMPLEMENT(m) { m.impl("draft_topk", TORCH_BOX(&draft_topk)); }
