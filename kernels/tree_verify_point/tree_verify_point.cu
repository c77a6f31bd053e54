// Two launches: the masses of all distributions, a block a chunk of one; then a block a tree, whose first warp walks
// down and whose others help to draw the last token.
#include "tree_verify_point.h"

#include "../common/mass.cuh"
#include "../common/philox.cuh"

namespace vf {
namespace {

constexpr int kThreads = 256;

VF_GLOBAL void VF_BOUNDS(kThreads, 4) point_masses_kernel(TreeVerifyPointArguments a) {
  VF_SHARED Mass parts[kThreads / kWarp];
  VF_SHARED int counts[kThreads / kWarp];
  wait_for_former();
  const int chunks = ceil_div(a.vocab, kChunk), block = static_cast<int>(blockIdx.x);
  const int node = block / chunks, begin = block % chunks * kChunk;
  const int end = begin + kChunk < a.vocab ? begin + kChunk : a.vocab;
  if (a.alive != nullptr && !a.alive[node] && node % a.nodes != 0) return;  // the walk never gets there
  const float* weights = a.weights + static_cast<int64_t>(node) * a.vocab;
  Mass sum = {0, 0};
  int count = 0;
  VF_UNROLL
  for (int j = 0; j < kChunk / kThreads; ++j) {
    const int i = begin + j * kThreads + static_cast<int>(threadIdx.x);
    const float weight = i < end ? ldg(weights + i) : 0.0f;
    sum = sum + mass_of(weight);
    count += weight > 0.0f;
  }
  sum = reduce_add(sum);
  count = reduce_add(count);
  if (lane() == 0) {
    parts[warp()] = sum;
    counts[warp()] = count;
  }
  sync_block();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kThreads / kWarp; ++i) {
    sum = sum + parts[i];
    count += counts[i];
  }
  static_cast<Mass*>(a.masses)[block] = sum;
  a.supports[block] = count;
}

struct Shared {
  int tokens[kMostPointNodes];
  int parents[kMostPointNodes];  // -1 for the root and for nodes that are not tried
  int removed[kMostPointNodes];  // tokens taken out of the distribution at `node`, each once
  int removed_count;
  int node, depth, used;
  bool valid;
  Mass left;
};

// What is left of the distribution at a node.
struct Distribution {
  Mass mass;
  int support;
};

VF_DEVICE Distribution distribution_of(const TreeVerifyPointArguments& a, int row, int node) {
  const int chunks = ceil_div(a.vocab, kChunk);
  const int64_t first = (static_cast<int64_t>(row) * a.nodes + node) * chunks;
  Distribution distribution = {{0, 0}, 0};
  for (int i = lane(); i < chunks; i += kWarp) {
    distribution.mass = distribution.mass + static_cast<const Mass*>(a.masses)[first + i];
    distribution.support += a.supports[first + i];
  }
  return {reduce_add(distribution.mass), reduce_add(distribution.support)};
}

VF_DEVICE float weight_at(const TreeVerifyPointArguments& a, int row, int node, int token) {
  if (token < 0 || token >= a.vocab) return 0.0f;
  return ldg(a.weights + (static_cast<int64_t>(row) * a.nodes + node) * a.vocab + token);
}

// Whether a sibling before this child has had its token.
VF_DEVICE bool had_before(const Shared& shared, int node, int child) {
  bool found = false;
  for (int i = lane(); i - lane() < child; i += kWarp) {
    found = found || (i < child && shared.parents[i] == node && shared.tokens[i] == shared.tokens[child]);
  }
  return any(found);
}

// By warp 0; every lane knows everything.
VF_DEVICE void walk(const TreeVerifyPointArguments& a, Shared& shared, int row, int64_t* path, int64_t* follow) {
  const uint64_t seed = static_cast<uint64_t>(a.seeds[row]), draw = static_cast<uint64_t>(a.draws[row]);
  int node = 0, depth = 0, used = 0, removed = 0;
  Distribution left = distribution_of(a, row, 0);
  if (lane() == 0) path[0] = 0;
  for (int base = 0; base < a.nodes && left.support > 0; base += kWarp) {
    uint32_t pending = ballot(shared.parents[base + lane()] == node);
    while (pending != 0 && left.support > 0) {
      const int child = base + ffs(pending) - 1, token = shared.tokens[child];
      pending &= pending - 1;
      const float weight = had_before(shared, node, child) ? 0.0f : weight_at(a, row, node, token);
      const Distribution rest = {left.mass - mass_of(weight), left.support - (weight > 0.0f)};
      const double uniform = philox_uniform(seed, draw + static_cast<uint64_t>(used));
      ++used;
      // Where nothing else is possible, only rounding can have led here.
      if (uniform * mass_value(left.mass) < static_cast<double>(weight) || rest.support == 0) {
        if (lane() == 0 && depth < a.levels) {
          follow[depth] = token;
          path[depth + 1] = child;
        }
        node = child;
        ++depth;
        removed = 0;
        left = distribution_of(a, row, node);
        pending = ballot(shared.parents[base + lane()] == node);
      } else {
        left = rest;
        if (lane() == 0 && weight > 0.0f) shared.removed[removed] = token;
        removed += weight > 0.0f;
      }
    }
  }
  if (lane() != 0) return;
  shared.removed_count = removed;
  shared.node = node;
  shared.depth = depth < a.levels ? depth : a.levels;
  shared.valid = left.support > 0;
  shared.used = used + shared.valid;
  shared.left = left.mass;
}

// A token from what is left of the distribution at the last node.
VF_DEVICE int own_token(const TreeVerifyPointArguments& a, const Shared& shared, int row) {
  const int64_t node = static_cast<int64_t>(row) * a.nodes + shared.node;
  const float* weights = a.weights + node * a.vocab;
  const Mass* masses = static_cast<const Mass*>(a.masses) + node * ceil_div(a.vocab, kChunk);
  auto chunk_at = [&](int chunk) {
    Mass mass = masses[chunk];
    for (int i = 0; i < shared.removed_count; ++i) {
      const int token = shared.removed[i];
      if (token / kChunk == chunk) mass = mass - mass_of(ldg(weights + token));
    }
    return mass;
  };
  auto left_at = [&](int token) {
    for (int i = 0; i < shared.removed_count; ++i) {
      if (shared.removed[i] == token) return 0.0f;
    }
    return ldg(weights + token);
  };
  const uint64_t last = static_cast<uint64_t>(a.draws[row]) + static_cast<uint64_t>(shared.used) - 1;
  const double uniform = philox_uniform(static_cast<uint64_t>(a.seeds[row]), last);
  return block_pick(a.vocab, uniform * mass_value(shared.left), chunk_at, left_at);
}

VF_GLOBAL void VF_BOUNDS(kPickThreads, 1) point_walk_kernel(TreeVerifyPointArguments a) {
  VF_SHARED Shared shared;
  wait_for_former();
  const int row = static_cast<int>(blockIdx.x), first = static_cast<int>(threadIdx.x);
  int64_t* path = a.path + static_cast<int64_t>(row) * (a.levels + 1);
  int64_t* numbers = a.numbers + static_cast<int64_t>(row) * (a.levels + 3);
  if (first < kMostPointNodes) {
    const int64_t at = static_cast<int64_t>(row) * a.nodes + first;
    const bool tried = first > 0 && first < a.nodes && (a.alive == nullptr || a.alive[at]);
    shared.parents[first] = tried && a.parents[at] < first ? static_cast<int>(a.parents[at]) : -1;
    shared.tokens[first] = tried && a.tokens[at] < a.vocab ? static_cast<int>(a.tokens[at]) : -1;
  }
  sync_block();
  if (warp() == 0) walk(a, shared, row, path, numbers + 2);
  sync_block();
  const int own = shared.valid ? own_token(a, shared, row) : 0;
  for (int place = shared.depth + first; place <= a.levels; place += kPickThreads) {
    path[place] = shared.node;
    numbers[2 + place] = own;
  }
  if (first == 0) {
    numbers[0] = shared.depth;
    numbers[1] = shared.valid ? a.levels + 1 : shared.depth;
    a.draws_after[row] = a.draws[row] + shared.used;
  }
}

}  // namespace

int tree_verify_point_chunks(int vocab) { return ceil_div(vocab, kChunk); }

void tree_verify_point_cuda(const TreeVerifyPointArguments& a, Stream stream) {
  const int64_t blocks = int64_t{1} * a.rows * a.nodes * tree_verify_point_chunks(a.vocab);
  launch(point_masses_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, stream, a);
  launch(point_walk_kernel, dim3(static_cast<unsigned>(a.rows)), dim3(kPickThreads), 0, stream, a);
}

}  // namespace vf
