#include "fused_linear.cuh"

namespace vf {
namespace fused {

template void start_linear<bf16, true>(const FusedLinearArguments& a, Stream stream);
template void start_qkv<bf16, true>(const FusedQkvArguments& a, Stream stream);

}  // namespace fused
}  // namespace vf
