#include <algorithm>
#include <numeric>
#include <vector>

#include "../common/numbers.h"
#include "tree_expand.h"

namespace vf {

void tree_expand_cpu(const TreeExpandArguments& a) {
  const int children = a.width * a.k;
  std::vector<int> order(static_cast<size_t>(children));
  for (int row = 0; row < a.rows; ++row) {
    const int64_t offset = static_cast<int64_t>(row) * children;
    float* cumulative = a.cumulative + offset;
    for (int i = 0; i < children; ++i) {
      cumulative[i] = a.scores[static_cast<int64_t>(row) * a.width + i / a.k] + a.logprobs[offset + i];
    }
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int i, int j) {
      const bool nan_i = cumulative[i] != cumulative[i], nan_j = cumulative[j] != cumulative[j];
      return nan_i != nan_j ? nan_i : cumulative[i] > cumulative[j];
    });
    for (int rank = 0; rank < a.keep; ++rank) {
      const int place = order[static_cast<size_t>(rank)];
      const int64_t at = static_cast<int64_t>(row) * a.keep + rank;
      a.best_scores[at] = cumulative[place];
      a.tokens[at] = a.ids[offset + place];
      a.parents[at] = place / a.k;
      a.places[at] = a.first + place;
      const int bit = a.slot + rank;
      for (int word = 0; word < a.words; ++word) {
        const int64_t above = a.above[(static_cast<int64_t>(row) * a.width + place / a.k) * a.words + word];
        const uint64_t own = word == bit / 64 ? uint64_t{1} << bit % 64 : 0;
        a.seen[at * a.words + word] = static_cast<int64_t>(static_cast<uint64_t>(above) | own);
      }
    }
  }
}

}  // namespace vf
