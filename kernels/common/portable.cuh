// The device language of all kernels: CUDA, or the emulator's C++ (-DVF_EMULATE) from the same source.
//
// Kernels use these names only: no PTX, no cub, no cooperative groups in an op's own files. So every kernel can be
// run without a GPU, thread by thread, by kernels/emulator.
#pragma once

#include <cstdint>

#include "stream.h"

#ifdef VF_EMULATE
#include "../emulator/device.h"
#else
#include "cuda_device.cuh"
#endif

namespace vf {

constexpr int kWarp = 32;

VF_HOST_DEVICE int ceil_div(int a, int b) { return (a + b - 1) / b; }
VF_HOST_DEVICE int64_t ceil_div64(int64_t a, int64_t b) { return (a + b - 1) / b; }

VF_DEVICE int lane() { return static_cast<int>(threadIdx.x % kWarp); }
VF_DEVICE int warp() { return static_cast<int>(threadIdx.x / kWarp); }

// Two 16-bit numbers in a word, as floats; the lower half first.
struct Pair {
  float x, y;
};

template <typename T>
VF_DEVICE Pair unpack(uint32_t word) {
  T low, high;
  low.bits = static_cast<uint16_t>(word);
  high.bits = static_cast<uint16_t>(word >> 16);
  return {to_float(low), to_float(high)};
}

template <typename T>
VF_DEVICE uint32_t pack(float x, float y) {
  return static_cast<uint32_t>(from_float<T>(x).bits) | static_cast<uint32_t>(from_float<T>(y).bits) << 16;
}

// Reductions over the 32 lanes of a warp, in the same order for every lane: all get the same bits.
template <typename T>
VF_DEVICE T reduce_add(T value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value += shuffle_xor(value, step);
  return value;
}

template <typename T>
VF_DEVICE T reduce_max(T value) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    T other = shuffle_xor(value, step);
    value = other > value ? other : value;
  }
  return value;
}

template <typename T>
VF_DEVICE T reduce_min(T value) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    T other = shuffle_xor(value, step);
    value = other < value ? other : value;
  }
  return value;
}

// The sum of this lane's value and those of the lanes before it.
template <typename T>
VF_DEVICE T through_lane(T value) {
  VF_UNROLL
  for (int step = 1; step < kWarp; step *= 2) {
    const T before = shuffle_up(value, static_cast<unsigned>(step));
    if (lane() >= step) value += before;
  }
  return value;
}

// An unsigned key in the order of the number: larger number, larger key; NaN above +inf, -0 equal to 0.
VF_DEVICE uint32_t order_key(float value) {
  if (value != value) return 0xFFFFFFFFu;
  uint32_t bits = float_bits(value + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

}  // namespace vf
