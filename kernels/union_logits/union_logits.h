// Logits over one list of rows for all hidden states; see vocabforge/ops/union_logits.py.
#pragma once

#include "../common/stream.h"

namespace vf {

struct UnionLogitsArguments {
  const void* hidden;  // (n, d)
  const void* weight;  // (vocab, d)
  Type type;           // of hidden and weight: bfloat16 or float16; on the CPU float32, too
  const void* rows;    // (columns,) int64 where wide_rows, else int32; outside 0..vocab-1: no row
  bool wide_rows;
  const int* count;    // columns to compute, or null: all
  int n, d, vocab, columns;
  float* logits;       // (n, columns)
};

void union_logits_cuda(const UnionLogitsArguments& arguments, Stream stream);
void union_logits_cpu(const UnionLogitsArguments& arguments);

}  // namespace vf
