// x W^T for few rows of x: W is read once, and an element's sum has the same order whatever the number of rows.
#pragma once

#include <algorithm>

#include "cpu.h"
#include "vector.h"

namespace vf::VF_ISA {

// N rows of W against M rows of x. A sum of eight partial sums, then what is left behind the last whole vector.
template <int M, int N, typename W>
inline void tile(const W* w, int64_t w_row, const float* x, int64_t x_row, int64_t depth, float* out, int64_t out_row) {
  Vec sums[N][M] = {};
  const int64_t whole = depth - depth % kLanes;
  for (int64_t k = 0; k < whole; k += kLanes) {
    Vec rows[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      rows[n] = load(w + n * w_row + k);
      __builtin_prefetch(w + (n + N) * w_row + k, 0, 2);  // of the next tile
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const Vec column = load(x + m * x_row + k);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sums[n][m] += rows[n] * column;
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    float* to = out + m * out_row;
#pragma GCC unroll 8
    for (int n = 0; n < N; n += 4) {
      const Half four = vf::VF_ISA::sums(sums[n][m], n + 1 < N ? sums[n + 1][m] : Vec{}, n + 2 < N ? sums[n + 2][m] : Vec{},
                                         n + 3 < N ? sums[n + 3][m] : Vec{});
      std::memcpy(to + n, &four, std::min(4, N - n) * sizeof(float));
    }
    for (int64_t k = whole; k < depth; ++k) {
      for (int n = 0; n < N; ++n) to[n] += number(w + n * w_row + k) * x[m * x_row + k];
    }
  }
}

template <int N, typename W>
inline void tiles(int64_t rows, const W* w, int64_t w_row, const float* x, int64_t x_row, int64_t depth, float* out,
                  int64_t out_row) {
  int64_t m = 0;
  for (; rows - m >= 4; m += 4) tile<4, N>(w, w_row, x + m * x_row, x_row, depth, out + m * out_row, out_row);
  const float* rest = x + m * x_row;
  float* to = out + m * out_row;
  if (rows - m == 3) tile<3, N>(w, w_row, rest, x_row, depth, to, out_row);
  if (rows - m == 2) tile<2, N>(w, w_row, rest, x_row, depth, to, out_row);
  if (rows - m == 1) tile<1, N>(w, w_row, rest, x_row, depth, to, out_row);
}

// Columns first .. last of the result (rows, columns).
template <typename W>
void product(int64_t rows, const W* w, int64_t w_row, const float* x, int64_t x_row, int64_t depth, float* out,
             int64_t out_row, int64_t first, int64_t last) {
  constexpr bool kNarrow = sizeof(W) < sizeof(float);  // each tile widens it, so taller tiles gain nothing
  int64_t n = first;
  if (rows == 1) {
    for (; last - n >= 8; n += 8) tile<1, 8>(w + n * w_row, w_row, x, x_row, depth, out + n, out_row);
  } else if (rows == 2) {
    for (; last - n >= 4; n += 4) tile<2, 4>(w + n * w_row, w_row, x, x_row, depth, out + n, out_row);
  } else if (rows == 5 && !kNarrow) {
    for (; last - n >= 2; n += 2) tile<5, 2>(w + n * w_row, w_row, x, x_row, depth, out + n, out_row);
  } else if (rows == 6 && !kNarrow) {
    for (; last - n >= 2; n += 2) tile<6, 2>(w + n * w_row, w_row, x, x_row, depth, out + n, out_row);
  } else {
    for (; last - n >= 3; n += 3) tiles<3>(rows, w + n * w_row, w_row, x, x_row, depth, out + n, out_row);
  }
  for (; n < last; ++n) tiles<1>(rows, w + n * w_row, w_row, x, x_row, depth, out + n, out_row);
}

}  // namespace vf::VF_ISA
