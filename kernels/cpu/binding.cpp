#include <algorithm>
#include <chrono>
#include <cstring>

#include "../common/binding.h"
#include "cpu.h"

namespace {

using namespace vf;

#if defined(__x86_64__)
const bool level_3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#define VF_BEST(call) (level_3 ? v3::call : base::call)
#else
#define VF_BEST(call) base::call
#endif

void split(int64_t count, int64_t grain, void (*part)(int64_t, int64_t, void*), void* context) {
  torch::stable::parallel_for(0, count, grain, [=](int64_t first, int64_t last) { part(first, last, context); });
}

void check_float(const Tensor& tensor, const char* what) {
  VF_CHECK(!tensor.is_cuda() && tensor.is_contiguous(), what, ": expected a contiguous tensor of the CPU");
  check_type(tensor, ScalarType::Float, what);
}

// Whether a matrix is in bf16; else it is in fp32.
bool in_bf16(const Tensor& tensor, const char* what) {
  VF_CHECK(!tensor.is_cuda() && tensor.is_contiguous(), what, ": expected a contiguous tensor of the CPU");
  const bool bf16 = tensor.scalar_type() == ScalarType::BFloat16;
  if (!bf16) check_type(tensor, ScalarType::Float, what);
  return bf16;
}

const float* pointer(const std::optional<Tensor>& tensor, int64_t size, const char* what) {
  if (!tensor.has_value()) return nullptr;
  check_float(*tensor, what);
  VF_CHECK(tensor->numel() == size, what, ": expected ", size, " numbers, got ", tensor->numel());
  return data<float>(*tensor);
}

Tensor few_rows(Tensor x, Tensor w, std::optional<Tensor> bias) {
  check_float(x, "few_rows: x");
  const bool bf16 = in_bf16(w, "few_rows: w");
  VF_CHECK(x.dim() == 2 && w.dim() == 2 && w.size(1) == x.size(1), "few_rows: w: expected a matrix as wide as x");
  Tensor out = new_tensor(x, {x.size(0), w.size(0)}, ScalarType::Float);
  const FewRowsArguments a{data<float>(x), data<void>(w), pointer(bias, w.size(0), "few_rows: bias"), data<float>(out),
                           x.size(0), w.size(0), x.size(1), bf16, split};
  VF_BEST(few_rows(a));
  return out;
}

enum { kQkv = 1, kO = 8, kGateUp = 12, kDown = 15 };  // the matrices among a layer's weights

// The widths of a layer's MLP and the dtype of its matrices.
void take_matrices(DecoderLayersArguments& a, const std::vector<Tensor>& weights) {
  a.inner = a.layers > 0 ? weights[kDown].size(1) : 0;
  a.bf16 = a.layers > 0 && weights[kQkv].scalar_type() == ScalarType::BFloat16;
}

// The numbers that each of a layer's weights must have, in the order of LayerWeights.
std::vector<int64_t> sizes_of(const DecoderLayersArguments& a, int64_t width) {
  const int64_t q = a.heads * a.head, kv = a.kv_heads * a.head, all = q + 2 * kv, h = a.hidden, i = a.inner;
  return {h, all * width, all, q, kv, q + kv, a.heads, q, h * q, h, h, h, 2 * i * h, 2 * i, i, h * i, h, h};
}

LayerWeights weights_of(const std::vector<Tensor>& given, int64_t layer, const DecoderLayersArguments& a) {
  const std::vector<int64_t> sizes = sizes_of(a, layer > 0 || a.fed == nullptr ? a.hidden : a.joined[0] == nullptr ? a.fed_width : 2 * a.hidden);
  const void* found[kLayerWeights];
  for (int i = 0; i < kLayerWeights; ++i) {
    const Tensor& one = given[layer * kLayerWeights + i];
    found[i] = nullptr;
    if (one.numel() == 0) continue;
    if (i == kQkv || i == kO || i == kGateUp || i == kDown) {
      VF_CHECK(in_bf16(one, "decoder_layers: weights") == a.bf16, "decoder_layers: weights: matrices of two dtypes");
    } else {
      check_float(one, "decoder_layers: weights");
    }
    VF_CHECK(one.numel() == sizes[i], "decoder_layers: weight ", i, " of layer ", layer, ": expected ", sizes[i],
             " numbers, got ", one.numel());
    found[i] = data<void>(one);
  }
  LayerWeights weights;
  static_assert(sizeof found == sizeof weights);
  std::memcpy(&weights, found, sizeof weights);
  VF_CHECK(weights.qkv && weights.o && weights.gate_up && weights.down, "decoder_layers: layer ", layer, " lacks a matrix");
  return weights;
}

LayerView view_of(const Tensor& cos, const Tensor& sin, const std::optional<Tensor>& seen, int64_t view,
                  const DecoderLayersArguments& a) {
  const int64_t angles = a.batch * a.length * a.head;
  LayerView made{pointer(cos, angles, "decoder_layers: angles"), pointer(sin, angles, "decoder_layers: angles"), nullptr, 0,
                 view};
  if (!seen.has_value()) return made;
  check_type(*seen, ScalarType::Bool, "decoder_layers: seen");
  const int64_t one = a.length * view;
  VF_CHECK(seen->is_contiguous() && (seen->numel() == one || seen->numel() == a.batch * one),
           "decoder_layers: seen: expected (", a.batch, " or 1, ", a.length, ", ", view, ")");
  made.seen = data<bool>(*seen);
  made.seen_row = seen->numel() == one ? 0 : one;
  return made;
}

// The cache that layers write to; it says how many rows of a batch, heads of keys and numbers a head there are.
void take_cache(DecoderLayersArguments& a, const Tensor& keys, const Tensor& values, const Tensor& x, int64_t heads) {
  check_float(x, "decoder_layers: x");
  check_type(keys, ScalarType::Float, "decoder_layers: keys");
  check_type(values, ScalarType::Float, "decoder_layers: values");
  VF_CHECK(keys.dim() == 5 && keys.stride(4) == 1 && keys.stride(3) == keys.size(4), "decoder_layers: keys: gaps");
  for (int64_t i = 0; i < 5; ++i) {
    VF_CHECK(keys.size(i) == values.size(i) && keys.stride(i) == values.stride(i), "decoder_layers: values do not fit keys");
  }
  a.batch = keys.size(1);
  a.kv_heads = keys.size(2);
  a.head = keys.size(4);
  a.heads = heads;
  a.keys = data<float>(keys);
  a.values = data<float>(values);
  a.layer_stride = keys.stride(0);
  a.row_stride = keys.stride(1);
  a.head_stride = keys.stride(2);
  VF_CHECK(x.dim() == 2 && a.batch > 0 && x.size(0) % a.batch == 0 && heads % a.kv_heads == 0,
           "decoder_layers: x, keys and heads do not fit");
  a.length = x.size(0) / a.batch;
  a.hidden = x.size(1);
}

void take_joined(DecoderLayersArguments& a, const std::vector<Tensor>& joined, bool normed_residual) {
  VF_CHECK(joined.empty() || (joined.size() == 2 && a.fed_width == a.hidden), "decoder_layers: joined: two norms as wide as x");
  for (size_t i = 0; i < joined.size(); ++i) a.joined[i] = pointer(joined[i], a.hidden, "decoder_layers: joined");
  a.normed_residual = normed_residual;
}

std::tuple<Tensor, Tensor> decoder_layers(Tensor x, std::optional<Tensor> fed, std::vector<Tensor> joined,
                                          bool normed_residual, std::vector<Tensor> weights,
                                          std::optional<Tensor> norm, std::vector<Tensor> angles,
                                          std::optional<Tensor> seen, std::optional<Tensor> near_seen, int64_t view,
                                          std::optional<Tensor> partners, Tensor keys, Tensor values, Tensor slots,
                                          std::vector<int64_t> kinds, std::vector<int64_t> aux, int64_t heads,
                                          int64_t activation, double eps, double scale, double residual_scale,
                                          bool one_plus) {
  DecoderLayersArguments a{};
  take_cache(a, keys, values, x, heads);
  a.layers = static_cast<int64_t>(kinds.size());
  VF_CHECK(a.layers <= keys.size(0) && view <= keys.size(3) && a.length <= view &&
               weights.size() == static_cast<size_t>(a.layers * kLayerWeights),
           "decoder_layers: keys, kinds, view and weights do not fit");
  if (fed.has_value()) {
    a.fed_width = fed->size(1);
    a.fed = pointer(fed, x.size(0) * a.fed_width, "decoder_layers: fed");
  }
  take_joined(a, joined, normed_residual);
  take_matrices(a, weights);
  std::vector<LayerWeights> each;
  for (int64_t layer = 0; layer < a.layers; ++layer) each.push_back(weights_of(weights, layer, a));
  a.weights = each.data();
  const LayerView views[2] = {view_of(angles[0], angles[1], seen, view, a), view_of(angles[2], angles[3], near_seen, view, a)};
  a.views[0] = views;
  a.views[1] = views + 1;
  a.kinds = kinds.data();
  a.norm = pointer(norm, a.hidden, "decoder_layers: norm");
  if (partners.has_value()) {
    check_type(*partners, ScalarType::Long, "decoder_layers: partners");
    a.partners = data<int64_t>(*partners);
  }
  check_type(slots, ScalarType::Long, "decoder_layers: slots");
  VF_CHECK(slots.is_contiguous() && (slots.numel() == a.length || slots.numel() == a.batch * a.length),
           "decoder_layers: slots do not fit");
  a.slots = data<int64_t>(slots);
  a.slots_row = slots.numel() == a.length ? 0 : a.length;
  for (int64_t i = 0; i < slots.numel(); ++i) {
    VF_CHECK(a.slots[i] >= 0 && a.slots[i] < keys.size(3), "decoder_layers: slot ", a.slots[i], " of ", keys.size(3));
  }
  a.aux = aux.data();
  a.aux_count = static_cast<int64_t>(aux.size());
  Tensor hidden_out = new_tensor(x, {x.size(0), a.hidden}, ScalarType::Float);
  Tensor aux_out = new_tensor(x, {x.size(0), a.aux_count * a.hidden}, ScalarType::Float);
  std::vector<float> stream(data<float>(x), data<float>(x) + x.numel());
  a.x = stream.data();
  a.hidden_out = data<float>(hidden_out);
  a.aux_out = data<float>(aux_out);
  a.eps = static_cast<float>(eps);
  a.scale = static_cast<float>(scale);
  a.residual_scale = static_cast<float>(residual_scale);
  a.one_plus = one_plus;
  a.activation = static_cast<Activation>(activation);
  a.split = split;
  VF_BEST(decoder_layers(a));
  return {hidden_out, aux_out};
}

// The tokens, and the seconds that the head took.
std::tuple<Tensor, Tensor> draft_chain(Tensor features, std::optional<Tensor> fc, Tensor ids, int64_t start, int64_t count, Tensor embedding,
                   std::vector<Tensor> joined, bool normed_residual, bool normed_output, std::vector<Tensor> weights,
                   Tensor norm, Tensor cos, Tensor sin, Tensor keys, Tensor values, Tensor head,
                   std::optional<Tensor> head_ids, int64_t heads, double eps, double scale) {
  using Seconds = std::chrono::duration<float>;
  Seconds in_head{0};
  Tensor g = fc.has_value() ? few_rows(features, *fc, std::nullopt) : features;
  DecoderLayersArguments a{};
  take_cache(a, keys, values, g, heads);
  check_float(embedding, "draft_chain: embedding");
  check_float(cos, "draft_chain: cos");
  check_float(sin, "draft_chain: sin");
  check_type(ids, ScalarType::Long, "draft_chain: ids");
  check_float(head, "draft_chain: head");
  const int64_t last = start + a.length + count - 1, hidden = a.hidden;
  VF_CHECK(a.batch == 1 && a.length > 0 && count > 0 && start >= 0 && ids.is_contiguous() && ids.numel() == a.length &&
               last <= keys.size(3) && last * a.head <= cos.numel() && cos.numel() == sin.numel(),
           "draft_chain: ids, slots and angles do not fit");
  VF_CHECK(embedding.size(1) == hidden && head.size(1) == hidden && weights.size() == kLayerWeights,
           "draft_chain: embedding, head and weights do not fit");
  VF_CHECK(!head_ids.has_value() || (head_ids->scalar_type() == ScalarType::Long && head_ids->numel() == head.size(0)),
           "draft_chain: head_ids do not fit");
  std::vector<float> x(data<float>(g), data<float>(g) + g.numel()), fed(g.numel()), normed(g.numel()), scores(head.size(0));
  a.fed_width = hidden;
  a.fed = fed.data();
  take_joined(a, joined, normed_residual);
  a.layers = 1;
  take_matrices(a, weights);
  const LayerWeights layer = weights_of(weights, 0, a);
  a.weights = &layer;
  a.norm = pointer(norm, hidden, "draft_chain: norm");
  a.eps = static_cast<float>(eps);
  a.scale = static_cast<float>(scale);
  a.residual_scale = 1.0f;
  a.split = split;
  const int64_t kind = 0;
  a.kinds = &kind;
  a.x = x.data();
  a.hidden_out = normed.data();
  Tensor out = new_tensor(ids, {1 + count}, ScalarType::Long);
  std::vector<int64_t> tokens(data<int64_t>(ids), data<int64_t>(ids) + a.length), slots(a.length);
  data<int64_t>(out)[0] = tokens.back();
  for (int64_t drafted = 1;; ++drafted) {
    for (int64_t row = 0; row < a.length; ++row) {
      VF_CHECK(tokens[row] >= 0 && tokens[row] < embedding.size(0), "draft_chain: token ", tokens[row], " of ", embedding.size(0));
      std::memcpy(fed.data() + row * hidden, data<float>(embedding) + tokens[row] * hidden, hidden * sizeof(float));
      slots[row] = start + row;
    }
    const LayerView view{data<float>(cos) + start * a.head, data<float>(sin) + start * a.head, nullptr, 0, start + a.length};
    a.views[0] = a.views[1] = &view;
    a.slots = slots.data();
    VF_BEST(decoder_layers(a));
    start += a.length;
    const int64_t behind = (a.length - 1) * hidden;  // the last row drafts
    const FewRowsArguments score{normed.data() + behind, data<void>(head), nullptr, scores.data(), 1, head.size(0), hidden, false, split};
    const auto began = std::chrono::steady_clock::now();
    VF_BEST(few_rows(score));
    const int64_t best = std::max_element(scores.begin(), scores.end()) - scores.begin();
    tokens[0] = data<int64_t>(out)[drafted] = head_ids.has_value() ? data<int64_t>(*head_ids)[best] : best;
    in_head += std::chrono::steady_clock::now() - began;
    if (drafted == count) {
      Tensor seconds = new_tensor(ids, {1}, ScalarType::Float);
      data<float>(seconds)[0] = in_head.count();
      return {out, seconds};
    }
    std::memmove(x.data(), (normed_output ? normed.data() : x.data()) + behind, hidden * sizeof(float));
    a.length = 1;
  }
}

}  // namespace

VF_DEFINE(m) {
  m.def("draft_chain(Tensor features, Tensor? fc, Tensor ids, int start, int count, Tensor embedding, Tensor[] joined, bool normed_residual, "
        "bool normed_output, Tensor[] weights, Tensor norm, Tensor cos, Tensor sin, Tensor(a!) keys, Tensor(b!) values, "
        "Tensor head, Tensor? head_ids, int heads, float eps, float scale) -> (Tensor, Tensor)");
  m.def("few_rows(Tensor x, Tensor w, Tensor? bias) -> Tensor");
  m.def("decoder_layers(Tensor x, Tensor? fed, Tensor[] joined, bool normed_residual, Tensor[] weights, Tensor? norm, Tensor[] angles, Tensor? seen, "
        "Tensor? near_seen, int view, Tensor? partners, Tensor(a!) keys, Tensor(b!) values, Tensor slots, int[] kinds, "
        "int[] aux, int heads, int activation, float eps, float scale, float residual_scale, bool one_plus) -> "
        "(Tensor, Tensor)");
}
VF_IMPLEMENT(m) {
  m.impl("few_rows", TORCH_BOX(&few_rows));
  m.impl("draft_chain", TORCH_BOX(&draft_chain));
  m.impl("decoder_layers", TORCH_BOX(&decoder_layers));
}
