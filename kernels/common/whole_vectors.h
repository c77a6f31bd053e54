// For bindings of kernels that read 16 bytes at a time.
#pragma once

#include "binding.h"

namespace vf {

// Whether vectors along the last dimension are in one piece and begin at multiples of 16 bytes.
inline bool has_whole_vectors(const Tensor& tensor) {
  const int64_t last = tensor.dim() - 1, bytes = static_cast<int64_t>(tensor.element_size());
  bool whole = reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 16 == 0 && tensor.stride(last) == 1;
  for (int64_t i = 0; i < last; ++i) whole = whole && tensor.stride(i) * bytes % 16 == 0;
  return whole;
}

// The tensor, or a copy that has them: views may begin anywhere. What a kernel writes to cannot be copied: check it.
inline Tensor with_whole_vectors(const Tensor& tensor) {
  if (has_whole_vectors(tensor)) return tensor;
  return torch::stable::clone(tensor);
}

}  // namespace vf
