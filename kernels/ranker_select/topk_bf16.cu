#include "topk.cuh"

namespace vf {

int ranker_topk_bf16(const RankerTopkArguments& a, Stream stream) {
  const bool eight_bits = a.scores.vocab_type == Type::kFloat8E4M3;
  return ranker::topk_with<bf16>(a, eight_bits ? ranker_scores_bf16_fp8 : ranker_scores_bf16, stream);
}

}  // namespace vf
