// Eight floats at a time: AVX2 or NEON, as the file is compiled. Only for files that `isa.h` lists.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace vf::VF_ISA {

using Vec = float __attribute__((vector_size(32)));
using Half = float __attribute__((vector_size(16)));
using Bits = int32_t __attribute__((vector_size(32)));
constexpr int kLanes = 8;

inline Vec load(const float* from) {
  Vec v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
inline void store(float* to, Vec v) { std::memcpy(to, &v, sizeof v); }

// bfloat16 is the upper half of a float.
inline Vec load(const uint16_t* from) {
#if defined(__AVX2__)
  const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return (Vec)_mm256_slli_epi32(words, 16);
#else
  using Short = uint16_t __attribute__((vector_size(16)));
  using Word = uint32_t __attribute__((vector_size(32)));
  Short halves;
  std::memcpy(&halves, from, sizeof halves);
  const Word words = __builtin_convertvector(halves, Word) << 16;
  return reinterpret_cast<Vec>(words);
#endif
}
inline float number(const float* from) { return *from; }
inline float number(const uint16_t* from) {
  const uint32_t bits = static_cast<uint32_t>(*from) << 16;
  float v;
  std::memcpy(&v, &bits, sizeof v);
  return v;
}

inline Vec all(float value) { return Vec{} + value; }

inline float sum(Vec v) { return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7])); }

// Four sums at once, each in the order of sum().
inline Half sums(Vec a, Vec b, Vec c, Vec d) {
#if defined(__AVX2__)
  const __m256 both = _mm256_hadd_ps(_mm256_hadd_ps((__m256)a, (__m256)b), _mm256_hadd_ps((__m256)c, (__m256)d));
  return (Half)_mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
#else
  return Half{sum(a), sum(b), sum(c), sum(d)};
#endif
}

inline Vec max(Vec a, Vec b) { return a > b ? a : b; }

inline float most(Vec v) {
  float found = v[0];
  for (int i = 1; i < kLanes; ++i) found = v[i] > found ? v[i] : found;
  return found;
}

// e^x to two units in the last place: 2^n * e^r, |r| <= ln(2) / 2. Below -87 it is 0, above 88 the largest such power.
inline Vec exp(Vec x) {
  const Bits small = x < -87.0f;
  x = small ? all(-87.0f) : x;
  x = x > 88.0f ? all(88.0f) : x;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Vec n = (x * 1.44269504f + kRound) - kRound;
  const Vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Vec p = all(1.9875691500e-4f);
  for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) p = p * r + c;
  p = p * r * r + r + 1.0f;
  const Bits power = (__builtin_convertvector(n, Bits) + 127) << 23;
  p = p * reinterpret_cast<Vec>(power);
  return small ? Vec{} : p;
}

}  // namespace vf::VF_ISA
