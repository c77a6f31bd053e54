// What few rows cost on a CPU; see vocabforge/ops/few_rows.py and vocabforge/ops/decoder_layers.py.
#pragma once

#include <cstdint>

namespace vf {

// Runs part(context, first, last) over pieces of 0 .. count, in torch's threads.
using Split = void (*)(int64_t count, int64_t grain, void (*part)(int64_t first, int64_t last, void* context),
                       void* context);

struct FewRowsArguments {
  const float* x;     // (rows, depth)
  const void* w;      // (columns, depth)
  const float* bias;  // (columns), or null
  float* out;         // (rows, columns)
  int64_t rows, columns, depth;
  bool bf16;  // w; else float32
  Split split;
};

// Of one layer; null where it has none. The order is that of `weights` in vocabforge/ops/decoder_layers.py.
struct LayerWeights {
  const float* attention_norm;
  const void* qkv;  // a matrix, as o, gate_up and down
  const float *qkv_bias, *q_norm, *k_norm, *qk_norm, *sinks, *attention_sub_norm;
  const void* o;
  const float *o_bias, *attention_out_norm, *mlp_norm;
  const void* gate_up;
  const float *gate_up_bias, *mlp_sub_norm;
  const void* down;
  const float *down_bias, *mlp_out_norm;
};
constexpr int kLayerWeights = sizeof(LayerWeights) / sizeof(const void*);

enum class Activation { kSilu, kSquaredRelu, kGelu };

// What the queries of one kind of layer see, and how they are turned.
struct LayerView {
  const float *cos, *sin;  // (batch * length, head)
  const bool* seen;        // (batch or 1, length, view), or null: the last token of a row sees all, each one more than
                           // the token before it
  int64_t seen_row;        // elements from one row of the batch to the next; 0: the same for all
  int64_t view;
};

struct DecoderLayersArguments {
  float* x;                     // (batch * length, hidden), changed in place
  const float* fed;             // (batch * length, fed_width) that the first layer's q, k, v read; null: the norm of x
  const float* joined[2];       // norms of fed (as wide as x) and of x, which q, k, v read side by side; or null
  bool normed_residual;         // the residual stream is the latter
  const LayerWeights* weights;  // of each layer
  const LayerView* views[2];    // of all layers; of those with a window
  const int64_t* kinds;         // of each layer: bit 0 is its view, bit 1 that it is not rotated
  const float* norm;            // (hidden), after the last layer, or null
  const int64_t* partners;      // (head), or null: rotate-half
  float *keys, *values;         // of the first layer
  const int64_t* slots;         // (batch, length) or (length)
  const int64_t* aux;           // layers whose output is copied to aux_out
  float *hidden_out, *aux_out;  // (batch * length, hidden), (batch * length, aux_count * hidden)
  int64_t layer_stride, row_stride, head_stride;  // of keys and values
  int64_t layers, aux_count, batch, length, slots_row, hidden, fed_width, inner, heads, kv_heads, head;
  float eps, scale, residual_scale;
  bool one_plus, bf16;  // bf16: the matrices; else float32
  Activation activation;
  Split split;
};

#define VF_CPU_FUNCTIONS(isa)                                   \
  namespace isa {                                               \
  void few_rows(const FewRowsArguments& a);                     \
  void decoder_layers(const DecoderLayersArguments& a);         \
  }
VF_CPU_FUNCTIONS(base)
VF_CPU_FUNCTIONS(v3)

}  // namespace vf
