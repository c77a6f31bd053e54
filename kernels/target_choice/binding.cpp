#include "../common/binding.h"
#include "target_choice.h"

namespace {

using namespace vf;

std::tuple<Tensor, Tensor> target_choice(Tensor logits) {
  check_matrix(logits, 2, "target_choice: logits");
  const int rows = static_cast<int>(logits.size(0));
  const int64_t vocab = logits.size(1);
  VF_CHECK(rows > 0 && vocab > 0 && vocab <= (int64_t{1} << 31), "target_choice: ", rows, " rows of ", vocab, " logits");
  Tensor choices = new_tensor(logits, {rows}, ScalarType::Long), valid = new_tensor(logits, {rows}, ScalarType::Bool);
  TargetChoiceArguments a{data<void>(logits), type_of(logits, "target_choice: logits"), rows, vocab, 1, nullptr, nullptr,
                          data<int64_t>(choices), data<bool>(valid)};
  if (!on_device(logits)) {
    target_choice_cpu(a);
    return {choices, valid};
  }
#ifndef VF_NO_CUDA
  const DeviceScope scope(logits);
  a.splits = target_choice_splits(rows, vocab);
  Tensor workspace = new_tensor(logits, {rows, a.splits}, ScalarType::Long);
  Tensor arrived = new_tensor(logits, {rows}, ScalarType::Int);
  a.workspace = data<unsigned long long>(workspace);
  a.arrived = data<unsigned>(arrived);
  target_choice_cuda(a, scope.stream());
#endif
  return {choices, valid};
}

}  // namespace

VF_DEFINE(m) { m.def("target_choice(Tensor logits) -> (Tensor, Tensor)"); }
VF_IMPLEMENT(m) { m.impl("target_choice", TORCH_BOX(&target_choice)); }
