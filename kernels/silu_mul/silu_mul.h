// silu_mul: silu(gate) * up of the two halves of each row; see vocabforge/ops/silu_mul.py.
#pragma once

#include "../common/stream.h"

namespace vf {

struct SiluMulArguments {
  const void* gate_up;  // (rows, 2 * inner)
  void* out;            // (rows, inner)
  int rows;
  int inner;  // CUDA: a multiple of 8
  Type type;
};

void silu_mul_cuda(const SiluMulArguments& a, Stream stream);
void silu_mul_cpu(const SiluMulArguments& a);

}  // namespace vf
