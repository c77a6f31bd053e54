// The first histogram's bins: sign and magnitude of a score, 2^detail bins an octave from 2^-6 for 16 octaves; the
// first and the last bin of a sign take what is smaller and larger. Bins ascend with the scores, NaN is in the lowest.
#pragma once

#include "../common/prefix.cuh"

namespace vf {
namespace ranker {

// In the order of the scores; NaN below all.
VF_DEVICE uint32_t key_of(float score) { return score != score ? 0u : order_key(score); }

struct Bins {
  int detail;

  VF_DEVICE int side() const { return 16 << detail; }  // bins of one sign
  VF_DEVICE int shift() const { return 23 - detail; }
  VF_DEVICE int lowest() const { return (127 - 6) << detail; }

  VF_DEVICE int of(uint32_t key) const {
    const bool positive = key & 0x80000000u;
    const uint32_t magnitude = positive ? key & 0x7FFFFFFFu : 0x7FFFFFFFu - key;  // bits of |score|
    int bin = static_cast<int>(magnitude >> shift()) - lowest() + 1;
    bin = bin < 0 ? 0 : bin >= side() ? side() - 1 : bin;
    return positive ? side() + bin : side() - 1 - bin;
  }

  // The lowest key of a bin, and how many bits tell its keys apart.
  VF_DEVICE uint32_t first_key(int bin) const {
    return bin >= side() ? 0x80000000u + begin(bin - side()) : 0x80000000u - begin(side() - bin);
  }
  VF_DEVICE int key_bits(int bin) const {
    const uint32_t keys = bin + 1 < 2 * side() ? first_key(bin + 1) - first_key(bin) : 0u - first_key(bin);
    return 32 - clz(keys - 1);
  }

 private:
  // Bits of the smallest magnitude in a bin of a sign.
  VF_DEVICE uint32_t begin(int bin) const {
    return bin == 0 ? 0u : bin >= side() ? 0x80000000u : static_cast<uint32_t>(bin - 1 + lowest()) << shift();
  }
};

// Where the `wanted`-th largest of counted things lies: its bin, how many lie in bins above, how many in it.
struct Border {
  int bin, above, inside;
};

// All threads; `count` gives a bin's number, and the bins hold `wanted` things at least.
template <int kThreads, typename Count>
VF_DEVICE Border find_border(int bins, int wanted, Count count) {
  VF_SHARED Border border;
  const int share = ceil_div(bins, kThreads), highest = bins - 1 - static_cast<int>(threadIdx.x) * share;
  int mine = 0;
  for (int bin = highest; bin > highest - share && bin >= 0; --bin) mine += count(bin);
  int above = static_cast<int>(block_prefix<kThreads>(static_cast<Wide>(mine)).before);
  if (above < wanted && above + mine >= wanted) {
    int bin = highest, inside = count(bin);
    while (above + inside < wanted) {
      above += inside;
      inside = count(--bin);
    }
    border = {bin, above, inside};
  }
  sync_block();
  return border;
}

}  // namespace ranker
}  // namespace vf
