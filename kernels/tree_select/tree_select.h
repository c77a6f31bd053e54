// The best nodes of a history as a tree; see vocabforge/ops/tree_select.py.
#pragma once

#include "../common/stream.h"

namespace vf {

constexpr int kMostNodes = 256;
constexpr int kMostHistory = 32768;

struct TreeSelectArguments {
  const int64_t *roots;            // (rows,)
  const int64_t *history_tokens;   // (rows, size)
  const float *scores;             // (rows, size)
  const int64_t *expanded;         // (rows, size / children), -1 is the root: the parents, in order
  int rows, size, children, nodes, levels;
  int64_t *tokens, *parents, *depths;  // (rows, nodes)
  bool *ancestors;                     // (rows, nodes, nodes)
  int64_t *words;                      // (rows, nodes, ceil(nodes / 64))
};

void tree_select_cuda(const TreeSelectArguments& arguments, Stream stream);
void tree_select_cpu(const TreeSelectArguments& arguments);

}  // namespace vf
