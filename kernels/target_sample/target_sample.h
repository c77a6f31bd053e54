// The target's distribution after the sampling transform, and draws from it; see vocabforge/ops/target_sample.py.
#pragma once

#include "../common/stream.h"

namespace vf {

struct TargetSampleArguments {
  const void* logits;  // (rows, vocab)
  Type type;           // float32, bfloat16 or float16
  int rows, vocab;
  const double *temperature, *top_p, *min_p;  // (rows,)
  const int64_t* top_k;
  float* weights;                  // (rows, vocab): the distribution, up to a factor; zeros where there is none
  const int64_t *seeds, *draws;    // (rows,); null: no draws, and the next two are not written
  int64_t* choices;
  bool* valid;
  unsigned long long *best, *least;  // workspace: (rows,) each
  void* masses;                      // workspace: (rows, chunks, 16 bytes)
  unsigned* bins;                    // workspace: (rows, kBorderWords)
  int* listed;                       // workspace: (rows, kBorderListed)
};

constexpr int kBorderBins = 2048;                  // of the weights' first bits
constexpr int kBorderWords = 3 * kBorderBins + 2;  // bins, tokens listed, blocks arrived
constexpr int kBorderListed = 4096;  // tokens of a bin that are remembered; of more the row is read again each round

int target_sample_chunks(int vocab);
void target_sample_cuda(const TargetSampleArguments& arguments, Stream stream);
void target_sample_cpu(const TargetSampleArguments& arguments);

}  // namespace vf
