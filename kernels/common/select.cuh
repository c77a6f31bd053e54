// The largest of a row's numbers, by one block: a radix select on keys that are all different.
#pragma once

#include "portable.cuh"

namespace vf {

// Ordered by (value, lower index first): the high word is the value's order key, the low one the index turned round.
VF_DEVICE unsigned long long ranked_key(float value, int index) {
  return static_cast<unsigned long long>(order_key(value)) << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(index));
}

VF_DEVICE int ranked_index(unsigned long long key) {
  return static_cast<int>(0xFFFFFFFFu - static_cast<uint32_t>(key));
}

struct SelectShared {
  uint32_t bins[256];
  uint32_t digit, wanted, inside;
};

// The bin, counted from the highest one, in which the `wanted`-th largest key lies; by warp 0.
VF_DEVICE void select_bin(SelectShared& shared, uint32_t wanted) {
  const int highest = 255 - 8 * lane();
  uint32_t mine = 0;
  for (int i = 0; i < 8; ++i) mine += shared.bins[highest - i];
  const uint32_t through = through_lane(mine);
  uint32_t above = through - mine;
  if (above >= wanted || through < wanted) return;
  for (int i = 0; i < 8; ++i) {
    const uint32_t count = shared.bins[highest - i];
    if (above + count >= wanted) {
      shared.digit = static_cast<uint32_t>(highest - i);
      shared.wanted = wanted - above;
      shared.inside = count;
      return;
    }
    above += count;
  }
}

// A bound that exactly `keep` of n different keys reach, 1 <= keep; 0 where all do. Every thread of a block of at
// least 256 calls it and gets the bound; key_at(i) is called again and again.
template <typename KeyAt>
VF_DEVICE unsigned long long block_least(int n, int keep, SelectShared& shared, KeyAt key_at) {
  if (keep >= n) return 0;
  unsigned long long prefix = 0;
  uint32_t wanted = static_cast<uint32_t>(keep);
  for (int shift = 56; shift >= 0; shift -= 8) {
    if (threadIdx.x < 256) shared.bins[threadIdx.x] = 0;
    sync_block();
    for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
      const unsigned long long key = key_at(i);
      if (shift == 56 || key >> (shift + 8) == prefix) atomic_add(&shared.bins[(key >> shift) & 255], 1u);
    }
    sync_block();
    if (warp() == 0) select_bin(shared, wanted);
    sync_block();
    prefix = prefix << 8 | shared.digit;
    wanted = shared.wanted;
    if (shared.inside == wanted) return prefix << shift;
  }
  return prefix;
}

}  // namespace vf
