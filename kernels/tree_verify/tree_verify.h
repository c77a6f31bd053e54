// Verification by the target's choices; see vocabforge/ops/tree_verify.py.
#pragma once

#include "../common/stream.h"

namespace vf {

constexpr int kMostVerified = 1024;

struct TreeVerifyArguments {
  const int64_t *tokens, *parents, *choices;  // (rows, nodes)
  const bool *valid, *alive;                 // (rows, nodes); alive may be null
  int rows, nodes, levels;
  int64_t *path;     // (rows, levels + 1)
  int64_t *numbers;  // (rows, levels + 3)
};

void tree_verify_cuda(const TreeVerifyArguments& arguments, Stream stream);
void tree_verify_cpu(const TreeVerifyArguments& arguments);

}  // namespace vf
