// rope_store: norms of heads, rotation, write to the cache; see vocabforge/ops/rope_store.py.
#pragma once

#include "../common/stream.h"

namespace vf {

struct RopeStoreArguments {
  const void* qkv;       // (batch, length, heads + 2 * kv_heads, dim)
  const void* cos;       // (batch, length, dim), vectors of dim in one piece, of angle_type
  const void* sin;       // likewise; the minus of rotate-half stands in the first half
  const int64_t* slots;  // (batch, length); a slot outside 0 .. capacity - 1 is not written
  const void* qk_norm;   // (heads + kv_heads, dim), or null
  void* keys;            // (batch, kv_heads, capacity, dim), vectors of dim in one piece
  void* values;          // likewise
  void* q;               // (batch, length, heads, dim)
  int64_t cos_strides[2];    // of batch and length, in elements
  int64_t sin_strides[2];    // likewise
  int64_t key_strides[3];    // of batch, head and slot, in elements
  int64_t value_strides[3];  // likewise
  int64_t capacity;
  int batch;
  int length;
  int heads;
  int kv_heads;
  int dim;  // CUDA: a multiple of 16, at most kMostHeadDim; CPU: even
  float eps;
  Type type;        // of qkv, qk_norm, keys, values, q
  Type angle_type;  // float32 or `type`: the first product is rounded to it
};

constexpr int kMostHeadDim = 512;

void rope_store_cuda(const RopeStoreArguments& a, Stream stream);
void rope_store_cpu(const RopeStoreArguments& a);

}  // namespace vf
