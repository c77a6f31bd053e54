// 16-bit numbers for the CPU implementations.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "stream.h"

namespace vf::cpu {

inline float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline float bf16_at(const void* data, int64_t index) {
  return from_bits(static_cast<uint32_t>(static_cast<const uint16_t*>(data)[index]) << 16);
}

inline float fp16_at(const void* data, int64_t index) {
  const uint32_t bits = static_cast<const uint16_t*>(data)[index];
  const uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, mantissa = bits & 0x3FF;
  if (exponent == 31) return from_bits(sign | 0x7F800000u | mantissa << 13);
  if (exponent != 0) return from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
  const float value = static_cast<float>(mantissa) * 5.9604644775390625e-8f;  // 2^-24
  return sign ? -value : value;
}

// Element `index` of an array of the given type.
inline float number_at(const void* data, Type type, int64_t index) {
  switch (type) {
    case Type::kFloat32: return static_cast<const float*>(data)[index];
    case Type::kBFloat16: return bf16_at(data, index);
    case Type::kFloat16: return fp16_at(data, index);
  }
  return 0.0f;
}

inline uint32_t to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

// Rounded to nearest, ties to even, as the next.
inline uint16_t bf16_of(float value) {
  const uint32_t bits = to_bits(value);
  if (value != value) return 0x7FFF;
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

inline uint16_t fp16_of(float value) {
  const uint32_t sign = to_bits(value) >> 16 & 0x8000u;
  uint32_t bits = to_bits(value) & 0x7FFFFFFFu;
  if (bits > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7FFFu);
  if (bits >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7C00u);  // 65,536 and above
  if (bits < 0x38800000u) {  // below 2^-14: a multiple of 2^-24, which the bits count
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::lrint(from_bits(bits) * 16777216.0f)));
  }
  bits += 0xFFFu + (bits >> 13 & 1);
  return static_cast<uint16_t>(sign | (bits - 0x38000000u) >> 13);
}

// Writes element `index` of an array of float32, bfloat16 or float16.
inline void put_number(void* data, Type type, int64_t index, float value) {
  if (type == Type::kFloat32) static_cast<float*>(data)[index] = value;
  if (type == Type::kBFloat16) static_cast<uint16_t*>(data)[index] = bf16_of(value);
  if (type == Type::kFloat16) static_cast<uint16_t*>(data)[index] = fp16_of(value);
}

// What is left of a number that was stored in this type.
inline float rounded(Type type, float value) {
  float stored = 0.0f;
  put_number(&stored, type, 0, value);
  return number_at(&stored, type, 0);
}

}  // namespace vf::cpu
