// One launch: the listed rows times the hidden states (common/skinny.cuh), and -inf behind the list's end.
#include "union_logits.h"

#include "../common/skinny.cuh"

namespace vf {
namespace {

struct StoreColumns {
  using Note = NoNote;
  float* logits;
  const int* count;
  int n, columns;

  VF_DEVICE void begin(unsigned char*) {}
  VF_DEVICE Note note(int, int) { return {}; }
  VF_DEVICE void element(const Note&, int position, int row, int which, float value) {
    logits[static_cast<int64_t>(which) * columns + position] = row < 0 ? bits_float(0xFF800000u) : value;
  }
  VF_DEVICE void end() {
    if (count == nullptr) return;
    const int given = ldg(count), used = given < 0 ? 0 : given < columns ? given : columns;
    const int64_t left = columns - used, step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < left * n; i += step) {
      logits[i / left * columns + used + i % left] = bits_float(0xFF800000u);
    }
  }
};

template <typename T>
void start(const UnionLogitsArguments& a, Stream stream) {
  const SkinnyProduct product{a.hidden, a.weight, a.n, a.d, a.columns};
  const ListedRows rows{{a.rows, a.wide_rows}, a.count, a.columns, a.vocab};
  skinny_product<T>(product, rows, StoreColumns{a.logits, a.count, a.n, a.columns}, SkinnyShared{}, stream);
}

}  // namespace

void union_logits_cuda(const UnionLogitsArguments& a, Stream stream) {
  a.type == Type::kFloat16 ? start<fp16>(a, stream) : start<bf16>(a, stream);
}

}  // namespace vf
