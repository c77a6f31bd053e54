// Each row is cut into slices of 256 threads times 4 or 8 columns. A block keeps its slice in registers, sums it, and
// finds its k best without sorting it: the k-th largest of the maxima of small groups of columns is a bound that at
// least k columns reach and few more; those are ranked by counting. A second kernel merges the slices of a row, in
// the slices' order, so that the same input gives the same bits. A row of one slice needs no second kernel.
#include "draft_topk.h"

#include "../common/portable.cuh"

namespace vf {
namespace {

constexpr int kThreads = 256;
constexpr int kFew = 4, kMany = 8;  // columns of a thread
constexpr int kBatch = 4;           // loads under way in the merge
constexpr uint32_t kIdTop = 0x7FFFFFFFu;

using Key = unsigned long long;

// Ordered by (value, lower id first); above 0 for every finite value and +inf.
VF_DEVICE Key key_of(uint32_t order, int64_t id) {
  return static_cast<Key>(order) << 32 | (kIdTop - static_cast<uint32_t>(id));
}

VF_DEVICE float value_of(uint32_t order) { return bits_float(order & 0x80000000u ? order & kIdTop : ~order); }

// The id of a column before the map, -1 where there is no such column.
VF_DEVICE int id_of(const DraftTopkArguments& a, int row, int column) {
  if (column >= a.columns) return -1;
  int64_t id = column;
  const int64_t at = row * a.ids_stride + column;
  if (a.ids != nullptr && a.ids_wide) id = ldg(static_cast<const int64_t*>(a.ids) + at);
  if (a.ids != nullptr && !a.ids_wide) id = ldg(static_cast<const int32_t*>(a.ids) + at);
  return id < 0 || (a.target_ids != nullptr && id >= a.map_size) ? -1 : static_cast<int>(id);
}

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

// Of a row: a log-probability is (logit - maximum) - log_sum. The maximum is +-inf where the row is no law.
struct Normaliser {
  float maximum, log_sum;
};

VF_DEVICE Normaliser normaliser_of(float maximum, float sum) {
  const float size = maximum < 0.0f ? -maximum : maximum;
  return {maximum, size == bits_float(0x7F800000u) ? 0.0f : log(sum)};
}

// Writes answer `place` of a row; key 0 stands for "no more columns".
VF_DEVICE void answer(const DraftTopkArguments& a, int row, int place, Key key, Normaliser by) {
  const float none = bits_float(0xFF800000u);
  const bool lawful = key != 0 && by.maximum < bits_float(0x7F800000u);
  const float logit = value_of(static_cast<uint32_t>(key >> 32));
  a.logprobs[row * a.k + place] = lawful ? min(logit - by.maximum - by.log_sum, 0.0f) : none;
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

// The k-th largest of the maxima of groups of threads: at least k columns reach it, where there are so many.
VF_DEVICE uint32_t bound_of(uint32_t mine, int k, uint32_t* maxima) {
  VF_SHARED uint32_t bound;
  const int width = k > kWarp ? 2 : 4;  // threads of a group: 128 or 64 groups
  mine = larger(mine, shuffle_xor(mine, 1));
  if (width == 4) mine = larger(mine, shuffle_xor(mine, 2));
  const int groups = kThreads / width, self = static_cast<int>(threadIdx.x);
  if (self % width == 0) maxima[self / width] = mine;
  sync_block();
  if (self < groups && place_among(maxima, groups, self) == k - 1) bound = maxima[self];
  sync_block();
  return bound;
}

template <typename T, int kColumns>
VF_GLOBAL void VF_BOUNDS(kThreads, 4) draft_topk_slices(DraftTopkArguments a) {
  VF_SHARED Key found[kThreads * kColumns];
  VF_SHARED uint32_t maxima[kThreads / 2];
  VF_SHARED uint32_t tops[kThreads / kWarp];
  VF_SHARED float sums[kThreads / kWarp];
  VF_SHARED int count;
  const int row = static_cast<int>(blockIdx.x) / a.splits, part = static_cast<int>(blockIdx.x) % a.splits;
  const int first = part * kThreads * kColumns + static_cast<int>(threadIdx.x);
  const T* logits = static_cast<const T*>(a.logits) + static_cast<int64_t>(row) * a.columns;
  const float none = bits_float(0xFF800000u);
  if (threadIdx.x == 0) count = 0;

  float values[kColumns];
  int ids[kColumns];
  VF_UNROLL
  for (int j = 0; j < kColumns; ++j) {
    const int column = first + j * kThreads;
    values[j] = column < a.columns ? to_float(ldg(logits + column)) : none;
    ids[j] = id_of(a, row, column);
  }
  uint32_t top = 0;
  VF_UNROLL
  for (int j = 0; j < kColumns; ++j) {
    if (values[j] != values[j] || ids[j] < 0) values[j] = none;
    top = larger(top, order_key(values[j]));
  }
  const uint32_t bound = bound_of(top, a.k, maxima);
  const float maximum = value_of(block_join(top, tops, larger));
  float sum = 0.0f;
  VF_UNROLL
  for (int j = 0; j < kColumns; ++j) sum += share_of(values[j], maximum);
  sum = block_join(sum, sums, sum_of);

  VF_UNROLL
  for (int j = 0; j < kColumns; ++j) {
    const uint32_t order = order_key(values[j]);
    if (values[j] > none && order >= bound) {
      const int64_t id = a.target_ids == nullptr ? ids[j] : ldg(a.target_ids + ids[j]);
      found[atomic_add(&count, 1)] = key_of(order, id);
    }
  }
  sync_block();
  const Normaliser normaliser = normaliser_of(maximum, sum);
  const bool single = a.splits == 1;
  Key* best = single ? nullptr : a.best + static_cast<int64_t>(blockIdx.x) * a.k;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int place = place_among(found, count, i);
    if (place >= a.k) continue;
    if (single) answer(a, row, place, found[i], normaliser);
    else best[place] = found[i];
  }
  for (int place = count + static_cast<int>(threadIdx.x); place < a.k; place += kThreads) {
    if (single) answer(a, row, place, 0, normaliser);
    else best[place] = 0;
  }
  if (threadIdx.x == 0 && !single) {
    a.maxima[blockIdx.x] = maximum;
    a.sums[blockIdx.x] = sum;
  }
}

// One block a row. The lists of a row are sorted; the k-th largest of their first entries bounds what is ranked.
VF_GLOBAL void VF_BOUNDS(kThreads, 1) draft_topk_merge(DraftTopkArguments a) {
  VF_SHARED float scratch[kThreads / kWarp];
  VF_SHARED uint32_t tops[kThreads / kWarp];
  VF_SHARED int edge, count;
  const int row = static_cast<int>(blockIdx.x), self = static_cast<int>(threadIdx.x);
  const float *maxima = a.maxima + row * a.splits, *sums = a.sums + row * a.splits;
  const Key* lists = a.best + static_cast<int64_t>(row) * a.splits * a.k;
  const int depth = ceil_div(a.k, a.splits), heads = a.splits * depth;  // at least k first entries of the lists
  Key* head = reinterpret_cast<Key*>(dynamic_shared());                 // (heads)
  Key* found = head + heads;                                            // (most_ranked)
  if (self == 0) count = 0;
  for (int i = self; i < heads; i += kThreads) head[i] = ldg(lists + i / depth * a.k + i % depth);

  uint32_t top = 0;
  for (int i = self; i < a.splits; i += kThreads) top = larger(top, order_key(ldg(maxima + i)));
  const float maximum = value_of(block_join(top, tops, larger));
  float sum = 0.0f;
  for (int i = self; i < a.splits; i += kThreads) sum += share_of(ldg(maxima + i), maximum) * ldg(sums + i);
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
      keys[j] = i < a.splits * a.k ? ldg(lists + i) : 0;
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

// Keys that the merge can find above its bound: fewer than k first entries, and the lists that they fill up to depth.
int most_ranked(int splits, int k) {
  const int depth = ceil_div(k, splits), most = k + k / depth * (k - depth);
  return most < splits * k ? most : splits * k;
}

template <typename T, int kColumns>
void start(const DraftTopkArguments& a, Stream stream) {
  launch(draft_topk_slices<T, kColumns>, dim3(static_cast<unsigned>(a.rows * a.splits)), dim3(kThreads), 0, stream, a);
  if (a.splits == 1) return;
  const int keys = a.splits * ceil_div(a.k, a.splits) + most_ranked(a.splits, a.k);
  launch(draft_topk_merge, dim3(static_cast<unsigned>(a.rows)), dim3(kThreads), sizeof(Key) * keys, stream, a);
}

template <typename T>
void start_with(const DraftTopkArguments& a, Stream stream) {
  if (a.splits == ceil_div(a.columns, kThreads * kMany)) return start<T, kMany>(a, stream);
  start<T, kFew>(a, stream);
}

}  // namespace

int draft_topk_splits(int rows, int columns) {
  const int slices = ceil_div(columns, kThreads * kMany);
  return rows * slices < multiprocessors() ? ceil_div(columns, kThreads * kFew) : slices;
}

void draft_topk_cuda(const DraftTopkArguments& a, Stream stream) {
  if (a.type == Type::kFloat32) start_with<float>(a, stream);
  if (a.type == Type::kBFloat16) start_with<bf16>(a, stream);
  if (a.type == Type::kFloat16) start_with<fp16>(a, stream);
}

}  // namespace vf
