// Zeros before a kernel that counts.
#pragma once

#include "portable.cuh"

namespace vf {

constexpr int kFillThreads = 256;

template <typename Word>
VF_GLOBAL void VF_BOUNDS(kFillThreads, 1) fill_kernel(Word* words, int count) {
  wait_for_former();
  const int i = static_cast<int>(blockIdx.x) * kFillThreads + static_cast<int>(threadIdx.x);
  if (i < count) words[i] = 0;
}

// `count` zeros. A memset takes no part in dependent launches: the kernel behind it could not begin early.
template <typename Word>
void fill_zeros(Word* words, int count, Stream stream) {
  if (!dependent_launches()) return fill_bytes(words, 0, sizeof(Word) * static_cast<size_t>(count), stream);
  const dim3 grid(static_cast<unsigned>(ceil_div(count, kFillThreads)));
  launch(fill_kernel<Word>, grid, dim3(kFillThreads), 0, stream, words, count);
}

}  // namespace vf
