// Residual addition and RMS norm (Zhang and Sennrich, 2019, equation 4) in one pass: one block a row, which stays in
// registers, so that every byte moves once.

#include "add_rms_norm.h"

#include "../common/portable.cuh"

namespace vf {
namespace {

constexpr int kElements = 8;  // of 16 bytes
constexpr int kMostThreads = 1024;

// The block's sum, for all threads, in an order that depends on the number of threads alone.
VF_DEVICE float block_sum(float value) {
  VF_SHARED float partial[kMostThreads / kWarp];
  value = reduce_add(value);
  if (lane() == 0) partial[warp()] = value;
  sync_block();
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  return reduce_add(lane() < warps ? partial[lane()] : 0.0f);
}

template <typename T>
VF_DEVICE Vec16 add(const Vec16& left, const Vec16& right) {
  Vec16 sum;
  VF_UNROLL
  for (int j = 0; j < 4; ++j) {
    const Pair x = unpack<T>(left.x[j]), y = unpack<T>(right.x[j]);
    sum.x[j] = pack<T>(x.x + y.x, x.y + y.y);
  }
  return sum;
}

template <typename T, int kVectors>
VF_GLOBAL void VF_BOUNDS(kMostThreads, 1) add_rms_norm_kernel(AddRmsNormArguments a) {
  wait_for_former();
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
  const T* residual = static_cast<const T*>(a.residual) + row * a.residual_stride;
  Vec16 held[kVectors];
  Vec16 weights[kVectors];  // asked for before the barrier, used behind it
  float squares = 0.0f;
  VF_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    const int at = static_cast<int>(i * blockDim.x + threadIdx.x) * kElements;
    if (at >= a.width) continue;
    held[i] = load16(x + at);
    weights[i] = load16(static_cast<const T*>(a.weight) + at);
    if (a.residual != nullptr) {
      held[i] = add<T>(held[i], load16(residual + at));
      store16(static_cast<T*>(a.sum) + row * a.width + at, held[i]);
    }
    VF_UNROLL
    for (int j = 0; j < 4; ++j) {
      const Pair value = unpack<T>(held[i].x[j]);
      squares += value.x * value.x;
      squares += value.y * value.y;
    }
  }
  const float scale = rsqrt(block_sum(squares) / static_cast<float>(a.width) + a.eps);
  VF_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    const int at = static_cast<int>(i * blockDim.x + threadIdx.x) * kElements;
    if (at >= a.width) continue;
    VF_UNROLL
    for (int j = 0; j < 4; ++j) {
      const Pair value = unpack<T>(held[i].x[j]), weight = unpack<T>(weights[i].x[j]);
      const Pair normed = unpack<T>(pack<T>(value.x * scale, value.y * scale));
      held[i].x[j] = pack<T>(normed.x * weight.x, normed.y * weight.y);
    }
    store16(static_cast<T*>(a.normed) + row * a.width + at, held[i]);
  }
}

template <typename T, int kVectors>
void start(const AddRmsNormArguments& a, Stream stream) {
  const int threads = ceil_div(ceil_div(a.width, kElements * kVectors), kWarp) * kWarp;
  launch(add_rms_norm_kernel<T, kVectors>, dim3(a.rows), dim3(threads), 0, stream, a);
}

template <typename T>
void start_any(const AddRmsNormArguments& a, Stream stream) {
  const int vectors = ceil_div(a.width, kElements * kMostThreads);
  if (vectors <= 1) return start<T, 1>(a, stream);
  if (vectors == 2) return start<T, 2>(a, stream);
  start<T, 4>(a, stream);
}

}  // namespace

void add_rms_norm_cuda(const AddRmsNormArguments& a, Stream stream) {
  if (a.rows == 0) return;
  if (a.type == Type::kBFloat16) return start_any<bf16>(a, stream);
  start_any<fp16>(a, stream);
}

}  // namespace vf
