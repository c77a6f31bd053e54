// A power of two of lanes takes one head of one token; a lane holds 8 numbers of the first half and their 8 partners of
// the second, so that a head is normed, rotated and written without a barrier.

#include "rope_store.h"

#include "../common/portable.cuh"

namespace vf {
namespace {

constexpr int kElements = 8;  // of 16 bytes
constexpr int kThreads = 128;

struct Eight {
  float x[kElements];
};

template <typename T>
VF_DEVICE Eight widen(const Vec16& packed) {
  Eight out;
  VF_UNROLL
  for (int j = 0; j < 4; ++j) {
    const Pair pair = unpack<T>(packed.x[j]);
    out.x[2 * j] = pair.x;
    out.x[2 * j + 1] = pair.y;
  }
  return out;
}

template <typename T>
VF_DEVICE Vec16 narrow(const Eight& wide) {
  Vec16 out;
  VF_UNROLL
  for (int j = 0; j < 4; ++j) out.x[j] = pack<T>(wide.x[2 * j], wide.x[2 * j + 1]);
  return out;
}

template <typename Angle>
VF_DEVICE Eight load_angles(const Angle* at) {
  return widen<Angle>(load16(at));
}
template <>
VF_DEVICE Eight load_angles<float>(const float* at) {
  Eight out;
  VF_UNROLL
  for (int i = 0; i < 2; ++i) {
    const Vec16 four = load16(at + 4 * i);
    VF_UNROLL
    for (int j = 0; j < 4; ++j) out.x[4 * i + j] = bits_float(four.x[j]);
  }
  return out;
}

// x cos + partner sin (RoFormer, Su et al., 2021, equation 34); the first product is rounded, as models/rope.py does.
template <typename Angle>
VF_DEVICE Eight turn(const Eight& x, const Eight& partner, const Angle* cos, const Angle* sin) {
  const Eight c = load_angles(cos), s = load_angles(sin);
  Eight out;
  VF_UNROLL
  for (int j = 0; j < kElements; ++j) {
    out.x[j] = to_float(from_float<Angle>(x.x[j] * c.x[j])) + partner.x[j] * s.x[j];
  }
  return out;
}

// RMS norm with rounding before the weight; `weight` points at this lane's 8 numbers.
template <typename T>
VF_DEVICE Eight normed(const Eight& x, float scale, const T* weight) {
  const Eight w = widen<T>(load16(weight));
  Eight out;
  VF_UNROLL
  for (int j = 0; j < kElements; ++j) {
    const float rounded = to_float(from_float<T>(x.x[j] * scale));
    out.x[j] = to_float(from_float<T>(rounded * w.x[j]));
  }
  return out;
}

VF_DEVICE float squares(const Eight& low, const Eight& high) {
  float sum = 0.0f;
  VF_UNROLL
  for (int j = 0; j < kElements; ++j) sum += low.x[j] * low.x[j] + high.x[j] * high.x[j];
  return sum;
}

// Where the lane's vector of a head goes: null where its slot does not exist.
template <typename T>
VF_DEVICE T* cache_place(void* cache, const int64_t (&strides)[3], int row, int head, int64_t slot, int64_t capacity) {
  if (slot < 0 || slot >= capacity) return nullptr;
  return static_cast<T*>(cache) + row * strides[0] + head * strides[1] + slot * strides[2];
}

template <typename T, typename Angle>
VF_GLOBAL void VF_BOUNDS(kThreads, 4) rope_store_kernel(RopeStoreArguments a, int lanes) {
  wait_for_former();
  const int every = a.heads + 2 * a.kv_heads, half = a.dim / 2;
  const int per_block = kThreads / lanes;
  const int item = static_cast<int>(blockIdx.x) * per_block + static_cast<int>(threadIdx.x) / lanes;
  const int at = static_cast<int>(threadIdx.x) % lanes * kElements;
  const int token = item / every, head = item % every;
  const bool real = token < a.batch * a.length && at < half;
  Eight low = {}, high = {};
  if (real) {
    const T* x = static_cast<const T*>(a.qkv) + static_cast<int64_t>(item) * a.dim + at;
    low = widen<T>(load16(x));
    high = widen<T>(load16(x + half));
  }
  float scale = 1.0f;
  if (a.qk_norm != nullptr) {  // the same for all lanes: the shuffles meet
    float sum = squares(low, high);
    for (int step = lanes / 2; step > 0; step /= 2) sum += shuffle_xor(sum, step);
    scale = rsqrt(sum / static_cast<float>(a.dim) + a.eps);
  }
  if (!real) return;
  const int row = token / a.length, place = token % a.length;
  T* to = nullptr;
  if (head < a.heads + a.kv_heads) {
    if (a.qk_norm != nullptr) {
      const T* weight = static_cast<const T*>(a.qk_norm) + head * a.dim + at;
      low = normed<T>(low, scale, weight);
      high = normed<T>(high, scale, weight + half);
    }
    const Angle* cos =
        static_cast<const Angle*>(a.cos) + row * a.cos_strides[0] + place * a.cos_strides[1] + at;
    const Angle* sin =
        static_cast<const Angle*>(a.sin) + row * a.sin_strides[0] + place * a.sin_strides[1] + at;
    const Eight turned = turn(low, high, cos, sin);
    high = turn(high, low, cos + half, sin + half);
    low = turned;
  }
  if (head < a.heads) {
    to = static_cast<T*>(a.q) + (static_cast<int64_t>(token) * a.heads + head) * a.dim;
  } else {
    const bool key = head < a.heads + a.kv_heads;
    const int64_t slot = a.slots[token];
    to = key ? cache_place<T>(a.keys, a.key_strides, row, head - a.heads, slot, a.capacity)
             : cache_place<T>(a.values, a.value_strides, row, head - a.heads - a.kv_heads, slot, a.capacity);
  }
  if (to == nullptr) return;
  store16(to + at, narrow<T>(low));
  store16(to + at + half, narrow<T>(high));
}

template <typename T, typename Angle>
void start(const RopeStoreArguments& a, Stream stream) {
  int lanes = 1;
  while (lanes * 2 * kElements < a.dim) lanes *= 2;
  const int items = a.batch * a.length * (a.heads + 2 * a.kv_heads);
  const dim3 grid(static_cast<unsigned>(ceil_div(items, kThreads / lanes)));
  launch(rope_store_kernel<T, Angle>, grid, dim3(kThreads), 0, stream, a, lanes);
}

template <typename T>
void start_any(const RopeStoreArguments& a, Stream stream) {
  if (a.angle_type == Type::kFloat32) return start<T, float>(a, stream);
  start<T, T>(a, stream);
}

}  // namespace

void rope_store_cuda(const RopeStoreArguments& a, Stream stream) {
  if (a.batch == 0 || a.length == 0) return;
  if (a.type == Type::kBFloat16) return start_any<bf16>(a, stream);
  start_any<fp16>(a, stream);
}

}  // namespace vf
