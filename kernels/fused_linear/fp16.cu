#include "fused_linear.cuh"

namespace vf {
namespace fused {

template void start_linear<fp16, false>(const FusedLinearArguments& a, Stream stream);
template void start_qkv<fp16, false>(const FusedQkvArguments& a, Stream stream);

}  // namespace fused
}  // namespace vf
