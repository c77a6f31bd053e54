#include <algorithm>
#include <limits>

#include "../common/numbers.h"
#include "cluster_logits.h"

namespace vf {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

bool opened_by(const ClusterLogitsArguments& a, int n, int cluster) {
  return a.opened[n * a.opened_stride + cluster] != 0;
}

float dot(const ClusterLogitsArguments& a, int n, int64_t row) {
  float sum = 0.0f;
  for (int64_t i = 0; i < a.d; ++i) {
    sum += cpu::number_at(a.hidden, a.type, n * int64_t{a.d} + i) * cpu::number_at(a.weight, a.type, row * a.d + i);
  }
  return sum;
}

// One tile's columns; `end` is the row behind the cluster.
void put_tile(const ClusterLogitsArguments& a, int cluster, int first, int end, int64_t column) {
  const int64_t columns = int64_t{a.most_tiles} * kClusterTile;
  for (int i = 0; i < kClusterTile; ++i) {
    const int row = first + i;
    if (row >= end) continue;
    a.rows[column + i] = row;
    for (int n = 0; n < a.n; ++n) {
      if (opened_by(a, n, cluster)) a.logits[n * columns + column + i] = dot(a, n, row);
    }
  }
}

}  // namespace

void cluster_logits_cpu(const ClusterLogitsArguments& a) {
  const int64_t columns = int64_t{a.most_tiles} * kClusterTile;
  std::fill(a.rows, a.rows + columns, -1);
  std::fill(a.logits, a.logits + a.n * columns, kNothing);
  int64_t column = 0;
  for (int cluster = 0; cluster < a.clusters; ++cluster) {
    bool any = false;
    for (int n = 0; n < a.n; ++n) any = any || opened_by(a, n, cluster);
    const int begin = std::max(a.offsets[cluster], 0), end = std::min(a.offsets[cluster + 1], a.vocab);
    for (int64_t first = begin; any && first < end && column < columns; first += kClusterTile) {
      put_tile(a, cluster, static_cast<int>(first), end, column);
      column += kClusterTile;
    }
  }
}

}  // namespace vf
