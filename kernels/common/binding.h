// What every op's binding.cpp is made of: torch's stable ABI, and one function for CPU tensors and CUDA tensors.
//
// Three libraries come from the same bindings: with CUDA, without a CUDA compiler (-DVF_NO_CUDA: CPU tensors only), and
// emulated (-DVF_EMULATE: the CUDA kernels run over CPU tensors).
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "stream.h"
#ifdef VF_EMULATE
#include "../emulator/emulator.h"
#endif

#ifdef VF_EMULATE
#define VF_NAMESPACE vocabforge_emulated
#else
#define VF_NAMESPACE vocabforge
#endif

// Declares an op: VF_DEFINE(m) { m.def("name(Tensor x) -> Tensor"); }
#define VF_DEFINE(m) STABLE_TORCH_LIBRARY_FRAGMENT(VF_NAMESPACE, m)
// Says what computes it: VF_IMPLEMENT(m) { m.impl("name", TORCH_BOX(&name)); }
#define VF_IMPLEMENT(m) STABLE_TORCH_LIBRARY_IMPL(VF_NAMESPACE, CompositeExplicitAutograd, m)

// A condition on what a caller gave; the message names the op.
#define VF_CHECK(condition, ...) STD_TORCH_CHECK(condition, __VA_ARGS__)

#if !defined(VF_EMULATE) && !defined(VF_NO_CUDA)
// Only CUDA builds of torch have it.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device, void** stream);
#endif

namespace vf {

using torch::stable::Tensor;
using torch::headeronly::ScalarType;

// Whether the CUDA source computes this tensor's ops.
inline bool on_device(const Tensor& tensor) {
#if defined(VF_EMULATE)
  (void)tensor;
  return true;
#elif defined(VF_NO_CUDA)
  VF_CHECK(!tensor.is_cuda(), "these kernels were built without CUDA: run `make kernels` where nvcc is");
  return false;
#else
  return tensor.is_cuda();
#endif
}

// Makes a tensor's device the current one for the launches of one call, as torch's own ops do. Only from here comes a
// stream: without the device, a launch on it fails where another device is current.
class DeviceScope {
 public:
  explicit DeviceScope(const Tensor& tensor) {
    if (!tensor.is_cuda()) return;
    device_ = tensor.get_device_index();
    guard_.emplace(device_);
  }
#ifdef VF_EMULATE
  ~DeviceScope() { emulator::forget_constants(); }
#endif

  // Torch's current stream on the device; null for CPU tensors.
  Stream stream() const {
    void* stream = nullptr;
#if !defined(VF_EMULATE) && !defined(VF_NO_CUDA)
    if (guard_.has_value()) {
      VF_CHECK(aoti_torch_get_current_cuda_stream != nullptr, "a CUDA tensor, but this torch has no CUDA");
      TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device_, &stream));
    }
#endif
    return stream;
  }

 private:
  int32_t device_ = 0;
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
};

inline Type type_of(const Tensor& tensor, const char* what) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float: return Type::kFloat32;
    case ScalarType::BFloat16: return Type::kBFloat16;
    case ScalarType::Half: return Type::kFloat16;
    default: VF_CHECK(false, what, ": expected float32, bfloat16 or float16");
  }
  return Type::kFloat32;
}

// An uninitialised tensor on the same device, from torch's allocator, so that a CUDA graph can own it.
inline Tensor new_tensor(const Tensor& like, std::vector<int64_t> sizes, ScalarType type) {
  return torch::stable::new_empty(like, torch::headeronly::IntHeaderOnlyArrayRef(sizes.data(), sizes.size()), type);
}

template <typename T>
T* data(const Tensor& tensor) {
  return reinterpret_cast<T*>(tensor.data_ptr());
}

// The same of what no kernel writes: read early by dependent launches, and the emulator is told.
template <typename T>
T* constant_data(const Tensor& tensor) {
#ifdef VF_EMULATE
  emulator::add_constant(tensor.data_ptr(), static_cast<size_t>(tensor.numel()) * tensor.element_size());
#endif
  return data<T>(tensor);
}

// Checks of a binding: Python has said it in words already, this keeps a wrong call from reading wild memory.
inline void check_matrix(const Tensor& tensor, int64_t dims, const char* what) {
  VF_CHECK(tensor.dim() == dims, what, ": expected ", dims, " dimensions, got ", tensor.dim());
  VF_CHECK(tensor.is_contiguous(), what, ": expected a contiguous tensor");
}
inline void check_same_device(const Tensor& a, const Tensor& b, const char* what) {
  VF_CHECK(a.is_cuda() == b.is_cuda() && a.get_device_index() == b.get_device_index(), what,
           ": expected all tensors on one device");
}
inline void check_type(const Tensor& tensor, ScalarType type, const char* what) {
  VF_CHECK(tensor.scalar_type() == type, what, ": wrong dtype");
}

}  // namespace vf
