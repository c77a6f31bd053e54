#include "../common/binding.h"
#include "tree_verify.h"

namespace {

using namespace vf;

std::tuple<Tensor, Tensor> tree_verify(Tensor tokens, Tensor parents, Tensor depths, Tensor ancestors, Tensor choices,
                                       Tensor valid, std::optional<Tensor> alive, int64_t levels) {
  const int64_t rows = tokens.size(0), nodes = tokens.size(1);
  std::vector<const Tensor*> given{&tokens, &parents, &choices, &valid};
  if (alive) given.push_back(&*alive);
  for (const Tensor* one : given) {
    check_matrix(*one, 2, "tree_verify: a tree");
    check_same_device(tokens, *one, "tree_verify");
    VF_CHECK(one->size(0) == rows && one->size(1) == nodes, "tree_verify: the parts of the trees differ in size");
    const bool flag = one == &valid || (alive && one == &*alive);
    check_type(*one, flag ? ScalarType::Bool : ScalarType::Long, "tree_verify: a tree");
  }
  VF_CHECK(rows > 0 && rows < (int64_t{1} << 31), "tree_verify: ", rows, " rows");
  VF_CHECK(nodes > 0 && nodes <= kMostVerified, "tree_verify: ", nodes, " nodes, at most ", kMostVerified);
  VF_CHECK(levels >= 0 && levels < (1 << 15), "tree_verify: ", levels, " levels");
  Tensor path = new_tensor(tokens, {rows, levels + 1}, ScalarType::Long);
  Tensor numbers = new_tensor(tokens, {rows, levels + 3}, ScalarType::Long);
  TreeVerifyArguments a{data<int64_t>(tokens), data<int64_t>(parents), data<int64_t>(choices), data<bool>(valid),
                        alive ? data<bool>(*alive) : nullptr, static_cast<int>(rows), static_cast<int>(nodes),
                        static_cast<int>(levels), data<int64_t>(path), data<int64_t>(numbers)};
  if (!on_device(tokens)) {
    tree_verify_cpu(a);
  } else {
#ifndef VF_NO_CUDA
    const DeviceScope scope(tokens);
    tree_verify_cuda(a, scope.stream());
#endif
  }
  return {path, numbers};
}

}  // namespace

VF_DEFINE(m) {
  m.def(
      "tree_verify(Tensor tokens, Tensor parents, Tensor depths, Tensor ancestors, Tensor choices, Tensor valid, "
      "Tensor? alive, int levels) -> (Tensor, Tensor)");
}
VF_IMPLEMENT(m) { m.impl("tree_verify", TORCH_BOX(&tree_verify)); }
