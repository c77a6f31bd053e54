#include <cmath>
#include <vector>

#include "../common/numbers.h"
#include "add_rms_norm.h"

namespace vf {
namespace {

// The norm of one row, rounded before the weight and behind it; its place in `normed` begins at `first`.
void norm_row(const std::vector<float>& x, Type type, const void* weight, float eps, void* normed, int64_t first) {
  double squares = 0.0;
  for (float value : x) squares += static_cast<double>(value) * value;
  const float scale = static_cast<float>(1.0 / std::sqrt(squares / x.size() + eps));
  for (size_t i = 0; i < x.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i);
    cpu::put_number(normed, type, first + at, cpu::rounded(type, x[i] * scale) * cpu::number_at(weight, type, at));
  }
}

}  // namespace

void add_rms_norm_cpu(const AddRmsNormArguments& a) {
  std::vector<float> sums(a.width);
  for (int64_t row = 0; row < a.rows; ++row) {
    for (int i = 0; i < a.width; ++i) {
      sums[i] = cpu::number_at(a.x, a.type, row * a.x_stride + i);
      if (a.residual != nullptr) {
        sums[i] = cpu::rounded(a.type, sums[i] + cpu::number_at(a.residual, a.type, row * a.residual_stride + i));
        cpu::put_number(a.sum, a.type, row * a.width + i, sums[i]);
      }
    }
    norm_row(sums, a.type, a.weight, a.eps, a.normed, row * a.width);
  }
}

void join_norms_cpu(const JoinNormsArguments& a) {
  std::vector<float> x(a.width);
  for (int64_t row = 0; row < a.rows; ++row) {
    const int64_t id = a.ids == nullptr ? row : a.ids[row];
    const bool real = id >= 0 && id < a.table_rows;
    for (int i = 0; i < a.width; ++i) x[i] = real ? cpu::number_at(a.table, a.type, id * a.table_stride + i) : 0.0f;
    norm_row(x, a.type, a.first, a.eps, a.joined, 2 * row * a.width);
    for (int i = 0; i < a.width; ++i) x[i] = cpu::number_at(a.x, a.type, row * a.x_stride + i);
    norm_row(x, a.type, a.second, a.eps, a.joined, (2 * row + 1) * a.width);
  }
}

}  // namespace vf
