#include "../common/heads.h"
#include "indexed_logits.h"

namespace {

using namespace vf;

Tensor indexed_logits(Tensor hidden, Tensor weight, Tensor ids) {
  const Type type = check_head(hidden, weight);
  check_matrix(ids, 2, "ids");
  check_same_device(hidden, ids, "ids");
  const bool wide = wide_ids(ids, "ids");
  const int64_t n = hidden.size(0), k = ids.size(1), total = n * k;
  VF_CHECK(ids.size(0) == n, "ids: expected ", n, " rows, got ", ids.size(0));
  VF_CHECK(total < (int64_t{1} << 30), "ids: too many, ", total);
  Tensor logits = new_tensor(hidden, {n, k}, ScalarType::Float);
  if (k == 0) return logits;
  IndexedLogitsArguments a{data<void>(hidden), data<void>(weight), type, data<void>(ids), wide, static_cast<int>(n),
                           static_cast<int>(hidden.size(1)), static_cast<int>(weight.size(0)), static_cast<int>(k),
                           {}, data<float>(logits)};
  if (!on_device(hidden)) {
    indexed_logits_cpu(a);
    return logits;
  }
#ifndef VF_NO_CUDA
  const DeviceScope scope(hidden);
  Tensor workspace = new_tensor(hidden, {n > 1 ? 3 * total + 2 * kSegments + 1 : 0}, ScalarType::Int);
  int* from = data<int>(workspace);
  a.segments = {from, from + total, from + 2 * total, from + 3 * total, from + 3 * total + kSegments + 1};
  indexed_logits_cuda(a, scope.stream());
#endif
  return logits;
}

}  // namespace

VF_DEFINE(m) { m.def("indexed_logits(Tensor hidden, Tensor weight, Tensor ids) -> Tensor"); }
VF_IMPLEMENT(m) { m.impl("indexed_logits", TORCH_BOX(&indexed_logits)); }
