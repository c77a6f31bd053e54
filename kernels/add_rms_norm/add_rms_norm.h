// add_rms_norm: sum = x + residual and its RMS norm; join_norms: two norms side by side; see
// vocabforge/ops/add_rms_norm.py.
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

struct JoinNormsArguments {
  const void* table;   // (table_rows, width), rows table_stride apart
  const int64_t* ids;  // (rows,) rows of the table, or null: row r is the table's row r; an id outside it gives zeros
  const void* x;       // (rows, width), rows x_stride apart
  const void* first;   // (width,) weight of the table's rows
  const void* second;  // (width,) of x
  void* joined;        // (rows, 2 * width)
  int64_t table_stride;  // in elements, as the next
  int64_t x_stride;
  int64_t table_rows;
  int rows;
  int width;  // as above
  float eps;
  Type type;  // of everything but ids
};

constexpr int kMostNormWidth = 32768;

void add_rms_norm_cuda(const AddRmsNormArguments& a, Stream stream);
void add_rms_norm_cpu(const AddRmsNormArguments& a);
void join_norms_cuda(const JoinNormsArguments& a, Stream stream);
void join_norms_cpu(const JoinNormsArguments& a);

}  // namespace vf
