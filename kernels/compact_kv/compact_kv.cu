// A block a head of one layer, row and cache, or a slice of its slots where all pairs do not fit into shared memory.
#include "compact_kv.h"

#include "../common/portable.cuh"

namespace vf {
namespace {

constexpr int kThreads = 128;
constexpr int kStaged = 3072;  // vectors of 16 bytes in shared memory: 48 KB
static_assert(kStaged >= kMostPairs);

VF_GLOBAL void VF_BOUNDS(kThreads, 4) compact_kv_kernel(CompactKvArguments a, int slices, int width) {
  wait_for_former();
  Vec16* staged = reinterpret_cast<Vec16*>(dynamic_shared());
  int index = static_cast<int>(blockIdx.x);
  const int slice = index % slices;
  index /= slices;
  const int head = index % a.heads;
  index /= a.heads;
  const int row = index % a.rows;
  index /= a.rows;
  const int layer = index % a.layers;
  const bool values = index / a.layers == 1;
  const CacheView& cache = values ? a.caches[1] : a.caches[0];
  unsigned char* slots = cache.data + layer * cache.layer_step + row * cache.row_step + head * cache.head_step;
  const int64_t* source = a.source + static_cast<int64_t>(row) * a.pairs;
  const int64_t* destination = a.destination + static_cast<int64_t>(row) * a.pairs;
  const int vectors = a.slot_bytes / 16, begin = slice * width;
  const int wide = vectors - begin < width ? vectors - begin : width;

  // Plain loads: this launch writes the same memory.
  for (int i = static_cast<int>(threadIdx.x); i < a.pairs * wide; i += kThreads) {
    const int64_t from = ldg(source + i / wide), to = ldg(destination + i / wide);
    if (from == to || from < 0 || from >= a.slots) continue;
    staged[i] = *reinterpret_cast<const Vec16*>(slots + from * a.slot_bytes + (begin + i % wide) * 16);
  }
  sync_block();
  for (int i = static_cast<int>(threadIdx.x); i < a.pairs * wide; i += kThreads) {
    const int64_t from = ldg(source + i / wide), to = ldg(destination + i / wide);
    if (from == to || from < 0 || from >= a.slots || to < 0 || to >= a.slots) continue;
    store16(slots + to * a.slot_bytes + (begin + i % wide) * 16, staged[i]);
  }
}

}  // namespace

void compact_kv_cuda(const CompactKvArguments& a, Stream stream) {
  const int vectors = a.slot_bytes / 16;
  const int most = kStaged / a.pairs, width = vectors < most ? vectors : most;
  const int slices = ceil_div(vectors, width);
  const int64_t blocks = int64_t{2} * a.layers * a.rows * a.heads * slices;
  launch(compact_kv_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
         static_cast<size_t>(a.pairs) * width * 16, stream, a, slices, width);
}

}  // namespace vf
