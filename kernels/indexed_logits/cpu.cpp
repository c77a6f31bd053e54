#include <cmath>
#include <vector>

#include "../common/numbers.h"
#include "indexed_logits.h"

namespace vf {

void indexed_logits_cpu(const IndexedLogitsArguments& a) {
  std::vector<float> hidden(a.d);
  for (int n = 0; n < a.n; ++n) {
    for (int i = 0; i < a.d; ++i) hidden[i] = cpu::number_at(a.hidden, a.type, static_cast<int64_t>(n) * a.d + i);
    for (int j = 0; j < a.k; ++j) {
      const int64_t place = static_cast<int64_t>(n) * a.k + j;
      const int64_t id = a.wide ? static_cast<const int64_t*>(a.ids)[place] : static_cast<const int*>(a.ids)[place];
      const bool exists = id >= 0 && id < a.vocab;
      float sum = exists ? 0.0f : -INFINITY;
      for (int i = 0; exists && i < a.d; ++i) sum += hidden[i] * cpu::number_at(a.weight, a.type, id * a.d + i);
      a.logits[place] = sum;
    }
  }
}

}  // namespace vf
