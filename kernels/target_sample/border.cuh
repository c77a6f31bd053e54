// Where top-k and top-p cut a row: a radix select by count or by mass over the order of the tokens.
#pragma once

#include "../common/mass.cuh"

namespace vf {

constexpr int kBorderThreads = 1024;
constexpr int kBins = 2048;
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

VF_DEVICE Tally shuffle(const Tally& tally, int from) {
  return {shuffle(tally.count, from), shuffle(tally.mass, from)};
}

VF_DEVICE Tally through_lane(const Tally& tally) { return {through_lane(tally.count), through_lane(tally.mass)}; }

// Cut at the first token, from the most probable one on, with which the count, or else the mass, reaches its goal.
struct Goal {
  bool by_count;
  unsigned count;
  double share;  // of the whole mass
};

struct BorderShared {
  unsigned counts[kBins];
  unsigned long long high[kBins], low[kBins];
  Tally groups[kWarp];
  Tally above, inside;
  int bin;
};

VF_DEVICE Tally bin_tally(const BorderShared& shared, int position) {
  const int bin = kBins - 1 - position;
  return {shared.counts[bin], {shared.high[bin], shared.low[bin]}};
}

// By warp 0: the bin in which the goal lies, into shared.bin; -1 where it is not reached.
VF_DEVICE void find_bin(BorderShared& shared, const Goal& goal, double& mass, bool first_round) {
  auto reached = [&](const Tally& tally) {
    return goal.by_count ? tally.count >= goal.count : mass_value(tally.mass) >= mass;
  };
  Tally base = shared.above;
  const Tally group = shared.groups[lane()], through = through_lane(group);
  if (first_round) mass = goal.share * mass_value(shuffle(through, kWarp - 1).mass);
  const uint32_t hits = ballot(reached(base + through));
  const int chosen = hits != 0 ? ffs(hits) - 1 : 0;
  const Tally before = {through.count - group.count, through.mass - group.mass};
  base = base + shuffle(before, chosen);
  int bin = -1;
  for (int half = 0; half < 2 && hits != 0 && bin < 0; ++half) {
    const int position = 64 * chosen + kWarp * half + lane();
    const Tally mine = bin_tally(shared, position), sum = through_lane(mine);
    const uint32_t found = ballot(reached(base + sum));
    const int at = found != 0 ? ffs(found) - 1 : kWarp - 1;
    const Tally inside = shuffle(mine, at), all = shuffle(sum, at);
    if (found != 0) {
      bin = kBins - 1 - (64 * chosen + kWarp * half + at);
      base = {base.count + all.count - inside.count, base.mass + (all.mass - inside.mass)};
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

VF_DEVICE void count_token(BorderShared& shared, int bin, float weight, bool with_mass) {
  atomic_add(&shared.counts[bin], 1u);
  if (!with_mass) return;
  const Mass part = mass_of(weight);
  atomic_add(&shared.high[bin], part.high);
  atomic_add(&shared.low[bin], part.low);
}

// A bound of the keys of what is kept: of the tokens at or above `floor`, those up to the goal. score_at(i): the score
// by which token i is ordered.
template <typename ScoreAt>
VF_DEVICE unsigned long long find_border(BorderShared& shared, const float* weights, int vocab,
                                         unsigned long long floor, const Goal& goal, ScoreAt score_at) {
  const int first = static_cast<int>(threadIdx.x);
  const uint32_t floor_top = static_cast<uint32_t>(floor >> 52);
  unsigned long long prefix = 0;
  uint32_t top = 0;
  double mass = 0;
  int shift = 52, bits = 12;
  for (int round = 0; round < 6; ++round) {
    sync_block();
    for (int bin = first; bin < kBins; bin += kBorderThreads) {
      shared.counts[bin] = 0;
      shared.high[bin] = shared.low[bin] = 0;
    }
    if (first == 0 && round == 0) shared.above = {0, {0, 0}};
    sync_block();
    for (int base = first; base < vocab; base += kBatch * kBorderThreads) {
      float batch[kBatch];  // several loads under way at once
      VF_UNROLL
      for (int j = 0; j < kBatch; ++j) {
        const int i = base + j * kBorderThreads;
        batch[j] = i < vocab ? ldg(weights + i) : 0.0f;
      }
      VF_UNROLL
      for (int j = 0; j < kBatch; ++j) {
        const int i = base + j * kBorderThreads;
        const uint32_t own = float_bits(batch[j]) >> 20;
        if (!(batch[j] > 0.0f) || own < floor_top || (round > 0 && own != top)) continue;
        unsigned long long key = static_cast<unsigned long long>(own) << 52;
        if (round > 0 || own == floor_top) key = token_key(batch[j], score_at(i), i);
        if (key < floor || (round > 0 && key >> (shift + bits) != prefix)) continue;
        count_token(shared, static_cast<int>(key >> shift) & ((1 << bits) - 1), batch[j], !goal.by_count);
      }
    }
    sync_block();
    const Tally one = bin_tally(shared, 64 * warp() + lane()), other = bin_tally(shared, 64 * warp() + kWarp + lane());
    const Tally both = through_lane(one + other);
    if (lane() == kWarp - 1) shared.groups[warp()] = both;
    sync_block();
    if (warp() == 0) find_bin(shared, goal, mass, round == 0);
    sync_block();
    if (shared.bin < 0) return floor;
    prefix = prefix << bits | static_cast<unsigned long long>(shared.bin);
    if (round == 0) top = static_cast<uint32_t>(prefix);
    const bool whole = shared.inside.count == 1 ||
                       (goal.by_count && shared.above.count + shared.inside.count == goal.count);
    const unsigned long long bound = prefix << shift;
    if (whole) return bound > floor ? bound : floor;
    bits = round < 2 ? 11 : 10;
    shift -= bits;
  }
  return prefix;
}

}  // namespace vf
