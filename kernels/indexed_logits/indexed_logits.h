// Logits of each hidden state's own rows; see vocabforge/ops/indexed_logits.py.
#pragma once

#include "../distinct_rows/segments.h"

namespace vf {

struct IndexedLogitsArguments {
  const void* hidden;  // (n, d)
  const void* weight;  // (vocab, d)
  Type type;           // of hidden and weight: bfloat16 or float16; on the CPU float32, too
  const void* ids;     // (n, k) int64 where wide, else int32; outside 0..vocab-1: no row
  bool wide;
  int n, d, vocab, k;
  Segments segments;   // workspace for n > 1: rows, starts and uses (n * k,), bases, counts
  float* logits;       // (n, k)
};

void indexed_logits_cuda(const IndexedLogitsArguments& arguments, Stream stream);
void indexed_logits_cpu(const IndexedLogitsArguments& arguments);

}  // namespace vf
