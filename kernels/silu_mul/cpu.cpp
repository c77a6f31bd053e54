#include <cmath>

#include "../common/numbers.h"
#include "silu_mul.h"

namespace vf {

void silu_mul_cpu(const SiluMulArguments& a) {
  for (int64_t row = 0; row < a.rows; ++row) {
    for (int64_t i = 0; i < a.inner; ++i) {
      const float gate = cpu::number_at(a.gate_up, a.type, row * 2 * a.inner + i);
      const float up = cpu::number_at(a.gate_up, a.type, (row * 2 + 1) * a.inner + i);
      const float active = cpu::rounded(a.type, gate / (1.0f + std::exp(-gate)));
      cpu::put_number(a.out, a.type, row * a.inner + i, active * up);
    }
  }
}

}  // namespace vf
