// The distinct ids of a list, found without a table in device memory: sizes and workspace.
#pragma once

#include <cstdint>

#include "../common/stream.h"

namespace vf {

// Ids are dealt to segments by id % kSegments, which evens out frequent low ids; a block owns a segment, and every
// block reads all ids. So no block waits for another and nothing needs to be cleared: one launch instead of three
// (clear, claim, number), for total * kSegments ids read from the second-level cache.
constexpr int kSegments = 128;
constexpr int kMostVocab = 1 << 20;  // a segment's counters fit in shared memory: 32 KB

struct Segments {
  int* rows;    // (total,) distinct ids: segment s has counts[s] of them from bases[s] on, ascending
  int* starts;  // (total,) beside each, the first of its uses; may be null
  int* uses;    // (total,) places in the list, grouped by id; unused where starts is null
  int* bases;   // (kSegments + 1,) how many valid ids belong to the segments before
  int* counts;  // (kSegments,)
};

}  // namespace vf
