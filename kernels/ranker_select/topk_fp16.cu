#include "topk.cuh"

namespace vf {

int ranker_topk_fp16(const RankerTopkArguments& a, Stream stream) {
  const bool eight_bits = a.scores.vocab_type == Type::kFloat8E4M3;
  return ranker::topk_with<fp16>(a, eight_bits ? ranker_scores_fp16_fp8 : ranker_scores_fp16, stream);
}

}  // namespace vf
