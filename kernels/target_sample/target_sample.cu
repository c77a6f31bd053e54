// Five launches: the largest logit of each row, weights, borders of top-k and top-p, what is kept and its sums, draws.
// All but the third and the last cut rows into chunks, a block a chunk.
#include "target_sample.h"

#include "../common/fill.cuh"
#include "../common/philox.cuh"
#include "border.cuh"

namespace vf {
namespace {

constexpr int kThreads = 256;

// What the other tokens of a row are measured against.
struct Top {
  float score;
  int id;
  bool lawful;
};

template <typename T>
VF_DEVICE Top top_of(const TargetSampleArguments& a, int row) {
  const unsigned long long best = a.best[row];
  const uint32_t value = static_cast<uint32_t>(best >> 32);
  const int id = static_cast<int>(0xFFFFFFFFu - static_cast<uint32_t>(best));
  const T* logits = static_cast<const T*>(a.logits) + static_cast<int64_t>(row) * a.vocab;
  const bool lawful = value > order_key(bits_float(0xFF800000u)) && value != 0xFFFFFFFFu;
  return {to_float(ldg(logits + id)), id, lawful};
}

// The score by which tokens are ordered: beside an infinite one, only its equals are possible.
VF_DEVICE float ordered_score(const Top& top, float score) {
  if (top.score != bits_float(0x7F800000u)) return score;
  return score == top.score ? 0.0f : bits_float(0xFF800000u);
}

VF_DEVICE float weight_of(const Top& top, float score, double temperature) {
  const float highest = ordered_score(top, top.score);
  // The maximum goes first: a tiny temperature would otherwise make infinities, and those NaN.
  const float exponent = static_cast<float>(static_cast<double>(ordered_score(top, score) - highest) / temperature);
  if (exponent < -104.0f) return 0.0f;  // rounds to 0
  return static_cast<float>(::exp(static_cast<double>(exponent)));
}

struct Chunk {
  int row, index, begin, end;
};

VF_DEVICE Chunk own_chunk(const TargetSampleArguments& a) {
  const int chunks = ceil_div(a.vocab, kChunk), block = static_cast<int>(blockIdx.x);
  const int begin = block % chunks * kChunk, end = begin + kChunk < a.vocab ? begin + kChunk : a.vocab;
  return {block / chunks, block % chunks, begin, end};
}

template <typename T>
VF_GLOBAL void VF_BOUNDS(kThreads, 4) sample_best_kernel(TargetSampleArguments a) {
  VF_SHARED unsigned long long found[kThreads / kWarp];
  wait_for_former();
  const Chunk chunk = own_chunk(a);
  const T* logits = static_cast<const T*>(a.logits) + static_cast<int64_t>(chunk.row) * a.vocab;
  unsigned long long best = 0;
  VF_UNROLL
  for (int j = 0; j < kChunk / kThreads; ++j) {
    const int i = chunk.begin + j * kThreads + static_cast<int>(threadIdx.x);
    if (i >= chunk.end) continue;
    const unsigned long long key = static_cast<unsigned long long>(order_key(to_float(ldg(logits + i)))) << 32 |
                                   (0xFFFFFFFFu - static_cast<uint32_t>(i));
    best = key > best ? key : best;
  }
  best = reduce_max(best);
  if (lane() == 0) found[warp()] = best;
  sync_block();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kThreads / kWarp; ++i) best = found[i] > best ? found[i] : best;
  atomic_max(a.best + chunk.row, best);
}

template <typename T>
VF_GLOBAL void VF_BOUNDS(kThreads, 4) sample_weights_kernel(TargetSampleArguments a) {
  wait_for_former();
  const Chunk chunk = own_chunk(a);
  const int64_t first = static_cast<int64_t>(chunk.row) * a.vocab;
  const T* logits = static_cast<const T*>(a.logits) + first;
  const Top top = top_of<T>(a, chunk.row);
  const double temperature = a.temperature[chunk.row];
  for (int i = chunk.begin + static_cast<int>(threadIdx.x); i < chunk.end; i += kThreads) {
    float weight = 0.0f;
    if (top.lawful && temperature == 0) weight = i == top.id ? 1.0f : 0.0f;
    if (top.lawful && temperature != 0) weight = weight_of(top, to_float(ldg(logits + i)), temperature);
    a.weights[first + i] = weight;
  }
}

template <typename T>
VF_GLOBAL void VF_BOUNDS(kBorderThreads, 1) sample_border_kernel(TargetSampleArguments a) {
  VF_SHARED BorderShared shared;
  wait_for_former();
  const int row = static_cast<int>(blockIdx.x);
  const int64_t k = a.top_k[row], first = static_cast<int64_t>(row) * a.vocab;
  const double top_p = a.top_p[row];
  const Top top = top_of<T>(a, row);
  const bool sampled = top.lawful && a.temperature[row] != 0;
  const T* logits = static_cast<const T*>(a.logits) + first;
  auto score_at = [&](int i) { return ordered_score(top, to_float(ldg(logits + i))); };
  unsigned long long least = 0;
  if (sampled && k > 0 && k < a.vocab) {
    least = find_border(shared, a.weights + first, a.vocab, least, {true, static_cast<unsigned>(k), 0.0}, score_at);
  }
  if (sampled && top_p < 1) {
    least = find_border(shared, a.weights + first, a.vocab, least, {false, 0, top_p}, score_at);
  }
  if (threadIdx.x == 0) a.least[row] = least;
}

template <typename T>
VF_GLOBAL void VF_BOUNDS(kThreads, 4) sample_keep_kernel(TargetSampleArguments a) {
  VF_SHARED Mass parts[kThreads / kWarp];
  wait_for_former();
  const Chunk chunk = own_chunk(a);
  const int64_t first = static_cast<int64_t>(chunk.row) * a.vocab;
  const T* logits = static_cast<const T*>(a.logits) + first;
  const unsigned long long least = a.least[chunk.row];
  const float min_p = a.temperature[chunk.row] == 0 ? 0.0f : static_cast<float>(a.min_p[chunk.row]);
  const Top top = top_of<T>(a, chunk.row);
  Mass sum = {0, 0};
  for (int i = chunk.begin + static_cast<int>(threadIdx.x); i < chunk.end; i += kThreads) {
    const float weight = a.weights[first + i];
    if (!(weight > 0.0f)) continue;
    const bool kept = weight >= min_p &&
                      (least == 0 || token_key(weight, ordered_score(top, to_float(ldg(logits + i))), i) >= least);
    if (kept) sum = sum + mass_of(weight);
    if (!kept) a.weights[first + i] = 0.0f;
  }
  sum = reduce_add(sum);
  if (lane() == 0) parts[warp()] = sum;
  sync_block();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kThreads / kWarp; ++i) sum = sum + parts[i];
  static_cast<Mass*>(a.masses)[static_cast<int>(blockIdx.x)] = sum;
}

template <typename T>
VF_GLOBAL void VF_BOUNDS(kPickThreads, 1) sample_draw_kernel(TargetSampleArguments a) {
  wait_for_former();
  const int row = static_cast<int>(blockIdx.x), chunks = ceil_div(a.vocab, kChunk);
  const Top top = top_of<T>(a, row);
  int choice = top.id;
  if (top.lawful && a.temperature[row] != 0) {
    const Mass* masses = static_cast<const Mass*>(a.masses) + static_cast<int64_t>(row) * chunks;
    const float* weights = a.weights + static_cast<int64_t>(row) * a.vocab;
    Mass whole = {0, 0};
    for (int i = lane(); i < chunks; i += kWarp) whole = whole + masses[i];
    const double uniform = philox_uniform(static_cast<uint64_t>(a.seeds[row]), static_cast<uint64_t>(a.draws[row]));
    choice = block_pick(a.vocab, uniform * mass_value(reduce_add(whole)), [&](int i) { return masses[i]; },
                        [&](int i) { return ldg(weights + i); });
  }
  if (threadIdx.x == 0) {
    a.choices[row] = choice;
    a.lawful[row] = top.lawful;
  }
}

template <typename T>
void start(const TargetSampleArguments& a, Stream stream) {
  const dim3 rows(static_cast<unsigned>(a.rows)), chunks(static_cast<unsigned>(a.rows * target_sample_chunks(a.vocab)));
  launch(sample_best_kernel<T>, chunks, dim3(kThreads), 0, stream, a);
  launch(sample_weights_kernel<T>, chunks, dim3(kThreads), 0, stream, a);
  launch(sample_border_kernel<T>, rows, dim3(kBorderThreads), 0, stream, a);
  launch(sample_keep_kernel<T>, chunks, dim3(kThreads), 0, stream, a);
  if (a.choices != nullptr) launch(sample_draw_kernel<T>, rows, dim3(kPickThreads), 0, stream, a);
}

}  // namespace

int target_sample_chunks(int vocab) { return ceil_div(vocab, kChunk); }

void target_sample_cuda(const TargetSampleArguments& a, Stream stream) {
  fill_zeros(a.best, a.rows, stream);
  if (a.type == Type::kFloat32) start<float>(a, stream);
  if (a.type == Type::kBFloat16) start<bf16>(a, stream);
  if (a.type == Type::kFloat16) start<fp16>(a, stream);
}

}  // namespace vf
