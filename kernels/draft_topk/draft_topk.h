// Log-softmax and top-k of each row's columns; see vocabforge/ops/draft_topk.py.
#pragma once

#include "../common/stream.h"

namespace vf {

struct DraftTopkArguments {
  const void* logits;         // (rows, columns)
  Type type;                  // float32, bfloat16 or float16
  int rows, columns;
  int k;                      // at most 64
  const void* ids;            // (columns,) or (rows, columns); null: column c is id c
  bool ids_wide;              // int64, else int32
  int64_t ids_stride;         // columns where each row has its own ids, else 0
  const int64_t* target_ids;  // (map_size,) or null
  int64_t map_size;           // ids outside of the map have no column
  int splits;                 // blocks that share a row
  float* maxima;              // (rows, splits) workspace, as the next two, where splits > 1
  float* sums;                // of exp(logit - maximum)
  unsigned long long* best;   // (rows, splits, k) keys, descending, 0 where a block has fewer
  float* logprobs;            // (rows, k)
  int64_t* chosen;            // (rows, k)
};

// Blocks that share a row, so that few rows fill the device, too.
int draft_topk_splits(int rows, int columns);
void draft_topk_cuda(const DraftTopkArguments& arguments, Stream stream);
void draft_topk_cpu(const DraftTopkArguments& arguments);

}  // namespace vf
