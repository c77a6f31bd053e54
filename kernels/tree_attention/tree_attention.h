// Attention of draft-tree nodes over a prefix and their ancestors; see vocabforge/ops/tree_attention.py.
#pragma once

#include "../common/stream.h"

namespace vf {

struct TreeAttentionArguments {
  const void* q;             // (B, T, Hq, D); D numbers of a head lie side by side, here and below
  const void* keys;          // (B, Hkv, S, D)
  const void* values;        // (B, Hkv, S, D)
  const int64_t* lengths;    // (B,)
  const int64_t* words;      // (B, T, W)
  const int64_t* positions;  // (B, T); null without a window
  void* out;                 // (B, T, Hq, D), row after row
  Type type;                 // of q, keys, values and out: float32 (CPU only), bfloat16, float16
  int batch, queries, heads, kv_heads, head_size, capacity, word_count;
  int64_t window;            // in positions, 0: none
  float scale;               // above 0
  // Strides in numbers; the kernels need multiples of 8.
  int64_t q_row, q_query, q_head;
  int64_t key_row, key_head, value_row, value_head;
  int key_slot, value_slot;
  int splits;                // blocks at most that share the keys of one kv head
  float* workspace;          // null with one split
};

// How the work is cut up. Depends on shapes and the device only: lengths are read by the kernels.
struct TreeAttentionPlan {
  int splits;
  int64_t workspace;  // floats
};

TreeAttentionPlan tree_attention_plan(const TreeAttentionArguments& arguments);
void tree_attention_cuda(const TreeAttentionArguments& arguments, Stream stream);
void tree_attention_cpu(const TreeAttentionArguments& arguments);

}  // namespace vf
