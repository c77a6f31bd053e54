// Numbers of numpy's Philox stream by their place; see vocabforge/ops/philox.py.
#pragma once

#include "shared_math.h"

namespace vf {

// The n-th double, from 0, of numpy.random.Generator(numpy.random.Philox(key=seed)).random(): Philox4x64-10 (Salmon et
// al. 2011). numpy counts before it draws, and four words come from one count.
VF_DEVICE double philox_uniform(uint64_t seed, uint64_t place) {
  uint64_t words[4] = {(place >> 2) + 1, 0, 0, 0};
  uint64_t first_key = seed, second_key = 0;
  for (int round = 0; round < 10; ++round) {
    const uint64_t low = words[0] * 0xD2E7470EE14C6C93ull, high = mul_high(words[0], 0xD2E7470EE14C6C93ull);
    const uint64_t other_low = words[2] * 0xCA5A826395121157ull, other_high = mul_high(words[2], 0xCA5A826395121157ull);
    words[0] = other_high ^ words[1] ^ first_key;
    words[1] = other_low;
    words[2] = high ^ words[3] ^ second_key;
    words[3] = low;
    first_key += 0x9E3779B97F4A7C15ull;
    second_key += 0xBB67AE8584CAA73Bull;
  }
  const unsigned which = place & 3;
  const uint64_t word = which == 0 ? words[0] : which == 1 ? words[1] : which == 2 ? words[2] : words[3];
  return static_cast<double>(word >> 11) * 0x1p-53;
}

}  // namespace vf
