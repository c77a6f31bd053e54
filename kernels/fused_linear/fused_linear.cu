#include "fused_linear.h"

namespace vf {

void fused_linear_cuda(const FusedLinearArguments& a, Stream stream) {
  if (a.type == Type::kFloat16) return fused::start_linear<fp16, false>(a, stream);
  a.norm == nullptr ? fused::start_linear<bf16, false>(a, stream) : fused::start_linear<bf16, true>(a, stream);
}

void fused_qkv_cuda(const FusedQkvArguments& a, Stream stream) {
  if (a.product.type == Type::kFloat16) return fused::start_qkv<fp16, false>(a, stream);
  a.product.norm == nullptr ? fused::start_qkv<bf16, false>(a, stream) : fused::start_qkv<bf16, true>(a, stream);
}

}  // namespace vf
