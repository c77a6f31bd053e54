// What host code of kernels and bindings share, free of CUDA's headers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vf {

using Stream = void*;  // a cudaStream_t; null is CUDA's default stream

// How 16-bit and 32-bit data is told to a launcher.
enum class Type { kFloat32, kBFloat16, kFloat16 };

}  // namespace vf
