// The scores (scores.cuh) stay in the second-level cache for the two kernels of select.cuh.
#include "ranker_select.h"

#include "../common/fill.cuh"
#include "select.cuh"

namespace vf {

void ranker_select_cuda(const RankerSelectArguments& a, Stream stream) {
  fill_zeros(a.histogram, a.rows * ranker_bins(a.detail), stream);
  if (a.type == Type::kBFloat16) ranker_scores_bf16(a, stream);
  if (a.type == Type::kFloat16) ranker_scores_fp16(a, stream);
  const unsigned rows = static_cast<unsigned>(a.rows), chunks = static_cast<unsigned>(ranker_chunks(a.size));
  launch(ranker::ranker_collect, dim3(rows * chunks), dim3(ranker::kCollectThreads), 0, stream, a);
  const size_t kept = sizeof(Wide) * ranker::kKept;
  launch(ranker::ranker_finish, dim3(rows), dim3(ranker::kFinishThreads), kept, stream, a);
}

}  // namespace vf
