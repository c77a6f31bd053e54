// The kernel that finds distinct ids, and how later kernels read what it found.
//
// Cost: every block reads the list once (twice where one segment gets more than kListed of it): 20,480 int32 ids are
// 80 KB a block, under 1 us at 64 bytes a cycle, where clearing, claiming and numbering a table takes three launches of
// scattered atomics.
#pragma once

#include "../common/prefix.cuh"
#include "../common/skinny.cuh"
#include "segments.h"

namespace vf {
namespace segments {

constexpr int kFew = 256, kMany = 1024;  // threads of a block, by the length of the list
constexpr int kBatch = 8;                // ids that a thread has under way: a long list is read at the cache's rate
constexpr int kListed = 4096;            // places that a block remembers, of ids of its segment

// Calls `take(place, id)` for every place of the list, several loads at once; ids outside 0..vocab-1 come as -1.
template <int kThreads, typename Take>
VF_DEVICE void for_all(const Ids& ids, int total, int vocab, Take take) {
  for (int begin = static_cast<int>(threadIdx.x); begin < total; begin += kThreads * kBatch) {
    int found[kBatch];
    VF_UNROLL
    for (int i = 0; i < kBatch; ++i) {
      const int place = begin + i * kThreads;
      const int64_t id = place < total ? ids[place] : -1;
      found[i] = id < 0 || id >= vocab ? -1 : static_cast<int>(id);
    }
    VF_UNROLL
    for (int i = 0; i < kBatch; ++i) {
      if (begin + i * kThreads < total) take(begin + i * kThreads, found[i]);
    }
  }
}

// `sink.place(place, rank in the segment)` for each id of the own segment where `starts` is null, and
// `sink.missing(place)` for the own share of the ids that are none. Dynamic shared memory: one int an id of a segment,
// and kListed.
template <int kThreads, typename Sink>
VF_GLOBAL void VF_BOUNDS(kThreads, 1) find_segments(Ids ids, int total, int vocab, Segments out, Sink sink) {
  const int own = static_cast<int>(blockIdx.x), span = ceil_div(vocab, kSegments);
  int* counters = reinterpret_cast<int*>(dynamic_shared());
  int* list = counters + span;
  VF_SHARED int listed;
  if (threadIdx.x == 0) listed = 0;
  for (int i = static_cast<int>(threadIdx.x); i < span; i += kThreads) counters[i] = 0;
  wait_for_former();
  sync_block();

  int before = 0;  // ids of earlier segments
  for_all<kThreads>(ids, total, vocab, [&](int place, int id) {
    if (id < 0) {
      if (place % kSegments == own) sink.missing(place);
      return;
    }
    const int segment = id % kSegments;
    before += segment < own;
    if (segment != own) return;
    atomic_add(counters + id / kSegments, 1);
    const int at = atomic_add(&listed, 1);
    if (at < kListed) list[at] = place;
  });
  // Its barriers end the counting, too.
  const int base = static_cast<int>(block_prefix<kThreads>(static_cast<Wide>(before)).total);

  // Each thread numbers the ids of a stretch: distinct ones in the high word, uses in the low one.
  const int stretch = ceil_div(span, kThreads), first = static_cast<int>(threadIdx.x) * stretch;
  const int end = first + stretch < span ? first + stretch : span;
  Wide mine = 0;
  for (int i = first; i < end; ++i) mine += (counters[i] > 0 ? 1ull << 32 : 0ull) + static_cast<unsigned>(counters[i]);
  const Prefix own_part = block_prefix<kThreads>(mine);
  int rank = static_cast<int>(own_part.before >> 32), use = base + static_cast<int>(own_part.before & 0xFFFFFFFFu);
  for (int i = first; i < end; ++i) {
    const int count = counters[i];
    if (count == 0) continue;
    out.rows[base + rank] = i * kSegments + own;
    if (out.starts != nullptr) out.starts[base + rank] = use;
    counters[i] = out.starts != nullptr ? use : rank;
    ++rank;
    use += count;
  }
  if (threadIdx.x == 0) {
    out.bases[own] = base;
    out.counts[own] = static_cast<int>(own_part.total >> 32);
    if (own == kSegments - 1) out.bases[kSegments] = base + static_cast<int>(own_part.total & 0xFFFFFFFFu);
  }
  sync_block();

  // The order of uses of one id is any: each of them gets its own number, whichever comes first.
  const auto place_one = [&](int place, int id) {
    if (id < 0 || id % kSegments != own) return;
    int* counter = counters + id / kSegments;
    if (out.starts == nullptr) {
      sink.place(place, *counter);
    } else {
      out.uses[atomic_add(counter, 1)] = place;
    }
  };
  if (listed > kListed) return for_all<kThreads>(ids, total, vocab, place_one);
  for (int i = static_cast<int>(threadIdx.x); i < listed; i += kThreads) {
    place_one(list[i], static_cast<int>(ids[list[i]]));
  }
}

template <typename Sink>
void find(const Ids& ids, int total, int vocab, const Segments& out, const Sink& sink, Stream stream) {
  const size_t shared = sizeof(int) * static_cast<size_t>(ceil_div(vocab, kSegments) + kListed);
  if (total < kFew * kBatch * 4) {
    launch(find_segments<kFew, Sink>, dim3(kSegments), dim3(kFew), shared, stream, ids, total, vocab, out, sink);
  } else {
    launch(find_segments<kMany, Sink>, dim3(kSegments), dim3(kMany), shared, stream, ids, total, vocab, out, sink);
  }
}

// Where each segment's rows stand when all are put behind one another; in shared memory.
struct Places {
  int before[kSegments + 1];  // rows of earlier segments; the last: of all
  int bases[kSegments + 1];

  // All of kCount >= kSegments threads; a barrier must follow.
  template <int kCount>
  VF_DEVICE void fill(const Segments& found) {
    const int own = static_cast<int>(threadIdx.x);
    const int count = own < kSegments ? ldg(found.counts + own) : 0;
    const Prefix rows = block_prefix<kCount>(static_cast<Wide>(count));
    if (own < kSegments) before[own] = static_cast<int>(rows.before);
    if (own < kSegments) bases[own] = ldg(found.bases + own);
    if (own == 0) before[kSegments] = static_cast<int>(rows.total);
    if (own == 0) bases[kSegments] = ldg(found.bases + kSegments);
  }

  // The segment that holds row number `position`.
  VF_DEVICE int segment_of(int position) const {
    int low = 0;
    VF_UNROLL
    for (int step = kSegments / 2; step > 0; step /= 2) {
      if (before[low + step] <= position) low += step;
    }
    return low;
  }
};

}  // namespace segments
}  // namespace vf
