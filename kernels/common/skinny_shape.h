// Sizes of skinny.cuh's tiles, and the choice between low and tall ones.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vf {

constexpr int kSkinnyThreads = 256;
constexpr int kSkinnyWarps = kSkinnyThreads / 32;

// N in tiles of 8 hidden rows, elements of 2 bytes. Low tiles: one warp high, the inner dimension split over all warps.
// Tall tiles: 4 warps high, 2 along the inner dimension.
template <int kNTiles, bool kTall>
struct SkinnyShape {
  static constexpr int kMTiles = kNTiles <= 2 ? 1 : 2;  // mma tiles of 16 rows a warp: a B operand read serves them all
  static constexpr int kWarpsM = kTall ? 4 : 1, kWarpsK = kSkinnyWarps / kWarpsM;
  static constexpr int kRows = kMTiles * 16;            // weight rows of a warp
  static constexpr int kHeight = kWarpsM * kRows;       // weight rows of a tile
  static constexpr int kPiece = 8;                      // elements that a thread copies at once
  static constexpr int kChunk = 4 * kPiece;             // inner elements of 8 rows that a warp copies at once
  static constexpr int kStep = kWarpsK * kChunk;        // inner elements of a stage, a chunk a warp
  static constexpr int kPieces = kMTiles * 2;           // rows of a thread, 8 apart
  // A stage is 8 or 16 KB of weights; all but one or two of the ring's 64 KB are under way, above bandwidth times
  // latency of one multiprocessor (4.8 TB/s * 0.8 us / 132 = 29 KB on an H200).
  static constexpr int kStages = kMTiles == 1 ? 8 : 4;
  static constexpr int kWeightBytes = kSkinnyThreads * kPieces * 16;
  static constexpr int kHiddenBytes = kWarpsK * kNTiles * 32 * 16;
  // Sums of the warps along the inner dimension, 16 columns at a time; rows 4 floats apart from a multiple of 32 banks.
  static constexpr int kSumTiles = kNTiles < 2 ? kNTiles : 2;
  static constexpr int kSumStride = kHeight + 4;
  static constexpr int kSumBytes = kWarpsK * kSumTiles * 8 * kSumStride * 4;
  static constexpr int kValueBytes = kNTiles * 8 * kHeight * 4;  // of a tile, where the epilogue wants it whole
};

// Where things lie in a block's shared memory, in bytes.
struct SkinnyLayout {
  int steps;       // stages of one tile
  bool resident;   // all hidden rows stay in shared memory: copied with the block's first tile, never again
  int hidden, sums, values, rows, epilogue, bytes;
  int blocks;      // the grid
  int64_t cost;    // of the busiest multiprocessor, in bytes copied
};

inline int skinny_align(int bytes) { return (bytes + 127) / 128 * 128; }

// The layout on a device, given the most positions (for the grid) and the likely number (for the cost); bytes is beyond
// `limit` where this shape does not fit.
template <typename Shape, bool kWholeTile>
SkinnyLayout skinny_layout(int d, int most, int likely, int rows_bytes, int epilogue_bytes, int limit,
                           int multiprocessors) {
  SkinnyLayout l{};
  l.steps = (d + Shape::kStep - 1) / Shape::kStep;
  const int ring = Shape::kStages * Shape::kWeightBytes;
  const int values = kWholeTile ? Shape::kValueBytes : 0;
  const int rest = Shape::kSumBytes + values + skinny_align(rows_bytes) + skinny_align(epilogue_bytes);
  const int64_t all_hidden = static_cast<int64_t>(l.steps) * Shape::kHiddenBytes;
  l.resident = ring + rest + all_hidden <= limit;
  l.hidden = ring;
  l.sums = ring + (l.resident ? static_cast<int>(all_hidden) : Shape::kStages * Shape::kHiddenBytes);
  l.values = l.sums + Shape::kSumBytes;
  l.rows = skinny_align(l.values + values);
  l.epilogue = l.rows + skinny_align(rows_bytes);
  l.bytes = l.epilogue + skinny_align(epilogue_bytes);
  const auto tiles_of = [](int64_t positions) {
    return positions < 1 ? 1 : (positions + Shape::kHeight - 1) / Shape::kHeight;
  };
  const int fit = Shape::kMTiles == 1 && 2 * (l.bytes + 1024) <= limit + 1024 ? 2 : 1;
  const int64_t places = static_cast<int64_t>(multiprocessors) * fit;
  l.blocks = static_cast<int>(tiles_of(most) < places ? tiles_of(most) : places);
  // Hidden rows come from the second-level cache, at half the price (an estimate). The end of a tile
  // (two barriers, its epilogue) counts as 8 KB.
  const int64_t turns = (tiles_of(likely) + multiprocessors - 1) / multiprocessors;
  const int64_t hidden = l.resident ? 0 : static_cast<int64_t>(l.steps) * Shape::kHiddenBytes / 2;
  l.cost = turns * (static_cast<int64_t>(l.steps) * Shape::kWeightBytes + hidden + 8192) +
           (l.resident ? all_hidden / 2 : 0);
  return l;
}

}  // namespace vf
