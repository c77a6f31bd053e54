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

// One row by the whole block. Where `x` is null, it is zeros; without a residual, no sum is written.
template <typename T, int kVectors>
VF_DEVICE void norm_row(const T* x, const T* residual, const T* weight, T* sum, T* normed, int width, float eps) {
  Vec16 held[kVectors];
  Vec16 weights[kVectors];  // asked for before the barrier, used behind it
  float squares = 0.0f;
  VF_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    const int at = static_cast<int>(i * blockDim.x + threadIdx.x) * kElements;
    if (at >= width) continue;
    held[i] = x == nullptr ? Vec16{} : load16(x + at);
    weights[i] = load16(weight + at);
    if (residual != nullptr) {
      held[i] = add<T>(held[i], load16(residual + at));
      store16(sum + at, held[i]);
    }
    VF_UNROLL
    for (int j = 0; j < 4; ++j) {
      const Pair value = unpack<T>(held[i].x[j]);
      squares += value.x * value.x;
      squares += value.y * value.y;
    }
  }
  const float scale = rsqrt(block_sum(squares) / static_cast<float>(width) + eps);
  VF_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    const int at = static_cast<int>(i * blockDim.x + threadIdx.x) * kElements;
    if (at >= width) continue;
    VF_UNROLL
    for (int j = 0; j < 4; ++j) {
      const Pair value = unpack<T>(held[i].x[j]), factor = unpack<T>(weights[i].x[j]);
      const Pair rounded = unpack<T>(pack<T>(value.x * scale, value.y * scale));
      held[i].x[j] = pack<T>(rounded.x * factor.x, rounded.y * factor.y);
    }
    store16(normed + at, held[i]);
  }
}

template <typename T, int kVectors>
VF_GLOBAL void VF_BOUNDS(kMostThreads, 1) add_rms_norm_kernel(AddRmsNormArguments a) {
  wait_for_former();
  const int64_t row = blockIdx.x;
  const T* residual = static_cast<const T*>(a.residual);
  norm_row<T, kVectors>(static_cast<const T*>(a.x) + row * a.x_stride,
                        residual == nullptr ? nullptr : residual + row * a.residual_stride,
                        static_cast<const T*>(a.weight), static_cast<T*>(a.sum) + row * a.width,
                        static_cast<T*>(a.normed) + row * a.width, a.width, a.eps);
}

// Two blocks a row: that of the table, and that of x.
template <typename T, int kVectors>
VF_GLOBAL void VF_BOUNDS(kMostThreads, 1) join_norms_kernel(JoinNormsArguments a) {
  wait_for_former();
  const int64_t row = blockIdx.x / 2;
  const bool second = blockIdx.x % 2;
  const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
  if (!second) {
    const int64_t id = a.ids == nullptr ? row : ldg(a.ids + row);
    x = id < 0 || id >= a.table_rows ? nullptr : static_cast<const T*>(a.table) + id * a.table_stride;
  }
  norm_row<T, kVectors>(x, nullptr, static_cast<const T*>(second ? a.second : a.first), nullptr,
                        static_cast<T*>(a.joined) + (2 * row + second) * a.width, a.width, a.eps);
}

template <typename T, int kVectors>
void start(const AddRmsNormArguments& a, dim3 threads, Stream stream) {
  launch(add_rms_norm_kernel<T, kVectors>, dim3(a.rows), threads, 0, stream, a);
}

template <typename T, int kVectors>
void start(const JoinNormsArguments& a, dim3 threads, Stream stream) {
  launch(join_norms_kernel<T, kVectors>, dim3(2 * static_cast<unsigned>(a.rows)), threads, 0, stream, a);
}

template <typename T, int kVectors, typename Arguments>
void start_with(const Arguments& a, Stream stream) {
  start<T, kVectors>(a, dim3(ceil_div(ceil_div(a.width, kElements * kVectors), kWarp) * kWarp), stream);
}

template <typename T, typename Arguments>
void start_any(const Arguments& a, Stream stream) {
  const int vectors = ceil_div(a.width, kElements * kMostThreads);
  if (vectors <= 1) return start_with<T, 1>(a, stream);
  if (vectors == 2) return start_with<T, 2>(a, stream);
  start_with<T, 4>(a, stream);
}

template <typename Arguments>
void start_typed(const Arguments& a, Stream stream) {
  if (a.rows == 0) return;
  if (a.type == Type::kBFloat16) return start_any<bf16>(a, stream);
  start_any<fp16>(a, stream);
}

}  // namespace

void add_rms_norm_cuda(const AddRmsNormArguments& a, Stream stream) { start_typed(a, stream); }

void join_norms_cuda(const JoinNormsArguments& a, Stream stream) { start_typed(a, stream); }

}  // namespace vf
