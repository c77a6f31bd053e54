// From the accumulators of warps to those of a block, and from the parts of a row's keys to the output: always added up in
// the same order.
#pragma once

#include "attend.cuh"

namespace vf::tree_attention {

// What a block works on.
struct Place {
  int row;           // of the batch
  int head;          // kv head
  int first_row;     // of the kv head's rows
  int rows;          // this block has
};

template <typename Block>
VF_DEVICE Place place_of(const TreeAttentionArguments& a) {
  const int blocks = row_blocks(a, Block::kRows), unit = static_cast<int>(blockIdx.x);
  const int first_row = unit % blocks * Block::kRows, left = rows_of(a) - first_row;
  return {unit / blocks / a.kv_heads, unit / blocks % a.kv_heads, first_row, left < Block::kRows ? left : Block::kRows};
}

// Leaves the accumulators of 16 rows in shared memory, and maximum and sum of each.
template <typename Block, int D>
VF_DEVICE void leave_rows(float* out, float* stats, const Rows<D>& rows) {
  VF_UNROLL
  for (int half = 0; half < 2; ++half) {
    float sum = rows.sum[half] + shuffle_xor(rows.sum[half], 1);
    sum += shuffle_xor(sum, 2);
    const int row = lane() / 4 + 8 * half;
    if (lane() % 4 == 0) {
      stats[2 * row] = rows.most[half];
      stats[2 * row + 1] = sum;
    }
    float* to = out + row * Block::kPitch + lane() % 4 * 2;
    VF_UNROLL
    for (int n = 0; n < D / 8; ++n) {
      to[8 * n] = rows.out[n][2 * half];
      to[8 * n + 1] = rows.out[n][2 * half + 1];
    }
  }
}

// Leaves a warp's rows where `finish` looks for them.
template <typename Block, int D>
VF_DEVICE void leave(unsigned char* shared, const Rows<D> (&rows)[Block::kRowTiles]) {
  float* out = reinterpret_cast<float*>(shared);
  float* stats = reinterpret_cast<float*>(shared + Block::kStatsAt);
  VF_UNROLL
  for (int m = 0; m < Block::kRowTiles; ++m) {
    const int first = warp() * Block::kWarpRows + 16 * m;
    leave_rows<Block, D>(out + first * Block::kPitch, stats + 2 * first, rows[m]);
  }
}

struct Four {
  float x[4];
};

template <typename T>
VF_DEVICE void put_row(const TreeAttentionArguments& a, int64_t row, int head, int kv_row, int column, const Four& sum,
                       float total) {
  const int group = a.heads / a.kv_heads;
  const int64_t query = row * a.queries + kv_row / group;
  T* to = static_cast<T*>(a.out) + (query * a.heads + head * group + kv_row % group) * a.head_size + column;
  const float factor = total > 0.0f || total != total ? 1.0f / total : 0.0f;
  uint32_t* words = reinterpret_cast<uint32_t*>(to);
  words[0] = pack<T>(sum.x[0] * factor, sum.x[1] * factor);
  words[1] = pack<T>(sum.x[2] * factor, sum.x[3] * factor);
}

// Adds up the warps that shared a row's keys, in their order; the result is final where the unit has one part.
template <typename T, typename Block, int D>
VF_DEVICE void finish(const unsigned char* shared, const TreeAttentionArguments& a, const Place& place, bool only) {
  const float* out = reinterpret_cast<const float*>(shared);
  const float* stats = reinterpret_cast<const float*>(shared + Block::kStatsAt);
  for (int i = threadIdx.x; i < place.rows * (D / 4); i += Block::kThreads) {
    const int row = i / (D / 4), column = i % (D / 4) * 4;
    float most = minus_infinity();
    VF_UNROLL
    for (int k = 0; k < Block::kKeyWarps; ++k) most = max(most, stats[2 * (k * Block::kRows + row)]);
    const float base = most == minus_infinity() ? 0.0f : most;
    float total = 0.0f;
    Four sum = {{0.0f, 0.0f, 0.0f, 0.0f}};
    VF_UNROLL
    for (int k = 0; k < Block::kKeyWarps; ++k) {
      const int from = k * Block::kRows + row;
      const float weight = exp2(stats[2 * from] - base);
      total += weight * stats[2 * from + 1];
      VF_UNROLL
      for (int j = 0; j < 4; ++j) sum.x[j] += weight * out[from * Block::kPitch + column + j];
    }
    if (only) {
      put_row<T>(a, place.row, place.head, place.first_row + row, column, sum, total);
    } else {
      const Workspace workspace(a, Block::kRows);
      const int64_t at = (static_cast<int64_t>(blockIdx.x) * a.splits + blockIdx.y) * stored_rows(a, Block::kRows) + row;
      store16(workspace.accumulators + at * D + column,
              {{float_bits(sum.x[0]), float_bits(sum.x[1]), float_bits(sum.x[2]), float_bits(sum.x[3])}});
      if (column == 0) {
        workspace.stats[2 * at] = most;
        workspace.stats[2 * at + 1] = total;
      }
    }
  }
}

constexpr int kMergeThreads = 256;
constexpr int kAhead = 8;  // loads of a thread that are under way together

// Largest of the parts' maxima, and the parts' sums in its units.
struct Whole {
  float base, total;
};

VF_DEVICE Whole whole_of(const float* stats, int64_t step, int parts) {
  float most = minus_infinity();
  for (int part = lane(); part < parts; part += kWarp) most = max(most, ldg(stats + step * part));
  most = reduce_max(most);
  Whole whole = {most == minus_infinity() ? 0.0f : most, 0.0f};
  for (int part = lane(); part < parts; part += kWarp) {
    whole.total += exp2(ldg(stats + step * part) - whole.base) * ldg(stats + step * part + 1);
  }
  whole.total = reduce_add(whole.total);
  return whole;
}

// A block adds up one row: a thread has four columns and every kGroups-th part.
template <typename T, int D>
VF_GLOBAL void VF_BOUNDS(kMergeThreads, 4) merge(TreeAttentionArguments a, int block_rows) {
  wait_for_former();
  constexpr int kGroups = kMergeThreads / (D / 4);
  const int rows = rows_of(a), pair = static_cast<int>(blockIdx.x) / rows, row = static_cast<int>(blockIdx.x) % rows;
  const Workspace workspace(a, block_rows);
  const int64_t unit = static_cast<int64_t>(pair) * row_blocks(a, block_rows) + row / block_rows;
  const int parts = ldg(workspace.parts + unit);
  if (parts == 1) return;  // finished already

  const int64_t stored = stored_rows(a, block_rows), at = unit * a.splits * stored + row % block_rows;
  const float* stats = workspace.stats + 2 * at;
  const Whole whole = whole_of(stats, 2 * stored, parts);
  const int group = static_cast<int>(threadIdx.x) / (D / 4), column = static_cast<int>(threadIdx.x) % (D / 4) * 4;
  const int limit = group < kGroups ? parts : 0;
  Four sum = {{0.0f, 0.0f, 0.0f, 0.0f}};
  for (int first = group; first < limit; first += kGroups * kAhead) {
    Vec16 shares[kAhead];
    float weights[kAhead];
    VF_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      const int part = first + i * kGroups < parts ? first + i * kGroups : group;
      shares[i] = load16(workspace.accumulators + (at + stored * part) * D + column);
      weights[i] = ldg(stats + 2 * stored * part);
    }
    VF_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      const float weight = first + i * kGroups < parts ? exp2(weights[i] - whole.base) : 0.0f;
      VF_UNROLL
      for (int j = 0; j < 4; ++j) sum.x[j] += weight * bits_float(shares[i].x[j]);
    }
  }
  VF_SHARED Four sums[kMergeThreads];
  sums[threadIdx.x] = sum;
  sync_block();
  if (group > 0) return;
  for (int other = 1; other < kGroups && other < parts; ++other) {
    VF_UNROLL
    for (int j = 0; j < 4; ++j) sum.x[j] += sums[other * (D / 4) + threadIdx.x].x[j];
  }
  put_row<T>(a, pair / a.kv_heads, pair % a.kv_heads, row, column, sum, whole.total);
}

}  // namespace vf::tree_attention
