#include "scores.cuh"

namespace vf {

void ranker_scores_fp16_fp8(const RankerSelectArguments& a, Stream stream) {
  ranker::score_with<fp16, fp8_e4m3>(a, stream);
}

}  // namespace vf
