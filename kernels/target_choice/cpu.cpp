#include <cmath>

#include "../common/numbers.h"
#include "target_choice.h"

namespace vf {

void target_choice_cpu(const TargetChoiceArguments& a) {
  for (int row = 0; row < a.rows; ++row) {
    const int64_t first = row * a.vocab;
    float best = cpu::number_at(a.logits, a.type, first);
    int64_t choice = 0;
    for (int64_t i = 1; i < a.vocab && !std::isnan(best); ++i) {
      const float value = cpu::number_at(a.logits, a.type, first + i);
      if (value > best || std::isnan(value)) {
        best = value;
        choice = i;
      }
    }
    a.choices[row] = choice;
    a.valid[row] = best > -INFINITY;
  }
}

}  // namespace vf
