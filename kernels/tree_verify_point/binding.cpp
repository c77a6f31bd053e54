#include "../common/binding.h"
#include "tree_verify_point.h"

namespace {

using namespace vf;

std::tuple<Tensor, Tensor, Tensor> tree_verify_point(Tensor tokens, Tensor parents, std::optional<Tensor> alive,
                                                     Tensor weights, Tensor seeds, Tensor draws, int64_t levels) {
  const int64_t rows = tokens.size(0), nodes = tokens.size(1);
  std::vector<const Tensor*> trees{&tokens, &parents};
  if (alive) trees.push_back(&*alive);
  for (const Tensor* one : trees) {
    check_matrix(*one, 2, "tree_verify_point: a tree");
    const bool ids = one == &tokens || one == &parents;
    check_type(*one, ids ? ScalarType::Long : ScalarType::Bool, "tree_verify_point: a tree");
    check_same_device(tokens, *one, "tree_verify_point");
    VF_CHECK(one->size(0) == rows && one->size(1) == nodes, "tree_verify_point: the parts of the trees differ in size");
  }
  for (const Tensor* one : {&seeds, &draws}) {
    check_matrix(*one, 1, "tree_verify_point: seeds and draws");
    check_type(*one, ScalarType::Long, "tree_verify_point: seeds and draws");
    check_same_device(tokens, *one, "tree_verify_point");
    VF_CHECK(one->size(0) == rows, "tree_verify_point: a seed and a place of draws a row");
  }
  check_matrix(weights, 3, "tree_verify_point: weights");
  check_type(weights, ScalarType::Float, "tree_verify_point: weights");
  check_same_device(tokens, weights, "tree_verify_point");
  const int64_t vocab = weights.size(2);
  VF_CHECK(weights.size(0) == rows && weights.size(1) == nodes, "tree_verify_point: a distribution a node");
  VF_CHECK(rows > 0 && rows < (1 << 14) && nodes > 0 && nodes <= kMostPointNodes, "tree_verify_point: ", rows,
           " trees of ", nodes, " nodes, at most ", kMostPointNodes);
  VF_CHECK(vocab > 0 && vocab <= (1 << 20), "tree_verify_point: a vocabulary of ", vocab);
  VF_CHECK(levels >= 0 && levels < (1 << 15), "tree_verify_point: ", levels, " levels");
  Tensor path = new_tensor(tokens, {rows, levels + 1}, ScalarType::Long);
  Tensor numbers = new_tensor(tokens, {rows, levels + 3}, ScalarType::Long);
  Tensor after = new_tensor(tokens, {rows}, ScalarType::Long);
  TreeVerifyPointArguments a{data<int64_t>(tokens), data<int64_t>(parents), alive ? data<bool>(*alive) : nullptr,
                             data<float>(weights), data<int64_t>(seeds), data<int64_t>(draws), static_cast<int>(rows),
                             static_cast<int>(nodes), static_cast<int>(vocab), static_cast<int>(levels),
                             data<int64_t>(path), data<int64_t>(numbers), data<int64_t>(after), nullptr, nullptr};
  if (!on_device(tokens)) {
    tree_verify_point_cpu(a);
    return {path, numbers, after};
  }
#ifndef VF_NO_CUDA
  const DeviceScope scope(tokens);
  const int64_t chunks = tree_verify_point_chunks(a.vocab);
  Tensor masses = new_tensor(tokens, {rows, nodes, chunks, 2}, ScalarType::Long);
  Tensor supports = new_tensor(tokens, {rows, nodes, chunks}, ScalarType::Int);
  a.masses = data<void>(masses);
  a.supports = data<int>(supports);
  tree_verify_point_cuda(a, scope.stream());
#endif
  return {path, numbers, after};
}

}  // namespace

VF_DEFINE(m) {
  m.def(
      "tree_verify_point(Tensor tokens, Tensor parents, Tensor? alive, Tensor weights, Tensor seeds, Tensor draws, int "
      "levels) -> (Tensor, Tensor, Tensor)");
}
VF_IMPLEMENT(m) { m.impl("tree_verify_point", TORCH_BOX(&tree_verify_point)); }
