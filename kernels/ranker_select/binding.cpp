#include "../common/heads.h"
#include "ranker_select.h"

namespace {

using namespace vf;

void check_begin(const Tensor& tensor, const char* what) {
  const bool aligned = reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 16 == 0;
  VF_CHECK(aligned, what, ": data must begin at a multiple of 16 bytes");
}

RankerSelectArguments checked(const Tensor& projected, const Tensor& vocab, int64_t k) {
  check_matrix(projected, 2, "ranker_select: projected");
  check_matrix(vocab, 2, "ranker_select: vocab");
  check_same_device(projected, vocab, "ranker_select: vocab");
  const int64_t rows = projected.size(0), rank = projected.size(1), size = vocab.size(0);
  VF_CHECK(rows > 0 && rows <= 64, "ranker_select: ", rows, " rows");
  VF_CHECK(size > 0 && size <= (int64_t{1} << 20), "ranker_select: a vocabulary of ", size);
  VF_CHECK(k > 0 && k <= size, "ranker_select: k of ", k, " of ", size);
  VF_CHECK(vocab.size(1) == rank, "ranker_select: vocab: expected ", rank, " columns, got ", vocab.size(1));
  VF_CHECK(rank > 0 && rank % 8 == 0 && rank < (1 << 20), "ranker_select: a rank of ", rank);
  RankerSelectArguments a{};
  a.projected = data<void>(projected);
  a.type = type_of(projected, "ranker_select: projected");
  a.vocab = constant_data<void>(vocab);
  VF_CHECK(type_of(vocab, "ranker_select: vocab") == a.type, "ranker_select: vocab: expected projected's dtype");
  a.rows = static_cast<int>(rows);
  a.rank = static_cast<int>(rank);
  a.size = static_cast<int>(size);
  a.k = static_cast<int>(k);
  return a;
}

Tensor ranker_select(Tensor projected, Tensor vocab, int64_t k) {
  RankerSelectArguments a = checked(projected, vocab, k);
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

}  // namespace

VF_DEFINE(m) { m.def("ranker_select(Tensor projected, Tensor vocab, int k) -> Tensor"); }
VF_IMPLEMENT(m) { m.impl("ranker_select", TORCH_BOX(&ranker_select)); }
