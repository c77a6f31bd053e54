#include "../common/whole_vectors.h"
#include "rope_store.h"

namespace {

using namespace vf;

void check_vectors(const Tensor& tensor, int64_t dim, const char* what) {
  VF_CHECK(tensor.size(tensor.dim() - 1) == dim && tensor.stride(tensor.dim() - 1) == 1, what,
           ": expected vectors of ", dim, " in one piece");
}

// (B, T, D), any strides of the first two.
void check_angles(const Tensor& angles, const Tensor& like, const Tensor& qkv, int64_t dim, const char* what) {
  VF_CHECK(angles.dim() == 3 && angles.size(0) == qkv.size(0) && angles.size(1) == qkv.size(1), what,
           ": expected shape (B, T, D)");
  check_vectors(angles, dim, what);
  check_same_device(qkv, angles, what);
  check_type(angles, like.scalar_type(), what);
}

// (B, Hkv, S, D), a view of a bigger cache or not.
void check_cache(const Tensor& cache, const Tensor& keys, const Tensor& qkv, const char* what) {
  VF_CHECK(cache.dim() == 4 && cache.size(0) == qkv.size(0) && cache.size(1) == keys.size(1) &&
               cache.size(2) == keys.size(2),
           what, ": expected shape (B, Hkv, S, D)");
  check_vectors(cache, keys.size(3), what);
  check_same_device(qkv, cache, what);
  check_type(cache, qkv.scalar_type(), what);
}

void check_inputs(const Tensor& qkv, const Tensor& cos, const Tensor& sin, const Tensor& keys, const Tensor& values,
                  const Tensor& slots, int64_t heads, const std::optional<Tensor>& qk_norm) {
  check_matrix(qkv, 3, "rope_store: qkv");
  VF_CHECK(keys.dim() == 4, "rope_store: keys: expected shape (B, Hkv, S, D)");
  const int64_t batch = qkv.size(0), length = qkv.size(1), kv_heads = keys.size(1), dim = keys.size(3);
  VF_CHECK(heads > 0 && dim > 0 && dim % 2 == 0 && qkv.size(2) == (heads + 2 * kv_heads) * dim, "rope_store: ", heads,
           " + 2 * ", kv_heads, " heads of ", dim, ", and vectors of ", qkv.size(2));
  check_cache(keys, keys, qkv, "rope_store: keys");
  check_cache(values, keys, qkv, "rope_store: values");
  VF_CHECK(cos.scalar_type() == ScalarType::Float || cos.scalar_type() == qkv.scalar_type(),
           "rope_store: cos: expected float32 or the dtype of qkv");
  check_angles(cos, cos, qkv, dim, "rope_store: cos");
  check_angles(sin, cos, qkv, dim, "rope_store: sin");
  check_matrix(slots, 2, "rope_store: slots");
  check_same_device(qkv, slots, "rope_store: slots");
  check_type(slots, ScalarType::Long, "rope_store: slots");
  VF_CHECK(slots.size(0) == batch && slots.size(1) == length, "rope_store: slots: expected shape (B, T)");
  if (qk_norm.has_value()) {
    check_matrix(*qk_norm, 2, "rope_store: qk_norm");
    check_same_device(qkv, *qk_norm, "rope_store: qk_norm");
    check_type(*qk_norm, qkv.scalar_type(), "rope_store: qk_norm");
    VF_CHECK(qk_norm->size(0) == heads + kv_heads && qk_norm->size(1) == dim, "rope_store: qk_norm: expected (Hq + Hkv, D)");
  }
}

Tensor rope_store(Tensor qkv, Tensor cos, Tensor sin, Tensor keys, Tensor values, Tensor slots, int64_t heads,
                  std::optional<Tensor> qk_norm, double eps) {
  check_inputs(qkv, cos, sin, keys, values, slots, heads, qk_norm);
  const int64_t batch = qkv.size(0), length = qkv.size(1), kv_heads = keys.size(1), dim = keys.size(3);
  if (on_device(qkv)) {
    qkv = with_whole_vectors(qkv);
    cos = with_whole_vectors(cos);
    sin = with_whole_vectors(sin);
    if (qk_norm.has_value()) qk_norm = with_whole_vectors(*qk_norm);
  }
  Tensor q = new_tensor(qkv, {batch, length, heads, dim}, qkv.scalar_type());
  RopeStoreArguments a{data<void>(qkv),
                       data<void>(cos),
                       data<void>(sin),
                       data<int64_t>(slots),
                       qk_norm.has_value() ? data<void>(*qk_norm) : nullptr,
                       data<void>(keys),
                       data<void>(values),
                       data<void>(q),
                       {cos.stride(0), cos.stride(1)},
                       {sin.stride(0), sin.stride(1)},
                       {keys.stride(0), keys.stride(1), keys.stride(2)},
                       {values.stride(0), values.stride(1), values.stride(2)},
                       keys.size(2),
                       static_cast<int>(batch),
                       static_cast<int>(length),
                       static_cast<int>(heads),
                       static_cast<int>(kv_heads),
                       static_cast<int>(dim),
                       static_cast<float>(eps),
                       type_of(qkv, "rope_store: qkv"),
                       type_of(cos, "rope_store: cos")};
  if (!on_device(qkv)) {
    rope_store_cpu(a);
    return q;
  }
#ifndef VF_NO_CUDA
  const DeviceScope scope(qkv);
  VF_CHECK(a.type == Type::kBFloat16 || a.type == Type::kFloat16, "rope_store: qkv: expected bfloat16 or float16");
  VF_CHECK(dim % 16 == 0 && dim <= kMostHeadDim, "rope_store: heads of ", dim);
  VF_CHECK(batch * length * (heads + 2 * kv_heads) < (int64_t{1} << 30), "rope_store: too many tokens");
  VF_CHECK(has_whole_vectors(keys) && has_whole_vectors(values),
           "rope_store: keys, values: expected vectors that begin at multiples of 16 bytes");
  rope_store_cuda(a, scope.stream());
#endif
  return q;
}

}  // namespace

VF_DEFINE(m) {
  m.def(
      "rope_store(Tensor qkv, Tensor cos, Tensor sin, Tensor(a!) keys, Tensor(b!) values, Tensor slots, int heads, "
      "Tensor? qk_norm, float eps) -> Tensor");
}
VF_IMPLEMENT(m) { m.impl("rope_store", TORCH_BOX(&rope_store)); }
