#include "../common/heads.h"
#include "union_logits.h"

namespace {

using namespace vf;

Tensor union_logits(Tensor hidden, Tensor weight, Tensor rows, std::optional<Tensor> count) {
  const Type type = check_head(hidden, weight);
  check_matrix(rows, 1, "rows");
  check_same_device(hidden, rows, "rows");
  const bool wide = wide_ids(rows, "rows");
  const int64_t columns = rows.size(0);
  VF_CHECK(columns < (int64_t{1} << 30), "rows: too many, ", columns);
  if (count) {
    check_matrix(*count, 1, "count");
    check_same_device(hidden, *count, "count");
    check_type(*count, ScalarType::Int, "count");
    VF_CHECK(count->size(0) == 1, "count: expected one number");
  }
  const int n = static_cast<int>(hidden.size(0));
  Tensor logits = new_tensor(hidden, {n, columns}, ScalarType::Float);
  if (columns == 0) return logits;
  UnionLogitsArguments a{data<void>(hidden), data<void>(weight), type, data<void>(rows), wide,
                         count ? data<int>(*count) : nullptr, n, static_cast<int>(hidden.size(1)),
                         static_cast<int>(weight.size(0)), static_cast<int>(columns), data<float>(logits)};
  if (!on_device(hidden)) {
    union_logits_cpu(a);
    return logits;
  }
#ifndef VF_NO_CUDA
  const DeviceScope scope(hidden);
  union_logits_cuda(a, scope.stream());
#endif
  return logits;
}

}  // namespace

VF_DEFINE(m) { m.def("union_logits(Tensor hidden, Tensor weight, Tensor rows, Tensor? count) -> Tensor"); }
VF_IMPLEMENT(m) { m.impl("union_logits", TORCH_BOX(&union_logits)); }
