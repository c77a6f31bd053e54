// The exact set of the k best low-rank scores of each row; see vocabforge/ops/ranker_select.py.
#pragma once

#include "../common/stream.h"

namespace vf {

struct RankerSelectArguments {
  const void* projected;  // (rows, rank)
  const void* vocab;      // (size, rank)
  Type type;              // of both: bfloat16 or float16, on the CPU float32, too
  int rows, rank, size, k;
  int detail;             // the first histogram has 2^detail bins an octave, see bins.cuh
  float* scores;          // (rows, size) workspace, as all below
  int* histogram;         // (rows, ranker_bins)
  int* listed;            // (rows, chunks, kRankerChunk) ids above the border's bin from the front, in it from behind
  int* counts;            // (rows, chunks, 2): how many of both
  int32_t* ids;           // (rows, k)
};

constexpr int kRankerChunk = 2048;  // scores that a block of the second kernel looks through

inline int ranker_chunks(int size) { return (size + kRankerChunk - 1) / kRankerChunk; }
// Bins of both signs: 32 KB of 16-bit counters at most.
constexpr int kRankerDetail = 4;  // at most
inline int ranker_detail(int rows) { return rows <= 32 ? kRankerDetail : 3; }
inline int ranker_bins(int detail) { return 32 << detail; }

// The first kernel: scores and histogram, for each dtype.
void ranker_scores_bf16(const RankerSelectArguments& arguments, Stream stream);
void ranker_scores_fp16(const RankerSelectArguments& arguments, Stream stream);

void ranker_select_cuda(const RankerSelectArguments& arguments, Stream stream);
void ranker_select_cpu(const RankerSelectArguments& arguments);

}  // namespace vf
