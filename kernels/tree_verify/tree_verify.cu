// A block a tree: every node walks up to the root, the deepest that agrees all the way wins, the first of equal ones.
#include "tree_verify.h"

#include "../common/portable.cuh"

namespace vf {
namespace {

constexpr int kThreads = 256;

struct Shared {
  int parents[kMostVerified];
  bool agrees[kMostVerified];
  uint32_t best[kThreads / kWarp];
  int valid;
};

// (depth + 1, earlier node first) of a node that agrees up to the root, else 0 in the upper half.
VF_DEVICE uint32_t standing(const Shared& shared, int node, int levels) {
  int at = node, depth = 0;
  while (shared.agrees[at] && at != 0 && depth < levels) {
    at = shared.parents[at];
    ++depth;
  }
  const bool accepted = at == 0 && shared.agrees[0];
  return (accepted ? static_cast<uint32_t>(depth + 1) << 16 : 0u) | (0xFFFFu - static_cast<uint32_t>(node));
}

VF_DEVICE uint32_t block_best(Shared& shared, uint32_t mine) {
  mine = reduce_max(mine);
  if (lane() == 0) shared.best[warp()] = mine;
  sync_block();
  for (int i = 0; i < kThreads / kWarp; ++i) mine = shared.best[i] > mine ? shared.best[i] : mine;
  return mine;
}

VF_GLOBAL void VF_BOUNDS(kThreads, 1) tree_verify_kernel(TreeVerifyArguments a) {
  VF_SHARED Shared shared;
  wait_for_former();
  const int row = static_cast<int>(blockIdx.x), first = static_cast<int>(threadIdx.x);
  const int64_t tree = static_cast<int64_t>(row) * a.nodes;
  for (int node = first; node < a.nodes; node += kThreads) {
    int64_t parent = ldg(a.parents + tree + node);
    if (parent < 0 || parent >= a.nodes) parent = 0;
    shared.parents[node] = static_cast<int>(parent);
    const bool agrees = node == 0 || ldg(a.tokens + tree + node) == ldg(a.choices + tree + parent);
    shared.agrees[node] = agrees && (a.alive == nullptr || a.alive[tree + node]);
  }
  if (first == 0) shared.valid = a.levels + 1;
  sync_block();
  uint32_t best = 0;
  for (int node = first; node < a.nodes; node += kThreads) {
    const uint32_t mine = standing(shared, node, a.levels);
    best = mine > best ? mine : best;
  }
  best = block_best(shared, best);
  const int depth = static_cast<int>(best >> 16) - 1, last = 0xFFFF - static_cast<int>(best & 0xFFFFu);
  int64_t* path = a.path + static_cast<int64_t>(row) * (a.levels + 1);
  int64_t* numbers = a.numbers + static_cast<int64_t>(row) * (a.levels + 3);
  for (int place = depth + 1 + first; place <= a.levels; place += kThreads) path[place] = last;
  if (first == 0) {
    for (int place = depth, node = last; place >= 0; --place, node = shared.parents[node]) path[place] = node;
  }
  sync_block();
  for (int place = first; place <= a.levels; place += kThreads) {
    const int64_t node = path[place];
    numbers[2 + place] = ldg(a.choices + tree + node);
    if (!a.valid[tree + node]) atomic_min(&shared.valid, place);
  }
  sync_block();
  if (first == 0) {
    numbers[0] = depth;
    numbers[1] = shared.valid;
  }
}

}  // namespace

void tree_verify_cuda(const TreeVerifyArguments& a, Stream stream) {
  launch(tree_verify_kernel, dim3(static_cast<unsigned>(a.rows)), dim3(kThreads), 0, stream, a);
}

}  // namespace vf
