#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "../common/mass.cuh"
#include "../common/numbers.h"
#include "../common/philox.cuh"
#include "target_sample.h"

namespace vf {
namespace {

// Scores of one row as they are ordered and measured; the place of the largest, the first NaN where there is one.
int64_t read_scores(const TargetSampleArguments& a, int row, std::vector<float>& scores) {
  const int64_t first = static_cast<int64_t>(row) * a.vocab;
  for (int i = 0; i < a.vocab; ++i) scores[i] = cpu::number_at(a.logits, a.type, first + i);
  int64_t best = 0;
  for (int i = 1; i < a.vocab && !std::isnan(scores[best]); ++i) {
    if (std::isnan(scores[i]) || scores[i] > scores[best]) best = i;
  }
  if (scores[best] == INFINITY) {  // beside an infinite one, only its equals are possible
    for (float& score : scores) score = score == INFINITY ? 0.0f : -INFINITY;
  }
  return best;
}

// Zeros where top-k and, after it, top-p leave a token out.
void cut(const std::vector<float>& scores, float* weights, int64_t top_k, double top_p) {
  std::vector<int> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int i, int j) { return scores[i] > scores[j]; });
  size_t kept = top_k > 0 && top_k < static_cast<int64_t>(order.size()) ? static_cast<size_t>(top_k) : order.size();
  if (top_p < 1) {
    std::vector<double> heights(kept);
    Mass sum = {0, 0};
    for (size_t i = 0; i < kept; ++i) heights[i] = mass_value(sum = sum + mass_of(weights[order[i]]));
    const double goal = top_p * heights.back();
    kept = static_cast<size_t>(std::lower_bound(heights.begin(), heights.end(), goal) - heights.begin()) + 1;
  }
  for (size_t i = kept; i < order.size(); ++i) weights[order[i]] = 0.0f;
}

void transform(const TargetSampleArguments& a, int row, const std::vector<float>& scores, int64_t best,
               float* weights) {
  const double temperature = a.temperature[row];
  if (temperature == 0) {
    weights[best] = 1.0f;
    return;
  }
  for (int i = 0; i < a.vocab; ++i) {
    const float exponent = static_cast<float>(static_cast<double>(scores[i] - scores[best]) / temperature);
    weights[i] = static_cast<float>(std::exp(static_cast<double>(exponent)));
  }
  const int64_t top_k = a.top_k[row];
  if ((top_k > 0 && top_k < a.vocab) || a.top_p[row] < 1) cut(scores, weights, top_k, a.top_p[row]);
  const float least = static_cast<float>(a.min_p[row]);
  for (int i = 0; i < a.vocab; ++i) {
    if (weights[i] < least) weights[i] = 0.0f;
  }
}

int64_t draw(const float* weights, int vocab, double uniform) {
  Mass whole = {0, 0}, sum = {0, 0};
  for (int i = 0; i < vocab; ++i) whole = whole + mass_of(weights[i]);
  const double target = uniform * mass_value(whole);
  for (int i = 0; i < vocab; ++i) {
    sum = sum + mass_of(weights[i]);
    if (mass_value(sum) > target) return i;
  }
  return vocab - 1;
}

}  // namespace

void target_sample_cpu(const TargetSampleArguments& a) {
  std::vector<float> scores(static_cast<size_t>(a.vocab));
  for (int row = 0; row < a.rows; ++row) {
    const int64_t best = read_scores(a, row, scores);
    const bool valid = scores[best] > -INFINITY;
    float* weights = a.weights + static_cast<int64_t>(row) * a.vocab;
    std::fill_n(weights, a.vocab, 0.0f);
    if (valid) transform(a, row, scores, best, weights);
    if (a.choices == nullptr) continue;
    a.valid[row] = valid;
    a.choices[row] = best;
    if (!valid || a.temperature[row] == 0) continue;
    const double uniform = philox_uniform(static_cast<uint64_t>(a.seeds[row]), static_cast<uint64_t>(a.draws[row]));
    a.choices[row] = draw(weights, a.vocab, uniform);
  }
}

}  // namespace vf
