// Kernels of some head sizes: files of their own, so that they are compiled side by side.
#include "kernels.cuh"

namespace vf::tree_attention {

template void start_size<192>(const TreeAttentionArguments&, Stream);
template void start_size<256>(const TreeAttentionArguments&, Stream);

}  // namespace vf::tree_attention
