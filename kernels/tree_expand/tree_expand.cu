// A block a row: the bound of the best by radix select, then their order by counting how many are better.
#include "tree_expand.h"

#include "../common/select.cuh"

namespace vf {
namespace {

constexpr int kFew = 256;  // children that are put in order without selecting first

VF_GLOBAL void VF_BOUNDS(1024, 1) tree_expand_kernel(TreeExpandArguments a) {
  VF_SHARED SelectShared select;
  VF_SHARED unsigned long long kept[kMostKept];
  VF_SHARED int count;
  wait_for_former();
  const int children = a.width * a.k, row = static_cast<int>(blockIdx.x);
  const int first = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
  const int64_t offset = static_cast<int64_t>(row) * children;
  float* cumulative = a.cumulative + offset;
  for (int i = first; i < children; i += step) {
    cumulative[i] = ldg(a.scores + static_cast<int64_t>(row) * a.width + i / a.k) + ldg(a.logprobs + offset + i);
  }
  if (first == 0) count = children <= kFew ? children : 0;
  // A thread reads only the scores that it has written itself.
  auto key_at = [&](int i) { return ranked_key(cumulative[i], i); };
  if (children <= kFew) {
    for (int i = first; i < children; i += step) kept[i] = key_at(i);
  } else {
    const unsigned long long least = block_least(children, a.keep, select, key_at);
    sync_block();
    for (int i = first; i < children; i += step) {
      const unsigned long long key = key_at(i);
      if (key >= least) kept[atomic_add(&count, 1)] = key;
    }
  }
  sync_block();
  for (int i = first; i < count; i += step) {
    const unsigned long long key = kept[i];
    int rank = 0;
    for (int j = 0; j < count; ++j) rank += kept[j] > key;
    if (rank >= a.keep) continue;
    const int place = ranked_index(key);
    const int64_t at = static_cast<int64_t>(row) * a.keep + rank;
    a.best_scores[at] = cumulative[place];
    a.tokens[at] = ldg(a.ids + offset + place);
    a.parents[at] = place / a.k;
    a.places[at] = a.first + place;
    const int bit = a.slot + rank;
    for (int word = 0; word < a.words; ++word) {
      const int64_t above = ldg(a.above + (static_cast<int64_t>(row) * a.width + place / a.k) * a.words + word);
      const uint64_t own = word == bit / 64 ? uint64_t{1} << bit % 64 : 0;
      a.seen[at * a.words + word] = static_cast<int64_t>(static_cast<uint64_t>(above) | own);
    }
  }
}

}  // namespace

void tree_expand_cuda(const TreeExpandArguments& a, Stream stream) {
  const int threads = a.width * a.k > kFew ? 1024 : 256;
  launch(tree_expand_kernel, dim3(static_cast<unsigned>(a.rows)), dim3(static_cast<unsigned>(threads)), 0, stream, a);
}

}  // namespace vf
