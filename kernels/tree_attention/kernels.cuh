// A block takes all rows (query heads x queries) of one kv head that fit, and a share of its keys; keys and values come
// through a ring of tiles in shared memory. A second kernel adds up the shares, in their order.
#pragma once

#include "sums.cuh"

namespace vf::tree_attention {

// Rows that a block does not have become zeros.
template <typename T, typename Block, int D>
VF_DEVICE void load_queries(T* shared, const TreeAttentionArguments& a, const Place& place) {
  const int group = a.heads / a.kv_heads;
  const T* q = static_cast<const T*>(a.q) + place.row * a.q_row;
  for (int i = threadIdx.x; i < Block::kRows * (D / 8); i += Block::kThreads) {
    const int local = i / (D / 8), column = i % (D / 8) * 8, row = place.first_row + local;
    const bool valid = local < place.rows;
    const int64_t at = valid ? row / group * a.q_query + (place.head * group + row % group) * a.q_head : 0;
    cp_async16(shared + local * Block::kPitch + column, q + at + column, valid);
  }
}

// Brings one tile after the other of keys and values. A thread has a column of 16 bytes, and every kStep-th slot.
template <typename T, typename Block, int D>
struct Loader {
  static constexpr int kStep = Block::kThreads / (D / 8);
  const T* key;
  const T* value;

  VF_DEVICE Loader(const TreeAttentionArguments& a, const Place& place, int slot) {
    const int64_t from = slot + static_cast<int>(threadIdx.x) / (D / 8);
    const int column = static_cast<int>(threadIdx.x) % (D / 8) * 8;
    key = static_cast<const T*>(a.keys) + place.row * a.key_row + place.head * a.key_head + column;
    key += from * a.key_slot;
    value = static_cast<const T*>(a.values) + place.row * a.value_row + place.head * a.value_head + column;
    value += from * a.value_slot;
  }

  // Keys, then values, of the next tile, which begins at `slot`; zeros for slots from `last` on.
  VF_DEVICE void load(T* shared, const TreeAttentionArguments& a, int slot, int last) {
    const int first = static_cast<int>(threadIdx.x) / (D / 8);
    T* to = shared + first * Block::kPitch + static_cast<int>(threadIdx.x) % (D / 8) * 8;
    VF_UNROLL
    for (int round = 0; round < ceil_div(Block::kKeys, kStep); ++round) {
      const int local = first + round * kStep;
      const bool mine = kStep * (D / 8) == Block::kThreads || first < kStep;  // a few threads may be left over
      if (mine && (Block::kKeys % kStep == 0 || local < Block::kKeys)) {
        const bool valid = slot + local < last;
        const int64_t step = round * kStep;
        cp_async16(to + step * Block::kPitch, key + step * a.key_slot, valid);
        cp_async16(to + (Block::kKeys + step) * Block::kPitch, value + step * a.value_slot, valid);
      }
    }
    key += static_cast<int64_t>(Block::kKeys) * a.key_slot;
    value += static_cast<int64_t>(Block::kKeys) * a.value_slot;
  }
};

// The slots of a part: an equal share of the tiles that the row's own length gives.
struct Share {
  int parts;
  int begin, end;  // whole tiles; without meaning for a block that has no part
};

template <typename Block>
VF_DEVICE Share share_of(const Range& range, int part, int splits) {
  const int tiles = range.last > range.first ? ceil_div(range.last - range.first, Block::kKeys) : 0;
  const int worth = ceil_div(tiles, Block::kShare), parts = worth < 1 ? 1 : worth < splits ? worth : splits;
  const int begin = static_cast<int>(static_cast<int64_t>(part) * tiles / parts);
  const int end = static_cast<int>(static_cast<int64_t>(part + 1) * tiles / parts);
  return {parts, range.first + begin * Block::kKeys, range.first + end * Block::kKeys};
}

// One tile against the rows of a warp; `first` is the tile's first slot, `keys` lead to the warp's own among them.
template <typename T, typename Block, int D, int kept>
VF_DEVICE void take(Rows<D> (&rows)[Block::kRowTiles], const TreeAttentionArguments& a, const Place& place,
                    const Range& range, const T* queries, const uint32_t (&registers)[kept][4], const T* keys,
                    int first) {
  const int row_warp = warp() % Block::kRowWarps, key_warp = warp() / Block::kRowWarps;
  float scores[Block::kRowTiles][Block::kWarpKeys / 8][4];
  score<T, Block, D, kept>(scores, queries, registers, keys);
  const bool partly = first < range.all_from || first + Block::kKeys > range.length;
  VF_UNROLL
  for (int m = 0; m < Block::kRowTiles; ++m) {
    if (partly) {
      hide(scores[m], a, range, place.row, place.first_row + row_warp * Block::kWarpRows + 16 * m,
           first + key_warp * Block::kWarpKeys);
    }
    soften(scores[m], rows[m], a.scale * kLog2e);
  }
  gather<T, Block, D>(rows, scores, keys + Block::kKeys * Block::kPitch);
}

template <typename T, typename Block, int D>
VF_GLOBAL void VF_BOUNDS(Block::kThreads, Block::kBlocks) attend(TreeAttentionArguments a) {
  wait_for_former();
  const Place place = place_of<Block>(a);
  const int group = a.heads / a.kv_heads, part = static_cast<int>(blockIdx.y);
  const Range range = range_of(a, place.row, place.first_row / group, (place.first_row + place.rows - 1) / group + 1);
  const Share share = share_of<Block>(range, part, a.splits);
  if (part >= share.parts) return;
  if (part == 0 && threadIdx.x == 0 && a.splits > 1) Workspace(a, Block::kRows).parts[blockIdx.x] = share.parts;

  unsigned char* shared = dynamic_shared();
  T* queries = reinterpret_cast<T*>(shared);
  T* ring = queries + Block::kQueryNumbers;
  Loader<T, Block, D> loader(a, place, share.begin);
  load_queries<T, Block, D>(queries, a, place);
  cp_async_commit();
  VF_UNROLL
  for (int stage = 0; stage < Block::kStages - 1; ++stage) {
    const int slot = share.begin + stage * Block::kKeys;
    if (slot < share.end) loader.load(ring + stage * Block::kStageNumbers, a, slot, range.last);
    cp_async_commit();
  }

  const int row_warp = warp() % Block::kRowWarps, key_warp = warp() / Block::kRowWarps;
  const bool busy = row_warp * Block::kWarpRows < place.rows;
  const T* own_queries = queries + row_warp * Block::kWarpRows * Block::kPitch;
  Rows<D> rows[Block::kRowTiles];
  VF_UNROLL
  for (int m = 0; m < Block::kRowTiles; ++m) rows[m].clear();
  constexpr int kKept = Block::kKeepQueries ? D / 16 : 1;
  uint32_t registers[kKept][4];
  if constexpr (Block::kKeepQueries) {
    cp_async_wait<Block::kStages - 1>();
    sync_block();
    VF_UNROLL
    for (int k = 0; k < kKept; ++k) ldmatrix_x4(registers[k], down_first(own_queries + k * 16, Block::kPitch));
  }

  int stage = 0;
  for (int first = share.begin; first < share.end; first += Block::kKeys) {
    cp_async_wait<Block::kStages - 2>();
    sync_block();  // this tile is here for all, and all have left the one before
    const int next = first + (Block::kStages - 1) * Block::kKeys;
    if (next < share.end) {
      const int free = stage == 0 ? Block::kStages - 1 : stage - 1;
      loader.load(ring + free * Block::kStageNumbers, a, next, range.last);
    }
    cp_async_commit();
    const T* keys = ring + stage * Block::kStageNumbers + key_warp * Block::kWarpKeys * Block::kPitch;
    if (busy) take<T, Block, D, kKept>(rows, a, place, range, own_queries, registers, keys, first);
    stage = stage + 1 == Block::kStages ? 0 : stage + 1;
  }
  cp_async_wait<0>();
  sync_block();
  if (busy) leave<Block, D>(shared, rows);
  sync_block();
  finish<T, Block, D>(shared, a, place, share.parts == 1);
}

template <typename T, typename Block, int D>
void start(const TreeAttentionArguments& a, Stream stream) {
  const unsigned units = static_cast<unsigned>(a.batch * a.kv_heads * row_blocks(a, Block::kRows));
  launch(attend<T, Block, D>, dim3(units, static_cast<unsigned>(a.splits)), dim3(Block::kThreads), Block::kBytes, stream, a);
  if (a.splits == 1) return;
  const unsigned rows = static_cast<unsigned>(a.batch * a.queries * a.heads);
  launch(merge<T, D>, dim3(rows), dim3(kMergeThreads), 0, stream, a, Block::kRows);
}

// All kernels of one head size.
template <int D>
void start_size(const TreeAttentionArguments& a, Stream stream) {
  with_tile<D>(rows_of(a), [&](auto block) {
    if (a.type == Type::kBFloat16) start<bf16, decltype(block), D>(a, stream);
    if (a.type == Type::kFloat16) start<fp16, decltype(block), D>(a, stream);
  });
}

}  // namespace vf::tree_attention
