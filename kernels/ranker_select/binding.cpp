#include "../common/heads.h"
#include "topk.h"

namespace {

using namespace vf;

void check_begin(const Tensor& tensor, const char* what) {
  const bool aligned = reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 16 == 0;
  VF_CHECK(aligned, what, ": data must begin at a multiple of 16 bytes");
}

RankerSelectArguments checked(const Tensor& projected, const Tensor& vocab, int64_t k,
                              const std::optional<Tensor>& scale) {
  check_matrix(projected, 2, "ranker_select: projected");
  check_matrix(vocab, 2, "ranker_select: vocab");
  check_same_device(projected, vocab, "ranker_select: vocab");
  const int64_t rows = projected.size(0), rank = projected.size(1), size = vocab.size(0);
  VF_CHECK(rows > 0 && rows <= 64, "ranker_select: ", rows, " rows");
  VF_CHECK(size > 0 && size <= (int64_t{1} << 20), "ranker_select: a vocabulary of ", size);
  VF_CHECK(k > 0 && k <= size, "ranker_select: k of ", k, " of ", size);
  const int64_t step = scale.has_value() ? 16 : 8;
  VF_CHECK(vocab.size(1) == rank, "ranker_select: vocab: expected ", rank, " columns, got ", vocab.size(1));
  VF_CHECK(rank > 0 && rank % step == 0 && rank < (1 << 20), "ranker_select: a rank of ", rank);
  RankerSelectArguments a{};
  a.projected = data<void>(projected);
  a.type = type_of(projected, "ranker_select: projected");
  a.vocab = constant_data<void>(vocab);
  a.vocab_type = type_of(vocab, "ranker_select: vocab");
  VF_CHECK(a.type != Type::kFloat8E4M3 && a.vocab_type == (scale.has_value() ? Type::kFloat8E4M3 : a.type),
           "ranker_select: vocab: wrong dtype");
  if (scale.has_value()) {
    check_matrix(*scale, 1, "ranker_select: scale");
    check_type(*scale, ScalarType::Float, "ranker_select: scale");
    check_same_device(projected, *scale, "ranker_select: scale");
    VF_CHECK(scale->size(0) == size, "ranker_select: scale: expected one a row of vocab");
    a.scale = data<float>(*scale);
  }
  a.rows = static_cast<int>(rows);
  a.rank = static_cast<int>(rank);
  a.size = static_cast<int>(size);
  a.k = static_cast<int>(k);
  return a;
}

Tensor ranker_select(Tensor projected, Tensor vocab, int64_t k, std::optional<Tensor> scale) {
  RankerSelectArguments a = checked(projected, vocab, k, scale);
  Tensor ids = new_tensor(projected, {a.rows, k}, ScalarType::Int);
  a.ids = data<int32_t>(ids);
  if (!on_device(projected)) {
    ranker_select_cpu(a);
    return ids;
  }
#ifndef VF_NO_CUDA
  const DeviceScope scope(projected);
  VF_CHECK(a.type != Type::kFloat32, "ranker_select: its kernels take bfloat16 and float16");
  check_begin(projected, "ranker_select: projected");
  check_begin(vocab, "ranker_select: vocab");
  const int chunks = ranker_chunks(a.size);
  a.detail = ranker_detail(a.rows);
  Tensor scores = new_tensor(projected, {a.rows, a.size}, ScalarType::Float);
  Tensor histogram = new_tensor(projected, {a.rows, ranker_bins(a.detail)}, ScalarType::Int);
  Tensor listed = new_tensor(projected, {a.rows, chunks, kRankerChunk}, ScalarType::Int);
  Tensor counts = new_tensor(projected, {a.rows, chunks, 2}, ScalarType::Int);
  a.scores = data<float>(scores);
  a.histogram = data<int>(histogram);
  a.listed = data<int>(listed);
  a.counts = data<int>(counts);
  ranker_select_cuda(a, scope.stream());
#endif
  return ids;
}

std::tuple<Tensor, Tensor> ranker_topk(Tensor hidden, Tensor down, Tensor vocab, Tensor weight, int64_t k,
                                       int64_t answers, std::optional<Tensor> scale, std::optional<Tensor> target_ids) {
  RankerTopkArguments a{};
  const Type type = check_head(hidden, weight);
  check_matrix(down, 2, "ranker_topk: down");
  check_same_device(hidden, down, "ranker_topk: down");
  VF_CHECK(type_of(down, "ranker_topk: down") == type && down.size(1) == hidden.size(1), "ranker_topk: down: wrong");
  const int64_t rows = hidden.size(0), size = weight.size(0);
  Tensor projected = new_tensor(hidden, {rows, down.size(0)}, hidden.scalar_type());
  a.scores = checked(projected, vocab, k, scale);
  VF_CHECK(vocab.size(0) == size, "ranker_topk: vocab: expected one a row of weight");
  VF_CHECK(answers > 0 && answers <= kRankerAnswers && rows * answers <= kRankerAllAnswers, "ranker_topk: ", answers,
           " answers of ", rows, " rows");
  a.scores.detail = ranker_detail(a.scores.rows);
  a.hidden = data<void>(hidden);
  a.down = data<void>(down);
  a.weight = data<void>(weight);
  a.d = static_cast<int>(hidden.size(1));
  a.answers = static_cast<int>(answers);
  if (target_ids.has_value()) {
    check_matrix(*target_ids, 1, "ranker_topk: target_ids");
    check_type(*target_ids, ScalarType::Long, "ranker_topk: target_ids");
    check_same_device(hidden, *target_ids, "ranker_topk: target_ids");
    VF_CHECK(target_ids->size(0) == size, "ranker_topk: target_ids: expected one a row of weight");
    a.target_ids = data<int64_t>(*target_ids);
  }
  Tensor logprobs = new_tensor(hidden, {rows, answers}, ScalarType::Float);
  Tensor chosen = new_tensor(hidden, {rows, answers}, ScalarType::Long);
  a.logprobs = data<float>(logprobs);
  a.chosen = data<int64_t>(chosen);
  if (!on_device(hidden)) {
    ranker_topk_cpu(a);
    return {logprobs, chosen};
  }
#ifndef VF_NO_CUDA
  const DeviceScope scope(hidden);
  check_begin(down, "ranker_topk: down");
  check_begin(vocab, "ranker_topk: vocab");
  const int64_t slices = ranker_slices(), stride = ranker_stride(a.scores.size);
  const int64_t bins = rows * ranker_bins(a.scores.detail);
  Tensor binned = new_tensor(hidden, {rows, stride}, ScalarType::Short);
  Tensor histogram = new_tensor(hidden, {bins + 1}, ScalarType::Int);
  Tensor masks = new_tensor(hidden, {rows > 1 ? stride : 0}, ScalarType::Long);
  Tensor sums = new_tensor(hidden, {2, rows, slices}, ScalarType::Float);
  Tensor best = new_tensor(hidden, {rows, slices, answers}, ScalarType::Long);
  a.projected = data<void>(projected);
  a.scores.binned = data<uint16_t>(binned);
  a.scores.histogram = data<int>(histogram);
  a.arrived = data<unsigned>(histogram) + bins;
  a.masks = rows > 1 ? data<unsigned long long>(masks) : nullptr;
  a.maxima = data<float>(sums);
  a.sums = a.maxima + rows * slices;
  a.best = data<unsigned long long>(best);
  ranker_topk_cuda(a, scope.stream());
#endif
  return {logprobs, chosen};
}

}  // namespace

VF_DEFINE(m) {
  m.def("ranker_select(Tensor projected, Tensor vocab, int k, Tensor? scale) -> Tensor");
  m.def(
      "ranker_topk(Tensor hidden, Tensor down, Tensor vocab, Tensor weight, int k, int topk, Tensor? scale, "
      "Tensor? target_ids) -> (Tensor, Tensor)");
}
VF_IMPLEMENT(m) {
  m.impl("ranker_select", TORCH_BOX(&ranker_select));
  m.impl("ranker_topk", TORCH_BOX(&ranker_topk));
}
