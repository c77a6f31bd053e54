// The best of a row's slices, each with the slice's softmax, and their merge: the end of draft_topk.
#pragma once

#include "portable.cuh"

namespace vf {
namespace topk {

constexpr int kThreads = 256;  // of a block that merges
constexpr int kBatch = 4;      // loads under way in the merge
constexpr uint32_t kIdTop = 0x7FFFFFFFu;

using Key = unsigned long long;

struct Lists {
  int k, splits;      // answers of a row; slices of it
  float* maxima;      // (rows, splits)
  float* sums;        // (rows, splits) of exp(logit - maximum)
  Key* best;          // (rows, splits, k) descending, 0 where a slice has fewer
  float* logprobs;    // (rows, k)
  int64_t* chosen;    // (rows, k)
};

// Ordered by (value, lower id first); above 0 for every finite value and +inf.
VF_DEVICE Key key_of(uint32_t order, int64_t id) {
  return static_cast<Key>(order) << 32 | (kIdTop - static_cast<uint32_t>(id));
}

VF_DEVICE float value_of(uint32_t order) { return bits_float(order & 0x80000000u ? order & kIdTop : ~order); }

// What stands in `scratch` is one number a warp; all threads get the same bits.
template <typename T, typename Join>
VF_DEVICE T block_join(T mine, T* scratch, Join join) {
  for (int step = kWarp / 2; step > 0; step /= 2) mine = join(mine, shuffle_xor(mine, step));
  sync_block();  // scratch may still be read from before
  if (lane() == 0) scratch[warp()] = mine;
  sync_block();
  T all = scratch[0];
  for (int i = 1; i < kThreads / kWarp; ++i) all = join(all, scratch[i]);
  return all;
}

VF_DEVICE float sum_of(float a, float b) { return a + b; }
VF_DEVICE uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

// exp(value - maximum) of something that is to be summed; sums beside an infinite maximum are not used.
VF_DEVICE float share_of(float value, float maximum) {
  return value == bits_float(0xFF800000u) ? 0.0f : exp(value - maximum);
}

// Of a row: a log-probability is (logit - maximum) - log_sum. The maximum is +-inf where the row is no distribution.
struct Normaliser {
  float maximum, log_sum;
};

VF_DEVICE Normaliser normaliser_of(float maximum, float sum) {
  const float size = maximum < 0.0f ? -maximum : maximum;
  return {maximum, size == bits_float(0x7F800000u) ? 0.0f : log(sum)};
}

// Writes answer `place` of a row; key 0 stands for "no more columns".
VF_DEVICE void answer(const Lists& a, int row, int place, Key key, Normaliser by) {
  const float none = bits_float(0xFF800000u);
  const bool valid = key != 0 && by.maximum < bits_float(0x7F800000u);
  const float logit = value_of(static_cast<uint32_t>(key >> 32));
  a.logprobs[row * a.k + place] = valid ? min(logit - by.maximum - by.log_sum, 0.0f) : none;
  a.chosen[row * a.k + place] = key == 0 ? 0 : kIdTop - static_cast<uint32_t>(key);
}

// Number of the `count` keys that come before key `own`; equal ones in the order of their places.
template <typename T>
VF_DEVICE int place_among(const T* keys, int count, int own) {
  const T mine = keys[own];
  int before = 0;
  for (int i = 0; i < count; ++i) before += keys[i] > mine || (keys[i] == mine && i < own);
  return before;
}

// Keys that the merge can find above its bound: fewer than k first entries, and the lists that they fill up to depth.
VF_HOST_DEVICE int most_ranked(int splits, int k) {
  const int depth = ceil_div(k, splits), most = k + k / depth * (k - depth);
  return most < splits * k ? most : splits * k;
}

// Keys that the merge has in shared memory.
VF_HOST_DEVICE int merged_keys(int splits, int k) { return splits * ceil_div(k, splits) + most_ranked(splits, k); }

// A row's answers from its slices; all threads of a block. The lists are sorted: the k-th largest of their first
// entries bounds what is ranked. They may have been written by other blocks of this launch.
VF_DEVICE void merge(const Lists& a, int row, Key* shared) {
  VF_SHARED float scratch[kThreads / kWarp];
  VF_SHARED uint32_t tops[kThreads / kWarp];
  VF_SHARED int edge, count;
  const int self = static_cast<int>(threadIdx.x);
  const float *maxima = a.maxima + row * a.splits, *sums = a.sums + row * a.splits;
  const Key* lists = a.best + static_cast<int64_t>(row) * a.splits * a.k;
  const int depth = ceil_div(a.k, a.splits), heads = a.splits * depth;  // at least k first entries of the lists
  Key* head = shared;                                                   // (heads)
  Key* found = head + heads;                                            // (most_ranked)
  if (self == 0) count = 0;
  for (int i = self; i < heads; i += kThreads) head[i] = load_fresh(lists + i / depth * a.k + i % depth);

  uint32_t top = 0;
  for (int i = self; i < a.splits; i += kThreads) top = larger(top, order_key(load_fresh(maxima + i)));
  const float maximum = value_of(block_join(top, tops, larger));
  float sum = 0.0f;
  for (int i = self; i < a.splits; i += kThreads) {
    sum += share_of(load_fresh(maxima + i), maximum) * load_fresh(sums + i);
  }
  const Normaliser normaliser = normaliser_of(maximum, block_join(sum, scratch, sum_of));

  for (int i = self; i < heads; i += kThreads) {
    if (place_among(head, heads, i) == a.k - 1) edge = i;
  }
  sync_block();
  const Key bound = head[edge];
  for (int base = self; base < a.splits * a.k; base += kBatch * kThreads) {
    Key keys[kBatch];
    VF_UNROLL
    for (int j = 0; j < kBatch; ++j) {
      const int i = base + j * kThreads;
      keys[j] = i < a.splits * a.k ? load_fresh(lists + i) : 0;
    }
    VF_UNROLL
    for (int j = 0; j < kBatch; ++j) {
      const int list = (base + j * kThreads) / a.k, place = (base + j * kThreads) % a.k;
      // Equal keys are one id given twice: those behind the edge are not needed, k others reach it already.
      const bool equal = keys[j] == bound && place < depth && list * depth + place <= edge;
      if (keys[j] != 0 && (keys[j] > bound || equal)) found[atomic_add(&count, 1)] = keys[j];
    }
  }
  sync_block();
  for (int i = self; i < count; i += kThreads) {
    const int place = place_among(found, count, i);
    if (place < a.k) answer(a, row, place, found[i], normaliser);
  }
  for (int place = count + self; place < a.k; place += kThreads) answer(a, row, place, 0, normaliser);
}

}  // namespace topk
}  // namespace vf
