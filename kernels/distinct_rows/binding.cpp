#include "../common/heads.h"
#include "distinct_rows.h"

namespace {

using namespace vf;

std::tuple<Tensor, Tensor, Tensor> distinct_rows(Tensor ids, int64_t size) {
  check_matrix(ids, 2, "ids");
  const bool wide = wide_ids(ids, "ids");
  const int64_t total = ids.size(0) * ids.size(1);
  VF_CHECK(total >= 1 && total < (int64_t{1} << 30), "ids: ", total, " of them");
  VF_CHECK(size >= 1 && size <= kMostVocab, "size: expected 1 to 2^20, got ", size);
  const int64_t columns = total < size ? total : size;
  Tensor rows = new_tensor(ids, {columns}, ScalarType::Int), count = new_tensor(ids, {1}, ScalarType::Int);
  Tensor places = new_tensor(ids, {ids.size(0), ids.size(1)}, ScalarType::Int);
  DistinctRowsArguments a{data<void>(ids), wide, static_cast<int>(total), static_cast<int>(size),
                          static_cast<int>(columns), {}, data<int>(rows), data<int>(count), data<int>(places)};
  if (!on_device(ids)) {
    distinct_rows_cpu(a);
    return {rows, count, places};
  }
#ifndef VF_NO_CUDA
  const DeviceScope scope(ids);
  Tensor workspace = new_tensor(ids, {total + 2 * kSegments + 1}, ScalarType::Int);
  int* from = data<int>(workspace);
  a.segments = {from, nullptr, nullptr, from + total, from + total + kSegments + 1};
  distinct_rows_cuda(a, scope.stream());
#endif
  return {rows, count, places};
}

}  // namespace

VF_DEFINE(m) { m.def("distinct_rows(Tensor ids, int size) -> (Tensor, Tensor, Tensor)"); }
VF_IMPLEMENT(m) { m.impl("distinct_rows", TORCH_BOX(&distinct_rows)); }
