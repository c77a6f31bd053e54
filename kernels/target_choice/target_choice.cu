// Each row is cut into equal parts, a block a part; the last block of a row to end compares the parts' winners.
#include "target_choice.h"

#include "../common/fill.cuh"

namespace vf {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kShare = 8192;  // logits that are worth a block of their own

// Ordered by (value, lower index first): the high word is the value's order key, the low one the index turned round.
VF_DEVICE unsigned long long key_of(float value, int64_t index) {
  return static_cast<unsigned long long>(order_key(value)) << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(index));
}

VF_DEVICE unsigned long long larger(unsigned long long a, unsigned long long b) { return a > b ? a : b; }

VF_DEVICE unsigned long long block_max(unsigned long long mine) {
  VF_SHARED unsigned long long found[kThreads / kWarp];
  mine = reduce_max(mine);
  sync_block();  // the array may still be read for the maximum before
  if (lane() == 0) found[warp()] = mine;
  sync_block();
  unsigned long long best = found[0];
  for (int i = 1; i < kThreads / kWarp; ++i) best = larger(best, found[i]);
  return best;
}

template <typename T>
VF_GLOBAL void VF_BOUNDS(kThreads, 4) target_choice_kernel(TargetChoiceArguments a) {
  wait_for_former();
  constexpr int kVector = 16 / sizeof(T);
  const int row = static_cast<int>(blockIdx.x) / a.splits, part = static_cast<int>(blockIdx.x) % a.splits;
  const T* logits = static_cast<const T*>(a.logits) + row * a.vocab;
  // Parts begin where a vector does; rows of a vocabulary that is no multiple of it are read number by number, as is a
  // view that begins between two vectors.
  const bool vectors = a.vocab % kVector == 0 && reinterpret_cast<uintptr_t>(a.logits) % 16 == 0;
  const int64_t share = ceil_div64(ceil_div64(a.vocab, a.splits), kVector) * kVector;
  const int64_t begin = part * share, end = begin + share < a.vocab ? begin + share : a.vocab;
  unsigned long long best = 0;
  if (vectors) {
    for (int64_t i = begin + static_cast<int64_t>(threadIdx.x) * kVector; i < end; i += kThreads * kVector) {
      Vec16 loaded = load16_once(logits + i);
      const T* values = reinterpret_cast<const T*>(&loaded);
      VF_UNROLL
      for (int j = 0; j < kVector; ++j) best = larger(best, key_of(to_float(values[j]), i + j));
    }
  } else {
    for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) best = larger(best, key_of(to_float(ldg(logits + i)), i));
  }
  best = block_max(best);

  VF_SHARED unsigned last;
  if (threadIdx.x == 0) {
    a.workspace[blockIdx.x] = best;
    fence();
    last = atomic_add(a.arrived + row, 1u) + 1 == static_cast<unsigned>(a.splits);
  }
  sync_block();
  if (last == 0) return;
  fence();
  best = 0;
  for (int i = threadIdx.x; i < a.splits; i += kThreads) best = larger(best, load_fresh(a.workspace + row * a.splits + i));
  best = block_max(best);
  if (threadIdx.x == 0) {
    const uint32_t value = static_cast<uint32_t>(best >> 32);
    a.choices[row] = 0xFFFFFFFFu - static_cast<uint32_t>(best);
    a.valid[row] = value > order_key(bits_float(0xFF800000u)) && value != 0xFFFFFFFFu;
    a.arrived[row] = 0;
  }
}

template <typename T>
void start(const TargetChoiceArguments& a, Stream stream) {
  launch(target_choice_kernel<T>, dim3(static_cast<unsigned>(a.rows * a.splits)), dim3(kThreads), 0, stream, a);
}

}  // namespace

int target_choice_splits(int rows, int64_t vocab) {
  const int64_t most = ceil_div64(vocab, kShare), wanted = ceil_div64(4 * multiprocessors(), rows);
  return static_cast<int>(most < wanted ? most : wanted);
}

void target_choice_cuda(const TargetChoiceArguments& a, Stream stream) {
  fill_zeros(a.arrived, a.rows, stream);
  if (a.type == Type::kFloat32) start<float>(a, stream);
  if (a.type == Type::kBFloat16) start<bf16>(a, stream);
  if (a.type == Type::kFloat16) start<fp16>(a, stream);
}

}  // namespace vf
