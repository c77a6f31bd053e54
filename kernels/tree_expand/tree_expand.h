// Children of a frontier and the best of them; see vocabforge/ops/tree_expand.py.
#pragma once

#include "../common/stream.h"

namespace vf {

constexpr int kMostKept = 1024;

struct TreeExpandArguments {
  const float* scores;    // (rows, width)
  const float* logprobs;  // (rows, width, k)
  const int64_t* ids;     // (rows, width, k)
  const int64_t* above;   // (rows, width, words), or null if words is 0
  int rows, width, k, keep, words;
  int64_t first;          // added to places
  int slot;               // bit of the best child; those of the others follow it
  float* cumulative;      // (rows, width * k)
  float* best_scores;     // (rows, keep), as all that follow
  int64_t *tokens, *parents, *places;
  int64_t* seen;          // (rows, keep, words)
};

void tree_expand_cuda(const TreeExpandArguments& arguments, Stream stream);
void tree_expand_cpu(const TreeExpandArguments& arguments);

}  // namespace vf
