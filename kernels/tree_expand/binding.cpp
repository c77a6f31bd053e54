#include "../common/binding.h"
#include "tree_expand.h"

namespace {

using namespace vf;

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> tree_expand(Tensor scores, Tensor logprobs, Tensor ids,
                                                                       int64_t keep, int64_t first,
                                                                       std::optional<Tensor> above, int64_t slot) {
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
  int64_t words = 0;
  if (above.has_value()) {
    check_matrix(*above, 3, "tree_expand: above");
    check_type(*above, ScalarType::Long, "tree_expand: above");
    check_same_device(scores, *above, "tree_expand");
    words = above->size(2);
    VF_CHECK(above->size(0) == rows && above->size(1) == width, "tree_expand: above does not fit scores");
    VF_CHECK(slot >= 0 && words < (1 << 24) && slot + keep <= 64 * words, "tree_expand: slot ", slot);
  }
  Tensor cumulative = new_tensor(scores, {rows, width * k}, ScalarType::Float);
  Tensor best = new_tensor(scores, {rows, keep}, ScalarType::Float);
  Tensor tokens = new_tensor(scores, {rows, keep}, ScalarType::Long);
  Tensor parents = new_tensor(scores, {rows, keep}, ScalarType::Long);
  Tensor places = new_tensor(scores, {rows, keep}, ScalarType::Long);
  Tensor seen = new_tensor(scores, {rows, keep, words}, ScalarType::Long);
  TreeExpandArguments a{data<float>(scores),
                        data<float>(logprobs),
                        data<int64_t>(ids),
                        above.has_value() ? data<int64_t>(*above) : nullptr,
                        static_cast<int>(rows),
                        static_cast<int>(width),
                        static_cast<int>(k),
                        static_cast<int>(keep),
                        static_cast<int>(words),
                        first,
                        static_cast<int>(slot),
                        data<float>(cumulative),
                        data<float>(best),
                        data<int64_t>(tokens),
                        data<int64_t>(parents),
                        data<int64_t>(places),
                        data<int64_t>(seen)};
  if (!on_device(scores)) {
    tree_expand_cpu(a);
  } else {
#ifndef VF_NO_CUDA
    const DeviceScope scope(scores);
    tree_expand_cuda(a, scope.stream());
#endif
  }
  return {cumulative, best, tokens, parents, places, seen};
}

}  // namespace

VF_DEFINE(m) {
  m.def(
      "tree_expand(Tensor scores, Tensor logprobs, Tensor ids, int keep, int first, Tensor? above, int slot) -> "
      "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}
VF_IMPLEMENT(m) { m.impl("tree_expand", TORCH_BOX(&tree_expand)); }
