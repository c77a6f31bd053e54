#include <algorithm>
#include <cmath>
#include <vector>

#include "../common/numbers.h"
#include "ranker_select.h"

namespace vf {

void ranker_select_cpu(const RankerSelectArguments& a) {
  std::vector<float> scores(a.size), row(a.rank);
  std::vector<int32_t> order(a.size);
  for (int n = 0; n < a.rows; ++n) {
    for (int i = 0; i < a.rank; ++i) row[i] = cpu::number_at(a.projected, a.type, static_cast<int64_t>(n) * a.rank + i);
    for (int id = 0; id < a.size; ++id) {
      float sum = 0.0f;
      const int64_t first = static_cast<int64_t>(id) * a.rank;
      for (int i = 0; i < a.rank; ++i) sum += row[i] * cpu::number_at(a.vocab, a.type, first + i);
      scores[id] = sum;
      order[id] = id;
    }
    const auto better = [&scores](int32_t x, int32_t y) {
      const bool no_x = std::isnan(scores[x]), no_y = std::isnan(scores[y]);
      if (no_x != no_y) return no_y;
      return no_x || scores[x] == scores[y] ? x < y : scores[x] > scores[y];
    };
    std::nth_element(order.begin(), order.begin() + (a.k - 1), order.end(), better);
    std::sort(order.begin(), order.begin() + a.k);
    std::copy(order.begin(), order.begin() + a.k, a.ids + static_cast<int64_t>(n) * a.k);
  }
}

}  // namespace vf
