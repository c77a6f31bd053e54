// The inner loop: one tile of keys and values against the 16 rows of a warp (FlashAttention's online softmax,
// Dao et al., arXiv:2205.14135, with the split along the keys of Flash-Decoding).
#pragma once

#include "visible.cuh"

namespace vf::tree_attention {

constexpr float kLog2e = 1.4426950408889634f;
VF_DEVICE float minus_infinity() { return bits_float(0xFF800000u); }

// What a thread holds of its warp's rows: row g = lane / 4 (index 0) and row g + 8 (index 1).
template <int D>
struct Rows {
  float out[D / 8][4];    // unnormalised; columns as mma's C
  float most[2];          // largest score so far, times log2(e)
  float sum[2];           // this thread's share

  VF_DEVICE void clear() {
    VF_UNROLL
    for (int i = 0; i < D / 8; ++i) {
      VF_UNROLL
      for (int j = 0; j < 4; ++j) out[i][j] = 0.0f;
    }
    most[0] = most[1] = minus_infinity();
    sum[0] = sum[1] = 0.0f;
  }
};

// Address of this lane's row for ldmatrix_x4 of a 16 x 16 square: matrices 1 and 2 lie below and right of matrix 0.
template <typename T>
VF_DEVICE const T* down_first(const T* square, int pitch) {
  return square + (lane() / 8 % 2 * 8 + lane() % 8) * pitch + lane() / 16 * 8;
}
// The same with matrix 1 right of matrix 0 and matrix 2 below it.
template <typename T>
VF_DEVICE const T* right_first(const T* square, int pitch) {
  return square + (lane() / 16 * 8 + lane() % 8) * pitch + lane() / 8 % 2 * 8;
}

template <typename T>
VF_DEVICE void mma_pair(float (&left)[4], float (&right)[4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  const uint32_t first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
  mma_16816<T>(left, a, first);
  mma_16816<T>(right, a, second);
}

// scores (16 x keys) = queries (16 x D) keys^T, for each 16 rows of the warp.
template <typename T, typename Block, int D, int kept>
VF_DEVICE void score(float (&scores)[Block::kRowTiles][Block::kWarpKeys / 8][4], const T* queries,
                     const uint32_t (&registers)[kept][4], const T* keys) {
  VF_UNROLL
  for (int m = 0; m < Block::kRowTiles; ++m) {
    VF_UNROLL
    for (int i = 0; i < Block::kWarpKeys / 2; ++i) scores[m][i / 4][i % 4] = 0.0f;
  }
  VF_UNROLL
  for (int k = 0; k < D / 16; ++k) {
    uint32_t a[Block::kRowTiles][4];
    VF_UNROLL
    for (int m = 0; m < Block::kRowTiles; ++m) {
      if constexpr (Block::kKeepQueries) {
        VF_UNROLL
        for (int j = 0; j < 4; ++j) a[m][j] = registers[k][j];
      } else {
        ldmatrix_x4(a[m], down_first(queries + m * 16 * Block::kPitch + k * 16, Block::kPitch));
      }
    }
    VF_UNROLL
    for (int n = 0; n < Block::kWarpKeys / 16; ++n) {
      uint32_t b[4];
      ldmatrix_x4(b, right_first(keys + n * 16 * Block::kPitch + k * 16, Block::kPitch));
      VF_UNROLL
      for (int m = 0; m < Block::kRowTiles; ++m) mma_pair<T>(scores[m][2 * n], scores[m][2 * n + 1], a[m], b);
    }
  }
}

// Hides what the queries of rows first .. first + 15 of the kv head do not see of the keys from `slot` on.
template <int count>
VF_DEVICE void hide(float (&scores)[count][4], const TreeAttentionArguments& a, const Range& range, int row, int first,
                    int slot) {
  VF_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int query = (first + lane() / 4 + 8 * half) / (a.heads / a.kv_heads);
    const int known = query < a.queries ? query : a.queries - 1;  // rows beyond the last are read by nobody
    const uint32_t bits =
        visible_bits(a, range, static_cast<int64_t>(row) * a.queries + known, slot) >> (lane() % 4 * 2);
    VF_UNROLL
    for (int n = 0; n < count; ++n) {
      VF_UNROLL
      for (int j = 0; j < 2; ++j) {
        if ((bits >> (8 * n + j) & 1) == 0) scores[n][2 * half + j] = minus_infinity();
      }
    }
  }
}

// Turns scores into weights 2^(score - most) and takes them into maximum and sum; rescales what was summed before.
template <int count, int D>
VF_DEVICE void soften(float (&scores)[count][4], Rows<D>& rows, float scale) {
  float most[2];
  VF_UNROLL
  for (int half = 0; half < 2; ++half) {
    float found = minus_infinity();
    VF_UNROLL
    for (int n = 0; n < count; ++n) found = max(found, max(scores[n][2 * half], scores[n][2 * half + 1]));
    found = max(found, shuffle_xor(found, 1));
    found = max(found, shuffle_xor(found, 2));
    most[half] = max(rows.most[half], found * scale);
  }
  // After the first tiles the maximum hardly ever moves.
  if (any(most[0] > rows.most[0] || most[1] > rows.most[1])) {
    VF_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float factor = rows.most[half] == most[half] ? 1.0f : exp2(rows.most[half] - most[half]);
      rows.most[half] = most[half];
      rows.sum[half] *= factor;
      VF_UNROLL
      for (int n = 0; n < D / 8; ++n) {
        rows.out[n][2 * half] *= factor;
        rows.out[n][2 * half + 1] *= factor;
      }
    }
  }
  VF_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float base = most[half] == minus_infinity() ? 0.0f : most[half];  // nothing seen yet: weights 0
    VF_UNROLL
    for (int n = 0; n < count; ++n) {
      VF_UNROLL
      for (int j = 2 * half; j < 2 * half + 2; ++j) {
        scores[n][j] = exp2(scores[n][j] * scale - base);
        rows.sum[half] += scores[n][j];
      }
    }
  }
}

// out (16 x D) += weights (16 x keys) values, for each 16 rows of the warp. The weights' places as mma's C are those of
// its A.
template <typename T, typename Block, int D>
VF_DEVICE void gather(Rows<D> (&rows)[Block::kRowTiles],
                      const float (&weights)[Block::kRowTiles][Block::kWarpKeys / 8][4], const T* values) {
  constexpr int kSteps = Block::kWarpKeys / 16;
  uint32_t a[Block::kRowTiles][kSteps][4];
  VF_UNROLL
  for (int m = 0; m < Block::kRowTiles; ++m) {
    VF_UNROLL
    for (int i = 0; i < kSteps * 4; ++i) {
      const int n = i / 2, half = i % 2 * 2;
      a[m][i / 4][i % 4] = pack<T>(weights[m][n][half], weights[m][n][half + 1]);
    }
  }
  VF_UNROLL
  for (int n = 0; n < D / 16; ++n) {
    VF_UNROLL
    for (int k = 0; k < kSteps; ++k) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, down_first(values + k * 16 * Block::kPitch + n * 16, Block::kPitch));
      VF_UNROLL
      for (int m = 0; m < Block::kRowTiles; ++m) mma_pair<T>(rows[m].out[2 * n], rows[m].out[2 * n + 1], a[m][k], b);
    }
  }
}

}  // namespace vf::tree_attention
