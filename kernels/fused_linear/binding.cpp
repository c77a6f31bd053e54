#include "../common/heads.h"
#include "../common/whole_vectors.h"
#include "fused_linear.h"

namespace {

using namespace vf;

// Numbers of x's dtype, of these sizes, in one piece.
const void* read(const std::optional<Tensor>& tensor, const Tensor& x, std::vector<int64_t> sizes, const char* what) {
  if (!tensor.has_value()) return nullptr;
  check_matrix(*tensor, static_cast<int64_t>(sizes.size()), what);
  check_same_device(x, *tensor, what);
  check_type(*tensor, x.scalar_type(), what);
  for (size_t i = 0; i < sizes.size(); ++i) VF_CHECK(tensor->size(i) == sizes[i], what, ": wrong sizes");
  return data<void>(*tensor);
}

// x and norm are copied where they do not begin at multiples of 16 bytes.
FusedLinearArguments product_of(Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                                std::optional<Tensor>& norm, double eps) {
  if (on_device(x)) {
    x = with_whole_vectors(x);
    if (norm.has_value()) norm = with_whole_vectors(*norm);
  }
  const Type type = check_head(x, weight);
  const int64_t d = x.size(1), rows = weight.size(0);
  VF_CHECK(!on_device(x) || !norm.has_value() || type == Type::kBFloat16, "norm: the kernel takes bfloat16");
  return {data<void>(x), data<void>(weight), read(bias, x, {rows}, "bias"), read(norm, x, {d}, "norm"), nullptr,
          nullptr, static_cast<int>(x.size(0)), static_cast<int>(d), static_cast<int>(rows), static_cast<float>(eps),
          false, type};
}

Tensor fused_linear(Tensor x, Tensor weight, std::optional<Tensor> bias, std::optional<Tensor> norm, double eps,
                    std::optional<Tensor> residual, bool gated) {
  FusedLinearArguments a = product_of(x, weight, bias, norm, eps);
  VF_CHECK(!gated || (a.rows % 2 == 0 && !residual.has_value()), "gated: expected an even number of rows, no residual");
  a.residual = read(residual, x, {a.n, a.rows}, "residual");
  a.gated = gated;
  Tensor out = new_tensor(x, {a.n, gated ? a.rows / 2 : a.rows}, x.scalar_type());
  a.out = data<void>(out);
  if (!on_device(x)) {
    fused_linear_cpu(a);
    return out;
  }
#ifndef VF_NO_CUDA
  const DeviceScope scope(x);
  fused_linear_cuda(a, scope.stream());
#endif
  return out;
}

// (batch, length, dim), vectors in one piece.
void check_angles(const Tensor& angles, const Tensor& x, const Tensor& slots, int64_t dim, const char* what) {
  VF_CHECK(angles.dim() == 3 && angles.size(0) == slots.size(0) && angles.size(1) == slots.size(1) &&
               angles.size(2) == dim && angles.stride(2) == 1,
           what, ": expected (B, T, D), vectors in one piece");
  check_same_device(x, angles, what);
}

Tensor fused_qkv(Tensor x, Tensor weight, std::optional<Tensor> bias, std::optional<Tensor> norm, double eps,
                 Tensor cos, Tensor sin, Tensor keys, Tensor values, Tensor slots, int64_t heads) {
  FusedQkvArguments a{product_of(x, weight, bias, norm, eps), {}};
  check_matrix(slots, 2, "slots");
  check_same_device(x, slots, "slots");
  check_type(slots, ScalarType::Long, "slots");
  const int64_t batch = slots.size(0), length = slots.size(1);
  VF_CHECK(batch * length == a.product.n, "slots: expected one for each row of x");
  VF_CHECK(keys.dim() == 4 && values.dim() == 4, "keys, values: expected shape (B, Hkv, S, D)");
  const int64_t kv_heads = keys.size(1), dim = keys.size(3);
  VF_CHECK(heads > 0 && dim > 0 && dim % 2 == 0 && a.product.rows == (heads + 2 * kv_heads) * dim, "weight: ", heads,
           " + 2 * ", kv_heads, " heads of ", dim, ", and ", a.product.rows, " rows");
  for (const Tensor& cache : {keys, values}) {
    VF_CHECK(cache.size(0) == batch && cache.size(1) == kv_heads && cache.size(2) == keys.size(2) &&
                 cache.size(3) == dim && cache.stride(3) == 1,
             "keys, values: expected shape (B, Hkv, S, D), vectors in one piece");
    check_same_device(x, cache, "keys, values");
    check_type(cache, x.scalar_type(), "keys, values");
  }
  check_angles(cos, x, slots, dim, "cos");
  check_angles(sin, x, slots, dim, "sin");
  check_type(sin, cos.scalar_type(), "sin");
  const Type angles = type_of(cos, "cos");
  VF_CHECK(angles == Type::kFloat32 || angles == a.product.type, "cos: expected float32 or the dtype of x");
  Tensor q = new_tensor(x, {batch, length, heads, dim}, x.scalar_type());
  a.rotation = {nullptr,
                data<void>(cos),
                data<void>(sin),
                data<int64_t>(slots),
                nullptr,
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
                0.0f,
                a.product.type,
                angles};
  if (!on_device(x)) {
    fused_qkv_cpu(a);
    return q;
  }
#ifndef VF_NO_CUDA
  const DeviceScope scope(x);
  fused_qkv_cuda(a, scope.stream());
#endif
  return q;
}

}  // namespace

VF_DEFINE(m) {
  m.def(
      "fused_linear(Tensor x, Tensor weight, Tensor? bias, Tensor? norm, float eps, Tensor? residual, bool gated) -> "
      "Tensor");
  m.def(
      "fused_qkv(Tensor x, Tensor weight, Tensor? bias, Tensor? norm, float eps, Tensor cos, Tensor sin, "
      "Tensor(a!) keys, Tensor(b!) values, Tensor slots, int heads) -> Tensor");
}
VF_IMPLEMENT(m) {
  m.impl("fused_linear", TORCH_BOX(&fused_linear));
  m.impl("fused_qkv", TORCH_BOX(&fused_qkv));
}
