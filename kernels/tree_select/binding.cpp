#include "../common/binding.h"
#include "tree_select.h"

namespace {

using namespace vf;

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> tree_select(Tensor roots, Tensor tokens, Tensor scores,
                                                               Tensor parents, int64_t nodes, int64_t levels) {
  check_matrix(roots, 1, "tree_select: roots");
  check_type(roots, ScalarType::Long, "tree_select: roots");
  const int64_t rows = tokens.size(0), size = tokens.size(1), words = (nodes + 63) / 64;
  for (const Tensor* one : {&tokens, &scores, &parents}) {
    check_matrix(*one, 2, "tree_select: history");
    check_same_device(roots, *one, "tree_select");
    VF_CHECK(one->size(0) == rows, "tree_select: tokens, scores and parents differ in size");
  }
  const int64_t expanded = parents.size(1);
  VF_CHECK(scores.size(1) == size && expanded > 0 && size % expanded == 0, "tree_select: ", size, " tokens, ",
           scores.size(1), " scores, ", expanded, " parents");
  check_type(tokens, ScalarType::Long, "tree_select: tokens");
  check_type(scores, ScalarType::Float, "tree_select: scores");
  check_type(parents, ScalarType::Long, "tree_select: parents");
  VF_CHECK(rows > 0 && rows < (int64_t{1} << 31) && roots.size(0) == rows, "tree_select: ", rows, " rows");
  VF_CHECK(size <= kMostHistory, "tree_select: a history of ", size, " nodes, at most ", kMostHistory);
  VF_CHECK(nodes >= 2 && nodes <= size + 1 && nodes <= kMostNodes, "tree_select: a tree of ", nodes, " nodes");
  VF_CHECK(levels >= 1 && levels < (int64_t{1} << 31), "tree_select: ", levels, " levels");
  auto made = [&] { return new_tensor(roots, {rows, nodes}, ScalarType::Long); };
  Tensor kept = made(), above = made(), depths = made();
  Tensor ancestors = new_tensor(roots, {rows, nodes, nodes}, ScalarType::Bool);
  Tensor bits = new_tensor(roots, {rows, nodes, words}, ScalarType::Long);
  TreeSelectArguments a{data<int64_t>(roots),   data<int64_t>(tokens), data<float>(scores),
                        data<int64_t>(parents), static_cast<int>(rows), static_cast<int>(size),
                        static_cast<int>(size / expanded), static_cast<int>(nodes), static_cast<int>(levels),
                        data<int64_t>(kept),    data<int64_t>(above),  data<int64_t>(depths),
                        data<bool>(ancestors),  data<int64_t>(bits)};
  if (!on_device(roots)) {
    tree_select_cpu(a);
  } else {
#ifndef VF_NO_CUDA
    const DeviceScope scope(roots);
    tree_select_cuda(a, scope.stream());
#endif
  }
  return {kept, above, depths, ancestors, bits};
}

}  // namespace

VF_DEFINE(m) {
  m.def(
      "tree_select(Tensor roots, Tensor tokens, Tensor scores, Tensor parents, int nodes, int levels) -> "
      "(Tensor, Tensor, Tensor, Tensor, Tensor)");
}
VF_IMPLEMENT(m) { m.impl("tree_select", TORCH_BOX(&tree_select)); }
