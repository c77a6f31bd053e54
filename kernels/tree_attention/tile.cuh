// Sizes of the blocks, known at compile time, and how the work is cut up.
#pragma once

#include "../common/portable.cuh"
#include "tree_attention.h"

namespace vf::tree_attention {

// Dynamic shared memory with which two blocks share a multiprocessor of compute capability 9.0, and the most that one
// block may have on 8.0.
constexpr size_t kHalfShared = 110 * 1024;
constexpr size_t kMostShared = 163 * 1024;

// A block of RowWarps x KeyWarps warps: a warp has RowTiles x 16 rows and, of every tile of keys, its own part.
// Few rows: several warps along the keys and two blocks a multiprocessor, so that more loads are in flight. Many rows:
// one big block, so that all rows of a kv head use what was loaded once, and 32 rows a warp, so that fewer warps read the
// same keys from shared memory.
template <int D, int RowWarps, int KeyWarps, int RowTiles>
struct Tile {
  static constexpr int kRowWarps = RowWarps;
  static constexpr int kKeyWarps = KeyWarps;
  static constexpr int kRowTiles = RowTiles;
  static constexpr int kWarps = RowWarps * KeyWarps;
  static constexpr int kThreads = kWarp * kWarps;
  static constexpr int kWarpRows = 16 * RowTiles;
  static constexpr int kRows = kWarpRows * RowWarps;
  static constexpr int kWarpKeys = KeyWarps == 4 || (KeyWarps == 2 && D > 192) ? 16 : 32;
  static constexpr int kKeys = KeyWarps * kWarpKeys;
  static constexpr int kPitch = D + 8;  // numbers from row to row in shared memory: eight rows touch each bank once
  static constexpr int kBlocks = RowTiles == 1 && ((KeyWarps == 4 && D <= 192) || (KeyWarps == 2 && D <= 128)) ? 2 : 1;
  static constexpr bool kKeepQueries = KeyWarps == 4 && D <= 128;  // in registers
  static constexpr int kShare = kRows > 64 ? 128 / kKeys : 1;  // tiles that are worth a part of their own

  static constexpr size_t kQueryNumbers = static_cast<size_t>(kRows) * kPitch;
  static constexpr size_t kStageNumbers = 2 * static_cast<size_t>(kKeys) * kPitch;
  static constexpr size_t kStatsBytes = 2 * sizeof(float) * kWarpRows * kWarps;

  static constexpr size_t bytes(int stages) {
    return 2 * (kQueryNumbers + static_cast<size_t>(stages) * kStageNumbers) + kStatsBytes;
  }
  static constexpr int stages_from(int most) {
    return most == 2 || bytes(most) <= (kBlocks == 2 ? kHalfShared : kMostShared) ? most : stages_from(most - 1);
  }
  static constexpr int kStages = stages_from(4);
  static constexpr size_t kBytes = bytes(kStages);
  static_assert(kBytes <= kMostShared, "");
  // At the end the accumulators of all warps lie where queries and keys were.
  static constexpr size_t kStatsAt = kBytes - kStatsBytes;
  static_assert(sizeof(float) * kWarpRows * kWarps * kPitch <= kStatsAt, "");
};

// Calls visit(Tile) with the tile that suits the number of rows of a kv head.
template <int D, typename Visit>
void with_tile(int rows, Visit visit) {
  if (rows <= 16) return visit(Tile<D, 1, 4, 1>());
  if (rows <= 64) return visit(Tile<D, 4, 2, 1>());
  if constexpr (D <= 128) {
    if (rows <= 128) return visit(Tile<D, 4, 2, 2>());
    return visit(Tile<D, 8, 1, 2>());
  } else {
    return visit(Tile<D, 8, 1, 1>());  // the registers of a multiprocessor hold no more
  }
}

template <int size>
struct HeadSize {
  static constexpr int value = size;
};

// Calls visit(HeadSize) with the size as a type.
template <typename Visit>
void with_head_size(int size, Visit visit) {
  switch (size) {
    case 64: return visit(HeadSize<64>());
    case 80: return visit(HeadSize<80>());
    case 96: return visit(HeadSize<96>());
    case 128: return visit(HeadSize<128>());
    case 192: return visit(HeadSize<192>());
    case 256: return visit(HeadSize<256>());
  }
}

// Rows of one kv head: row r is query r / group in head r % group of the group.
VF_HOST_DEVICE int rows_of(const TreeAttentionArguments& a) { return a.queries * (a.heads / a.kv_heads); }

// Blocks that share the rows of one kv head: more than one only where one block's registers do not hold them.
VF_HOST_DEVICE int row_blocks(const TreeAttentionArguments& a, int block_rows) { return ceil_div(rows_of(a), block_rows); }

// Rows of a block that a part of the workspace holds.
VF_HOST_DEVICE int stored_rows(const TreeAttentionArguments& a, int block_rows) {
  return rows_of(a) < block_rows ? rows_of(a) : block_rows;
}

// Blocks that work side by side on other rows of the batch, kv heads and rows of a kv head.
VF_HOST_DEVICE int64_t units_of(const TreeAttentionArguments& a, int block_rows) {
  return static_cast<int64_t>(a.batch) * a.kv_heads * row_blocks(a, block_rows);
}

// The workspace: for each unit and split the accumulators of its rows, then maximum and sum of each row, and at the end
// how many parts each unit has.
struct Workspace {
  float* accumulators;
  float* stats;
  int* parts;

  VF_HOST_DEVICE Workspace(const TreeAttentionArguments& a, int block_rows) {
    const int64_t rows = units_of(a, block_rows) * a.splits * stored_rows(a, block_rows);
    accumulators = a.workspace;
    stats = accumulators + rows * a.head_size;
    parts = reinterpret_cast<int*>(stats + 2 * rows);
  }
};

// Enough splits to fill the device when all lengths are at the capacity, and none that could never have work.
template <typename Block>
TreeAttentionPlan plan_of(const TreeAttentionArguments& a) {
  const int64_t units = units_of(a, Block::kRows);
  const int64_t resident = static_cast<int64_t>(multiprocessors()) * Block::kBlocks / units;
  const int64_t useful = ceil_div64(a.capacity, Block::kKeys * Block::kShare);
  const int64_t splits = resident < useful ? resident : useful;
  if (splits <= 1) return {1, 0};
  return {static_cast<int>(splits), units * splits * stored_rows(a, Block::kRows) * (a.head_size + 2) + units};
}

}  // namespace vf::tree_attention
