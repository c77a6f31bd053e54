// Two launches: each segment finds its ids and numbers them; then the segments are put behind one another.
#include "distinct_rows.h"

#include "segments.cuh"

namespace vf {
namespace {

constexpr int kThreads = 256;

struct KeepRank {
  int* places;
  VF_DEVICE void place(int place, int rank) const { places[place] = rank; }
  VF_DEVICE void missing(int place) const { places[place] = -1; }
};

VF_GLOBAL void VF_BOUNDS(kThreads, 4) join_segments(DistinctRowsArguments a) {
  VF_SHARED segments::Places joined;
  wait_for_former();
  joined.fill<kThreads>(a.segments);
  sync_block();
  const int count = joined.before[kSegments], step = static_cast<int>(gridDim.x) * kThreads;
  const int first = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const Ids ids{a.ids, a.wide};
  for (int i = first; i < a.total; i += step) {
    const int rank = a.places[i];
    if (rank >= 0) a.places[i] = rank + joined.before[ids[i] % kSegments];
  }
  for (int i = first; i < a.columns; i += step) {
    const int segment = joined.segment_of(i < count ? i : 0);
    a.rows[i] = i < count ? ldg(a.segments.rows + joined.bases[segment] + i - joined.before[segment]) : -1;
  }
  if (first == 0) *a.count = count;
}

}  // namespace

void distinct_rows_cuda(const DistinctRowsArguments& a, Stream stream) {
  segments::find(Ids{a.ids, a.wide}, a.total, a.size, a.segments, KeepRank{a.places}, stream);
  const int wanted = ceil_div(a.total, kThreads), most = 2 * multiprocessors();
  launch(join_segments, dim3(static_cast<unsigned>(wanted < most ? wanted : most)), dim3(kThreads), 0, stream, a);
}

}  // namespace vf
