#include <cmath>
#include <vector>

#include "../common/numbers.h"
#include "add_rms_norm.h"

namespace vf {

void add_rms_norm_cpu(const AddRmsNormArguments& a) {
  std::vector<float> sums(a.width);
  for (int64_t row = 0; row < a.rows; ++row) {
    double squares = 0.0;
    for (int i = 0; i < a.width; ++i) {
      sums[i] = cpu::number_at(a.x, a.type, row * a.x_stride + i);
      if (a.residual != nullptr) {
        sums[i] = cpu::rounded(a.type, sums[i] + cpu::number_at(a.residual, a.type, row * a.residual_stride + i));
        cpu::put_number(a.sum, a.type, row * a.width + i, sums[i]);
      }
      squares += static_cast<double>(sums[i]) * sums[i];
    }
    const float scale = static_cast<float>(1.0 / std::sqrt(squares / a.width + a.eps));
    for (int i = 0; i < a.width; ++i) {
      const float normed = cpu::rounded(a.type, sums[i] * scale);
      cpu::put_number(a.normed, a.type, row * a.width + i, normed * cpu::number_at(a.weight, a.type, i));
    }
  }
}

}  // namespace vf
