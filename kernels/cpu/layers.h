// Decoder layers for few rows: every step of a layer in one call.
#pragma once

#include <array>
#include <vector>

#include "product.h"

namespace vf::VF_ISA {

constexpr int64_t kGrain = 1 << 17;  // products of fewer multiplications are not worth a second thread

template <typename F>
void parallel(Split split, int64_t count, int64_t grain, F part) {
  if (count <= grain) return part(int64_t{0}, count);
  split(count, grain, [](int64_t first, int64_t last, void* context) { (*static_cast<F*>(context))(first, last); }, &part);
}

template <typename W>
void few_rows_of(const FewRowsArguments& a, const W* w) {
  const int64_t grain = std::max<int64_t>(kGrain / std::max<int64_t>(a.rows * a.depth, 1), 24);
  parallel(a.split, a.columns, grain, [&](int64_t first, int64_t last) {
    product(a.rows, w, a.depth, a.x, a.depth, a.depth, a.out, a.columns, first, last);
    if (a.bias == nullptr) return;
    for (int64_t m = 0; m < a.rows; ++m) {
      for (int64_t n = first; n < last; ++n) a.out[m * a.columns + n] += a.bias[n];
    }
  });
}

void few_rows(const FewRowsArguments& a) {
  if (a.bf16) return few_rows_of(a, static_cast<const uint16_t*>(a.w));
  few_rows_of(a, static_cast<const float*>(a.w));
}

// Calls whole(i) for vectors and rest(i) for the numbers behind the last whole one.
template <typename F, typename G>
inline void each(int64_t size, F whole, G rest) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) whole(i);
  for (; i < size; ++i) rest(i);
}

inline void rms_norm(const float* x, const float* weight, float* out, int64_t size, float eps, bool one_plus) {
  Vec squares = {};
  float rest = 0.0f;
  each(size, [&](int64_t i) { squares += load(x + i) * load(x + i); }, [&](int64_t i) { rest += x[i] * x[i]; });
  const float scale = 1.0f / std::sqrt((sum(squares) + rest) / static_cast<float>(size) + eps), more = one_plus ? 1.0f : 0.0f;
  each(size, [&](int64_t i) { store(out + i, load(x + i) * scale * (load(weight + i) + more)); },
       [&](int64_t i) { out[i] = x[i] * scale * (weight[i] + more); });
}

inline float tanh_gelu(float x) {
  return 0.5f * x * (1.0f + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
}

inline void activate(Activation kind, const float* gate, const float* up, float* out, int64_t size) {
  if (kind == Activation::kSilu) {
    each(size, [&](int64_t i) { store(out + i, load(gate + i) / (1.0f + exp(-load(gate + i))) * load(up + i)); },
         [&](int64_t i) { out[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i]; });
  } else if (kind == Activation::kSquaredRelu) {
    for (int64_t i = 0; i < size; ++i) out[i] = std::max(gate[i], 0.0f) * std::max(gate[i], 0.0f) * up[i];
  } else {
    for (int64_t i = 0; i < size; ++i) out[i] = tanh_gelu(gate[i]) * up[i];
  }
}

// One head of D numbers, turned by its angles.
inline void turn(const float* x, const float* cos, const float* sin, const int64_t* partners, float* out, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    const int64_t other = partners != nullptr ? partners[i] : (i < size / 2 ? i + size / 2 : i - size / 2);
    out[i] = x[i] * cos[i] + x[other] * sin[i];
  }
}

class Layers {
 public:
  explicit Layers(const DecoderLayersArguments& a)
      : a_(a), rows_(a.batch * a.length), q_(a.heads * a.head), kv_(a.kv_heads * a.head) {
    const int64_t wide = std::max({q_ + 2 * kv_, 2 * a.inner, a.hidden});
    normed_.resize(rows_ * std::max(2 * a.hidden, a.fed_width));
    wide_.resize(rows_ * wide);
    narrow_.resize(rows_ * std::max({q_, a.inner, a.hidden}));
    turned_.resize(rows_ * q_);
  }

  void run() {
    for (int64_t layer = 0; layer < a_.layers; ++layer) {
      const LayerWeights& w = a_.weights[layer];
      attend(w, layer);
      feed_forward(w);
      for (int64_t i = 0; i < a_.aux_count; ++i) {
        if (a_.aux[i] != layer) continue;
        for (int64_t row = 0; row < rows_; ++row) {
          std::memcpy(a_.aux_out + (row * a_.aux_count + i) * a_.hidden, a_.x + row * a_.hidden, a_.hidden * sizeof(float));
        }
      }
    }
    if (a_.norm != nullptr) norm_rows(a_.x, a_.norm, a_.hidden_out, a_.hidden);
    else std::memcpy(a_.hidden_out, a_.x, rows_ * a_.hidden * sizeof(float));
  }

 private:
  void norm_rows(const float* x, const float* weight, float* out, int64_t size, bool plain = false) const {
    for (int64_t row = 0; row < rows_; ++row) {
      rms_norm(x + row * size, weight, out + row * size, size, a_.eps, a_.one_plus && !plain);
    }
  }

  void multiply(const float* x, const void* w, const float* bias, float* out, int64_t columns, int64_t depth) const {
    few_rows({x, w, bias, out, rows_, columns, depth, a_.bf16, a_.split});
  }

  // What a block gives, normed where the family does so, is added to the residual stream.
  void add(float* y, const float* norm) {
    if (norm != nullptr) norm_rows(y, norm, y, a_.hidden);
    for (int64_t i = 0; i < rows_ * a_.hidden; ++i) a_.x[i] += a_.residual_scale * y[i];
  }

  void attend(const LayerWeights& w, int64_t layer) {
    const float* read = a_.x;
    int64_t width = a_.hidden;
    if (layer == 0 && a_.joined[0] != nullptr) {
      for (int64_t row = 0; row < rows_; ++row) {
        float *to = normed_.data() + row * 2 * a_.hidden, *x = a_.x + row * a_.hidden;
        rms_norm(a_.fed + row * a_.hidden, a_.joined[0], to, a_.hidden, a_.eps, false);
        rms_norm(x, a_.joined[1], to + a_.hidden, a_.hidden, a_.eps, false);
        if (a_.normed_residual) std::memcpy(x, to + a_.hidden, a_.hidden * sizeof(float));
      }
      read = normed_.data();
      width = 2 * a_.hidden;
    } else if (layer == 0 && a_.fed != nullptr) {
      read = a_.fed;
      width = a_.fed_width;
    } else if (w.attention_norm != nullptr) {
      norm_rows(a_.x, w.attention_norm, normed_.data(), a_.hidden);
      read = normed_.data();
    }
    multiply(read, w.qkv, w.qkv_bias, wide_.data(), q_ + 2 * kv_, width);
    const LayerView& view = *a_.views[a_.kinds[layer] & 1];
    for (int64_t row = 0; row < rows_; ++row) prepare(w, layer, row, view, a_.kinds[layer] >> 1 & 1);
    const int64_t work = 2 * rows_ * q_ / a_.kv_heads * view.view;
    parallel(a_.split, a_.batch * a_.kv_heads, std::max<int64_t>(kGrain / std::max<int64_t>(work, 1), 1),
             [&](int64_t first, int64_t last) {
               for (int64_t i = first; i < last; ++i) head(w, layer, i / a_.kv_heads, i % a_.kv_heads, view);
             });
    if (w.attention_sub_norm != nullptr) norm_rows(narrow_.data(), w.attention_sub_norm, narrow_.data(), q_, true);
    multiply(narrow_.data(), w.o, w.o_bias, wide_.data(), a_.hidden, q_);
    add(wide_.data(), w.attention_out_norm);
  }

  // Where a turned query lies: those that share a head of keys side by side.
  float* query(int64_t batch, int64_t t, int64_t head) {
    const int64_t group = a_.heads / a_.kv_heads, kv_head = head / group;
    return turned_.data() + (((batch * a_.kv_heads + kv_head) * a_.length + t) * group + head % group) * a_.head;
  }

  // Norms and turns the heads of a row; its keys and values go into the cache.
  void prepare(const LayerWeights& w, int64_t layer, int64_t row, const LayerView& view, bool unturned) {
    float* x = wide_.data() + row * (q_ + 2 * kv_);
    if (w.q_norm != nullptr) {
      rms_norm(x, w.q_norm, x, q_, a_.eps, a_.one_plus);
      rms_norm(x + q_, w.k_norm, x + q_, kv_, a_.eps, a_.one_plus);
    }
    const int64_t batch = row / a_.length, slot = a_.slots[batch * a_.slots_row + row % a_.length];
    const int64_t place = layer * a_.layer_stride + batch * a_.row_stride + slot * a_.head;
    for (int64_t i = 0; i < a_.heads + a_.kv_heads; ++i) {
      float* from = x + i * a_.head;
      float* to = i < a_.heads ? query(batch, row % a_.length, i) : a_.keys + place + (i - a_.heads) * a_.head_stride;
      if (w.qk_norm != nullptr) rms_norm(from, w.qk_norm + i * a_.head, from, a_.head, a_.eps, a_.one_plus);
      if (unturned) std::memcpy(to, from, a_.head * sizeof(float));
      else turn(from, view.cos + row * a_.head, view.sin + row * a_.head, a_.partners, to, a_.head);
    }
    for (int64_t i = 0; i < a_.kv_heads; ++i) {
      std::memcpy(a_.values + place + i * a_.head_stride, x + q_ + kv_ + i * a_.head, a_.head * sizeof(float));
    }
  }

  // The queries of one row of the batch that share a head of keys and values.
  void head(const LayerWeights& w, int64_t layer, int64_t batch, int64_t kv_head, const LayerView& view) {
    const int64_t group = a_.heads / a_.kv_heads, rows = a_.length * group, padded = view.view + kLanes;
    const int64_t place = layer * a_.layer_stride + batch * a_.row_stride + kv_head * a_.head_stride;
    const float *queries = turned_.data() + (batch * a_.kv_heads + kv_head) * rows * a_.head, *values = a_.values + place;
    static thread_local std::vector<float> scores, shares;
    scores.resize(rows * padded);
    shares.resize(rows);
    product(rows, a_.keys + place, a_.head, queries, a_.head, a_.head, scores.data(), padded, 0, view.view);
    const auto span = [&](int64_t i) { return view.seen != nullptr ? view.view : view.view - a_.length + 1 + i / group; };
    const auto out = [&](int64_t i) {
      return narrow_.data() + (batch * a_.length + i / group) * q_ + (kv_head * group + i % group) * a_.head;
    };
    for (int64_t i = 0; i < rows; ++i) {
      const bool* seen = view.seen == nullptr ? nullptr : view.seen + batch * view.seen_row + i / group * view.view;
      const float* sink = w.sinks == nullptr ? nullptr : w.sinks + kv_head * group + i % group;
      shares[i] = softmax(scores.data() + i * padded, seen, span(i), sink);
    }
    int64_t i = 0;
    for (; view.seen == nullptr && i + 2 <= rows; i += 2) {
      gather<2>({scores.data() + i * padded, scores.data() + (i + 1) * padded}, {span(i), span(i + 1)}, values,
                {shares[i], shares[i + 1]}, {out(i), out(i + 1)});
    }
    for (; i < rows; ++i) gather<1>({scores.data() + i * padded}, {span(i)}, values, {shares[i]}, {out(i)});
  }

  // Turns a query's scores into weights, and returns what their weighted sum is multiplied by: 0 if nothing is seen.
  float softmax(float* scores, const bool* seen, int64_t span, const float* sink) const {
    if (seen != nullptr) {
      for (int64_t s = 0; s < span; ++s) scores[s] = seen[s] ? scores[s] : -INFINITY;
    }
    for (int64_t s = span; s % kLanes != 0; ++s) scores[s] = -INFINITY;
    Vec most_of = all(-INFINITY);
    for (int64_t s = 0; s < span; s += kLanes) most_of = max(most_of, load(scores + s));
    float highest = most(most_of) * a_.scale;
    if (sink != nullptr) highest = std::max(highest, *sink);
    if (highest == -INFINITY) highest = 0.0f;
    Vec totals = {};
    for (int64_t s = 0; s < span; s += kLanes) {
      const Vec weight = exp(load(scores + s) * a_.scale - highest);
      totals += weight;
      store(scores + s, weight);
    }
    float total = sum(totals);
    if (sink != nullptr) total += std::exp(*sink - highest);
    return total > 0.0f ? 1.0f / total : 0.0f;
  }

  // The values under the weights of R queries that see `spans` slots, the first of them the fewest.
  template <int R>
  void gather(const std::array<const float*, R>& weights, const std::array<int64_t, R>& spans, const float* values,
              const std::array<float, R>& shares, const std::array<float*, R>& out) const {
    constexpr int64_t kBlock = 4 * kLanes;
    int64_t d = 0;
    for (; d + kBlock <= a_.head; d += kBlock) gather_at<R, 4>(weights, spans, values, shares, out, d);
    for (; d + kLanes <= a_.head; d += kLanes) gather_at<R, 1>(weights, spans, values, shares, out, d);
    for (; d < a_.head; ++d) {
      for (int r = 0; r < R; ++r) {
        float number = 0.0f;
        for (int64_t s = 0; s < spans[r]; ++s) number += weights[r][s] == 0.0f ? 0.0f : weights[r][s] * values[s * a_.head + d];
        out[r][d] = number * shares[r];
      }
    }
  }

  template <int R, int N>
  void gather_at(const std::array<const float*, R>& weights, const std::array<int64_t, R>& spans, const float* values,
                 const std::array<float, R>& shares, const std::array<float*, R>& out, int64_t d) const {
    Vec sums[R][N] = {};
    const float* from = values + d;
    int64_t s = 0;
    for (; R > 1 && s < spans[0]; ++s, from += a_.head) {
      for (int n = 0; n < N; ++n) {
        const Vec value = load(from + n * kLanes);
        for (int r = 0; r < R; ++r) sums[r][n] += weights[r][s] * value;
      }
    }
    for (int r = R - 1; r >= 0; --r) {
      const float* rest = from;
      for (int64_t t = s; t < spans[r]; ++t, rest += a_.head) {
        if (weights[r][t] == 0.0f) continue;  // what is not seen may hold anything
        for (int n = 0; n < N; ++n) sums[r][n] += weights[r][t] * load(rest + n * kLanes);
      }
      for (int n = 0; n < N; ++n) store(out[r] + d + n * kLanes, sums[r][n] * shares[r]);
    }
  }

  void feed_forward(const LayerWeights& w) {
    const float* read = a_.x;
    if (w.mlp_norm != nullptr) {
      norm_rows(a_.x, w.mlp_norm, normed_.data(), a_.hidden);
      read = normed_.data();
    }
    multiply(read, w.gate_up, w.gate_up_bias, wide_.data(), 2 * a_.inner, a_.hidden);
    for (int64_t row = 0; row < rows_; ++row) {
      const float* gate = wide_.data() + row * 2 * a_.inner;
      activate(a_.activation, gate, gate + a_.inner, narrow_.data() + row * a_.inner, a_.inner);
    }
    if (w.mlp_sub_norm != nullptr) norm_rows(narrow_.data(), w.mlp_sub_norm, narrow_.data(), a_.inner, true);
    multiply(narrow_.data(), w.down, w.down_bias, wide_.data(), a_.hidden, a_.inner);
    add(wide_.data(), w.mlp_out_norm);
  }

  const DecoderLayersArguments& a_;
  const int64_t rows_, q_, kv_;
  std::vector<float> normed_, wide_, narrow_, turned_;
};

void decoder_layers(const DecoderLayersArguments& a) { Layers(a).run(); }

}  // namespace vf::VF_ISA
