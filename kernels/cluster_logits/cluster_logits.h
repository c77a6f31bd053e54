// cluster_logits: logits over the clusters that a router opened; see vocabforge/ops/cluster_logits.py.
#pragma once

#include "../common/stream.h"

namespace vf {

constexpr int kClusterTile = 64;  // rows of a tile
constexpr int kMostClusterRows = 64;

// A piece of an opened cluster.
struct alignas(16) ClusterTile {
  int first;                  // row of the sorted head
  int rows;                   // 1 to 64
  unsigned long long opened;  // bit n: hidden row n has opened the cluster
};

struct ClusterLogitsArguments {
  const void* hidden;     // (n, d)
  const void* weight;     // (vocab, d), sorted by cluster
  const int* offsets;     // (clusters + 1,) cluster c is rows offsets[c] .. offsets[c + 1] - 1
  const uint8_t* opened;  // (n, clusters) torch.bool, rows opened_stride apart
  ClusterTile* tiles;     // CUDA: workspace, most_tiles
  int* count;             // CUDA: workspace, tiles in use
  float* logits;          // (n, most_tiles * 64)
  int* rows;              // (most_tiles * 64,)
  int64_t opened_stride;
  int n, d, clusters, vocab, most_tiles;
  Type type;  // of hidden and weight
};

void cluster_logits_cuda(const ClusterLogitsArguments& a, Stream stream);
void cluster_logits_cpu(const ClusterLogitsArguments& a);

}  // namespace vf
