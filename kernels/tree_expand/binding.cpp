#include "../common/binding.h"
#include "tree_expand.h"

namespace {

using namespace vf;

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> tree_expand(Tensor scores, Tensor logprobs, Tensor ids,
                                                               int64_t keep) {
  check_matrix(scores, 2, "tree_expand: scores");
  check_matrix(logprobs, 3, "tree_expand: logprobs");
  check_matrix(ids, 3, "tree_expand: ids");
  check_type(scores, ScalarType::Float, "tree_expand: scores");
  check_type(logprobs, ScalarType::Float, "tree_expand: logprobs");
  check_type(ids, ScalarType::Long, "tree_expand: ids");
  check_same_device(scores, logprobs, "tree_expand");
  check_same_device(scores, ids, "tree_expand");
  const int64_t rows = ids.size(0), width = ids.size(1), k = ids.size(2);
  VF_CHECK(scores.size(0) == rows && scores.size(1) == width && logprobs.size(0) == rows && logprobs.size(1) == width &&
               logprobs.size(2) == k,
           "tree_expand: scores, logprobs and ids do not fit together");
  VF_CHECK(rows > 0 && rows < (int64_t{1} << 31) && width > 0 && k > 0 && width * k < (int64_t{1} << 31),
           "tree_expand: ", rows, " rows of ", width, " x ", k, " children");
  VF_CHECK(keep > 0 && keep <= width * k && keep <= kMostKept, "tree_expand: keep ", keep);
  Tensor cumulative = new_tensor(scores, {rows, width * k}, ScalarType::Float);
  Tensor best = new_tensor(scores, {rows, keep}, ScalarType::Float);
  Tensor tokens = new_tensor(scores, {rows, keep}, ScalarType::Long);
  Tensor parents = new_tensor(scores, {rows, keep}, ScalarType::Long);
  Tensor places = new_tensor(scores, {rows, keep}, ScalarType::Long);
  TreeExpandArguments a{data<float>(scores), data<float>(logprobs), data<int64_t>(ids), static_cast<int>(rows),
                        static_cast<int>(width), static_cast<int>(k), static_cast<int>(keep), data<float>(cumulative),
                        data<float>(best), data<int64_t>(tokens), data<int64_t>(parents), data<int64_t>(places)};
  if (!on_device(scores)) {
    tree_expand_cpu(a);
  } else {
#ifndef VF_NO_CUDA
    const DeviceScope scope(scores);
    tree_expand_cuda(a, scope.stream());
#endif
  }
  return {cumulative, best, tokens, parents, places};
}

}  // namespace

VF_DEFINE(m) {
  m.def(
      "tree_expand(Tensor scores, Tensor logprobs, Tensor ids, int keep) -> (Tensor, Tensor, Tensor, Tensor, "
      "Tensor)");
}
VF_IMPLEMENT(m) { m.impl("tree_expand", TORCH_BOX(&tree_expand)); }
