// Each row is cut into slices of 256 threads times 4 or 8 columns. A block keeps its slice in registers, sums it, and
// finds its k best without sorting it: the k-th largest of the maxima of small groups of columns is a bound that at
// least k columns reach and few more; those are ranked by counting. A second kernel merges the slices of a row, in
// the slices' order, so that the same input gives the same bits. A row of one slice needs no second kernel.
#include "draft_topk.h"

#include "../common/topk_lists.cuh"

namespace vf {
namespace {

using topk::Key, topk::key_of, topk::kThreads, topk::larger, topk::place_among, topk::share_of, topk::value_of;

constexpr int kFew = 4, kMany = 8;  // columns of a thread

VF_HOST_DEVICE topk::Lists lists_of(const DraftTopkArguments& a) {
  return {a.k, a.splits, a.maxima, a.sums, a.best, a.logprobs, a.chosen};
}

// The id of a column before the map, -1 where there is no such column.
VF_DEVICE int id_of(const DraftTopkArguments& a, int row, int column) {
  if (column >= a.columns) return -1;
  int64_t id = column;
  const int64_t at = row * a.ids_stride + column;
  if (a.ids != nullptr && a.ids_wide) id = ldg(static_cast<const int64_t*>(a.ids) + at);
  if (a.ids != nullptr && !a.ids_wide) id = ldg(static_cast<const int32_t*>(a.ids) + at);
  return id < 0 || (a.target_ids != nullptr && id >= a.map_size) ? -1 : static_cast<int>(id);
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
  wait_for_former();
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
  const float maximum = value_of(topk::block_join(top, tops, larger));
  float sum = 0.0f;
  VF_UNROLL
  for (int j = 0; j < kColumns; ++j) sum += share_of(values[j], maximum);
  sum = topk::block_join(sum, sums, topk::sum_of);

  VF_UNROLL
  for (int j = 0; j < kColumns; ++j) {
    const uint32_t order = order_key(values[j]);
    if (values[j] > none && order >= bound) {
      const int64_t id = a.target_ids == nullptr ? ids[j] : ldg(a.target_ids + ids[j]);
      found[atomic_add(&count, 1)] = key_of(order, id);
    }
  }
  sync_block();
  const topk::Normaliser normaliser = topk::normaliser_of(maximum, sum);
  const bool single = a.splits == 1;
  const topk::Lists lists = lists_of(a);
  Key* best = single ? nullptr : a.best + static_cast<int64_t>(blockIdx.x) * a.k;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int place = place_among(found, count, i);
    if (place >= a.k) continue;
    if (single) topk::answer(lists, row, place, found[i], normaliser);
    else best[place] = found[i];
  }
  for (int place = count + static_cast<int>(threadIdx.x); place < a.k; place += kThreads) {
    if (single) topk::answer(lists, row, place, 0, normaliser);
    else best[place] = 0;
  }
  if (threadIdx.x == 0 && !single) {
    a.maxima[blockIdx.x] = maximum;
    a.sums[blockIdx.x] = sum;
  }
}

// One block a row.
VF_GLOBAL void VF_BOUNDS(kThreads, 1) draft_topk_merge(DraftTopkArguments a) {
  wait_for_former();
  topk::merge(lists_of(a), static_cast<int>(blockIdx.x), reinterpret_cast<Key*>(dynamic_shared()));
}

template <typename T, int kColumns>
void start(const DraftTopkArguments& a, Stream stream) {
  launch(draft_topk_slices<T, kColumns>, dim3(static_cast<unsigned>(a.rows * a.splits)), dim3(kThreads), 0, stream, a);
  if (a.splits == 1) return;
  const size_t shared = sizeof(Key) * topk::merged_keys(a.splits, a.k);
  launch(draft_topk_merge, dim3(static_cast<unsigned>(a.rows)), dim3(kThreads), shared, stream, a);
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
