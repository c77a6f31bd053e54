#include <cmath>
#include <vector>

#include "../common/numbers.h"
#include "rope_store.h"

namespace vf {
namespace {

// RMS norm of one head in place, rounded before the weight and behind it.
void norm_head(const RopeStoreArguments& a, int head, std::vector<float>& x) {
  double squares = 0.0;
  for (float value : x) squares += static_cast<double>(value) * value;
  const float scale = static_cast<float>(1.0 / std::sqrt(squares / a.dim + a.eps));
  for (int i = 0; i < a.dim; ++i) {
    const float weight = cpu::number_at(a.qk_norm, a.type, static_cast<int64_t>(head) * a.dim + i);
    x[i] = cpu::rounded(a.type, cpu::rounded(a.type, x[i] * scale) * weight);
  }
}

void turn_head(const RopeStoreArguments& a, int row, int place, std::vector<float>& x) {
  const std::vector<float> old = x;
  const int64_t cos = row * a.cos_strides[0] + place * a.cos_strides[1];
  const int64_t sin = row * a.sin_strides[0] + place * a.sin_strides[1];
  for (int i = 0; i < a.dim; ++i) {
    const float partner = old[(i + a.dim / 2) % a.dim];
    const float first = cpu::rounded(a.angle_type, old[i] * cpu::number_at(a.cos, a.angle_type, cos + i));
    x[i] = first + partner * cpu::number_at(a.sin, a.angle_type, sin + i);
  }
}

void put_head(void* to, Type type, int64_t first, const std::vector<float>& x) {
  for (size_t i = 0; i < x.size(); ++i) cpu::put_number(to, type, first + static_cast<int64_t>(i), x[i]);
}

}  // namespace

void rope_store_cpu(const RopeStoreArguments& a) {
  const int every = a.heads + 2 * a.kv_heads, turned = a.heads + a.kv_heads;
  std::vector<float> x(a.dim);
  for (int64_t item = 0; item < int64_t{1} * a.batch * a.length * every; ++item) {
    const int64_t token = item / every;
    const int head = static_cast<int>(item % every);
    const int row = static_cast<int>(token / a.length), place = static_cast<int>(token % a.length);
    for (int i = 0; i < a.dim; ++i) x[i] = cpu::number_at(a.qkv, a.type, item * a.dim + i);
    if (head < turned) {
      if (a.qk_norm != nullptr) norm_head(a, head, x);
      turn_head(a, row, place, x);
    }
    const int64_t slot = a.slots[token];
    if (head < a.heads) {
      put_head(a.q, a.type, (token * a.heads + head) * a.dim, x);
    } else if (slot >= 0 && slot < a.capacity) {
      const bool key = head < turned;
      const int64_t(&strides)[3] = key ? a.key_strides : a.value_strides;
      const int cache_head = head - (key ? a.heads : turned);
      put_head(key ? a.keys : a.values, a.type, row * strides[0] + cache_head * strides[1] + slot * strides[2], x);
    }
  }
}

}  // namespace vf
