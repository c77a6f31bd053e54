// A few hidden rows times many weight rows: value(position, n) = weight[row(position)] . hidden[n], summed in fp32.
//
// Bound by memory: a weight row is read once from device memory, whatever N <= 64 is. 256 threads copy 16-byte pieces
// of a tile of rows into a ring of shared memory (cp.async, 48 to 56 KB of weights under way in a block) and multiply
// them on the tensor cores: weight rows are the mma's A operand, hidden rows (padded to 8, 16, 32 or 64) its B operand.
// Two heights of a tile: low tiles split the inner dimension over all 8 warps, so that 2,048 rows still fill 132
// multiprocessors; tall tiles spread the hidden rows' traffic over more weight rows. skinny_shape.h chooses.
// The parts of a sum are added in a fixed order: same input, same bits, wherever a row stands in the list.
//
// How to use it (see kernels/union_logits/union_logits.cu): a row provider says which rows, an epilogue takes values.
//
//   struct Rows {                                         // passed by value to the kernel
//     VF_DEVICE void begin(unsigned char* shared);        // all threads, once, before other calls; a barrier follows
//     VF_DEVICE int positions() const;                    // how many positions; same for all threads; may be read on
//                                                         // the device (the grid never depends on it); 0 is fine
//     VF_DEVICE int row(int position) const;              // of 0 <= position < positions(): a row, or -1 (zeros)
//   };
//
// Blocks share the positions, tile by tile.
//
//   struct Epilogue {
//     struct Note { ... };                                // what a thread knows early of its position (may be empty)
//     VF_DEVICE void begin(unsigned char* shared);        // as above
//     VF_DEVICE Note note(int position, int row);         // when a tile begins, so that its loads are hidden
//     VF_DEVICE void element(const Note&, int position, int row, int n, float value);
//                                                         // once for each (position < positions(), n < N) of the grid;
//                                                         // row -1: value 0. Threads of a warp: neighbouring positions
//     VF_DEVICE void end();                               // all threads of every block, after a barrier, at the end
//   };
//
// An epilogue that wants a whole tile at once has, instead of note and element (and `using Note = NoNote`):
//
//     using WholeTile = void;
//     template <int kHeight>                              // all threads; value (n, position) is
//     VF_DEVICE void tile(int first, int positions,       // values[n * kHeight + position - first] for positions
//                         const float* values);           // first..first + kHeight - 1 below `positions`
//
//   SkinnyProduct product{hidden, weight, n, d, most_positions};
//   skinny_product<bf16>(product, rows, epilogue, SkinnyShared{rows_bytes, epilogue_bytes}, stream);
//
// `begin` gets 128-byte aligned shared memory of the bytes asked for, the epilogue's right behind the rows' (rounded up
// to 128), and may contain barriers. Element calls may not contain barriers or warp
// operations (some threads of a warp may have none). T is bf16 or fp16. d: a multiple of 8; hidden (N, d) and weight
// (V, d) contiguous, 16-byte aligned.
//
// With dependent launches (docs/guides/kernels.md) the first stages of a constant weight are copied while the former
// kernel still runs, if the rows are `Known` without reading device memory: then no `begin` may touch it, either.
#pragma once

#include <stdexcept>
#include <string>
#include <type_traits>

#include "portable.cuh"

namespace vf {

struct SkinnyProduct {
  const void* hidden;  // (n, d) of T
  const void* weight;  // (V, d) of T
  int n, d;            // 1 <= n <= 64
  int most_positions;  // the most that Rows::positions() can give: the grid follows from it
  int likely_positions = 0;  // about how many it will give, for the tiles' height; 0: the most
  bool constant = false;     // the weight was not written by the launch right before (a copy made for this call is)
};

struct SkinnyShared {
  int rows = 0, epilogue = 0;  // bytes of shared memory for Rows::begin and Epilogue::begin
};

// Positions 0..count-1 are rows 0..count-1.
struct ContiguousRows {
  using Known = void;
  int count;
  VF_DEVICE void begin(unsigned char*) {}
  VF_DEVICE int positions() const { return count; }
  VF_DEVICE int row(int position) const { return position; }
};

// Row numbers or token ids as they were given, int32 or int64. One kernel takes both: a uniform branch is cheaper than
// twice the code.
struct Ids {
  const void* data;
  bool wide;
  VF_DEVICE int64_t operator[](int64_t i) const {
    return wide ? ldg(static_cast<const int64_t*>(data) + i) : ldg(static_cast<const int*>(data) + i);
  }
};

// Position p is row list[p] (outside 0..vocab-1: none); `count` (on the device, may be null) bounds the list.
struct ListedRows {
  Ids list;
  const int* count;
  int most, vocab;
  VF_DEVICE void begin(unsigned char*) {}
  VF_DEVICE int positions() const {
    if (count == nullptr) return most;
    const int given = ldg(count);
    return given < 0 ? 0 : given < most ? given : most;
  }
  VF_DEVICE int row(int position) const {
    const int64_t id = list[position];
    return id < 0 || id >= vocab ? -1 : static_cast<int>(id);
  }
};

struct NoNote {};

// Gives the number of blocks.
template <typename T, typename Rows, typename Epilogue>
int skinny_product(const SkinnyProduct& product, Rows rows, Epilogue epilogue, SkinnyShared extra, Stream stream);

}  // namespace vf

#include "skinny_kernel.cuh"
