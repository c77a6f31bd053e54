// What the queries see, as ranges of slots and as bits.
#pragma once

#include "tile.cuh"

namespace vf::tree_attention {

// The slots that a block's queries look at.
struct Range {
  int length;       // committed slots of the row
  int first, last;  // slots that some query sees lie in first .. last - 1
  int all_from;     // prefix slots from here on are seen by all queries
};

VF_DEVICE int highest_bit(uint64_t word) {  // 1 + its index, 0 without one
  const uint32_t high = static_cast<uint32_t>(word >> 32), low = static_cast<uint32_t>(word);
  return high != 0 ? 64 - clz(high) : 32 - clz(low);
}

VF_DEVICE int clamp(int64_t value, int low, int high) {
  return static_cast<int>(value < low ? low : value > high ? high : value);
}

// First prefix slot that a query sees.
VF_DEVICE int first_slot(const TreeAttentionArguments& a, int64_t query, int length) {
  return a.window > 0 ? clamp(ldg(a.positions + query) - a.window + 1, 0, length) : 0;
}

// Every warp finds it for itself: no barrier stands before the first load of keys.
VF_DEVICE Range range_of(const TreeAttentionArguments& a, int row, int first_query, int last_query) {
  Range range;
  range.length = clamp(ldg(a.lengths + row), 0, a.capacity);
  const int64_t at = static_cast<int64_t>(row) * a.queries + first_query;
  int extent = 0;
  for (int i = lane(); i < (last_query - first_query) * a.word_count; i += kWarp) {
    const int top = highest_bit(static_cast<uint64_t>(ldg(a.words + at * a.word_count + i)));
    const int found = top == 0 ? 0 : i % a.word_count * 64 + top;
    extent = found > extent ? found : extent;
  }
  extent = reduce_max(extent);
  range.last = range.length + (extent < a.capacity - range.length ? extent : a.capacity - range.length);
  int nearest = range.length, farthest = 0;
  if (a.window > 0) {
    for (int i = lane(); i < last_query - first_query; i += kWarp) {
      const int slot = first_slot(a, at + i, range.length);
      nearest = slot < nearest ? slot : nearest;
      farthest = slot > farthest ? slot : farthest;
    }
  } else {
    nearest = 0;
  }
  range.first = reduce_min(nearest);
  range.all_from = reduce_max(farthest);
  return range;
}

// Bit i: the query sees slot + i. Slots from the capacity on are nobody's.
VF_DEVICE uint32_t visible_bits(const TreeAttentionArguments& a, const Range& range, int64_t query, int slot) {
  const int prefix = range.length - slot;  // slots from here to the end of the prefix; negative behind it
  uint32_t bits = prefix >= 32 ? 0xFFFFFFFFu : prefix <= 0 ? 0u : (1u << prefix) - 1;
  const int hidden = first_slot(a, query, range.length) - slot;
  if (hidden > 0) bits = hidden >= 32 ? 0u : bits & 0xFFFFFFFFu << hidden;

  const int64_t* words = a.words + query * a.word_count;
  if (prefix <= 0) {
    const int word = -prefix / 64, bit = -prefix % 64;
    uint64_t tree = word < a.word_count ? static_cast<uint64_t>(ldg(words + word)) >> bit : 0;
    if (bit > 32 && word + 1 < a.word_count) tree |= static_cast<uint64_t>(ldg(words + word + 1)) << (64 - bit);
    bits |= static_cast<uint32_t>(tree);
  } else if (prefix < 32) {
    bits |= static_cast<uint32_t>(ldg(words)) << prefix;
  }
  const int left = a.capacity - slot;
  return left >= 32 ? bits : left <= 0 ? 0u : bits & ((1u << left) - 1);
}

}  // namespace vf::tree_attention
