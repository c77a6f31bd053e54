// Weights as words of the mma's fragments, for skinny_kernel.cuh: 16-bit ones as they are, 8-bit ones widened.
#pragma once

#include "portable.cuh"

namespace vf {
namespace skinny {

// Two fp8_e4m3 numbers as a fragment's word. fp16: the bits moved, which is the value / 256 (exact, small numbers too;
// `kScale` undoes it after the sum). bf16: through fp32, 2^120 times the moved bits, exact. NaN reads as 480.
template <typename T>
VF_DEVICE uint32_t widen(uint32_t low, uint32_t high);
template <>
VF_DEVICE uint32_t widen<fp16>(uint32_t low, uint32_t high) {
  const uint32_t both = low | high << 16;
  return (both & 0x00800080u) << 8 | (both & 0x007F007Fu) << 7;
}
template <>
VF_DEVICE uint32_t widen<bf16>(uint32_t low, uint32_t high) {
  const float two_120 = bits_float(0x7B800000u);
  const float x = bits_float((low & 0x80u) << 24 | (low & 0x7Fu) << 20) * two_120;
  const float y = bits_float((high & 0x80u) << 24 | (high & 0x7Fu) << 20) * two_120;
  return float_bits(x) >> 16 | (float_bits(y) & 0xFFFF0000u);
}

template <typename T, typename W>
struct Words {  // of 16-bit weights: the piece's words are fragments already
  static constexpr float kScale = 1.0f;
  static VF_DEVICE uint32_t get(const Vec16& piece, int, int step, int half) { return piece.x[2 * step + half]; }
};
template <>
struct Words<bf16, fp8_e4m3> {
  static constexpr float kScale = 1.0f;
  static VF_DEVICE uint32_t get(const Vec16& piece, int group, int step, int half) {
    const uint32_t two = piece.x[2 * group + step] >> 16 * half;
    return widen<bf16>(two & 0xFFu, two >> 8 & 0xFFu);
  }
};
template <>
struct Words<fp16, fp8_e4m3> {
  static constexpr float kScale = 256.0f;
  static VF_DEVICE uint32_t get(const Vec16& piece, int group, int step, int half) {
    const uint32_t two = piece.x[2 * group + step] >> 16 * half;
    return widen<fp16>(two & 0xFFu, two >> 8 & 0xFFu);
  }
};

}  // namespace skinny
}  // namespace vf
