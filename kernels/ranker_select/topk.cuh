// The ranker head in three kernels and, for several rows, a merge:
//
// 1. projected = down . hidden; clears what the next two count in.
// 2. The scores of the vocabulary (scores.cuh), kept as numbers of bins of 16 bits, and the histogram of each row.
// 3. Each block finds the rows' border bins and owns a slice of the vocabulary. It lists the slice's candidates, all ids
//    in a border bin included, multiplies their rows of the head with all hidden states (common/skinny.cuh), and has
//    the best of each row in shared memory. One row is merged by the block that ends last, several by a kernel.
//
// The candidates of a slice are bits, so that any number of them fits: in the worst case the whole vocabulary is
// multiplied. No exact cut of the border's bin, no list of ids in device memory, no block that waits for another.
// Every block finds the borders itself: a last block of kernel 2 that did it for all would read as long.
#pragma once

#include "../common/skinny.cuh"
#include "../common/topk_lists.cuh"
#include "bins.cuh"
#include "topk.h"

namespace vf {
namespace ranker {

using topk::Key;

VF_DEVICE float minus_infinity() { return bits_float(0xFF800000u); }

template <typename T>
struct StoreProjected {
  using Note = NoNote;
  T* projected;
  int rank;
  int* cleared;
  int count;

  VF_DEVICE void begin(unsigned char*) {}
  VF_DEVICE Note note(int, int) { return {}; }
  VF_DEVICE void element(const Note&, int position, int, int n, float value) {
    projected[static_cast<int64_t>(n) * rank + position] = from_float<T>(value);
  }
  VF_DEVICE void end() {
    const int step = static_cast<int>(gridDim.x * blockDim.x);
    for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < count; i += step) cleared[i] = 0;
  }
};

// The bin that the `wanted`-th best score of a row lies in; a warp.
VF_DEVICE int border_of(const int* histogram, const Bins& bins, int wanted) {
  constexpr int kMost = (32 << kRankerDetail) / kWarp;
  const int share = 2 * bins.side() / kWarp, first = (kWarp - 1 - lane()) * share;  // lane 0: the highest bins
  int counts[kMost], mine = 0;
  VF_UNROLL
  for (int i = 0; i < kMost; i += 4) {
    const Vec16 some = i < share ? load16(histogram + first + i) : Vec16{};
    VF_UNROLL
    for (int j = 0; j < 4; ++j) {
      counts[i + j] = static_cast<int>(some.x[j]);
      mine += counts[i + j];
    }
  }
  const int through = through_lane(mine);
  int border = first, above = through - mine;
  VF_UNROLL
  for (int i = kMost - 1; i > 0; --i) {  // down to the bin in which `wanted` are reached
    if (above < wanted && above + counts[i] >= wanted) border = first + i;
    above += counts[i];
  }
  return shuffle(border, ffs(ballot(through >= wanted)) - 1);
}

constexpr int kLine = 2 * kWarp;  // ids side by side that a warp looks at together: a line of the vocabulary
constexpr int kAtOnce = 16;       // rows whose bins of a line are on their way

// Lines are dealt to the blocks in turn, so that frequent low ids are everybody's. A line is two words of bits: even
// ids and odd ids that are candidates of any row; a position is the number of a bit.
struct SliceRows {
  using OwnPositions = void;
  const uint16_t* binned;
  const int* histogram;
  unsigned long long* masks;
  int rows, size, stride, wanted, most_lines;  // lines of a slice at most
  Bins bins;
  int count;                           // words of the slice
  int *borders, *before;               // in shared memory: of each row; bits before each word, and of all
  uint32_t* words;

  VF_HOST_DEVICE int bytes() const { return ceil_div(rows + 4 * most_lines + 1, 32) * 128; }
  VF_DEVICE void attach(unsigned char* shared) {
    borders = reinterpret_cast<int*>(shared);
    before = borders + rows;
    words = reinterpret_cast<uint32_t*>(before + 2 * most_lines + 1);
    const int lines = ceil_div(size, kLine), own = static_cast<int>(blockIdx.x);
    count = lines > own ? 2 * ceil_div(lines - own, static_cast<int>(gridDim.x)) : 0;
  }
  VF_DEVICE int first_of(int line) const {
    return (static_cast<int>(blockIdx.x) + line * static_cast<int>(gridDim.x)) * kLine;
  }

  VF_DEVICE void begin(unsigned char* shared) {
    attach(shared);
    for (int n = warp(); n < rows; n += kSkinnyWarps) {
      const int border = border_of(histogram + n * 2 * bins.side(), bins, wanted);
      if (lane() == 0) borders[n] = border;
    }
    sync_block();
    for (int line = warp(); 2 * line < count; line += kSkinnyWarps) look_through(line);
    sync_block();
    const int share = ceil_div(count, kSkinnyThreads);
    const int first = static_cast<int>(threadIdx.x) * share, end = first + share < count ? first + share : count;
    int mine = 0;
    for (int i = first; i < end; ++i) mine += popc(words[i]);
    const Prefix prefix = block_prefix<kSkinnyThreads>(static_cast<Wide>(mine));
    int at = static_cast<int>(prefix.before);
    for (int i = first; i < end; ++i) {
      before[i] = at;
      at += popc(words[i]);
    }
    if (threadIdx.x == 0) before[count] = static_cast<int>(prefix.total);
  }

  VF_DEVICE void look_through(int line) const {
    const int id = first_of(line) + 2 * lane();
    unsigned long long even = 0, odd = 0;
    for (int first = 0; first < rows; first += kAtOnce) {
      uint32_t pairs[kAtOnce];
      VF_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int64_t at = static_cast<int64_t>(first + i) * stride + id;
        pairs[i] = first + i < rows ? ldg(reinterpret_cast<const uint32_t*>(binned + at)) : 0;
      }
      VF_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i >= rows) continue;
        const uint32_t border = static_cast<uint32_t>(borders[first + i]);
        even |= static_cast<unsigned long long>((pairs[i] & 0xFFFFu) >= border) << (first + i);
        odd |= static_cast<unsigned long long>(pairs[i] >> 16 >= border) << (first + i);
      }
    }
    if (id >= size) even = 0;
    if (id + 1 >= size) odd = 0;
    if (masks != nullptr) {
      store16(masks + id, {{static_cast<uint32_t>(even), static_cast<uint32_t>(even >> 32),
                            static_cast<uint32_t>(odd), static_cast<uint32_t>(odd >> 32)}});
    }
    const uint32_t evens = ballot(even != 0), odds = ballot(odd != 0);
    if (lane() == 0) {
      words[2 * line] = evens;
      words[2 * line + 1] = odds;
    }
  }

  VF_DEVICE int positions() const { return before[count]; }
  VF_DEVICE int row(int position) const {
    int word = 0;
    for (int step = 1 << (31 - clz(static_cast<uint32_t>(count))); step > 0; step /= 2) {
      if (word + step < count && before[word + step] <= position) word += step;
    }
    uint32_t bits = words[word];
    int bit = 0, left = position - before[word];
    VF_UNROLL
    for (int width = kWarp / 2; width > 0; width /= 2) {
      const int low = popc(bits & ((1u << width) - 1));
      if (left >= low) {
        left -= low;
        bits >>= width;
        bit += width;
      }
    }
    return first_of(word / 2) + 2 * bit + word % 2;
  }
};

// A warp has the best of its rows: each tile's candidates are summed and sorted into the row's list.
struct SliceBest {
  using Note = NoNote;
  using WholeTile = void;
  SliceRows rows;
  const int64_t* target_ids;
  unsigned* arrived;
  topk::Lists out;
  Key* best;               // in shared memory: (rows, k) descending, 0 where there is none
  float *maxima, *sums;    // (rows,)

  VF_HOST_DEVICE int bytes() const { return rows.rows * (out.k * static_cast<int>(sizeof(Key)) + 8); }
  // The rows' shared memory lies right before.
  VF_DEVICE void begin(unsigned char* shared) {
    rows.attach(shared - rows.bytes());
    best = reinterpret_cast<Key*>(shared);
    maxima = reinterpret_cast<float*>(best + rows.rows * out.k);
    sums = maxima + rows.rows;
    for (int i = static_cast<int>(threadIdx.x); i < rows.rows * out.k; i += kSkinnyThreads) best[i] = 0;
    for (int n = static_cast<int>(threadIdx.x); n < rows.rows; n += kSkinnyThreads) {
      maxima[n] = minus_infinity();
      sums[n] = 0.0f;
    }
  }

  template <int kHeight>
  VF_DEVICE void tile(int first, int positions, const float* values) const {
    constexpr int kEach = (kHeight + kWarp - 1) / kWarp;  // positions of a lane
    unsigned long long masks[kEach];
    int64_t ids[kEach];
    VF_UNROLL
    for (int j = 0; j < kEach; ++j) {
      const int place = lane() + j * kWarp;
      const bool exists = place < kHeight && first + place < positions;
      const int row = exists ? rows.row(first + place) : 0;
      masks[j] = !exists ? 0 : rows.masks == nullptr ? 1 : rows.masks[row];
      ids[j] = target_ids == nullptr ? row : ldg(target_ids + row);
    }
    for (int n = warp(); n < rows.rows; n += kSkinnyWarps) {
      float found[kEach], top = minus_infinity();
      VF_UNROLL
      for (int j = 0; j < kEach; ++j) {
        found[j] = masks[j] >> n & 1 ? values[n * kHeight + lane() + j * kWarp] : minus_infinity();
        if (found[j] != found[j]) found[j] = minus_infinity();
        top = max(top, found[j]);
      }
      top = reduce_max(top);
      if (top == minus_infinity()) continue;  // no candidate of this row
      const float former = maxima[n], maximum = max(former, top);
      float sum = 0.0f;
      VF_UNROLL
      for (int j = 0; j < kEach; ++j) sum += topk::share_of(found[j], maximum);
      sum = reduce_add(sum);
      Key mine = lane() < out.k ? best[n * out.k + lane()] : 0;
      VF_UNROLL
      for (int j = 0; j < kEach; ++j) {
        insert(mine, found[j] > minus_infinity() ? topk::key_of(order_key(found[j]), ids[j]) : 0);
      }
      if (lane() < out.k) best[n * out.k + lane()] = mine;
      sync_warp();  // all have read the maximum
      if (lane() == 0) {
        sums[n] = sums[n] * topk::share_of(former, maximum) + sum;
        maxima[n] = maximum;
      }
    }
  }

  // The warp's list, a key a lane, takes what of the lanes' new keys is above its least.
  VF_DEVICE void insert(Key& mine, Key fresh) const {
    for (uint32_t left = ballot(fresh > shuffle(mine, out.k - 1)); left != 0; left &= left - 1) {
      const Key key = shuffle(fresh, ffs(left) - 1), before = shuffle_up(mine, 1);
      const int place = popc(ballot(mine > key));
      if (lane() >= place) mine = lane() == place ? key : before;
    }
  }

  VF_DEVICE void end() {
    out.splits = static_cast<int>(gridDim.x);
    for (int n = warp(); n < rows.rows; n += kSkinnyWarps) {
      const int list = n * out.splits + static_cast<int>(blockIdx.x);
      if (lane() < out.k) out.best[list * out.k + lane()] = best[n * out.k + lane()];
      if (lane() == 0) out.maxima[list] = maxima[n];
      if (lane() == 0) out.sums[list] = sums[n];
    }
    if (rows.rows > 1) return;
    VF_SHARED bool last;
    fence();
    sync_block();
    if (threadIdx.x == 0) last = atomic_add(arrived, 1u) + 1 == gridDim.x;
    sync_block();
    if (!last) return;
    fence();
    topk::merge(out, 0, reinterpret_cast<Key*>(dynamic_shared()));
  }
};

// Gives the number of slices.
template <typename T>
int topk_with(const RankerTopkArguments& a, void (*score)(const RankerSelectArguments&, Stream), Stream stream) {
  const RankerSelectArguments& s = a.scores;
  const SkinnyProduct projection{a.hidden, a.down, s.rows, a.d, s.rank};
  const int cleared = s.rows * ranker_bins(s.detail) + 1;
  const StoreProjected<T> store{static_cast<T*>(a.projected), s.rank, s.histogram, cleared};
  skinny_product<T, T>(projection, ContiguousRows{s.rank}, store, SkinnyShared{}, stream);
  score(s, stream);

  // A grid has a block a multiprocessor at least, or one for every two lines.
  const int lines = ceil_div(s.size, kLine), each = ceil_div(lines, multiprocessors()), most = each < 2 ? 2 : each;
  // Rows of one step share many candidates: as in indexed_logits, a quarter of the most is taken as likely.
  const int64_t all = static_cast<int64_t>(s.rows) * s.k;
  const int likely = static_cast<int>(s.rows == 1 ? s.k : (all < s.size ? all : s.size) / 4 + 1);
  const SkinnyProduct product{a.hidden, a.weight, s.rows, a.d, s.size, likely};
  const SliceRows rows{s.binned, s.histogram,    a.masks, s.rows,  s.size, ranker_stride(s.size), s.k,
                       most,     Bins{s.detail}, 0,       nullptr, nullptr, nullptr};
  const topk::Lists lists{a.answers, 0, a.maxima, a.sums, a.best, a.logprobs, a.chosen};
  const SliceBest best{rows, a.target_ids, a.arrived, lists, nullptr, nullptr, nullptr};
  return skinny_product<T, T>(product, rows, best, SkinnyShared{rows.bytes(), best.bytes()}, stream);
}

}  // namespace ranker
}  // namespace vf
