// The choice of the kernels, which the files beside this one hold.
#include "tile.cuh"

namespace vf {
namespace tree_attention {

template <int D>
void start_size(const TreeAttentionArguments& a, Stream stream);

}  // namespace tree_attention

TreeAttentionPlan tree_attention_plan(const TreeAttentionArguments& a) {
  using namespace tree_attention;
  TreeAttentionPlan plan = {1, 0};
  with_head_size(a.head_size, [&](auto size) {
    with_tile<decltype(size)::value>(rows_of(a), [&](auto block) { plan = plan_of<decltype(block)>(a); });
  });
  return plan;
}

void tree_attention_cuda(const TreeAttentionArguments& a, Stream stream) {
  tree_attention::with_head_size(a.head_size, [&](auto size) {
    tree_attention::start_size<decltype(size)::value>(a, stream);
  });
}

}  // namespace vf
