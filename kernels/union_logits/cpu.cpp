#include <cmath>
#include <vector>

#include "../common/numbers.h"
#include "union_logits.h"

namespace vf {

void union_logits_cpu(const UnionLogitsArguments& a) {
  std::vector<float> hidden(static_cast<size_t>(a.n) * a.d), row(a.d);
  for (size_t i = 0; i < hidden.size(); ++i) hidden[i] = cpu::number_at(a.hidden, a.type, i);
  const int used = a.count == nullptr ? a.columns : *a.count;
  for (int column = 0; column < a.columns; ++column) {
    const int64_t id =
        a.wide_rows ? static_cast<const int64_t*>(a.rows)[column] : static_cast<const int*>(a.rows)[column];
    const bool exists = column < used && id >= 0 && id < a.vocab;
    for (int i = 0; exists && i < a.d; ++i) row[i] = cpu::number_at(a.weight, a.type, id * a.d + i);
    for (int n = 0; n < a.n; ++n) {
      float sum = exists ? 0.0f : -INFINITY;
      const float* state = hidden.data() + static_cast<size_t>(n) * a.d;
      for (int i = 0; exists && i < a.d; ++i) sum += row[i] * state[i];
      a.logits[static_cast<int64_t>(n) * a.columns + column] = sum;
    }
  }
}

}  // namespace vf
