// Where top-k and top-p cut a row: a radix select by count or by mass over the order of the tokens.
#pragma once

#include "../common/mass.cuh"
#include "target_sample.h"

namespace vf {

constexpr int kBorderThreads = 1024;
constexpr int kBins = kBorderBins, kListed = kBorderListed;
constexpr int kBatch = 8;

// Larger for the more probable token, ties to the lower id: 10 bits of the weight, the score, 20 bits of the id. The
// weight never falls where the score rises; its first bits spread the tokens over the bins of the first round.
VF_DEVICE unsigned long long token_key(float weight, float score, int id) {
  return static_cast<unsigned long long>(float_bits(weight) >> 20) << 52 |
         static_cast<unsigned long long>(order_key(score)) << 20 | (0xFFFFFu - static_cast<uint32_t>(id));
}

struct Tally {
  unsigned count;
  Mass mass;
};

VF_DEVICE Tally operator+(const Tally& a, const Tally& b) { return {a.count + b.count, a.mass + b.mass}; }
VF_DEVICE Tally operator-(const Tally& a, const Tally& part) { return {a.count - part.count, a.mass - part.mass}; }

VF_DEVICE Tally shuffle(const Tally& tally, int from) {
  return {shuffle(tally.count, from), shuffle(tally.mass, from)};
}

VF_DEVICE Tally through_lane(const Tally& tally) { return {through_lane(tally.count), through_lane(tally.mass)}; }

// Weights of one first bin (bits >> 20) share their exponent, so that their mass is a sum of 24-bit integers times a
// power of two. The halves of the integers are added up apart: shared memory adds 32 bits at once, 64 in a loop, and
// 2^20 halves of 12 bits fit.
struct Bins {
  unsigned counts[kBins], high[kBins], low[kBins];

  VF_DEVICE void clear() {
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += static_cast<int>(blockDim.x)) {
      counts[i] = high[i] = low[i] = 0;
    }
  }

  VF_DEVICE void add(int bin, float weight) {
    const uint32_t bits = float_bits(weight), exponent = bits >> 23;
    // In units of 2^-84, the last bit of a mass, or larger ones of 2^(exponent - 150).
    const uint32_t whole = exponent == 0 ? bits : (bits & 0x7FFFFFu) | 0x800000u;
    const uint32_t below = exponent >= 66 ? 0 : 66 - (exponent == 0 ? 1 : exponent);
    const uint32_t units = below < 32 ? whole >> below : 0;
    atomic_add(counts + bin, 1u);
    atomic_add(high + bin, units >> 12);
    atomic_add(low + bin, units & 0xFFFu);
  }
};

// What lies in a bin of weights that begin with `top`.
VF_DEVICE Tally tally_of(unsigned count, unsigned high, unsigned low, int top) {
  const unsigned long long units = (static_cast<unsigned long long>(high) << 12) + low;
  const int up = top >> 3 < 66 ? 0 : (top >> 3) - 66;
  if (up >= kMassHalf) return {count, {units << (up - kMassHalf), 0}};
  return {count, {units >> (kMassHalf - up), units << up & ((1ull << kMassHalf) - 1)}};
}

// Cut at the first token, from the most probable one on, with which the count, or else the mass, reaches its goal.
struct Goal {
  bool by_count;
  unsigned count;
  double share;  // of the whole mass
};

struct BorderShared {
  Bins bins;
  int list[kListed], listed;
  Tally groups[kWarp];
  Tally above, inside;
  int bin;
};

// The bin in which the goal lies, into shared.bin; -1 where it is not reached. tally_at(bin): what lies in a bin; the
// first round fixes how much mass is the goal. All threads, with a barrier at the end.
template <typename TallyAt>
VF_DEVICE void find_bin(BorderShared& shared, const Goal& goal, double& mass, bool first_round, TallyAt tally_at) {
  const auto at = [&](int position) { return tally_at(kBins - 1 - position); };  // from the highest bin on
  const Tally both = through_lane(at(64 * warp() + lane()) + at(64 * warp() + kWarp + lane()));
  if (lane() == kWarp - 1) shared.groups[warp()] = both;
  sync_block();
  if (warp() == 0) {
    auto reached = [&](const Tally& tally) {
      return goal.by_count ? tally.count >= goal.count : mass_value(tally.mass) >= mass;
    };
    Tally base = first_round ? Tally{0, {0, 0}} : shared.above;
    const Tally group = shared.groups[lane()], through = through_lane(group);
    if (first_round) mass = goal.share * mass_value(shuffle(through, kWarp - 1).mass);
    const uint32_t hits = ballot(reached(base + through));
    const int chosen = hits != 0 ? ffs(hits) - 1 : 0;
    base = base + shuffle(through - group, chosen);
    int bin = -1;
    for (int half = 0; half < 2 && hits != 0 && bin < 0; ++half) {
      const int first = 64 * chosen + kWarp * half;
      const Tally mine = at(first + lane()), sum = through_lane(mine);
      const uint32_t found = ballot(reached(base + sum));
      const int last = found != 0 ? ffs(found) - 1 : kWarp - 1;
      const Tally inside = shuffle(mine, last), all = shuffle(sum, last);
      if (found != 0) {
        bin = kBins - 1 - (first + last);
        base = base + (all - inside);
        if (lane() == 0) shared.inside = inside;
      } else {
        base = base + all;
      }
    }
    sync_warp();
    if (lane() == 0) {
      shared.bin = bin;
      shared.above = base;
    }
  }
  sync_block();
}

// Calls visit(token, weight) for tokens begin .. end - 1 whose weights begin with `top`. All threads.
template <typename Visit>
VF_DEVICE void for_bin(const float* weights, int begin, int end, uint32_t top, Visit visit) {
  for (int base = begin + static_cast<int>(threadIdx.x); base < end; base += kBatch * kBorderThreads) {
    float batch[kBatch];  // several loads under way at once
    VF_UNROLL
    for (int j = 0; j < kBatch; ++j) {
      const int i = base + j * kBorderThreads;
      batch[j] = i < end ? ldg(weights + i) : 0.0f;
    }
    VF_UNROLL
    for (int j = 0; j < kBatch; ++j) {
      if (batch[j] > 0.0f && float_bits(batch[j]) >> 20 == top) visit(base + j * kBorderThreads, batch[j]);
    }
  }
}

// Lists the tokens of a bin; `listed` counts those that find no place, too. All threads, with a barrier at the end.
VF_DEVICE void list_bin(BorderShared& shared, const float* weights, int begin, int end, uint32_t top) {
  if (threadIdx.x == 0) shared.listed = 0;
  sync_block();
  for_bin(weights, begin, end, top, [&](int token, float) {
    const int place = atomic_add(&shared.listed, 1);
    if (place < kListed) shared.list[place] = token;
  });
  sync_block();
}

// A bound of the keys of what is kept, which lies in the first bin that find_bin has found and list_bin has listed;
// tokens below `floor` are left out. score_at(i): the score by which token i is ordered. All threads.
template <typename ScoreAt>
VF_DEVICE unsigned long long find_in_bin(BorderShared& shared, const float* weights, int vocab,
                                         unsigned long long floor, const Goal& goal, double mass, ScoreAt score_at) {
  const int top = shared.bin;
  unsigned long long prefix = static_cast<unsigned long long>(top);
  int shift = 52;
  for (int round = 1; round < 6; ++round) {
    const bool whole = shared.inside.count == 1 ||
                       (goal.by_count && shared.above.count + shared.inside.count == goal.count);
    if (whole) break;
    const int bits = round < 3 ? 11 : 10;
    shift -= bits;
    shared.bins.clear();
    sync_block();
    const auto take = [&](int token, float weight) {
      const unsigned long long key = token_key(weight, score_at(token), token);
      if (key < floor || key >> (shift + bits) != prefix) return;
      shared.bins.add(static_cast<int>(key >> shift) & ((1 << bits) - 1), weight);
    };
    if (shared.listed <= kListed) {
      for (int i = static_cast<int>(threadIdx.x); i < shared.listed; i += kBorderThreads) {
        take(shared.list[i], ldg(weights + shared.list[i]));
      }
    } else {
      for_bin(weights, 0, vocab, static_cast<uint32_t>(top), take);
    }
    sync_block();
    const Bins& bins = shared.bins;
    find_bin(shared, goal, mass, false,
             [&](int bin) { return tally_of(bins.counts[bin], bins.high[bin], bins.low[bin], top); });
    prefix = prefix << bits | static_cast<unsigned long long>(shared.bin);
  }
  const unsigned long long bound = prefix << shift;
  return bound > floor ? bound : floor;
}

}  // namespace vf
