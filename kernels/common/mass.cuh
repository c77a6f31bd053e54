// Sums of weights that are the same in any order; see vocabforge/ops/masses.py.
#pragma once

#include "shared_math.h"

namespace vf {

constexpr int kMassHalf = 42;  // bits
constexpr int kMostMasses = 1 << 20;

// high * 2^-42 + low * 2^-84; sums of at most 2^20 masses of at most 1 fit.
struct Mass {
  unsigned long long high, low;
};

VF_DEVICE Mass mass_of(float weight) {
  const double scaled = static_cast<double>(weight) * 0x1p42;
  const unsigned long long high = static_cast<unsigned long long>(scaled);
  return {high, static_cast<unsigned long long>((scaled - static_cast<double>(high)) * 0x1p42)};
}

VF_DEVICE Mass operator+(const Mass& a, const Mass& b) { return {a.high + b.high, a.low + b.low}; }
VF_DEVICE Mass operator-(const Mass& a, const Mass& part) { return {a.high - part.high, a.low - part.low}; }

// Never smaller for a larger sum. Both products are exact: a fused multiply-add gives the same.
VF_DEVICE double mass_value(const Mass& mass) {
  const unsigned long long high = mass.high + (mass.low >> kMassHalf), low = mass.low & ((1ull << kMassHalf) - 1);
  return static_cast<double>(high) * 0x1p-42 + static_cast<double>(low) * 0x1p-84;
}

#if defined(__CUDACC__) || defined(VF_EMULATE)

VF_DEVICE Mass reduce_add(Mass mass) { return {reduce_add(mass.high), reduce_add(mass.low)}; }
VF_DEVICE Mass shuffle(const Mass& mass, int from) { return {shuffle(mass.high, from), shuffle(mass.low, from)}; }

VF_DEVICE Mass through_lane(const Mass& mass) { return {through_lane(mass.high), through_lane(mass.low)}; }

// The first i of `count` places with before + at(0) + .. + at(i) above target, by one warp; `before` becomes the sum
// of what lies before it. The last place where there is none.
template <typename MassAt>
VF_DEVICE int pick_place(int count, Mass& before, double target, MassAt at) {
  for (int base = 0; base < count; base += kWarp) {
    const int i = base + lane();
    const Mass mine = i < count ? at(i) : Mass{0, 0};
    const Mass through = through_lane(mine);
    const uint32_t hits = ballot(i < count && mass_value(before + through) > target);
    const int first = hits != 0 ? ffs(hits) - 1 : kWarp - 1;
    if (hits != 0) {
      before = before + shuffle(through - mine, first);
      return base + first;
    }
    before = before + shuffle(through, first);
  }
  return count - 1;
}

constexpr int kChunk = 4096;         // weights that share one sum of masses
constexpr int kPickThreads = 1024;   // 32 warps, a part of a chunk each

// The place in [0, size) of a row of weights at which the heights pass `target`, by a block of kPickThreads, all of
// which get it. chunk_at(c): mass of chunk c; weight_at(i): weight of place i.
template <typename ChunkAt, typename WeightAt>
VF_DEVICE int block_pick(int size, double target, ChunkAt chunk_at, WeightAt weight_at) {
  constexpr int kShare = kChunk / kWarp;
  VF_SHARED Mass parts[kWarp];
  VF_SHARED Mass passed;
  VF_SHARED int found;
  if (warp() == 0) {
    Mass before = {0, 0};
    const int chunk = pick_place(ceil_div(size, kChunk), before, target, chunk_at);
    if (lane() == 0) {
      found = chunk * kChunk;
      passed = before;
    }
  }
  sync_block();
  const int begin = found + warp() * kShare;
  Mass sum = {0, 0};
  for (int i = begin + lane(); i < begin + kShare && i < size; i += kWarp) sum = sum + mass_of(weight_at(i));
  sum = reduce_add(sum);
  if (lane() == 0) parts[warp()] = sum;
  sync_block();
  if (warp() == 0) {
    Mass before = passed;
    const int start = found, part = pick_place(kWarp, before, target, [&](int i) { return parts[i]; });
    const int first = start + part * kShare, left = size - first;
    const int place = pick_place(left < kShare ? left : kShare, before, target,
                                 [&](int i) { return mass_of(weight_at(first + i)); });
    sync_warp();
    if (lane() == 0) found = first + place;
  }
  sync_block();
  return found;
}

#endif

}  // namespace vf
