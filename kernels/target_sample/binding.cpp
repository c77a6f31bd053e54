#include "../common/binding.h"
#include "target_sample.h"

namespace {

using namespace vf;

// What both ops have in common, the weights made.
TargetSampleArguments prepare(const Tensor& logits, const Tensor& temperature, const Tensor& top_k, const Tensor& top_p,
                              const Tensor& min_p, const Tensor& weights) {
  const int64_t rows = logits.size(0), vocab = logits.size(1);
  VF_CHECK(rows > 0 && rows < (1 << 20) && vocab > 0 && vocab <= (1 << 20), "target_sample: ", rows, " rows of ", vocab,
           " logits");
  for (const Tensor* one : {&temperature, &top_k, &top_p, &min_p}) {
    check_matrix(*one, 1, "target_sample: settings");
    check_type(*one, one == &top_k ? ScalarType::Long : ScalarType::Double, "target_sample: settings");
    check_same_device(logits, *one, "target_sample");
    VF_CHECK(one->size(0) == rows, "target_sample: one setting a row");
  }
  TargetSampleArguments a{};
  a.logits = data<void>(logits);
  a.type = type_of(logits, "target_sample: logits");
  a.rows = static_cast<int>(rows);
  a.vocab = static_cast<int>(vocab);
  a.temperature = data<double>(temperature);
  a.top_k = data<int64_t>(top_k);
  a.top_p = data<double>(top_p);
  a.min_p = data<double>(min_p);
  a.weights = data<float>(weights);
  return a;
}

void compute(TargetSampleArguments& a, const Tensor& logits) {
  if (!on_device(logits)) {
    target_sample_cpu(a);
    return;
  }
#ifndef VF_NO_CUDA
  const DeviceScope scope(logits);
  const int64_t chunks = target_sample_chunks(a.vocab);
  Tensor best = new_tensor(logits, {a.rows}, ScalarType::Long), least = new_tensor(logits, {a.rows}, ScalarType::Long);
  Tensor masses = new_tensor(logits, {a.rows, chunks, 2}, ScalarType::Long);
  a.best = data<unsigned long long>(best);
  a.least = data<unsigned long long>(least);
  a.masses = data<void>(masses);
  Tensor bins = new_tensor(logits, {a.rows, kBorderWords}, ScalarType::Int);
  Tensor listed = new_tensor(logits, {a.rows, kBorderListed}, ScalarType::Int);
  a.bins = data<unsigned>(bins);
  a.listed = data<int>(listed);
  target_sample_cuda(a, scope.stream());
#endif
}

Tensor target_weights_of(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p) {
  check_matrix(logits, 2, "target_sample: logits");
  Tensor weights = new_tensor(logits, {logits.size(0), logits.size(1)}, ScalarType::Float);
  TargetSampleArguments a = prepare(logits, temperature, top_k, top_p, min_p, weights);
  compute(a, logits);
  return weights;
}

std::tuple<Tensor, Tensor> target_sample(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p,
                                         Tensor seeds, Tensor draws) {
  check_matrix(logits, 2, "target_sample: logits");
  Tensor weights = new_tensor(logits, {logits.size(0), logits.size(1)}, ScalarType::Float);
  TargetSampleArguments a = prepare(logits, temperature, top_k, top_p, min_p, weights);
  for (const Tensor* one : {&seeds, &draws}) {
    check_matrix(*one, 1, "target_sample: seeds and draws");
    check_type(*one, ScalarType::Long, "target_sample: seeds and draws");
    check_same_device(logits, *one, "target_sample");
    VF_CHECK(one->size(0) == a.rows, "target_sample: a seed and a place of draws a row");
  }
  Tensor choices = new_tensor(logits, {a.rows}, ScalarType::Long);
  Tensor valid = new_tensor(logits, {a.rows}, ScalarType::Bool);
  a.seeds = data<int64_t>(seeds);
  a.draws = data<int64_t>(draws);
  a.choices = data<int64_t>(choices);
  a.valid = data<bool>(valid);
  compute(a, logits);
  return {choices, valid};
}

}  // namespace

VF_DEFINE(m) {
  m.def("target_weights_of(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p) -> Tensor");
  m.def(
      "target_sample(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, Tensor seeds, "
      "Tensor draws) -> (Tensor, Tensor)");
}
VF_IMPLEMENT(m) {
  m.impl("target_weights_of", TORCH_BOX(&target_weights_of));
  m.impl("target_sample", TORCH_BOX(&target_sample));
}
