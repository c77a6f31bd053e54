#include <algorithm>
#include <numeric>
#include <vector>

#include "../common/numbers.h"
#include "tree_select.h"

namespace vf {
namespace {

// The best nodes of one row's history, in its order.
std::vector<int> chosen_of(const float* scores, int size, int count) {
  std::vector<int> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int i, int j) {
    const bool nan_i = scores[i] != scores[i], nan_j = scores[j] != scores[j];
    return nan_i != nan_j ? nan_i : scores[i] > scores[j];
  });
  order.resize(static_cast<size_t>(count));
  std::sort(order.begin(), order.end());
  return order;
}

void write_ancestors(const TreeSelectArguments& a, int row) {
  const int64_t out = static_cast<int64_t>(row) * a.nodes;
  const int64_t count = (a.nodes + 63) / 64;
  const int64_t* parents = a.parents + out;
  std::fill_n(a.ancestors + out * a.nodes, static_cast<int64_t>(a.nodes) * a.nodes, false);
  std::fill_n(a.words + out * count, a.nodes * count, 0);
  for (int node = 0; node < a.nodes; ++node) {
    bool* line = a.ancestors + (out + node) * a.nodes;
    int64_t above = node;
    for (int level = 0; level <= a.levels; ++level, above = parents[above]) line[above] = true;
    a.depths[out + node] = std::count(line, line + a.nodes, true) - 1;
    for (int other = 0; other < a.nodes; ++other) {
      if (!line[other]) continue;
      int64_t& word = a.words[(out + node) * count + other / 64];
      word = static_cast<int64_t>(static_cast<uint64_t>(word) | uint64_t{1} << (other % 64));
    }
  }
}

}  // namespace

void tree_select_cpu(const TreeSelectArguments& a) {
  for (int row = 0; row < a.rows; ++row) {
    const int64_t history = static_cast<int64_t>(row) * a.size, out = static_cast<int64_t>(row) * a.nodes;
    const std::vector<int> chosen = chosen_of(a.scores + history, a.size, a.nodes - 1);
    a.tokens[out] = a.roots[row];
    a.parents[out] = 0;
    for (int place = 1; place < a.nodes; ++place) {
      const int node = chosen[static_cast<size_t>(place - 1)];
      a.tokens[out + place] = a.history_tokens[history + node];
      const int64_t above = a.expanded[(history + node) / a.children];
      const auto found = std::lower_bound(chosen.begin(), chosen.end(), above);
      const bool kept = above >= 0 && above < node && found != chosen.end() && *found == above;
      a.parents[out + place] = kept ? found - chosen.begin() + 1 : 0;
    }
    write_ancestors(a, row);
  }
}

}  // namespace vf
