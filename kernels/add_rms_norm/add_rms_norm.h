// add_rms_norm: sum = x + residual and its RMS norm; see vocabforge/ops/add_rms_norm.py.
#pragma once

#include "../common/stream.h"

namespace vf {

struct AddRmsNormArguments {
  const void* x;         // (rows, width), rows x_stride apart
  const void* residual;  // likewise, or null: the sum is x and is not written
  const void* weight;    // (width,)
  void* normed;          // (rows, width)
  void* sum;             // (rows, width)
  int64_t x_stride;      // in elements, as the next
  int64_t residual_stride;
  int rows;
  int width;  // CUDA: a multiple of 8, at most kMostNormWidth
  float eps;
  Type type;  // of everything
};

constexpr int kMostNormWidth = 32768;

void add_rms_norm_cuda(const AddRmsNormArguments& a, Stream stream);
void add_rms_norm_cpu(const AddRmsNormArguments& a);

}  // namespace vf
