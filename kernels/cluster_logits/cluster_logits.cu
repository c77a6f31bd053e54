// Two kernels: one block lists the tiles of the opened clusters, then the blocks of the skinny product walk the list.
// Neither grid depends on what was opened.

#include "cluster_logits.h"

#include "../common/portable.cuh"
#include "../common/skinny.cuh"

namespace vf {
namespace {

constexpr int kListThreads = 1024;
constexpr int kListWarps = kListThreads / kWarp;
constexpr int kAtOnce = 16;  // loads under way while a cluster's column is read

struct Cluster {
  int first = 0, rows = 0, tiles = 0;
  unsigned long long opened = 0;
};

VF_DEVICE Cluster read_cluster(const ClusterLogitsArguments& a, int index) {
  Cluster cluster;
  if (index >= a.clusters) return cluster;
  const int begin = ldg(a.offsets + index), end = ldg(a.offsets + index + 1);
  for (int n = 0; n < a.n; n += kAtOnce) {
    uint8_t open[kAtOnce];
    VF_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {  // behind the last row the first again: no branch, and bits that nobody reads
      open[i] = ldg(a.opened + (n + i < a.n ? n + i : 0) * a.opened_stride + index);
    }
    VF_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      cluster.opened |= static_cast<unsigned long long>(open[i] != 0) << (n + i);
    }
  }
  // Wrong offsets give wrong logits, but never a read outside the head.
  cluster.first = begin < 0 ? 0 : begin;
  cluster.rows = (end < a.vocab ? end : a.vocab) - cluster.first;
  if (cluster.opened != 0 && cluster.rows > 0) cluster.tiles = ceil_div(cluster.rows, kClusterTile);
  return cluster;
}

// The lanes of a warp write the tiles of its clusters, one cluster after the other.
VF_DEVICE void write_tiles(const ClusterLogitsArguments& a, const Cluster& cluster, int place) {
  for (unsigned pending = ballot(cluster.tiles > 0); pending != 0; pending &= pending - 1) {
    const int owner = ffs(pending) - 1;
    const int first = shuffle(cluster.first, owner), rows = shuffle(cluster.rows, owner);
    const int tiles = shuffle(cluster.tiles, owner), start = shuffle(place, owner);
    const unsigned long long opened = shuffle(cluster.opened, owner);
    for (int i = lane(); i < tiles && start + i < a.most_tiles; i += kWarp) {
      const int left = rows - i * kClusterTile;
      a.tiles[start + i] = {first + i * kClusterTile, left < kClusterTile ? left : kClusterTile, opened};
    }
  }
}

VF_GLOBAL void VF_BOUNDS(kListThreads, 1) cluster_tiles_kernel(ClusterLogitsArguments a) {
  VF_SHARED int warp_tiles[kListWarps];
  wait_for_former();
  int before = 0;  // tiles of the clusters in the chunks before
  for (int chunk = 0; chunk < a.clusters; chunk += kListThreads) {
    const Cluster cluster = read_cluster(a, chunk + static_cast<int>(threadIdx.x));
    const int through = through_lane(cluster.tiles);
    if (lane() == kWarp - 1) warp_tiles[warp()] = through;
    sync_block();
    const int of_warp = warp_tiles[lane()];  // as many warps as lanes
    const int through_warps = through_lane(of_warp);
    const int earlier = shuffle(through_warps - of_warp, warp());
    write_tiles(a, cluster, before + earlier + through - cluster.tiles);
    before += shuffle(through_warps, kWarp - 1);
    sync_block();
  }
  if (threadIdx.x == 0) *a.count = before < a.most_tiles ? before : a.most_tiles;
}
static_assert(kListWarps == kWarp, "one lane reads one warp's total");

VF_DEVICE ClusterTile read_tile(const ClusterTile* at) {
  const Vec16 words = load16(at);
  return {static_cast<int>(words.x[0]), static_cast<int>(words.x[1]),
          static_cast<unsigned long long>(words.x[3]) << 32 | words.x[2]};
}

// Position p is row p % 64 of tile p / 64.
struct TileRows {
  const ClusterTile* tiles;
  const int* count;
  VF_DEVICE void begin(unsigned char*) {}
  VF_DEVICE int positions() const { return ldg(count) * kClusterTile; }
  VF_DEVICE int row(int position) const {
    const ClusterTile tile = read_tile(tiles + position / kClusterTile);
    const int place = position % kClusterTile;
    return place < tile.rows ? tile.first + place : -1;
  }
};

struct MaskedLogits {
  struct Note {
    unsigned long long opened;
  };
  const ClusterTile* tiles;
  const int* count;
  float* logits;
  int* rows;
  int n, columns;

  VF_DEVICE void begin(unsigned char*) {}
  VF_DEVICE Note note(int position, int) const { return {read_tile(tiles + position / kClusterTile).opened}; }
  VF_DEVICE void element(const Note& note, int position, int row, int n_, float value) const {
    const bool seen = row >= 0 && (note.opened >> n_ & 1) != 0;
    logits[static_cast<int64_t>(n_) * columns + position] = seen ? value : bits_float(0xFF800000u);
    if (n_ == 0) rows[position] = row;
  }
  // What lies behind the tiles in use: -inf, and rows that do not exist.
  VF_DEVICE void end() const {
    const int used = ldg(count) * kClusterTile, vectors = (columns - used) / 4;
    const Vec16 nothing = {{0xFF800000u, 0xFF800000u, 0xFF800000u, 0xFF800000u}};
    const Vec16 no_rows = {{0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu}};
    const int64_t all = static_cast<int64_t>(vectors) * (n + 1);
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < all; i += step) {
      const int line = static_cast<int>(i / vectors), at = used + 4 * static_cast<int>(i % vectors);
      if (line < n) {
        store16(logits + static_cast<int64_t>(line) * columns + at, nothing);
      } else {
        store16(rows + at, no_rows);
      }
    }
  }
};

template <typename T>
void start(const ClusterLogitsArguments& a, Stream stream) {
  launch(cluster_tiles_kernel, dim3(1), dim3(kListThreads), 0, stream, a);
  const SkinnyProduct product{a.hidden, a.weight, a.n, a.d, a.most_tiles * kClusterTile};
  const TileRows rows{a.tiles, a.count};
  const MaskedLogits epilogue{a.tiles, a.count, a.logits, a.rows, a.n, a.most_tiles * kClusterTile};
  skinny_product<T>(product, rows, epilogue, SkinnyShared{}, stream);
}

}  // namespace

void cluster_logits_cuda(const ClusterLogitsArguments& a, Stream stream) {
  if (a.type == Type::kBFloat16) return start<bf16>(a, stream);
  start<fp16>(a, stream);
}

}  // namespace vf
