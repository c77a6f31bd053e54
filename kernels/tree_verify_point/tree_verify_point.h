// Sampled verification of point masses; see vocabforge/ops/tree_verify_point.py.
#pragma once

#include "../common/stream.h"

namespace vf {

constexpr int kMostPointNodes = 256;

struct TreeVerifyPointArguments {
  const int64_t *tokens, *parents;  // (rows, nodes)
  const bool* alive;                // (rows, nodes), or null
  const float* weights;             // (rows, nodes, vocab)
  const int64_t *seeds, *draws;     // (rows,)
  int rows, nodes, vocab, levels;
  int64_t* path;         // (rows, levels + 1)
  int64_t* numbers;      // (rows, levels + 3)
  int64_t* draws_after;  // (rows,)
  void* masses;          // workspace: (rows, nodes, chunks, 16 bytes)
  int* supports;         // workspace: (rows, nodes, chunks)
};

int tree_verify_point_chunks(int vocab);
void tree_verify_point_cuda(const TreeVerifyPointArguments& arguments, Stream stream);
void tree_verify_point_cpu(const TreeVerifyPointArguments& arguments);

}  // namespace vf
