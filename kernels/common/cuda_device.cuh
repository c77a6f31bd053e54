// The wrappers of portable.cuh in CUDA, for compute capability 8.0 and above.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>

#include "stream.h"
#include "types.h"

#define VF_GLOBAL __global__
#define VF_DEVICE __device__ __forceinline__
#define VF_HOST_DEVICE __host__ __device__ __forceinline__
#define VF_SHARED __shared__
#define VF_ALIGN(n) __align__(n)
#define VF_UNROLL _Pragma("unroll")
#define VF_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)

namespace vf {

VF_DEVICE uint32_t float_bits(float value) { return __float_as_uint(value); }
VF_DEVICE float bits_float(uint32_t bits) { return __uint_as_float(bits); }
VF_DEVICE float to_float(float value) { return value; }
VF_DEVICE float to_float(bf16 value) { return __uint_as_float(static_cast<uint32_t>(value.bits) << 16); }
VF_DEVICE float to_float(fp16 value) { return __half2float(__ushort_as_half(value.bits)); }

template <typename T>
VF_DEVICE T from_float(float value);
template <>
VF_DEVICE float from_float<float>(float value) {
  return value;
}
template <>
VF_DEVICE bf16 from_float<bf16>(float value) {
  return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
}
template <>
VF_DEVICE fp16 from_float<fp16>(float value) {
  return {__half_as_ushort(__float2half_rn(value))};
}

VF_DEVICE float exp(float x) { return ::expf(x); }
VF_DEVICE float exp2(float x) { return ::exp2f(x); }
VF_DEVICE float log(float x) { return ::logf(x); }
VF_DEVICE float rsqrt(float x) { return ::rsqrtf(x); }
VF_DEVICE float max(float a, float b) { return ::fmaxf(a, b); }
VF_DEVICE float min(float a, float b) { return ::fminf(a, b); }
VF_DEVICE int popc(uint32_t x) { return __popc(x); }
VF_DEVICE int popc(unsigned long long x) { return __popcll(x); }
VF_DEVICE int ffs(uint32_t x) { return __ffs(static_cast<int>(x)); }  // 1 + the lowest set bit, 0 without one
VF_DEVICE int ffs(unsigned long long x) { return __ffsll(static_cast<long long>(x)); }
VF_DEVICE int clz(uint32_t x) { return __clz(static_cast<int>(x)); }
VF_DEVICE uint64_t mul_high(uint64_t a, uint64_t b) { return __umul64hi(a, b); }

// Every thread of every kernel calls it once, before it touches device memory that another kernel writes or reads.
// Launched dependently, a kernel begins while the former one still runs; here it waits until that has ended and its
// writes are seen. Only then may the next kernel begin: whatever came before the former one is over when it does.
VF_DEVICE void wait_for_former() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

VF_DEVICE void sync_block() { __syncthreads(); }
VF_DEVICE void sync_warp() { __syncwarp(); }
VF_DEVICE void fence() { __threadfence(); }

constexpr uint32_t kAll = 0xFFFFFFFFu;

template <typename T>
VF_DEVICE T shuffle(T value, int from) {
  return __shfl_sync(kAll, value, from);
}
template <typename T>
VF_DEVICE T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(kAll, value, mask);
}
template <typename T>
VF_DEVICE T shuffle_up(T value, unsigned by) {
  return __shfl_up_sync(kAll, value, by);
}
VF_DEVICE uint32_t ballot(bool predicate) { return __ballot_sync(kAll, predicate); }
VF_DEVICE bool any(bool predicate) { return __any_sync(kAll, predicate); }
VF_DEVICE bool all(bool predicate) { return __all_sync(kAll, predicate); }

template <typename T>
VF_DEVICE T atomic_add(T* at, T value) {
  return atomicAdd(at, value);
}
template <typename T>
VF_DEVICE T atomic_max(T* at, T value) {
  return atomicMax(at, value);
}
template <typename T>
VF_DEVICE T atomic_min(T* at, T value) {
  return atomicMin(at, value);
}

template <typename T>
VF_DEVICE T ldg(const T* at) {
  return __ldg(at);
}
template <>
VF_DEVICE bf16 ldg(const bf16* at) {
  return {__ldg(&at->bits)};
}
template <>
VF_DEVICE fp16 ldg(const fp16* at) {
  return {__ldg(&at->bits)};
}

// 16 bytes that are not written by this kernel; both addresses are multiples of 16.
VF_DEVICE Vec16 load16(const void* at) {
  uint4 v = __ldg(reinterpret_cast<const uint4*>(at));
  return {{v.x, v.y, v.z, v.w}};
}
// The same past the first-level cache: data that is read once.
VF_DEVICE Vec16 load16_once(const void* at) {
  Vec16 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x[0]), "=r"(v.x[1]), "=r"(v.x[2]), "=r"(v.x[3])
               : "l"(at));
  return v;
}
VF_DEVICE void store16(void* at, const Vec16& v) {
  *reinterpret_cast<uint4*>(at) = make_uint4(v.x[0], v.x[1], v.x[2], v.x[3]);
}
// What another block has written in this launch, past the first-level cache.
template <typename T>
VF_DEVICE T load_fresh(const T* at) {
  return __ldcg(at);
}

// 16 bytes from global to shared memory in the background; zeros where not valid (the source is then not read).
VF_DEVICE void cp_async16(void* shared, const void* global, bool valid) {
  uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
}
VF_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most `pending` of this thread's groups are under way; others see the data after a barrier.
template <int pending>
VF_DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

VF_DEVICE unsigned char* dynamic_shared() {
  extern __shared__ VF_ALIGN(128) unsigned char vf_dynamic_shared_memory[];
  return vf_dynamic_shared_memory;
}

// Matrices of 8 x 8 16-bit numbers; lane i gives the address of row i % 8 of matrix i / 8.
VF_DEVICE void ldmatrix_x4(uint32_t (&r)[4], const void* shared) {
  uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
VF_DEVICE void ldmatrix_x4_trans(uint32_t (&r)[4], const void* shared) {
  uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}

// c (16 x 8, fp32) += a (16 x 16, rows) b (16 x 8, columns); PTX ISA, "mma.m16n8k16" for the lanes' parts.
template <typename T>
VF_DEVICE void mma_16816(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
template <>
VF_DEVICE void mma_16816<bf16>(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <>
VF_DEVICE void mma_16816<fp16>(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// An error that was told is forgotten: the next launch must not be blamed for it.
inline void require(cudaError_t error, const char* otherwise) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw std::runtime_error(std::string(otherwise) + ": " + cudaGetErrorString(error));
}

// Lets a kernel have so much dynamic shared memory: beyond 48 KB, its static one included, that must be asked for.
// Never takes back what a launch of another host thread has asked for. `now`: what the kernel has.
inline cudaError_t allow_shared(const void* kernel, size_t shared, cudaFuncAttributes& now) {
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  const cudaError_t error = cudaFuncGetAttributes(&now, kernel);
  if (error != cudaSuccess || shared + now.sharedSizeBytes <= 48 * 1024) return error;
  const int wanted = static_cast<int>(shared), allowed = now.maxDynamicSharedSizeBytes;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, wanted > allowed ? wanted : allowed);
}

// Whether kernels may begin while the former one still runs (VOCABFORGE_PDL=1): off until a GPU has measured both.
inline bool dependent_launches() {
  static const bool asked = [] {
    const char* text = std::getenv("VOCABFORGE_PDL");
    return text != nullptr && std::string(text) == "1";
  }();
  return asked;
}

// Starts a kernel; raises the limit of dynamic shared memory where it is needed. Dependent launches need code that
// waits: code for compute capability 8.0, compiled anew by the driver of a later device, does not.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, Stream stream, Arguments... arguments) {
  cudaFuncAttributes code{};
  cudaError_t error = cudaSuccess;
  if (shared > 0 || dependent_launches()) error = allow_shared(reinterpret_cast<const void*>(kernel), shared, code);
  if (error == cudaSuccess) {
    cudaLaunchAttribute dependent{};
    dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    dependent.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &dependent;
    config.numAttrs = dependent_launches() && code.ptxVersion >= 90 ? 1 : 0;
    error = cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
  }
  require(error, "a CUDA kernel could not be started");
}

// `bytes` zeros (or any other byte) on the stream; a node of its own in a captured graph.
inline void fill_bytes(void* at, int value, size_t bytes, Stream stream) {
  require(cudaMemsetAsync(at, value, bytes, static_cast<cudaStream_t>(stream)), "device memory could not be filled");
}

// A number that the current device has.
inline int device_number(cudaDeviceAttr which) {
  int device = 0, number = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&number, which, device);
  require(error, "the device could not be asked");
  return number;
}

inline int multiprocessors() { return device_number(cudaDevAttrMultiProcessorCount); }

// Bytes of shared memory that one block may have.
inline int shared_limit() { return device_number(cudaDevAttrMaxSharedMemoryPerBlockOptin); }

}  // namespace vf
