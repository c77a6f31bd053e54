// A block a row: the bound of the best by radix select, their places by counting bits, ancestors by walking up.
#include "tree_select.h"

#include "../common/select.cuh"

namespace vf {
namespace {

constexpr int kThreads = 512;
constexpr int kWords = kMostHistory / kWarp;
constexpr int kMostTreeWords = kMostNodes / 64;

// Which nodes of the history are kept, and how many before each group of 32.
struct Chosen {
  uint32_t bits[kWords];
  uint32_t before[kWords];
};

struct Tree {
  int parents[kMostNodes];
  unsigned long long words[kMostNodes * kMostTreeWords];
};

// The place of node i of the history in the tree; the root's for one that is not kept.
VF_DEVICE int place_of(const Chosen& chosen, int i) {
  const uint32_t bits = chosen.bits[i / kWarp], bit = 1u << (i % kWarp);
  return bits & bit ? static_cast<int>(chosen.before[i / kWarp]) + popc(bits & (bit - 1)) + 1 : 0;
}

template <typename KeyAt>
VF_DEVICE void choose(Chosen& chosen, int size, unsigned long long least, KeyAt key_at) {
  const int count = ceil_div(size, kWarp);
  for (int word = warp(); word < count; word += kThreads / kWarp) {
    const int i = word * kWarp + lane();
    const uint32_t bits = ballot(i < size && key_at(i < size ? i : 0) >= least);
    if (lane() == 0) chosen.bits[word] = bits;
  }
  sync_block();
  if (warp() == 0) {
    uint32_t total = 0;
    for (int word = lane(); word - lane() < count; word += kWarp) {
      const uint32_t mine = word < count ? static_cast<uint32_t>(popc(chosen.bits[word])) : 0;
      const uint32_t through = through_lane(mine);
      if (word < count) chosen.before[word] = total + through - mine;
      total += shuffle(through, kWarp - 1);
    }
  }
  sync_block();
}

VF_DEVICE void write_nodes(const TreeSelectArguments& a, const Chosen& chosen, Tree& tree, int row) {
  const int64_t history = static_cast<int64_t>(row) * a.size, out = static_cast<int64_t>(row) * a.nodes;
  for (int i = static_cast<int>(threadIdx.x); i < a.size; i += kThreads) {
    const int place = place_of(chosen, i);
    if (place == 0) continue;
    const int64_t above = ldg(a.expanded + (history + i) / a.children);
    const int parent = above < 0 || above >= i ? 0 : place_of(chosen, static_cast<int>(above));
    tree.parents[place] = parent;
    a.parents[out + place] = parent;
    a.tokens[out + place] = ldg(a.history_tokens + history + i);
  }
  if (threadIdx.x == 0) {
    tree.parents[0] = 0;
    a.parents[out] = 0;
    a.tokens[out] = a.roots[row];
  }
}

VF_DEVICE void write_ancestors(const TreeSelectArguments& a, Tree& tree, int row) {
  const int count = ceil_div(a.nodes, 64);
  const int64_t out = static_cast<int64_t>(row) * a.nodes;
  for (int node = static_cast<int>(threadIdx.x); node < a.nodes; node += kThreads) {
    unsigned long long* words = tree.words + node * count;
    for (int i = 0; i < count; ++i) words[i] = 0;
    words[node / 64] |= 1ull << (node % 64);
    for (int level = 0, above = tree.parents[node]; level < a.levels; ++level, above = tree.parents[above]) {
      words[above / 64] |= 1ull << (above % 64);
      if (above == 0) break;
    }
    int depth = -1;
    for (int i = 0; i < count; ++i) {
      depth += popc(words[i]);
      a.words[(out + node) * count + i] = static_cast<int64_t>(words[i]);
    }
    a.depths[out + node] = depth;
  }
  sync_block();
  bool* ancestors = a.ancestors + out * a.nodes;
  for (int i = static_cast<int>(threadIdx.x); i < a.nodes * a.nodes; i += kThreads) {
    const int node = i / a.nodes, above = i % a.nodes;
    ancestors[i] = tree.words[node * count + above / 64] >> (above % 64) & 1;
  }
}

VF_GLOBAL void VF_BOUNDS(kThreads, 1) tree_select_kernel(TreeSelectArguments a) {
  VF_SHARED SelectShared select;
  VF_SHARED Chosen chosen;
  VF_SHARED Tree tree;
  wait_for_former();
  const int row = static_cast<int>(blockIdx.x);
  const float* scores = a.scores + static_cast<int64_t>(row) * a.size;
  auto key_at = [&](int i) { return ranked_key(ldg(scores + i), i); };
  const unsigned long long least = block_least(a.size, a.nodes - 1, select, key_at);
  choose(chosen, a.size, least, key_at);
  write_nodes(a, chosen, tree, row);
  sync_block();
  write_ancestors(a, tree, row);
}

}  // namespace

void tree_select_cuda(const TreeSelectArguments& a, Stream stream) {
  launch(tree_select_kernel, dim3(static_cast<unsigned>(a.rows)), dim3(kThreads), 0, stream, a);
}

}  // namespace vf
