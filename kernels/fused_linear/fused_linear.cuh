// Epilogues of the product of common/skinny.cuh, which norms its hidden rows on the way: one launch in place of two to
// four. What an epilogue reads (residual, angles, slots) is asked for in batches before anything of the batch is
// written: a tile's end would else wait for the memory as often as a thread has numbers.
#pragma once

#include "../common/skinny.cuh"
#include "fused_linear.h"

namespace vf {
namespace fused {

template <typename T>
VF_DEVICE float rounded(float value) {
  return to_float(from_float<T>(value));
}

// put(i, load(i)) for this thread's part of 0..count-1.
template <int kBatch, typename Load, typename Put>
VF_DEVICE void in_batches(int count, const Load& load, const Put& put) {
  for (int begin = static_cast<int>(threadIdx.x); begin < count; begin += kBatch * kSkinnyThreads) {
    decltype(load(0)) held[kBatch];
    VF_UNROLL
    for (int j = 0; j < kBatch; ++j) {
      if (begin + j * kSkinnyThreads < count) held[j] = load(begin + j * kSkinnyThreads);
    }
    VF_UNROLL
    for (int j = 0; j < kBatch; ++j) {
      if (begin + j * kSkinnyThreads < count) put(begin + j * kSkinnyThreads, held[j]);
    }
  }
}

template <typename T>
VF_DEVICE float biased(const T* bias, int row, float value) {
  return rounded<T>(bias == nullptr ? value : value + to_float(ldg(bias + row)));
}

// The products, with a residual or without.
template <typename T, bool kNorm>
struct Sums {
  using Note = NoNote;
  using WholeTile = void;
  static constexpr bool kNormsHidden = kNorm;
  const T *bias, *residual;
  T* out;
  int n, rows;

  VF_DEVICE void begin(unsigned char*) {}
  template <int kHeight>
  VF_DEVICE void tile(int first, int, const float* values) const {
    const int held = rows - first < kHeight ? rows - first : kHeight;
    const auto place = [&](int i) { return static_cast<int64_t>(i / kHeight) * rows + first + i % kHeight; };
    const auto load = [&](int i) {
      return residual != nullptr && i % kHeight < held ? to_float(ldg(residual + place(i))) : 0.0f;
    };
    const auto put = [&](int i, float before) {
      if (i % kHeight >= held) return;
      const float value = biased(bias, first + i % kHeight, values[i]);
      out[place(i)] = from_float<T>(residual == nullptr ? value : value + before);
    };
    in_batches<8>(n * kHeight, load, put);
  }
  VF_DEVICE void end() {}
};

// Rows in pairs that an epilogue needs together, `half` apart in groups of 2 * half: positions 2q and 2q + 1.
struct PairedRows {
  int count, half;
  VF_DEVICE void begin(unsigned char*) {}
  VF_DEVICE int positions() const { return count; }
  VF_DEVICE int row(int position) const {
    const int pair = position / 2;
    return pair / half * 2 * half + pair % half + position % 2 * half;
  }
};

// A gate and its up: silu(gate) * up, with silu_mul's roundings.
template <typename T, bool kNorm>
struct Gated {
  using Note = NoNote;
  using WholeTile = void;
  static constexpr bool kNormsHidden = kNorm;
  const T* bias;
  T* out;
  int n, inner;

  VF_DEVICE void begin(unsigned char*) {}
  template <int kHeight>
  VF_DEVICE void tile(int first, int, const float* values) const {
    for (int i = static_cast<int>(threadIdx.x); i < n * kHeight / 2; i += kSkinnyThreads) {
      const int column = first / 2 + i % (kHeight / 2);
      if (column >= inner) continue;
      const float gate = biased(bias, column, values[2 * i]), up = biased(bias, inner + column, values[2 * i + 1]);
      const float active = rounded<T>(gate / (1.0f + exp(-gate)));
      out[static_cast<int64_t>(i / (kHeight / 2)) * inner + column] = from_float<T>(active * up);
    }
  }
  VF_DEVICE void end() {}
};

// The two halves' numbers of a head: rotated with rope_store's roundings, stored as queries, keys or values.
template <typename T, bool kNorm>
struct Rotated {
  using Note = NoNote;
  using WholeTile = void;
  static constexpr bool kNormsHidden = kNorm;
  const T* bias;
  int n;
  RopeStoreArguments to;

  struct Pair {  // a place, and what is needed there
    int head, low;
    int64_t slot;
    float cos[2], sin[2];
  };

  VF_DEVICE float angle(const void* angles, int64_t at) const {
    return to.angle_type == Type::kFloat32 ? ldg(static_cast<const float*>(angles) + at)
                                           : to_float(ldg(static_cast<const T*>(angles) + at));
  }
  VF_DEVICE float turn(float x, float partner, float cos, float sin) const {
    const float product = x * cos;
    return (to.angle_type == Type::kFloat32 ? product : rounded<T>(product)) + partner * sin;
  }
  VF_DEVICE Pair load(int token, int pair) const {
    const int half = to.dim / 2, row = token / to.length, place = token % to.length;
    Pair here{pair / half, pair % half, 0, {}, {}};
    if (here.head >= to.heads) here.slot = ldg(to.slots + token);
    if (here.head >= to.heads + to.kv_heads) return here;
    VF_UNROLL
    for (int i = 0; i < 2; ++i) {
      here.cos[i] = angle(to.cos, row * to.cos_strides[0] + place * to.cos_strides[1] + here.low + i * half);
      here.sin[i] = angle(to.sin, row * to.sin_strides[0] + place * to.sin_strides[1] + here.low + i * half);
    }
    return here;
  }
  VF_DEVICE void put(int token, const Pair& here, float low, float high) const {
    const int half = to.dim / 2, row = token / to.length, first = here.head * to.dim + here.low;
    low = biased(bias, first, low);
    high = biased(bias, first + half, high);
    const bool query = here.head < to.heads, key = here.head < to.heads + to.kv_heads;
    if (key) {
      const float turned = turn(low, high, here.cos[0], here.sin[0]);
      high = turn(high, low, here.cos[1], here.sin[1]);
      low = turned;
    }
    T* at = static_cast<T*>(to.q) + (static_cast<int64_t>(token) * to.heads + here.head) * to.dim;
    if (!query) {
      if (here.slot < 0 || here.slot >= to.capacity) return;
      const int64_t(&strides)[3] = key ? to.key_strides : to.value_strides;
      const int head = here.head - to.heads - (key ? 0 : to.kv_heads);
      at = static_cast<T*>(key ? to.keys : to.values) + row * strides[0] + head * strides[1] + here.slot * strides[2];
    }
    at[here.low] = from_float<T>(low);
    at[here.low + half] = from_float<T>(high);
  }

  VF_DEVICE void begin(unsigned char*) {}
  template <int kHeight>
  VF_DEVICE void tile(int first, int positions, const float* values) const {
    constexpr int kPairs = kHeight / 2;
    const auto exists = [&](int i) { return first + i % kPairs * 2 < positions; };
    in_batches<4>(
        n * kPairs,
        [&](int i) { return exists(i) ? load(i / kPairs, first / 2 + i % kPairs) : Pair{}; },
        [&](int i, const Pair& here) {
          if (exists(i)) put(i / kPairs, here, values[2 * i], values[2 * i + 1]);
        });
  }
  VF_DEVICE void end() {}
};

template <typename T>
SkinnyProduct product_of(const FusedLinearArguments& a) {
  SkinnyProduct product{a.x, a.weight, a.n, a.d, a.rows};
  product.norm = a.norm;
  product.eps = a.eps;
  return product;
}

template <typename T, bool kNorm>
void start_linear(const FusedLinearArguments& a, Stream stream) {
  const T *bias = static_cast<const T*>(a.bias), *residual = static_cast<const T*>(a.residual);
  T* out = static_cast<T*>(a.out);
  if (a.gated) {
    const Gated<T, kNorm> gated{bias, out, a.n, a.rows / 2};
    skinny_product<T, T>(product_of<T>(a), PairedRows{a.rows, a.rows / 2}, gated, SkinnyShared{}, stream);
    return;
  }
  const Sums<T, kNorm> sums{bias, residual, out, a.n, a.rows};
  skinny_product<T, T>(product_of<T>(a), ContiguousRows{a.rows}, sums, SkinnyShared{}, stream);
}

template <typename T, bool kNorm>
void start_qkv(const FusedQkvArguments& a, Stream stream) {
  const Rotated<T, kNorm> rotated{static_cast<const T*>(a.product.bias), a.product.n, a.rotation};
  const PairedRows rows{a.product.rows, a.rotation.dim / 2};
  skinny_product<T, T>(product_of<T>(a.product), rows, rotated, SkinnyShared{}, stream);
}

}  // namespace fused
}  // namespace vf
