// One thread makes 8 numbers: two loads of 16 bytes, one store.

#include "silu_mul.h"

#include "../common/portable.cuh"

namespace vf {
namespace {

constexpr int kElements = 8;  // of 16 bytes
constexpr int kThreads = 128;

VF_DEVICE float silu(float x) { return x / (1.0f + exp(-x)); }

template <typename T>
VF_GLOBAL void VF_BOUNDS(kThreads, 4) silu_mul_kernel(SiluMulArguments a) {
  wait_for_former();
  const int64_t place = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int vectors = a.inner / kElements;  // of a row
  const int64_t row = place / vectors;
  if (row >= a.rows) return;
  const int at = static_cast<int>(place - row * vectors) * kElements;
  const T* gate = static_cast<const T*>(a.gate_up) + row * 2 * a.inner + at;
  Vec16 gates = load16(gate);
  const Vec16 ups = load16(gate + a.inner);
  VF_UNROLL
  for (int j = 0; j < 4; ++j) {
    const Pair g = unpack<T>(gates.x[j]), up = unpack<T>(ups.x[j]);
    const Pair active = unpack<T>(pack<T>(silu(g.x), silu(g.y)));  // rounded, as torch's silu is
    gates.x[j] = pack<T>(active.x * up.x, active.y * up.y);
  }
  store16(static_cast<T*>(a.out) + row * a.inner + at, gates);
}

template <typename T>
void start(const SiluMulArguments& a, Stream stream) {
  const int64_t vectors = static_cast<int64_t>(a.rows) * (a.inner / kElements);
  const dim3 grid(static_cast<unsigned>(ceil_div64(vectors, kThreads)));
  launch(silu_mul_kernel<T>, grid, dim3(kThreads), 0, stream, a);
}

}  // namespace

void silu_mul_cuda(const SiluMulArguments& a, Stream stream) {
  if (a.rows == 0) return;
  if (a.type == Type::kBFloat16) return start<bf16>(a, stream);
  start<fp16>(a, stream);
}

}  // namespace vf
