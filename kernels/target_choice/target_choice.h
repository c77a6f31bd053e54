// The largest logit of each row; see vocabforge/ops/target_choice.py.
#pragma once

#include "../common/stream.h"

namespace vf {

struct TargetChoiceArguments {
  const void* logits;   // (rows, vocab), row after row
  Type type;            // float32, bfloat16 or float16
  int rows;
  int64_t vocab;
  int splits;           // blocks that share a row; workspace has rows * splits keys
  unsigned long long* workspace;
  unsigned* arrived;    // (rows,) zeros before and after
  int64_t* choices;     // (rows,)
  bool* valid;         // (rows,)
};

// Blocks that share a row, so that few rows fill the device, too.
int target_choice_splits(int rows, int64_t vocab);
void target_choice_cuda(const TargetChoiceArguments& arguments, Stream stream);
void target_choice_cpu(const TargetChoiceArguments& arguments);

}  // namespace vf
