// The wrappers of portable.cuh on the CPU, over the fibers of emulator.h.
//
// Copies and matrix products do what the instructions of the PTX ISA do, lane by lane. Sums inside one matrix
// product run in another order than on a GPU, as they do between two GPUs.
#pragma once

#include <cmath>
#include <cstring>

#include "../common/types.h"
#include "emulator.h"

#define VF_GLOBAL
#define VF_DEVICE inline
#define VF_HOST_DEVICE inline
#define VF_SHARED static
#define VF_ALIGN(n) alignas(n)
#define VF_UNROLL
#define VF_BOUNDS(threads, blocks)

#define threadIdx (::vf::emulator::thread_index())
#define blockIdx (::vf::emulator::block_index())
#define blockDim (::vf::emulator::block_size())
#define gridDim (::vf::emulator::grid_size())

using dim3 = vf::emulator::Dim3;

namespace vf {

template <typename To, typename From>
inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

inline uint32_t float_bits(float value) { return bit_cast<uint32_t>(value); }
inline float bits_float(uint32_t bits) { return bit_cast<float>(bits); }
inline float to_float(float value) { return value; }
inline float to_float(bf16 value) { return bits_float(static_cast<uint32_t>(value.bits) << 16); }
inline float to_float(fp16 value) { return static_cast<float>(bit_cast<_Float16>(value.bits)); }

template <typename T>
inline T from_float(float value);
template <>
inline float from_float<float>(float value) {
  return value;
}
template <>
inline bf16 from_float<bf16>(float value) {
  uint32_t bits = float_bits(value);
  if (value != value) return {0x7FFF};
  return {static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)};
}
template <>
inline fp16 from_float<fp16>(float value) {
  return {bit_cast<uint16_t>(static_cast<_Float16>(value))};
}

inline float exp(float x) { return std::exp(x); }
inline float exp2(float x) { return std::exp2(x); }
inline float log(float x) { return std::log(x); }
inline float rsqrt(float x) { return 1.0f / std::sqrt(x); }
inline float max(float a, float b) { return std::fmax(a, b); }
inline float min(float a, float b) { return std::fmin(a, b); }
inline int popc(uint32_t x) { return __builtin_popcount(x); }
inline int popc(unsigned long long x) { return __builtin_popcountll(x); }
inline int ffs(uint32_t x) { return __builtin_ffs(static_cast<int>(x)); }
inline int ffs(unsigned long long x) { return __builtin_ffsll(static_cast<long long>(x)); }
inline int clz(uint32_t x) { return x == 0 ? 32 : __builtin_clz(x); }
inline uint64_t mul_high(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
}

inline void wait_for_former() { emulator::wait_for_former(); }
inline void sync_block() { emulator::block_barrier(); }
inline void sync_warp() { emulator::warp_barrier(); }
inline void fence() {}

template <typename T>
inline T shuffle(T value, int from) {
  return emulator::exchange(value, [&](const T* all) { return all[from & 31]; });
}
template <typename T>
inline T shuffle_xor(T value, int mask) {
  int own = emulator::lane();
  return emulator::exchange(value, [&](const T* all) { return all[own ^ mask]; });
}
template <typename T>
inline T shuffle_up(T value, unsigned by) {
  int own = emulator::lane(), from = own - static_cast<int>(by);
  return emulator::exchange(value, [&](const T* all) { return all[from < 0 ? own : from]; });
}
inline uint32_t ballot(bool predicate) {
  return emulator::exchange(static_cast<uint32_t>(predicate), [](const uint32_t* all) {
    uint32_t found = 0;
    for (int i = 0; i < 32; ++i) found |= all[i] << i;
    return found;
  });
}
inline bool any(bool predicate) { return ballot(predicate) != 0; }
inline bool all(bool predicate) { return ballot(predicate) == 0xFFFFFFFFu; }

template <typename T>
inline T atomic_add(T* at, T value) {
  T old = *at;
  *at = old + value;
  return old;
}
template <typename T>
inline T atomic_max(T* at, T value) {
  T old = *at;
  if (value > old) *at = value;
  return old;
}
template <typename T>
inline T atomic_min(T* at, T value) {
  T old = *at;
  if (value < old) *at = value;
  return old;
}

template <typename T>
inline T ldg(const T* at) {
  return *at;
}
template <typename T>
inline T load_fresh(const T* at) {
  return *at;
}
inline Vec16 load16(const void* at) {
  emulator::check_aligned(at, 16);
  emulator::check_access(at, 16, false);
  Vec16 v;
  std::memcpy(&v, at, 16);
  return v;
}
inline Vec16 load16_once(const void* at) { return load16(at); }
inline void store16(void* at, const Vec16& v) {
  emulator::check_aligned(at, 16);
  emulator::check_access(at, 16, true);
  std::memcpy(at, &v, 16);
}

inline void cp_async16(void* shared, const void* global, bool valid) {
  emulator::check_aligned(shared, 16);
  if (valid) emulator::check_aligned(global, 16);
  if (valid) emulator::check_access(global, 16, false);
  emulator::copy_later(shared, valid ? global : nullptr);
}
inline void cp_async_commit() { emulator::commit_copies(); }
template <int pending>
inline void cp_async_wait() {
  emulator::wait_copies(pending);
}

inline unsigned char* dynamic_shared() { return emulator::dynamic_shared(); }

namespace emulated {

// Row i of matrix m is what lane 8 * m + i points at.
template <bool transposed>
inline void load_matrices(uint32_t (&r)[4], const void* shared) {
  int own = emulator::lane();
  emulator::exchange(shared, [&](const void* const* rows) {
    for (int m = 0; m < 4; ++m) {
      for (int half = 0; half < 2; ++half) {
        int row = own / 4, column = own % 4 * 2 + half;
        if (transposed) std::swap(row, column);
        emulator::check_aligned(rows[m * 8 + row], 16);
        uint16_t bits;
        std::memcpy(&bits, static_cast<const unsigned char*>(rows[m * 8 + row]) + 2 * column, 2);
        r[m] = half ? r[m] | static_cast<uint32_t>(bits) << 16 : bits;
      }
    }
    return 0;
  });
}

struct Operands {
  uint32_t a[4], b[2];
};

template <typename T>
inline float element(uint32_t word, int half) {
  T value;
  value.bits = static_cast<uint16_t>(half ? word >> 16 : word);
  return to_float(value);
}

}  // namespace emulated

inline void ldmatrix_x4(uint32_t (&r)[4], const void* shared) { emulated::load_matrices<false>(r, shared); }
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* shared) { emulated::load_matrices<true>(r, shared); }

// a[0], a[1]: rows g and g + 8 of columns 2t, 2t + 1 (g = lane / 4, t = lane % 4), a[2], a[3] eight columns on; b[0]: rows
// 2t, 2t + 1 of column g, b[1] eight rows on; c: rows g and g + 8 of columns 2t, 2t + 1.
template <typename T>
inline void mma_16816(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emulated::Operands mine;
  std::memcpy(mine.a, a, sizeof(a));
  std::memcpy(mine.b, b, sizeof(b));
  int own = emulator::lane(), group = own / 4, place = own % 4;
  emulator::exchange(mine, [&](const emulated::Operands* all) {
    for (int i = 0; i < 4; ++i) {
      int row_half = i / 2, column = place * 2 + i % 2;
      for (int k = 0; k < 16; ++k) {
        const uint32_t left = all[group * 4 + k % 8 / 2].a[row_half + k / 8 * 2];
        const uint32_t right = all[column * 4 + k % 8 / 2].b[k / 8];
        c[i] += emulated::element<T>(left, k % 2) * emulated::element<T>(right, k % 2);
      }
    }
    return 0;
  });
}

template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, Stream, Arguments... arguments) {
  const auto body = [=] { kernel(static_cast<Parameters>(arguments)...); };
  using Body = decltype(body);
  emulator::run(grid, block, shared, {&body, sizeof(body), [](const void* one) { (*static_cast<Body*>(one))(); }});
}

inline bool dependent_launches() { return emulator::dependent_launches(); }

inline void fill_bytes(void* at, int value, size_t bytes, Stream) { std::memset(at, value, bytes); }

inline int multiprocessors() { return emulator::multiprocessors(); }
inline int shared_limit() { return static_cast<int>(emulator::kMostShared); }

}  // namespace vf
