// Sums over the threads of a block before each, in the order of the threads.
#pragma once

#include "portable.cuh"

namespace vf {

// Two counts may travel in one word.
using Wide = unsigned long long;

struct Prefix {
  Wide before, total;
};

// Sum of `mine` over the threads before this one, and over all. Every thread of a block of kThreads.
template <int kThreads>
VF_DEVICE Prefix block_prefix(Wide mine) {
  VF_SHARED Wide totals[kThreads / kWarp];
  const Wide through = through_lane(mine);
  sync_block();  // totals may still be read from before
  if (lane() == kWarp - 1) totals[warp()] = through;
  sync_block();
  Prefix prefix{through - mine, 0};
  VF_UNROLL
  for (int i = 0; i < kThreads / kWarp; ++i) {
    if (i < warp()) prefix.before += totals[i];
    prefix.total += totals[i];
  }
  return prefix;
}

}  // namespace vf
