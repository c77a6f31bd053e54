#include "../common/whole_vectors.h"
#include "cluster_logits.h"

namespace {

using namespace vf;

std::tuple<Tensor, Tensor> cluster_logits(Tensor hidden, Tensor weight, Tensor offsets, Tensor opened,
                                          int64_t most_tiles) {
  check_matrix(hidden, 2, "cluster_logits: hidden");
  check_matrix(weight, 2, "cluster_logits: weight");
  check_matrix(offsets, 1, "cluster_logits: offsets");
  const int64_t n = hidden.size(0), d = hidden.size(1), vocab = weight.size(0), clusters = offsets.size(0) - 1;
  for (const Tensor& other : {weight, offsets, opened}) check_same_device(hidden, other, "cluster_logits");
  check_type(weight, hidden.scalar_type(), "cluster_logits: weight");
  check_type(offsets, ScalarType::Int, "cluster_logits: offsets");
  check_type(opened, ScalarType::Bool, "cluster_logits: opened");
  VF_CHECK(n > 0 && n <= kMostClusterRows && d > 0 && d < (int64_t{1} << 31) && weight.size(1) == d && vocab > 0 &&
               vocab < (int64_t{1} << 31),
           "cluster_logits: ", n, " hidden rows of ", d, ", ", vocab, " weight rows of ", weight.size(1));
  VF_CHECK(clusters > 0 && opened.dim() == 2 && opened.size(0) == n && opened.size(1) == clusters &&
               opened.stride(1) == 1 && opened.stride(0) >= 0,
           "cluster_logits: opened: expected shape (N, ", clusters, ")");
  VF_CHECK(most_tiles > 0 && most_tiles < (int64_t{1} << 24), "cluster_logits: ", most_tiles, " tiles");
  if (on_device(hidden)) hidden = with_whole_vectors(hidden);
  Tensor logits = new_tensor(hidden, {n, most_tiles * kClusterTile}, ScalarType::Float);
  Tensor rows = new_tensor(hidden, {most_tiles * kClusterTile}, ScalarType::Int);
  ClusterLogitsArguments a{data<void>(hidden),
                           data<void>(weight),
                           data<int>(offsets),
                           data<uint8_t>(opened),
                           nullptr,
                           nullptr,
                           data<float>(logits),
                           data<int>(rows),
                           opened.stride(0),
                           static_cast<int>(n),
                           static_cast<int>(d),
                           static_cast<int>(clusters),
                           static_cast<int>(vocab),
                           static_cast<int>(most_tiles),
                           type_of(hidden, "cluster_logits: hidden")};
  if (!on_device(hidden)) {
    cluster_logits_cpu(a);
    return {logits, rows};
  }
#ifndef VF_NO_CUDA
  const DeviceScope scope(hidden);
  VF_CHECK(a.type == Type::kBFloat16 || a.type == Type::kFloat16, "cluster_logits: hidden: expected bfloat16 or float16");
  VF_CHECK(d % 8 == 0, "cluster_logits: rows of ", d, " numbers, expected a multiple of 8");
  VF_CHECK(has_whole_vectors(weight), "cluster_logits: weight: expected rows that begin at multiples of 16 bytes");
  Tensor tiles = new_tensor(hidden, {most_tiles, 4}, ScalarType::Int), count = new_tensor(hidden, {1}, ScalarType::Int);
  a.tiles = data<ClusterTile>(tiles);
  a.count = data<int>(count);
  cluster_logits_cuda(a, scope.stream());
#endif
  return {logits, rows};
}

}  // namespace

VF_DEFINE(m) {
  m.def(
      "cluster_logits(Tensor hidden, Tensor weight, Tensor offsets, Tensor opened, int most_tiles) -> (Tensor, Tensor)");
}
VF_IMPLEMENT(m) { m.impl("cluster_logits", TORCH_BOX(&cluster_logits)); }
