#include "../common/whole_vectors.h"
#include "silu_mul.h"

namespace {

using namespace vf;

Tensor silu_mul(Tensor gate_up) {
  check_matrix(gate_up, 2, "silu_mul: gate_up");
  const int64_t rows = gate_up.size(0), inner = gate_up.size(1) / 2;
  VF_CHECK(gate_up.size(1) == 2 * inner && inner > 0 && rows < (int64_t{1} << 31) && inner < (int64_t{1} << 30),
           "silu_mul: ", rows, " rows of ", gate_up.size(1));
  if (on_device(gate_up)) gate_up = with_whole_vectors(gate_up);
  Tensor out = new_tensor(gate_up, {rows, inner}, gate_up.scalar_type());
  SiluMulArguments a{data<void>(gate_up), data<void>(out), static_cast<int>(rows), static_cast<int>(inner),
                     type_of(gate_up, "silu_mul: gate_up")};
  if (!on_device(gate_up)) {
    silu_mul_cpu(a);
    return out;
  }
#ifndef VF_NO_CUDA
  const DeviceScope scope(gate_up);
  VF_CHECK(a.type == Type::kBFloat16 || a.type == Type::kFloat16, "silu_mul: gate_up: expected bfloat16 or float16");
  VF_CHECK(inner % 8 == 0 && rows * inner < (int64_t{1} << 40), "silu_mul: ", rows, " rows of ", inner);
  silu_mul_cuda(a, scope.stream());
#endif
  return out;
}

}  // namespace

VF_DEFINE(m) { m.def("silu_mul(Tensor gate_up) -> Tensor"); }
VF_IMPLEMENT(m) { m.impl("silu_mul", TORCH_BOX(&silu_mul)); }
