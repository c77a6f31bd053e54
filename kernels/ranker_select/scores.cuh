// Scores of all rows by the skinny product, counted in bins as they leave it. A source for each dtype, so that they
// compile side by side.
#pragma once

#include "../common/skinny.cuh"
#include "bins.cuh"
#include "ranker_select.h"

namespace vf {
namespace ranker {

constexpr int kMostCounted = 60000;  // positions of a block: its counters have 16 bits

// Writes scores and counts them in bins; a block's counts go to device memory at its end.
struct ScoresInBins {
  float* scores;
  int* histogram;
  int rows, size, first;  // position 0 is id `first`
  Bins bins;
  uint32_t* counters;     // (rows, bins / 2) pairs of 16 bits

  using Note = NoNote;

  VF_DEVICE void begin(unsigned char* shared) {
    counters = reinterpret_cast<uint32_t*>(shared);
    for (int i = threadIdx.x; i < rows * bins.side(); i += blockDim.x) counters[i] = 0;
  }
  VF_DEVICE Note note(int, int) { return {}; }
  VF_DEVICE void element(const Note&, int position, int, int n, float score) {
    const int bin = bins.of(key_of(score));
    scores[static_cast<int64_t>(n) * size + first + position] = score;
    atomic_add(counters + n * bins.side() + bin / 2, bin % 2 == 0 ? 1u : 1u << 16);
  }
  VF_DEVICE void end() {
    // Lanes side by side add to numbers side by side, which travel together.
    for (int i = threadIdx.x; i < rows * 2 * bins.side(); i += blockDim.x) {
      const uint32_t count = counters[i / 2] >> (i % 2 * 16) & 0xFFFFu;
      if (count != 0) atomic_add(histogram + i, static_cast<int>(count));
    }
  }
};

template <typename T>
void score_with(const RankerSelectArguments& a, Stream stream) {
  const Bins bins{a.detail};
  const int step = kMostCounted * multiprocessors(), counters = a.rows * ranker_bins(a.detail) * 2;
  for (int first = 0; first < a.size; first += step) {
    const int count = a.size - first < step ? a.size - first : step;
    const T* vocab = static_cast<const T*>(a.vocab) + static_cast<int64_t>(first) * a.rank;
    SkinnyProduct product{a.projected, vocab, a.rows, a.rank, count};
    product.constant = true;  // where it is a copy for this call, the histogram's clearing lies between
    const ScoresInBins epilogue{a.scores, a.histogram, a.rows, a.size, first, bins, nullptr};
    skinny_product<T>(product, ContiguousRows{count}, epilogue, SkinnyShared{0, counters}, stream);
  }
}

}  // namespace ranker
}  // namespace vf
