#include "fused_linear.cuh"

namespace vf {
namespace fused {

template void start_linear<bf16, false>(const FusedLinearArguments& a, Stream stream);
template void start_qkv<bf16, false>(const FusedQkvArguments& a, Stream stream);

}  // namespace fused
}  // namespace vf
