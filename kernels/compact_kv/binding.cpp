#include "../common/binding.h"
#include "compact_kv.h"

namespace {

using namespace vf;

CacheView view_of(const Tensor& cache, int64_t size) {
  VF_CHECK(cache.dim() == 5, "compact_kv: expected caches (L, B, H, S, D)");
  const int64_t dim = cache.size(4);
  VF_CHECK(cache.stride(4) == 1 && cache.stride(3) == dim, "compact_kv: slots of a head lie one behind the other");
  const uintptr_t address = reinterpret_cast<uintptr_t>(cache.data_ptr());
  bool aligned = address % 16 == 0 && dim * size % 16 == 0;
  for (int i = 0; i < 3; ++i) aligned = aligned && cache.stride(i) * size % 16 == 0;
  VF_CHECK(aligned, "compact_kv: slots are multiples of 16 bytes, at addresses that are");
  return {data<unsigned char>(cache), cache.stride(0) * size, cache.stride(1) * size, cache.stride(2) * size};
}

void compact_kv(Tensor keys, Tensor values, Tensor source, Tensor destination) {
  const int64_t size = type_of(keys, "compact_kv: keys") == Type::kFloat32 ? 4 : 2;
  VF_CHECK(values.scalar_type() == keys.scalar_type(), "compact_kv: keys and values differ in dtype");
  CompactKvArguments a{};
  a.caches[0] = view_of(keys, size);
  a.caches[1] = view_of(values, size);
  for (int i = 0; i < 5; ++i) VF_CHECK(keys.size(i) == values.size(i), "compact_kv: keys and values differ in size");
  for (const Tensor* one : {&source, &destination}) {
    check_matrix(*one, 2, "compact_kv: slots");
    check_type(*one, ScalarType::Long, "compact_kv: slots");
    check_same_device(keys, *one, "compact_kv");
    VF_CHECK(one->size(0) == keys.size(1) && one->size(1) == source.size(1), "compact_kv: slots are (B, P)");
  }
  check_same_device(keys, values, "compact_kv");
  const int64_t pairs = source.size(1);
  VF_CHECK(pairs > 0 && pairs <= kMostPairs, "compact_kv: ", pairs, " pairs, at most ", kMostPairs);
  for (int i = 0; i < 5; ++i) VF_CHECK(keys.size(i) > 0 && keys.size(i) < (1 << 28), "compact_kv: size of the caches");
  a.source = data<int64_t>(source);
  a.destination = data<int64_t>(destination);
  a.layers = static_cast<int>(keys.size(0));
  a.rows = static_cast<int>(keys.size(1));
  a.heads = static_cast<int>(keys.size(2));
  a.slots = static_cast<int>(keys.size(3));
  a.pairs = static_cast<int>(pairs);
  a.slot_bytes = static_cast<int>(keys.size(4) * size);
  if (!on_device(keys)) {
    compact_kv_cpu(a);
  } else {
#ifndef VF_NO_CUDA
    const DeviceScope scope(keys);
    compact_kv_cuda(a, scope.stream());
#endif
  }
}

}  // namespace

VF_DEFINE(m) { m.def("compact_kv(Tensor(a!) keys, Tensor(b!) values, Tensor source, Tensor destination) -> ()"); }
VF_IMPLEMENT(m) { m.impl("compact_kv", TORCH_BOX(&compact_kv)); }
