#include <vector>

#include "../common/mass.cuh"
#include "../common/philox.cuh"
#include "tree_verify_point.h"

namespace vf {
namespace {

// What is left of the distribution at a node.
struct Distribution {
  std::vector<float> weights;
  Mass mass = {0, 0};
  int support = 0;

  Distribution(const float* given, int vocab) : weights(given, given + vocab) {
    for (float weight : weights) {
      mass = mass + mass_of(weight);
      support += weight > 0.0f;
    }
  }

  int64_t draw(double uniform) const {
    const double target = uniform * mass_value(mass);
    Mass sum = {0, 0};
    for (size_t i = 0; i < weights.size(); ++i) {
      sum = sum + mass_of(weights[i]);
      if (mass_value(sum) > target) return static_cast<int64_t>(i);
    }
    return static_cast<int64_t>(weights.size()) - 1;
  }
};

}  // namespace

void tree_verify_point_cpu(const TreeVerifyPointArguments& a) {
  for (int row = 0; row < a.rows; ++row) {
    const int64_t tree = static_cast<int64_t>(row) * a.nodes;
    int64_t* path = a.path + static_cast<int64_t>(row) * (a.levels + 1);
    int64_t* numbers = a.numbers + static_cast<int64_t>(row) * (a.levels + 3);
    const uint64_t seed = static_cast<uint64_t>(a.seeds[row]);
    uint64_t draw = static_cast<uint64_t>(a.draws[row]);
    int node = 0, depth = 0;
    path[0] = 0;
    Distribution distribution(a.weights + tree * a.vocab, a.vocab);
    for (int child = 1; child < a.nodes && distribution.support > 0; ++child) {
      if (a.parents[tree + child] != node || (a.alive != nullptr && !a.alive[tree + child])) continue;
      const int64_t token = a.tokens[tree + child];
      const bool known = token >= 0 && token < a.vocab;
      const float weight = known ? distribution.weights[static_cast<size_t>(token)] : 0.0f;
      const bool agreed = philox_uniform(seed, draw++) * mass_value(distribution.mass) < static_cast<double>(weight);
      if (agreed || distribution.support - (weight > 0.0f) == 0) {
        if (depth == a.levels) break;
        numbers[2 + depth] = token;
        path[++depth] = node = child;
        distribution = Distribution(a.weights + (tree + node) * a.vocab, a.vocab);
        continue;
      }
      distribution.mass = distribution.mass - mass_of(weight);
      distribution.support -= weight > 0.0f;
      if (known) distribution.weights[static_cast<size_t>(token)] = 0.0f;
    }
    const bool valid = distribution.support > 0;
    const int64_t own = valid ? distribution.draw(philox_uniform(seed, draw++)) : 0;
    for (int place = depth; place <= a.levels; ++place) {
      path[place] = node;
      numbers[2 + place] = own;
    }
    numbers[0] = depth;
    numbers[1] = valid ? a.levels + 1 : depth;
    a.draws_after[row] = static_cast<int64_t>(draw);
  }
}

}  // namespace vf
