#include <cmath>
#include <utility>
#include <vector>

#include "../common/numbers.h"
#include "../common/topk_cpu.h"
#include "topk.h"

namespace vf {
namespace {

// As ranker::Bins gives it (bins.cuh).
int bin_of(float score, int detail) {
  const int side = 16 << detail, lowest = (127 - 6) << detail;
  const uint32_t bits = cpu::to_bits(score + 0.0f);
  const int above = static_cast<int>((bits & 0x7FFFFFFFu) >> (23 - detail)) - lowest + 1;
  const int bin = std::isnan(score) ? side - 1 : std::min(std::max(above, 0), side - 1);
  return std::isnan(score) || bits >> 31 ? side - 1 - bin : side + bin;
}

float dot(const float* x, const void* rows, Type type, int64_t row, int count) {
  float sum = 0.0f;
  for (int i = 0; i < count; ++i) sum += x[i] * cpu::number_at(rows, type, row * count + i);
  return sum;
}

}  // namespace

void ranker_topk_cpu(const RankerTopkArguments& a) {
  const RankerSelectArguments& s = a.scores;
  std::vector<float> hidden(a.d), projected(s.rank);
  std::vector<int> bins(s.size), counts(ranker_bins(s.detail));
  std::vector<std::pair<float, int64_t>> found;
  for (int64_t n = 0; n < s.rows; ++n) {
    for (int i = 0; i < a.d; ++i) hidden[i] = cpu::number_at(a.hidden, s.type, n * a.d + i);
    for (int i = 0; i < s.rank; ++i) projected[i] = cpu::rounded(s.type, dot(hidden.data(), a.down, s.type, i, a.d));
    std::fill(counts.begin(), counts.end(), 0);
    for (int id = 0; id < s.size; ++id) {
      const float score = dot(projected.data(), s.vocab, s.vocab_type, id, s.rank);
      bins[id] = bin_of(s.scale == nullptr ? score : score * s.scale[id], s.detail);
      ++counts[bins[id]];
    }
    int border = ranker_bins(s.detail) - 1;
    for (int above = counts[border]; above < s.k; above += counts[--border]) {
    }
    found.clear();
    for (int id = 0; id < s.size; ++id) {
      if (bins[id] < border) continue;
      const float logit = dot(hidden.data(), a.weight, s.type, id, a.d);
      if (logit > -INFINITY) found.emplace_back(-logit, a.target_ids == nullptr ? id : a.target_ids[id]);
    }
    cpu::answer(found, a.answers, a.logprobs + n * a.answers, a.chosen + n * a.answers);
  }
}

}  // namespace vf
