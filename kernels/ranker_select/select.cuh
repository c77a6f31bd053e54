// After the scores and their first histogram: two kernels, neither of which waits for another block.
//
// ranker_collect: many blocks a row. Each lists the ids of its chunk above the border's bin and those in it.
// ranker_finish: one block a row. It narrows the bin, 11 bits at a time, to the exact border, and writes the ids in the
// order of the chunks; as keys end in the id turned round, no two are equal and ties go to the lower id.
#pragma once

#include "bins.cuh"
#include "ranker_select.h"

namespace vf {
namespace ranker {

constexpr int kCollectThreads = 256, kEach = kRankerChunk / kCollectThreads;
constexpr int kFinishThreads = 1024;
constexpr int kIdBits = 20, kIdTop = (1 << kIdBits) - 1;
constexpr int kMostChunks = (1 << kIdBits) / kRankerChunk;
constexpr int kDigitBits = 11;
constexpr int kKept = 8192;  // keys of the border's bin that fit into shared memory

VF_GLOBAL void VF_BOUNDS(kCollectThreads, 4) ranker_collect(RankerSelectArguments a) {
  wait_for_former();
  const int chunks = ceil_div(a.size, kRankerChunk), row = static_cast<int>(blockIdx.x) / chunks;
  const int chunk = static_cast<int>(blockIdx.x) % chunks;
  const float* scores = a.scores + static_cast<int64_t>(row) * a.size;
  const int first = chunk * kRankerChunk + warp() * kWarp * kEach + lane();
  const Bins bins{a.detail};
  uint32_t keys[kEach];
  VF_UNROLL
  for (int j = 0; j < kEach; ++j) {
    const int id = first + j * kWarp;
    keys[j] = id < a.size ? key_of(ldg(scores + id)) : 0;
  }
  const int* histogram = a.histogram + row * 2 * bins.side();
  const auto count = [=](int bin) { return ldg(histogram + bin); };
  const int border = find_border<kCollectThreads>(2 * bins.side(), a.k, count).bin;

  int above = 0, inside = 0;  // of this warp
  VF_UNROLL
  for (int j = 0; j < kEach; ++j) {
    const bool exists = first + j * kWarp < a.size;
    const int bin = bins.of(keys[j]);
    above += popc(ballot(exists && bin > border));
    inside += popc(ballot(exists && bin == border));
  }
  // One lane speaks for its warp, so that the sums over threads are sums over warps.
  const Wide mine = lane() == 0 ? static_cast<Wide>(above) << 32 | static_cast<uint32_t>(inside) : 0;
  const Prefix prefix = block_prefix<kCollectThreads>(mine);
  const Wide before = shuffle(prefix.before, 0);
  int* front = a.listed + (static_cast<int64_t>(row) * chunks + chunk) * kRankerChunk;
  int* back = front + kRankerChunk - 1 - static_cast<int>(static_cast<uint32_t>(before));
  front += before >> 32;
  const uint32_t lower = (1u << lane()) - 1;
  VF_UNROLL
  for (int j = 0; j < kEach; ++j) {
    const int id = first + j * kWarp, bin = bins.of(keys[j]);
    const bool over = id < a.size && bin > border, in = id < a.size && bin == border;
    const uint32_t over_all = ballot(over), in_all = ballot(in);
    if (over) front[popc(over_all & lower)] = id;
    if (in) back[-popc(in_all & lower)] = id;
    front += popc(over_all);
    back -= popc(in_all);
  }
  if (threadIdx.x == 0) {
    int* counts = a.counts + 2 * (static_cast<int64_t>(row) * chunks + chunk);
    counts[0] = static_cast<int>(prefix.total >> 32);
    counts[1] = static_cast<int>(static_cast<uint32_t>(prefix.total));
  }
}

// The keys of the border's bin, chunk after chunk: kept in shared memory, or, where there are too many, read again from
// all the row's scores each time.
struct Candidates {
  const float* scores;
  const int* back;  // of chunk 0: its last place
  Wide* kept;
  const int *starts, *counts;  // of each chunk's keys
  Bins bins;
  int border, size, total;
  uint32_t lowest;

  VF_DEVICE bool keeps() const { return total <= kKept; }
  VF_DEVICE Wide key(float score, int id) const {
    return static_cast<Wide>(key_of(score) - lowest) << kIdBits | static_cast<uint32_t>(kIdTop - id);
  }
  VF_DEVICE int places(int chunk) const { return keeps() ? counts[chunk] : kRankerChunk; }
  // The key at a place of a chunk; whether there is one.
  VF_DEVICE bool get(int chunk, int place, Wide& found) const {
    if (keeps()) {
      if (place < counts[chunk]) found = kept[starts[chunk] + place];
      return place < counts[chunk];
    }
    const int id = chunk * kRankerChunk + place;
    if (place >= kRankerChunk || id >= size) return false;
    const float score = ldg(scores + id);
    found = key(score, id);
    return bins.of(key_of(score)) == border;
  }
};

// Narrows to the key range whose `wanted` keys are exactly the best: those of at least `prefix` behind `bits` bits. At
// most 5 rounds: keys have at most 32 + 20 bits, and behind no bits there is one key at most, as none are equal.
VF_DEVICE void narrow(const Candidates& c, int chunks, int wanted, int& bits, Wide& prefix) {
  VF_SHARED int digits[1 << kDigitBits];
  int inside = c.total;
  prefix = 0;
  while (inside > wanted && bits > 0) {
    const int width = bits < kDigitBits ? bits : kDigitBits, count = 1 << width;
    bits -= width;
    sync_block();  // the digits may still be read from before
    for (int i = threadIdx.x; i < count; i += kFinishThreads) digits[i] = 0;
    sync_block();
    for (int chunk = warp(); chunk < chunks; chunk += kFinishThreads / kWarp) {
      const int places = c.places(chunk);
      for (int place = lane(); place < places; place += kWarp) {
        Wide key;
        if (!c.get(chunk, place, key) || key >> (bits + width) != prefix) continue;
        atomic_add(digits + ((key >> bits) & (count - 1)), 1);
      }
    }
    sync_block();
    const Border found = find_border<kFinishThreads>(count, wanted, [](int bin) { return digits[bin]; });
    wanted -= found.above;
    inside = found.inside;
    prefix = prefix << width | static_cast<Wide>(found.bin);
  }
}

VF_GLOBAL void VF_BOUNDS(kFinishThreads, 1) ranker_finish(RankerSelectArguments a) {
  VF_SHARED int above_starts[kMostChunks], starts[kMostChunks], counts[kMostChunks], above_counts[kMostChunks];
  wait_for_former();
  constexpr int kWarps = kFinishThreads / kWarp;
  const int chunks = ceil_div(a.size, kRankerChunk);
  const int row = static_cast<int>(blockIdx.x), self = static_cast<int>(threadIdx.x);
  const int* listed = a.listed + static_cast<int64_t>(row) * chunks * kRankerChunk;
  const Bins bins{a.detail};
  const int* histogram = a.histogram + row * 2 * bins.side();
  const int* both = a.counts + static_cast<int64_t>(row) * 2 * chunks;
  if (self < chunks) {
    above_counts[self] = ldg(both + 2 * self);
    counts[self] = ldg(both + 2 * self + 1);
  }
  Wide mine = 0;
  if (self < chunks) mine = static_cast<Wide>(above_counts[self]) << 32 | static_cast<uint32_t>(counts[self]);
  const Prefix prefix = block_prefix<kFinishThreads>(mine);
  if (self < chunks) {
    above_starts[self] = static_cast<int>(prefix.before >> 32);
    starts[self] = static_cast<int>(static_cast<uint32_t>(prefix.before));
  }
  const Border border =
      find_border<kFinishThreads>(2 * bins.side(), a.k, [=](int bin) { return ldg(histogram + bin); });
  const Candidates c{a.scores + static_cast<int64_t>(row) * a.size, listed + kRankerChunk - 1,
                     reinterpret_cast<Wide*>(dynamic_shared()),     starts, counts, bins,
                     border.bin, a.size, border.inside, bins.first_key(border.bin)};
  int32_t* ids = a.ids + static_cast<int64_t>(row) * a.k;
  for (int chunk = warp(); chunk < chunks; chunk += kWarps) {
    for (int place = lane(); place < above_counts[chunk]; place += kWarp) {
      ids[above_starts[chunk] + place] = ldg(listed + chunk * kRankerChunk + place);
    }
    for (int place = lane(); c.keeps() && place < counts[chunk]; place += kWarp) {
      const int id = ldg(c.back + chunk * kRankerChunk - place);
      c.kept[starts[chunk] + place] = c.key(ldg(c.scores + id), id);
    }
  }
  sync_block();

  int bits = bins.key_bits(border.bin) + kIdBits;
  Wide least;
  narrow(c, chunks, a.k - border.above, bits, least);

  // How many of each chunk are chosen, then where they go: behind the ids above the border.
  for (int pass = 0; pass < 2; ++pass) {
    for (int chunk = warp(); chunk < chunks; chunk += kWarps) {
      int chosen = 0;
      const int places = c.places(chunk);
      for (int first = 0; first < places; first += kWarp) {
        Wide key = 0;
        const bool in = c.get(chunk, first + lane(), key) && key >> bits >= least;
        const uint32_t all_in = ballot(in);
        if (pass == 1 && in) {
          const int place = border.above + above_starts[chunk] + chosen + popc(all_in & ((1u << lane()) - 1));
          ids[place] = kIdTop - static_cast<int>(key & kIdTop);
        }
        chosen += popc(all_in);
      }
      if (pass == 0 && lane() == 0) above_counts[chunk] = chosen;
    }
    sync_block();
    if (pass == 1) return;
    const Wide chosen = self < chunks ? static_cast<Wide>(above_counts[self]) : 0;
    const Prefix places = block_prefix<kFinishThreads>(chosen);
    if (self < chunks) above_starts[self] = static_cast<int>(places.before);
    sync_block();
  }
}

}  // namespace ranker
}  // namespace vf
