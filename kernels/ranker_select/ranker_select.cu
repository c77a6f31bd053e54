// The scores (scores.cuh) stay in the second-level cache for the two kernels of select.cuh.
#include "ranker_select.h"

#include "../common/fill.cuh"
#include "../common/topk_lists.cuh"
#include "select.cuh"
#include "topk.h"

namespace vf {
namespace {

VF_GLOBAL void VF_BOUNDS(topk::kThreads, 1) ranker_topk_merge(topk::Lists lists) {
  wait_for_former();
  topk::merge(lists, static_cast<int>(blockIdx.x), reinterpret_cast<topk::Key*>(dynamic_shared()));
}

}  // namespace

void ranker_select_cuda(const RankerSelectArguments& a, Stream stream) {
  fill_zeros(a.histogram, a.rows * ranker_bins(a.detail), stream);
  const bool eight_bits = a.vocab_type == Type::kFloat8E4M3;
  if (a.type == Type::kBFloat16) eight_bits ? ranker_scores_bf16_fp8(a, stream) : ranker_scores_bf16(a, stream);
  if (a.type == Type::kFloat16) eight_bits ? ranker_scores_fp16_fp8(a, stream) : ranker_scores_fp16(a, stream);
  const unsigned rows = static_cast<unsigned>(a.rows), chunks = static_cast<unsigned>(ranker_chunks(a.size));
  launch(ranker::ranker_collect, dim3(rows * chunks), dim3(ranker::kCollectThreads), 0, stream, a);
  const size_t kept = sizeof(Wide) * ranker::kKept;
  launch(ranker::ranker_finish, dim3(rows), dim3(ranker::kFinishThreads), kept, stream, a);
}

void ranker_topk_cuda(const RankerTopkArguments& a, Stream stream) {
  const int slices = (a.scores.type == Type::kFloat16 ? ranker_topk_fp16 : ranker_topk_bf16)(a, stream);
  if (a.scores.rows == 1) return;
  const topk::Lists lists{a.answers, slices, a.maxima, a.sums, a.best, a.logprobs, a.chosen};
  const size_t shared = sizeof(topk::Key) * topk::merged_keys(slices, a.answers);
  launch(ranker_topk_merge, dim3(static_cast<unsigned>(a.scores.rows)), dim3(topk::kThreads), shared, stream, lists);
}

// The skinny product has at most two blocks a multiprocessor.
int ranker_slices() { return 2 * multiprocessors(); }

}  // namespace vf
