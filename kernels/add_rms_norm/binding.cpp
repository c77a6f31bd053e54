#include "../common/whole_vectors.h"
#include "add_rms_norm.h"

namespace {

using namespace vf;

void check_rows(const Tensor& rows, const Tensor& x, const char* what) {
  check_same_device(x, rows, what);
  check_type(rows, x.scalar_type(), what);
  VF_CHECK(rows.dim() == 2 && rows.size(0) == x.size(0) && rows.size(1) == x.size(1), what, ": expected shape (R, d)");
  VF_CHECK(rows.stride(1) == 1, what, ": expected rows in one piece");
}

std::tuple<Tensor, Tensor> add_rms_norm(Tensor x, std::optional<Tensor> residual, Tensor weight, double eps) {
  VF_CHECK(x.dim() == 2, "add_rms_norm: x: expected shape (R, d)");
  check_rows(x, x, "add_rms_norm: x");
  if (residual.has_value()) check_rows(*residual, x, "add_rms_norm: residual");
  check_matrix(weight, 1, "add_rms_norm: weight");
  check_same_device(x, weight, "add_rms_norm: weight");
  check_type(weight, x.scalar_type(), "add_rms_norm: weight");
  const int64_t rows = x.size(0), width = x.size(1);
  VF_CHECK(weight.size(0) == width && width > 0 && rows < (int64_t{1} << 31) && width < (int64_t{1} << 31),
           "add_rms_norm: ", rows, " rows of ", width, ", ", weight.size(0), " weights");
  if (on_device(x)) {
    x = with_whole_vectors(x);
    weight = with_whole_vectors(weight);
    if (residual.has_value()) residual = with_whole_vectors(*residual);
  }
  Tensor normed = new_tensor(x, {rows, width}, x.scalar_type());
  Tensor sum = new_tensor(x, {residual.has_value() ? rows : 0, width}, x.scalar_type());
  AddRmsNormArguments a{data<void>(x),
                        residual.has_value() ? data<void>(*residual) : nullptr,
                        data<void>(weight),
                        data<void>(normed),
                        data<void>(sum),
                        x.stride(0),
                        residual.has_value() ? residual->stride(0) : 0,
                        static_cast<int>(rows),
                        static_cast<int>(width),
                        static_cast<float>(eps),
                        type_of(x, "add_rms_norm: x")};
  if (!on_device(x)) {
    add_rms_norm_cpu(a);
    return {normed, sum};
  }
#ifndef VF_NO_CUDA
  const DeviceScope scope(x);
  VF_CHECK(a.type == Type::kBFloat16 || a.type == Type::kFloat16, "add_rms_norm: x: expected bfloat16 or float16");
  VF_CHECK(width % 8 == 0 && width <= kMostNormWidth, "add_rms_norm: a width of ", width);
  add_rms_norm_cuda(a, scope.stream());
#endif
  return {normed, sum};
}

Tensor join_norms(Tensor table, std::optional<Tensor> ids, Tensor x, Tensor first, Tensor second, double eps) {
  VF_CHECK(table.dim() == 2 && x.dim() == 2 && table.size(1) == x.size(1) && table.stride(1) == 1 && x.stride(1) == 1,
           "join_norms: table, x: expected rows of one width in one piece");
  check_same_device(x, table, "join_norms: table");
  check_type(table, x.scalar_type(), "join_norms: table");
  const int64_t rows = x.size(0), width = x.size(1);
  for (const Tensor* weight : {&first, &second}) {
    check_matrix(*weight, 1, "join_norms: a weight");
    check_same_device(x, *weight, "join_norms: a weight");
    check_type(*weight, x.scalar_type(), "join_norms: a weight");
    VF_CHECK(weight->size(0) == width, "join_norms: ", weight->size(0), " weights of ", width);
  }
  VF_CHECK(width > 0 && rows < (int64_t{1} << 30) && width < (int64_t{1} << 30), "join_norms: ", rows, " rows of ",
           width);
  if (ids.has_value()) {
    check_matrix(*ids, 1, "join_norms: ids");
    check_same_device(x, *ids, "join_norms: ids");
    check_type(*ids, ScalarType::Long, "join_norms: ids");
  }
  VF_CHECK((ids.has_value() ? ids->size(0) : table.size(0)) == rows, "join_norms: expected an id a row");
  if (on_device(x)) {
    table = with_whole_vectors(table);
    x = with_whole_vectors(x);
    first = with_whole_vectors(first);
    second = with_whole_vectors(second);
  }
  Tensor joined = new_tensor(x, {rows, 2 * width}, x.scalar_type());
  JoinNormsArguments a{data<void>(table),
                       ids.has_value() ? data<int64_t>(*ids) : nullptr,
                       data<void>(x),
                       data<void>(first),
                       data<void>(second),
                       data<void>(joined),
                       table.stride(0),
                       x.stride(0),
                       table.size(0),
                       static_cast<int>(rows),
                       static_cast<int>(width),
                       static_cast<float>(eps),
                       type_of(x, "join_norms: x")};
  if (!on_device(x)) {
    join_norms_cpu(a);
    return joined;
  }
#ifndef VF_NO_CUDA
  const DeviceScope scope(x);
  VF_CHECK(a.type == Type::kBFloat16 || a.type == Type::kFloat16, "join_norms: x: expected bfloat16 or float16");
  VF_CHECK(width % 8 == 0 && width <= kMostNormWidth, "join_norms: a width of ", width);
  join_norms_cuda(a, scope.stream());
#endif
  return joined;
}

}  // namespace

VF_DEFINE(m) {
  m.def("add_rms_norm(Tensor x, Tensor? residual, Tensor weight, float eps) -> (Tensor, Tensor)");
  m.def("join_norms(Tensor table, Tensor? ids, Tensor x, Tensor first, Tensor second, float eps) -> Tensor");
}
VF_IMPLEMENT(m) {
  m.impl("add_rms_norm", TORCH_BOX(&add_rms_norm));
  m.impl("join_norms", TORCH_BOX(&join_norms));
}
