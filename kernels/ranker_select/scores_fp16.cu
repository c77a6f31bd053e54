#include "scores.cuh"

namespace vf {

void ranker_scores_fp16(const RankerSelectArguments& a, Stream stream) { ranker::score_with<fp16>(a, stream); }

}  // namespace vf
