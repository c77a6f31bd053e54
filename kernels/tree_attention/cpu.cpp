#include <algorithm>
#include <cmath>
#include <vector>

#include "../common/numbers.h"
#include "tree_attention.h"

namespace vf {
namespace {

// The slots that query t of a row sees, ascending.
void visible_slots(const TreeAttentionArguments& a, int row, int query, std::vector<int64_t>& slots) {
  const int64_t at = static_cast<int64_t>(row) * a.queries + query;
  const int64_t length = std::clamp<int64_t>(a.lengths[row], 0, a.capacity);
  const int64_t first = a.window > 0 ? std::max<int64_t>(0, a.positions[at] - a.window + 1) : 0;
  slots.clear();
  for (int64_t slot = first; slot < length; ++slot) slots.push_back(slot);
  for (int64_t j = 0; j < 64 * static_cast<int64_t>(a.word_count) && length + j < a.capacity; ++j) {
    const uint64_t word = static_cast<uint64_t>(a.words[at * a.word_count + j / 64]);
    if (word >> (j % 64) & 1) slots.push_back(length + j);
  }
}

void attend(const TreeAttentionArguments& a, int row, int query, int head, const std::vector<int64_t>& slots,
            std::vector<float>& weights, std::vector<float>& sums) {
  const int kv_head = head / (a.heads / a.kv_heads);
  const int64_t q = row * a.q_row + query * a.q_query + head * a.q_head;
  const int64_t keys = row * a.key_row + kv_head * a.key_head, values = row * a.value_row + kv_head * a.value_head;
  weights.assign(slots.size(), 0.0f);
  float most = -INFINITY, total = 0.0f;
  for (size_t i = 0; i < slots.size(); ++i) {
    float score = 0.0f;
    for (int d = 0; d < a.head_size; ++d) {
      score += cpu::number_at(a.q, a.type, q + d) * cpu::number_at(a.keys, a.type, keys + slots[i] * a.key_slot + d);
    }
    weights[i] = score * a.scale;
    most = std::max(most, weights[i]);
  }
  sums.assign(a.head_size, 0.0f);
  for (size_t i = 0; i < slots.size(); ++i) {
    const float weight = std::exp(weights[i] - most);
    total += weight;
    for (int d = 0; d < a.head_size; ++d) {
      sums[d] += weight * cpu::number_at(a.values, a.type, values + slots[i] * a.value_slot + d);
    }
  }
  const int64_t out = ((static_cast<int64_t>(row) * a.queries + query) * a.heads + head) * a.head_size;
  for (int d = 0; d < a.head_size; ++d) cpu::put_number(a.out, a.type, out + d, slots.empty() ? 0.0f : sums[d] / total);
}

}  // namespace

void tree_attention_cpu(const TreeAttentionArguments& a) {
  std::vector<int64_t> slots;
  std::vector<float> weights, sums;
  for (int row = 0; row < a.batch; ++row) {
    for (int query = 0; query < a.queries; ++query) {
      visible_slots(a, row, query, slots);
      for (int head = 0; head < a.heads; ++head) attend(a, row, query, head, slots, weights, sums);
    }
  }
}

}  // namespace vf
