// Checks that bindings of ops on hidden states and a head's weight share.
#pragma once

#include "binding.h"

namespace vf {

inline void check_aligned(const Tensor& tensor, const char* what) {
  const bool aligned = reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 16 == 0;
  VF_CHECK(aligned, what, ": data must begin at a multiple of 16 bytes");
}

// hidden (N, d) and weight (V, d) of one dtype; the CUDA kernels take bf16 and fp16.
inline Type check_head(const Tensor& hidden, const Tensor& weight) {
  check_matrix(hidden, 2, "hidden");
  check_matrix(weight, 2, "weight");
  check_same_device(hidden, weight, "weight");
  const int64_t n = hidden.size(0), d = hidden.size(1), vocab = weight.size(0);
  VF_CHECK(n >= 1 && n <= 64, "hidden: expected 1 to 64 rows, got ", n);
  VF_CHECK(d >= 8 && d % 8 == 0 && d < (1 << 24), "hidden: its size must be a multiple of 8, got ", d);
  VF_CHECK(weight.size(1) == d, "weight: expected ", d, " columns, got ", weight.size(1));
  VF_CHECK(vocab >= 1 && vocab <= (1 << 20), "weight: expected 1 to 2^20 rows, got ", vocab);
  const Type type = type_of(hidden, "hidden");
  VF_CHECK(type_of(weight, "weight") == type, "weight: expected hidden's dtype");
  if (on_device(hidden)) {
    VF_CHECK(type != Type::kFloat32, "hidden: the kernel takes bfloat16 and float16");
    check_aligned(hidden, "hidden");
    check_aligned(weight, "weight");
  }
  return type;
}

// Whether ids are int64; int32 else.
inline bool wide_ids(const Tensor& ids, const char* what) {
  const bool wide = ids.scalar_type() == ScalarType::Long;
  VF_CHECK(wide || ids.scalar_type() == ScalarType::Int, what, ": expected int32 or int64");
  return wide;
}

}  // namespace vf
