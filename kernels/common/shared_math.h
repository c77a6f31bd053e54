// Lets one header serve kernels (CUDA or emulated) and CPU implementations: device functions are then plain ones.
#pragma once

#if defined(__CUDACC__) || defined(VF_EMULATE)
#include "portable.cuh"
#else
#include <cstdint>

#include "stream.h"

#define VF_DEVICE inline

namespace vf {

inline uint64_t mul_high(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
}

}  // namespace vf
#endif
