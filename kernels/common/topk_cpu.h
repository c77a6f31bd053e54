// The end of draft_topk in plain loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace vf::cpu {

// Writes a row's k answers; `found` are (-logit, id) of what exists, so that ascending is what is wanted.
inline void answer(std::vector<std::pair<float, int64_t>>& found, int k, float* logprobs, int64_t* chosen) {
  const int some = std::min<int>(k, static_cast<int>(found.size()));
  std::partial_sort(found.begin(), found.begin() + some, found.end());
  const float maximum = found.empty() ? 0.0f : -found[0].first;
  double sum = 0.0;
  for (const auto& entry : found) sum += std::exp(static_cast<double>(-entry.first - maximum));
  for (int place = 0; place < k; ++place) {
    const float logprob = place < some ? static_cast<float>(-found[place].first - maximum - std::log(sum)) : -INFINITY;
    logprobs[place] = std::isnan(logprob) ? -INFINITY : std::min(logprob, 0.0f);
    chosen[place] = place < some ? found[place].second : 0;
  }
}

}  // namespace vf::cpu
