#include "scores.cuh"

namespace vf {

void ranker_scores_bf16(const RankerSelectArguments& a, Stream stream) { ranker::score_with<bf16>(a, stream); }

}  // namespace vf
