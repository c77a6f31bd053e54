// Kernels of some head sizes: files of their own, so that they are compiled side by side.
#include "kernels.cuh"

namespace vf::tree_attention {

template void start_size<128>(const TreeAttentionArguments&, Stream);

}  // namespace vf::tree_attention
