// The kernel of skinny.cuh; include that.
//
// Shared memory is used in the order of the mma's fragments: a thread copies the 16-byte pieces of weight that it will
// multiply itself, so reading them back needs no barrier and meets no bank twice. The product sums over the inner
// dimension, so its order may be any as long as both operands agree: lane t of a quad takes elements 8t..8t+7 of each
// 32, which are two mma steps; the usual order (2t, 2t+1, 2t+8, 2t+9) would need ldmatrix or 4-byte reads.
#pragma once

#include "skinny_shape.h"
#include "portable.cuh"

namespace vf {
namespace skinny {

template <typename Epilogue, typename = void>
struct TakesTiles : std::false_type {};
template <typename Epilogue>
struct TakesTiles<Epilogue, std::void_t<typename Epilogue::WholeTile>> : std::true_type {};

template <typename Rows, typename = void>
struct KnowsRows : std::false_type {};
template <typename Rows>
struct KnowsRows<Rows, std::void_t<typename Rows::Known>> : std::true_type {};

// Copies stages into the ring, tile after tile of this block, ahead of the product.
template <typename T, typename S, int kNTiles, typename Rows>
struct Copier {
  const SkinnyProduct& p;
  const SkinnyLayout& l;
  const Rows& rows;
  unsigned char* shared;
  int positions, stages_left, tile, step = 0, slot = 0;
  bool first = true;
  int next[S::kPieces];
  const T* source[S::kPieces];

  // Rows of a tile; asked for one tile ahead, so that a list is read behind copies.
  VF_DEVICE void look_up(int of_tile) {
    VF_UNROLL
    for (int i = 0; i < S::kPieces; ++i) {
      const int position = of_tile * S::kHeight + warp() % S::kWarpsM * S::kRows + i * 8 + lane() / 4;
      next[i] = position < positions ? rows.row(position) : -1;
    }
  }

  VF_DEVICE void copy_weight() {
    const T* weight = static_cast<const T*>(p.weight);
    const int begin = (step * S::kWarpsK + warp() / S::kWarpsM) * S::kChunk;
    if (begin >= p.d) return;
    const int k = begin + lane() % 4 * S::kPiece;
    unsigned char* to = shared + slot * S::kWeightBytes + (warp() * S::kPieces * 32 + lane()) * 16;
    VF_UNROLL
    for (int i = 0; i < S::kPieces; ++i) {
      const bool valid = source[i] != nullptr && k < p.d;
      cp_async16(to + i * 512, valid ? source[i] + k : weight, valid);
    }
  }

  VF_DEVICE void copy_hidden() {
    const T* hidden = static_cast<const T*>(p.hidden);
    unsigned char* to = shared + l.hidden + (l.resident ? step : slot) * S::kHiddenBytes;
    for (int piece = static_cast<int>(threadIdx.x); piece < S::kHiddenBytes / 16; piece += kSkinnyThreads) {
      const int part = piece / 32, tile_n = part % kNTiles, chunk = step * S::kWarpsK + part / kNTiles;
      if (chunk * S::kChunk >= p.d) continue;
      const int n = tile_n * 8 + lane() / 4, k = chunk * S::kChunk + lane() % 4 * S::kPiece;
      const bool valid = n < p.n && k < p.d;
      cp_async16(to + piece * 16, valid ? hidden + static_cast<int64_t>(n) * p.d + k : hidden, valid);
    }
  }

  // One stage (or none, at the end) of both operands or of one; with hidden rows, always one group of copies.
  template <bool kWeight = true, bool kHidden = true>
  VF_DEVICE void go() {
    if (stages_left > 0) {
      --stages_left;
      if (step == 0) {
        VF_UNROLL
        for (int i = 0; i < S::kPieces; ++i) {
          source[i] = next[i] < 0 ? nullptr : static_cast<const T*>(p.weight) + static_cast<int64_t>(next[i]) * p.d;
        }
        tile += static_cast<int>(gridDim.x);
        look_up(tile);
      }
      if constexpr (kWeight) copy_weight();
      if constexpr (kHidden) {
        if (first || !l.resident) copy_hidden();
      }
      slot = slot + 1 == S::kStages ? 0 : slot + 1;
      if (++step == l.steps) {
        step = 0;
        first = false;
      }
    }
    if constexpr (kHidden) cp_async_commit();
  }

  // The first stages of a ring. `early`: their weights first, then, behind the former kernel, the hidden rows.
  VF_DEVICE void fill(bool early) {
    Copier hidden = *this;
    if (early) {
      VF_UNROLL
      for (int i = 0; i < S::kStages - 1; ++i) go<true, false>();
      wait_for_former();
      VF_UNROLL
      for (int i = 0; i < S::kStages - 1; ++i) hidden.template go<false, true>();
    } else {
      VF_UNROLL
      for (int i = 0; i < S::kStages - 1; ++i) go();
    }
  }
};

// Adds one stage to the sums of this warp's rows.
template <typename T, typename S, int kNTiles>
VF_DEVICE void multiply(float (&sums)[S::kMTiles][kNTiles][4], const unsigned char* weight,
                        const unsigned char* hidden) {
  Vec16 pieces[S::kPieces];
  VF_UNROLL
  for (int i = 0; i < S::kPieces; ++i) {
    pieces[i] = *reinterpret_cast<const Vec16*>(weight + ((warp() * S::kPieces + i) * 32 + lane()) * 16);
  }
  const unsigned char* first = hidden + (warp() / S::kWarpsM * kNTiles * 32 + lane()) * 16;
  uint32_t a[2][S::kMTiles][4];
  VF_UNROLL
  for (int s = 0; s < 2; ++s) {
    VF_UNROLL
    for (int m = 0; m < S::kMTiles; ++m) {
      VF_UNROLL
      for (int j = 0; j < 4; ++j) a[s][m][j] = pieces[2 * m + j % 2].x[2 * s + j / 2];
    }
  }
  VF_UNROLL
  for (int n = 0; n < kNTiles; ++n) {
    const Vec16 piece = *reinterpret_cast<const Vec16*>(first + n * 512);
    VF_UNROLL
    for (int s = 0; s < 2; ++s) {
      const uint32_t b[2] = {piece.x[2 * s], piece.x[2 * s + 1]};
      VF_UNROLL
      for (int m = 0; m < S::kMTiles; ++m) mma_16816<T>(sums[m][n], a[s][m], b);
    }
  }
}

// Adds the warps' parts in the order of the warps and hands the tile to the epilogue. All threads.
template <typename S, int kNTiles, typename Epilogue>
VF_DEVICE void finish(const float (&sums)[S::kMTiles][kNTiles][4], float* shared, float* values,
                      const SkinnyProduct& p, Epilogue& epilogue, const typename Epilogue::Note& note, int position,
                      bool exists, int row) {
  constexpr int kColumns = S::kSumTiles * 8;
  const int along = warp() / S::kWarpsM, high = warp() % S::kWarpsM;
  VF_UNROLL
  for (int begin = 0; begin < kNTiles; begin += S::kSumTiles) {
    if (begin * 8 >= p.n) continue;
    sync_block();  // the sums before have been read
    VF_UNROLL
    for (int j = 0; j < S::kSumTiles; ++j) {
      VF_UNROLL
      for (int m = 0; m < S::kMTiles; ++m) {
        const float(&c)[4] = sums[m][begin + j];
        const int column = along * kColumns + j * 8 + lane() % 4 * 2, row_here = high * S::kRows + m * 16 + lane() / 4;
        float* at = shared + column * S::kSumStride + row_here;
        at[0] = c[0];
        at[S::kSumStride] = c[1];
        at[8] = c[2];
        at[S::kSumStride + 8] = c[3];
      }
    }
    sync_block();
    const int own = static_cast<int>(threadIdx.x) % S::kHeight;
    for (int n = static_cast<int>(threadIdx.x) / S::kHeight; n < kColumns; n += kSkinnyThreads / S::kHeight) {
      if (!exists || begin * 8 + n >= p.n) continue;
      float value = 0.0f;
      VF_UNROLL
      for (int k = 0; k < S::kWarpsK; ++k) value += shared[(k * kColumns + n) * S::kSumStride + own];
      if constexpr (TakesTiles<Epilogue>::value) {
        values[(begin * 8 + n) * S::kHeight + own] = value;
      } else {
        epilogue.element(note, position, row, begin * 8 + n, value);
      }
    }
  }
}

template <typename T, int kNTiles, bool kTall, typename Rows, typename Epilogue>
VF_GLOBAL void VF_BOUNDS(kSkinnyThreads, kNTiles <= 2 ? 2 : 1)
    skinny_kernel(SkinnyProduct p, SkinnyLayout l, Rows rows, Epilogue epilogue) {
  using S = SkinnyShape<kNTiles, kTall>;
  unsigned char* shared = dynamic_shared();
  const bool early = KnowsRows<Rows>::value && p.constant;
  if (!early) wait_for_former();
  rows.begin(shared + l.rows);
  epilogue.begin(shared + l.epilogue);
  sync_block();
  const int positions = rows.positions(), tiles = ceil_div(positions, S::kHeight);
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  const int mine = tiles > block ? ceil_div(tiles - block, blocks) : 0;

  Copier<T, S, kNTiles, Rows> copier{p, l, rows, shared, positions, mine * l.steps, block};
  copier.look_up(block);
  copier.fill(early);
  int slot = 0;
  for (int turn = 0; turn < mine; ++turn) {
    const int first = (block + turn * blocks) * S::kHeight;
    const int position = first + static_cast<int>(threadIdx.x) % S::kHeight;
    const bool exists = position < positions;
    int row = -1;
    typename Epilogue::Note note{};
    if constexpr (!TakesTiles<Epilogue>::value) {
      if (exists) row = rows.row(position);
      if (exists) note = epilogue.note(position, row);
    }
    float sums[S::kMTiles][kNTiles][4] = {};
    const bool moves = turn == 0 || !l.resident;  // hidden rows come with the stages, copied by all threads for all
    for (int step = 0; step < l.steps; ++step) {
      cp_async_wait<S::kStages - 2>();
      if (moves) sync_block();
      copier.go();  // into the slot that was multiplied before this one
      if ((step * S::kWarpsK + warp() / S::kWarpsM) * S::kChunk < p.d) {
        const unsigned char* hidden = shared + l.hidden + (l.resident ? step : slot) * S::kHiddenBytes;
        multiply<T, S, kNTiles>(sums, shared + slot * S::kWeightBytes, hidden);
      }
      slot = slot + 1 == S::kStages ? 0 : slot + 1;
    }
    float* values = reinterpret_cast<float*>(shared + l.values);
    finish<S, kNTiles>(sums, reinterpret_cast<float*>(shared + l.sums), values, p, epilogue, note, position, exists,
                       row);
    if constexpr (TakesTiles<Epilogue>::value) {
      sync_block();
      epilogue.template tile<S::kHeight>(first, positions, values);
    }
  }
  sync_block();
  epilogue.end();
}

constexpr int kStaticShared = 1024;  // left to the static shared memory of row providers and epilogues

template <typename T, int kNTiles, typename Rows, typename Epilogue>
int start(SkinnyProduct p, const Rows& rows, const Epilogue& epilogue, SkinnyShared extra, Stream stream) {
  p.constant = p.constant && dependent_launches();
  const int limit = shared_limit() - kStaticShared, sms = multiprocessors();
  constexpr bool kWhole = TakesTiles<Epilogue>::value;
  using Low = SkinnyShape<kNTiles, false>;
  using Tall = SkinnyShape<kNTiles, true>;
  const int most = p.most_positions, likely = p.likely_positions > 0 ? p.likely_positions : most;
  const int rows_bytes = extra.rows, own_bytes = extra.epilogue;
  const SkinnyLayout low = skinny_layout<Low, kWhole>(p.d, most, likely, rows_bytes, own_bytes, limit, sms);
  const SkinnyLayout tall = skinny_layout<Tall, kWhole>(p.d, most, likely, rows_bytes, own_bytes, limit, sms);
  if (low.bytes > limit && tall.bytes > limit) {
    throw std::runtime_error("a block has " + std::to_string(limit) + " bytes of shared memory, this product of " +
                             std::to_string(p.n) + " rows needs " + std::to_string(tall.bytes));
  }
  const bool takes_low = low.bytes <= limit && (tall.bytes > limit || low.cost <= tall.cost);
  const SkinnyLayout& l = takes_low ? low : tall;
  const dim3 grid(static_cast<unsigned>(l.blocks)), block(kSkinnyThreads);
  if (takes_low) {
    launch(skinny_kernel<T, kNTiles, false, Rows, Epilogue>, grid, block, l.bytes, stream, p, l, rows, epilogue);
  } else {
    launch(skinny_kernel<T, kNTiles, true, Rows, Epilogue>, grid, block, l.bytes, stream, p, l, rows, epilogue);
  }
  return l.blocks;
}

}  // namespace skinny

template <typename T, typename Rows, typename Epilogue>
int skinny_product(const SkinnyProduct& product, Rows rows, Epilogue epilogue, SkinnyShared extra, Stream stream) {
  if (product.n <= 8) return skinny::start<T, 1>(product, rows, epilogue, extra, stream);
  if (product.n <= 16) return skinny::start<T, 2>(product, rows, epilogue, extra, stream);
  if (product.n <= 32) return skinny::start<T, 4>(product, rows, epilogue, extra, stream);
  return skinny::start<T, 8>(product, rows, epilogue, extra, stream);
}

}  // namespace vf
