#include <cmath>
#include <vector>

#include "../common/numbers.h"
#include "fused_linear.h"

namespace vf {
namespace {

// Row n of x, normed with add_rms_norm's roundings where there is a norm.
std::vector<float> row_of(const FusedLinearArguments& a, int64_t n) {
  std::vector<float> x(a.d);
  double squares = 0.0;
  for (int i = 0; i < a.d; ++i) {
    x[i] = cpu::number_at(a.x, a.type, n * a.d + i);
    squares += static_cast<double>(x[i]) * x[i];
  }
  const float scale = static_cast<float>(1.0 / std::sqrt(squares / a.d + a.eps));
  for (int i = 0; a.norm != nullptr && i < a.d; ++i) {
    x[i] = cpu::rounded(a.type, cpu::rounded(a.type, x[i] * scale) * cpu::number_at(a.norm, a.type, i));
  }
  return x;
}

// A row's products, rounded.
std::vector<float> products_of(const FusedLinearArguments& a, int64_t n) {
  const std::vector<float> x = row_of(a, n);
  std::vector<float> out(a.rows);
  for (int64_t row = 0; row < a.rows; ++row) {
    float sum = 0.0f;
    for (int i = 0; i < a.d; ++i) sum += x[i] * cpu::number_at(a.weight, a.type, row * a.d + i);
    out[row] = cpu::rounded(a.type, a.bias == nullptr ? sum : sum + cpu::number_at(a.bias, a.type, row));
  }
  return out;
}

// As rope_store's: the first product is rounded to the angles' type.
float turn(const RopeStoreArguments& a, float x, float partner, int64_t cos, int64_t sin) {
  const float first = cpu::rounded(a.angle_type, x * cpu::number_at(a.cos, a.angle_type, cos));
  return first + partner * cpu::number_at(a.sin, a.angle_type, sin);
}

}  // namespace

void fused_linear_cpu(const FusedLinearArguments& a) {
  const int columns = a.gated ? a.rows / 2 : a.rows;
  for (int64_t n = 0; n < a.n; ++n) {
    const std::vector<float> sums = products_of(a, n);
    for (int i = 0; i < columns; ++i) {
      const int64_t place = n * columns + i;
      float value = sums[i];
      if (a.gated) value = cpu::rounded(a.type, value / (1.0f + std::exp(-value))) * sums[columns + i];
      if (a.residual != nullptr) value += cpu::number_at(a.residual, a.type, place);
      cpu::put_number(a.out, a.type, place, value);
    }
  }
}

void fused_qkv_cpu(const FusedQkvArguments& a) {
  const RopeStoreArguments& to = a.rotation;
  const int half = to.dim / 2;
  for (int64_t token = 0; token < a.product.n; ++token) {
    const std::vector<float> sums = products_of(a.product, token);
    const int64_t row = token / to.length, place = token % to.length, slot = to.slots[token];
    const int64_t cos = row * to.cos_strides[0] + place * to.cos_strides[1];
    const int64_t sin = row * to.sin_strides[0] + place * to.sin_strides[1];
    for (int head = 0; head < to.heads + 2 * to.kv_heads; ++head) {
      const bool query = head < to.heads, key = head < to.heads + to.kv_heads;
      if (!query && (slot < 0 || slot >= to.capacity)) continue;
      const int64_t(&strides)[3] = key ? to.key_strides : to.value_strides;
      const int own = head - to.heads - (key ? 0 : to.kv_heads);  // of the keys' or the values' heads
      const int64_t cached = row * strides[0] + own * strides[1] + slot * strides[2];
      const int64_t first = query ? (token * to.heads + head) * to.dim : cached;
      for (int i = 0; i < to.dim; ++i) {
        const float x = sums[head * to.dim + i], partner = sums[head * to.dim + (i + half) % to.dim];
        const float value = key ? turn(to, x, partner, cos + i, sin + i) : x;
        cpu::put_number(query ? to.q : key ? to.keys : to.values, to.type, first + i, value);
      }
    }
  }
}

}  // namespace vf
