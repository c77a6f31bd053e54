// Moves slots of a key/value cache; see vocabforge/ops/compact_kv.py.
#pragma once

#include "../common/stream.h"

namespace vf {

constexpr int kMostPairs = 1024;

// One of the two caches; steps in bytes, from a layer, row or head to the next.
struct CacheView {
  unsigned char* data;
  int64_t layer_step, row_step, head_step;
};

struct CompactKvArguments {
  CacheView caches[2];
  const int64_t *source, *destination;  // (rows, pairs)
  int layers, rows, heads, slots, pairs;
  int slot_bytes;  // a multiple of 16, as are all addresses
};

void compact_kv_cuda(const CompactKvArguments& arguments, Stream stream);
void compact_kv_cpu(const CompactKvArguments& arguments);

}  // namespace vf
