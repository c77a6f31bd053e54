// The distinct numbers of a matrix of ids; see vocabforge/ops/distinct_rows.py.
#pragma once

#include "segments.h"

namespace vf {

struct DistinctRowsArguments {
  const void* ids;   // (total,) int64 where wide, else int32; outside 0..size-1: no row
  bool wide;
  int total, size;
  int columns;       // min(total, size)
  Segments segments; // workspace: rows (total,), bases, counts; starts and uses are null
  int* rows;         // (columns,) distinct ids, -1 behind them
  int* count;        // (1,)
  int* places;       // (total,) column of each id, -1 where it is no row
};

void distinct_rows_cuda(const DistinctRowsArguments& arguments, Stream stream);
void distinct_rows_cpu(const DistinctRowsArguments& arguments);

}  // namespace vf
