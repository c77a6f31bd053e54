// One hidden state: its rows as they are listed, one launch. More: the distinct rows are found (one launch), multiplied
// with all hidden states on the tensor cores, and each product goes straight to the places that asked for it (a second
// launch): the (N, distinct) matrix of all products, most of them not asked for, is never written.
#include "indexed_logits.h"

#include "../distinct_rows/segments.cuh"

namespace vf {
namespace {

VF_DEVICE float minus_infinity() { return bits_float(0xFF800000u); }

struct StoreList {
  using Note = NoNote;
  float* logits;
  VF_DEVICE void begin(unsigned char*) {}
  VF_DEVICE Note note(int, int) { return {}; }
  VF_DEVICE void element(const Note&, int position, int row, int, float value) {
    logits[position] = row < 0 ? minus_infinity() : value;
  }
  VF_DEVICE void end() {}
};

struct NoRow {  // ids that are none get -inf while the others are sorted
  float* logits;
  VF_DEVICE void place(int, int) const {}
  VF_DEVICE void missing(int place) const { logits[place] = minus_infinity(); }
};

constexpr int kPlacesBytes = (static_cast<int>(sizeof(segments::Places)) + 127) / 128 * 128;

struct DistinctRows {
  Segments found;
  const segments::Places* places;
  VF_DEVICE void begin(unsigned char* shared) {
    segments::Places* own = reinterpret_cast<segments::Places*>(shared);
    own->fill<kSkinnyThreads>(found);
    places = own;
    sync_block();
  }
  VF_DEVICE int positions() const { return places->before[kSegments]; }
  VF_DEVICE int row(int position) const {
    const int segment = places->segment_of(position);
    return ldg(found.rows + places->bases[segment] + position - places->before[segment]);
  }
};

// Each use of a row takes its value from the finished tile: as many threads a row as there are to spare.
struct StoreUses {
  using Note = NoNote;
  using WholeTile = void;
  Segments found;
  float* logits;
  int k;
  const segments::Places* places;

  // The epilogue's shared memory follows the rows': both use the same table.
  VF_DEVICE void begin(unsigned char* shared) {
    places = reinterpret_cast<const segments::Places*>(shared - kPlacesBytes);
  }
  template <int kHeight>
  VF_DEVICE void tile(int first, int positions, const float* values) const {
    constexpr int kThreads = kSkinnyThreads / kHeight;  // of a row
    const int row = static_cast<int>(threadIdx.x) / kThreads, position = first + row;
    if (position >= positions) return;
    const int segment = places->segment_of(position);
    const int at = places->bases[segment] + position - places->before[segment];
    const bool last = position + 1 == places->before[segment + 1];
    const int end = last ? places->bases[segment + 1] : ldg(found.starts + at + 1);
    for (int i = ldg(found.starts + at) + static_cast<int>(threadIdx.x) % kThreads; i < end; i += kThreads) {
      const int place = ldg(found.uses + i);
      logits[place] = values[place / k * kHeight + row];
    }
  }
  VF_DEVICE void end() {}
};

template <typename T>
void start(const IndexedLogitsArguments& a, Stream stream) {
  const Ids ids{a.ids, a.wide};
  const int total = a.n * a.k, most = total < a.vocab ? total : a.vocab;
  if (a.n == 1) {
    const SkinnyProduct product{a.hidden, a.weight, 1, a.d, a.k};
    const ListedRows rows{ids, nullptr, a.k, a.vocab};
    skinny::start<T, 1>(product, rows, StoreList{a.logits}, SkinnyShared{}, stream);
    return;
  }
  segments::find(ids, total, a.vocab, a.segments, NoRow{a.logits}, stream);
  // Hidden states of one draft step share many candidates: a quarter of the most is taken as likely.
  const SkinnyProduct product{a.hidden, a.weight, a.n, a.d, most, ceil_div(most, 4)};
  skinny_product<T>(product, DistinctRows{a.segments, nullptr}, StoreUses{a.segments, a.logits, a.k, nullptr},
                    SkinnyShared{kPlacesBytes, 0}, stream);
}

}  // namespace

void indexed_logits_cuda(const IndexedLogitsArguments& a, Stream stream) {
  a.type == Type::kFloat16 ? start<fp16>(a, stream) : start<bf16>(a, stream);
}

}  // namespace vf
