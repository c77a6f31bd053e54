// fused_linear, fused_qkv: a decoder layer's products with what stands before and behind them; see
// vocabforge/ops/fused_linear.py.
#pragma once

#include "../common/types.h"
#include "../rope_store/rope_store.h"

namespace vf {

struct FusedLinearArguments {
  const void* x;         // (n, d)
  const void* weight;    // (rows, d)
  const void* bias;      // (rows), or null
  const void* norm;      // (d), or null
  const void* residual;  // (n, rows), or null; not if gated
  void* out;             // (n, rows), if gated (n, rows / 2); null if keys, values and queries are stored
  int n, d, rows;        // CUDA: n at most 64, d a multiple of 8
  float eps;
  bool gated;            // the first half of the rows are gates
  Type type;             // of everything; CUDA: bfloat16 or float16, the latter without a norm
};

struct FusedQkvArguments {
  FusedLinearArguments product;  // n = rotation.batch * rotation.length
  RopeStoreArguments rotation;   // without qkv and qk_norm
};

namespace fused {  // a source for each pair, so that they compile side by side

template <typename T, bool kNorm>
void start_linear(const FusedLinearArguments& a, Stream stream);
template <typename T, bool kNorm>
void start_qkv(const FusedQkvArguments& a, Stream stream);

}  // namespace fused

void fused_linear_cuda(const FusedLinearArguments& a, Stream stream);
void fused_qkv_cuda(const FusedQkvArguments& a, Stream stream);
void fused_linear_cpu(const FusedLinearArguments& a);
void fused_qkv_cpu(const FusedQkvArguments& a);

}  // namespace vf
