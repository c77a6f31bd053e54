// Numbers as they lie in memory, the same in CUDA and in the emulator.
#pragma once

#include <cstdint>

namespace vf {

struct bf16 {
  uint16_t bits;
};
struct fp16 {
  uint16_t bits;
};

struct alignas(16) Vec16 {
  uint32_t x[4];
};

}  // namespace vf
