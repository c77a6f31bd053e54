#include <vector>

#include "../common/numbers.h"
#include "tree_verify.h"

namespace vf {
namespace {

// As in the kernel: a parent that does not exist is the root.
int64_t parent_of(const TreeVerifyArguments& a, int64_t tree, int64_t node) {
  const int64_t parent = a.parents[tree + node];
  return parent < 0 || parent >= a.nodes ? 0 : parent;
}

bool agrees(const TreeVerifyArguments& a, int64_t tree, int64_t node) {
  const bool same = node == 0 || a.tokens[tree + node] == a.choices[tree + parent_of(a, tree, node)];
  return same && (a.alive == nullptr || a.alive[tree + node]);
}

// Nodes above this one, where all of them and it agree, else -1.
int depth_of(const TreeVerifyArguments& a, int64_t tree, int64_t node) {
  for (int depth = 0; depth <= a.levels && agrees(a, tree, node); ++depth) {
    if (node == 0) return depth;
    node = parent_of(a, tree, node);
  }
  return -1;
}

}  // namespace

void tree_verify_cpu(const TreeVerifyArguments& a) {
  for (int row = 0; row < a.rows; ++row) {
    const int64_t tree = static_cast<int64_t>(row) * a.nodes;
    int depth = -1;
    int64_t last = 0;
    for (int node = 0; node < a.nodes; ++node) {
      const int found = depth_of(a, tree, node);
      if (found > depth) {
        depth = found;
        last = node;
      }
    }
    int64_t* path = a.path + static_cast<int64_t>(row) * (a.levels + 1);
    int64_t* numbers = a.numbers + static_cast<int64_t>(row) * (a.levels + 3);
    for (int place = a.levels; place > depth; --place) path[place] = last;
    int64_t node = last;
    for (int place = depth; place >= 0; --place, node = parent_of(a, tree, node)) path[place] = node;
    numbers[0] = depth;
    numbers[1] = 0;
    while (numbers[1] <= a.levels && a.valid[tree + path[numbers[1]]]) ++numbers[1];
    for (int place = 0; place <= a.levels; ++place) numbers[2 + place] = a.choices[tree + path[place]];
  }
}

}  // namespace vf
