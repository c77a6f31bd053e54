// Five launches: the largest logit of each row, weights counted in bins, borders of top-k and top-p, what is kept and
// its sums, draws. All but the third and the last cut rows into chunks, a block a chunk. In the third a few blocks look
// through a row for the tokens of the border's bin, and the last of them to end finds the border among those.
#include "target_sample.h"

#include "../common/fill.cuh"
#include "../common/philox.cuh"
#include "border.cuh"

namespace vf {
namespace {

constexpr int kThreads = 256;
constexpr int kSlice = 16384;  // tokens that are worth a block of their own to find those of a bin

// What the other tokens of a row are measured against.
struct Top {
  float score;
  int id;
  bool valid;
};

template <typename T>
VF_DEVICE Top top_of(const TargetSampleArguments& a, int row) {
  const unsigned long long best = a.best[row];
  const uint32_t value = static_cast<uint32_t>(best >> 32);
  const int id = static_cast<int>(0xFFFFFFFFu - static_cast<uint32_t>(best));
  const T* logits = static_cast<const T*>(a.logits) + static_cast<int64_t>(row) * a.vocab;
  const bool valid = value > order_key(bits_float(0xFF800000u)) && value != 0xFFFFFFFFu;
  return {to_float(ldg(logits + id)), id, valid};
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

// Which borders a row has.
struct Cuts {
  bool by_count, by_mass;
  VF_DEVICE Cuts(const TargetSampleArguments& a, int row, bool valid) {
    const bool sampled = valid && a.temperature[row] != 0;
    by_count = sampled && a.top_k[row] > 0 && a.top_k[row] < a.vocab;
    by_mass = sampled && a.top_p[row] < 1;
  }
};

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
  const int step = ceil_div(a.vocab, kChunk) * kThreads;
  for (int i = chunk.index * kThreads + static_cast<int>(threadIdx.x); i < kBorderWords; i += step) {
    a.bins[static_cast<int64_t>(chunk.row) * kBorderWords + i] = 0;
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
  VF_SHARED Bins bins;
  wait_for_former();
  const Chunk chunk = own_chunk(a);
  const int64_t first = static_cast<int64_t>(chunk.row) * a.vocab;
  const T* logits = static_cast<const T*>(a.logits) + first;
  const Top top = top_of<T>(a, chunk.row);
  const double temperature = a.temperature[chunk.row];
  const Cuts cuts(a, chunk.row, top.valid);
  const bool counted = cuts.by_count || cuts.by_mass;  // the same for the whole block
  if (counted) bins.clear();
  sync_block();
  for (int i = chunk.begin + static_cast<int>(threadIdx.x); i < chunk.end; i += kThreads) {
    float weight = 0.0f;
    if (top.valid && temperature == 0) weight = i == top.id ? 1.0f : 0.0f;
    if (top.valid && temperature != 0) weight = weight_of(top, to_float(ldg(logits + i)), temperature);
    a.weights[first + i] = weight;
    if (counted && weight > 0.0f) bins.add(static_cast<int>(float_bits(weight) >> 20), weight);
  }
  if (!counted) return;
  sync_block();
  unsigned* all = a.bins + static_cast<int64_t>(chunk.row) * kBorderWords;
  for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) {
    if (bins.counts[i] == 0) continue;
    atomic_add(all + i, bins.counts[i]);
    atomic_add(all + kBins + i, bins.high[i]);
    atomic_add(all + 2 * kBins + i, bins.low[i]);
  }
}

// Puts what the blocks of a row have listed into the list of the last of them to end; whether it is this one.
VF_DEVICE bool join_lists(BorderShared& shared, int* list, unsigned* count, int splits) {
  VF_SHARED int before;
  VF_SHARED bool last;
  if (threadIdx.x == 0) before = static_cast<int>(atomic_add(count, static_cast<unsigned>(shared.listed)));
  sync_block();
  for (int i = static_cast<int>(threadIdx.x); i < shared.listed && before + i < kListed; i += kBorderThreads) {
    list[before + i] = shared.list[i];
  }
  fence();
  sync_block();
  if (threadIdx.x == 0) last = atomic_add(count + 1, 1u) + 1 == static_cast<unsigned>(splits);
  sync_block();
  if (!last) return false;
  fence();
  const int all = static_cast<int>(load_fresh(count));
  for (int i = static_cast<int>(threadIdx.x); i < all && i < kListed; i += kBorderThreads) {
    shared.list[i] = load_fresh(list + i);
  }
  if (threadIdx.x == 0) shared.listed = all;
  sync_block();
  return true;
}

template <typename T>
VF_GLOBAL void VF_BOUNDS(kBorderThreads, 1) sample_border_kernel(TargetSampleArguments a, int splits) {
  VF_SHARED BorderShared shared;
  wait_for_former();
  const int row = static_cast<int>(blockIdx.x) / splits, part = static_cast<int>(blockIdx.x) % splits;
  const int64_t first = static_cast<int64_t>(row) * a.vocab;
  const Top top = top_of<T>(a, row);
  const Cuts cuts(a, row, top.valid);
  if (!cuts.by_count && !cuts.by_mass) {
    if (part == 0 && threadIdx.x == 0) a.least[row] = 0;
    return;
  }
  const T* logits = static_cast<const T*>(a.logits) + first;
  const float* weights = a.weights + first;
  unsigned* bins = a.bins + static_cast<int64_t>(row) * kBorderWords;
  auto score_at = [&](int i) { return ordered_score(top, to_float(ldg(logits + i))); };
  auto tally_at = [&](int bin) {
    return tally_of(ldg(bins + bin), ldg(bins + kBins + bin), ldg(bins + 2 * kBins + bin), bin);
  };
  const Goal goal{cuts.by_count, static_cast<unsigned>(a.top_k[row]), a.top_p[row]};
  unsigned long long least = 0;
  double mass = 0;
  find_bin(shared, goal, mass, true, tally_at);
  const int border = shared.bin;
  const Tally above = shared.above;
  if (border >= 0) {
    const int share = ceil_div(a.vocab, splits), begin = part * share;
    const int end = begin + share < a.vocab ? begin + share : a.vocab;
    list_bin(shared, weights, begin, end, static_cast<uint32_t>(border));
    if (splits > 1 && !join_lists(shared, a.listed + static_cast<int64_t>(row) * kListed, bins + 3 * kBins, splits)) return;
    least = find_in_bin(shared, weights, a.vocab, least, goal, mass, score_at);
  } else if (part > 0) {
    return;
  }
  if (cuts.by_count && cuts.by_mass) {  // of what top-k keeps
    const Goal by_mass{false, 0, goal.share};
    const Tally kept = shared.above + shared.inside - above;
    sync_block();  // all have read it
    find_bin(shared, by_mass, mass, true, [&](int bin) {
      return bin > border ? tally_at(bin) : bin == border ? kept : Tally{0, {0, 0}};
    });
    if (shared.bin != border) list_bin(shared, weights, 0, a.vocab, static_cast<uint32_t>(shared.bin));
    least = find_in_bin(shared, weights, a.vocab, least, by_mass, mass, score_at);
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
  if (top.valid && a.temperature[row] != 0) {
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
    a.valid[row] = top.valid;
  }
}

template <typename T>
void start(const TargetSampleArguments& a, Stream stream) {
  const dim3 rows(static_cast<unsigned>(a.rows)), chunks(static_cast<unsigned>(a.rows * target_sample_chunks(a.vocab)));
  launch(sample_best_kernel<T>, chunks, dim3(kThreads), 0, stream, a);
  launch(sample_weights_kernel<T>, chunks, dim3(kThreads), 0, stream, a);
  const int most = ceil_div(a.vocab, kSlice), fit = multiprocessors() / a.rows;  // such a block fills a multiprocessor
  const int splits = fit < 1 ? 1 : fit < most ? fit : most;
  launch(sample_border_kernel<T>, dim3(static_cast<unsigned>(a.rows * splits)), dim3(kBorderThreads), 0, stream, a, splits);
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
