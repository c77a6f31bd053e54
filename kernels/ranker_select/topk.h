// The ranker head in one op; see vocabforge/ops/ranker_topk.py.
#pragma once

#include "ranker_select.h"

namespace vf {

struct RankerTopkArguments {
  RankerSelectArguments scores;  // rows, vocabulary and k; its projected, histogram and binned are workspace here
  const void* hidden;            // (rows, d) of scores.type, as the next two
  const void* down;              // (rank, d)
  const void* weight;            // (size, d)
  int d, answers;                // a multiple of 8; answers of a row
  const int64_t* target_ids;     // (size,), or null: row i of the weight is id i
  void* projected;               // (rows, rank) of scores.type; workspace, as all but the last two
  unsigned* arrived;             // blocks that have ended; right behind the histogram
  unsigned long long* masks;     // (ranker_stride,) which rows an id is a candidate of; null for one row
  float *maxima, *sums;          // (rows, slices), (rows, slices, answers): see common/topk_lists.cuh
  unsigned long long* best;
  float* logprobs;               // (rows, answers)
  int64_t* chosen;               // (rows, answers)
};

constexpr int kRankerAnswers = 32, kRankerAllAnswers = 1536;  // most of a row, and of all rows

// The most slices that the vocabulary is dealt to.
int ranker_slices();

// All but the merge of several rows, for each dtype; gives the slices that were used.
int ranker_topk_bf16(const RankerTopkArguments& arguments, Stream stream);
int ranker_topk_fp16(const RankerTopkArguments& arguments, Stream stream);

void ranker_topk_cuda(const RankerTopkArguments& arguments, Stream stream);
void ranker_topk_cpu(const RankerTopkArguments& arguments);

}  // namespace vf
