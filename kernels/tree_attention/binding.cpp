#include "../common/binding.h"
#include "tree_attention.h"

namespace {

using namespace vf;

// Strides that the kernels can load 16 bytes at a time with.
void check_strides(const Tensor& tensor, const char* what) {
  VF_CHECK(tensor.dim() == 4 && tensor.stride(3) == 1, what, ": expected 4 dimensions, the last without gaps");
  for (int64_t i = 0; i < 3; ++i) {
    VF_CHECK(tensor.size(i) == 1 || tensor.stride(i) % 8 == 0, what, ": expected strides that are multiples of 8");
  }
  VF_CHECK(tensor.stride(2) < (int64_t{1} << 31), what, ": expected slots nearer to each other");
  VF_CHECK(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 16 == 0, what, ": expected an address of 16 times a number");
}

void check_sizes(const TreeAttentionArguments& a, const Tensor& keys, const Tensor& lengths, const Tensor& words) {
  VF_CHECK(a.batch > 0 && a.queries > 0 && a.heads > 0 && a.kv_heads > 0 && a.heads % a.kv_heads == 0 &&
               a.capacity > 0,
           "tree_attention: batch ", a.batch, ", queries ", a.queries, ", heads ", a.heads, " over ", a.kv_heads,
           ", capacity ", a.capacity);
  const int size = a.head_size;
  VF_CHECK(size == 64 || size == 80 || size == 96 || size == 128 || size == 192 || size == 256, "tree_attention: heads of ",
           size);
  VF_CHECK(keys.size(0) == a.batch && keys.size(3) == size, "tree_attention: keys do not fit q");
  VF_CHECK(lengths.size(0) == a.batch, "tree_attention: lengths do not fit q");
  VF_CHECK(words.size(0) == a.batch && words.size(1) == a.queries && a.word_count > 0, "tree_attention: words do not fit q");
  VF_CHECK(static_cast<int64_t>(a.batch) * a.heads * a.queries < (int64_t{1} << 31), "tree_attention: too many rows");
}

TreeAttentionArguments arguments_of(const Tensor& q, const Tensor& keys, const Tensor& values, const Tensor& lengths,
                                    const Tensor& words, const std::optional<Tensor>& positions, int64_t window,
                                    double scale) {
  check_strides(q, "tree_attention: q");
  check_strides(keys, "tree_attention: keys");
  check_strides(values, "tree_attention: values");
  check_matrix(lengths, 1, "tree_attention: lengths");
  check_matrix(words, 3, "tree_attention: words");
  check_type(lengths, ScalarType::Long, "tree_attention: lengths");
  check_type(words, ScalarType::Long, "tree_attention: words");
  for (const Tensor* other : {&keys, &values, &lengths, &words}) check_same_device(q, *other, "tree_attention");
  check_type(keys, q.scalar_type(), "tree_attention: keys");
  check_type(values, q.scalar_type(), "tree_attention: values");
  for (int64_t i = 0; i < 4; ++i) VF_CHECK(keys.size(i) == values.size(i), "tree_attention: values do not fit keys");
  VF_CHECK(scale > 0.0, "tree_attention: expected a scale above 0");
  VF_CHECK(window >= 0 && (window == 0 || positions.has_value()), "tree_attention: a window needs positions");
  if (positions.has_value()) {
    check_matrix(*positions, 2, "tree_attention: positions");
    check_type(*positions, ScalarType::Long, "tree_attention: positions");
    check_same_device(q, *positions, "tree_attention");
    VF_CHECK(positions->size(0) == q.size(0) && positions->size(1) == q.size(1), "tree_attention: positions do not fit q");
  }
  TreeAttentionArguments a{};
  a.q = data<void>(q);
  a.keys = data<void>(keys);
  a.values = data<void>(values);
  a.lengths = data<int64_t>(lengths);
  a.words = data<int64_t>(words);
  a.positions = positions.has_value() ? data<int64_t>(*positions) : nullptr;
  a.type = type_of(q, "tree_attention: q");
  a.batch = static_cast<int>(q.size(0));
  a.queries = static_cast<int>(q.size(1));
  a.heads = static_cast<int>(q.size(2));
  a.head_size = static_cast<int>(q.size(3));
  a.kv_heads = static_cast<int>(keys.size(1));
  a.capacity = static_cast<int>(keys.size(2));
  a.word_count = static_cast<int>(words.size(2));
  a.window = window;
  a.scale = static_cast<float>(scale);
  a.q_row = q.stride(0), a.q_query = q.stride(1), a.q_head = q.stride(2);
  a.key_row = keys.stride(0), a.key_head = keys.stride(1), a.key_slot = static_cast<int>(keys.stride(2));
  a.value_row = values.stride(0), a.value_head = values.stride(1), a.value_slot = static_cast<int>(values.stride(2));
  a.splits = 1;
  check_sizes(a, keys, lengths, words);
  return a;
}

Tensor tree_attention(Tensor q, Tensor keys, Tensor values, Tensor lengths, Tensor words, std::optional<Tensor> positions,
                      int64_t window, double scale) {
  TreeAttentionArguments a = arguments_of(q, keys, values, lengths, words, positions, window, scale);
  Tensor out = new_tensor(q, {a.batch, a.queries, a.heads, a.head_size}, q.scalar_type());
  a.out = data<void>(out);
  if (!on_device(q)) {
    tree_attention_cpu(a);
    return out;
  }
#ifndef VF_NO_CUDA
  const DeviceScope scope(q);
  VF_CHECK(a.type == Type::kBFloat16 || a.type == Type::kFloat16, "tree_attention: expected bfloat16 or float16");
  const TreeAttentionPlan plan = tree_attention_plan(a);
  a.splits = plan.splits;
  Tensor workspace = new_tensor(q, {plan.workspace}, ScalarType::Float);
  a.workspace = data<float>(workspace);
  tree_attention_cuda(a, scope.stream());
#endif
  return out;
}

}  // namespace

VF_DEFINE(m) {
  m.def(
      "tree_attention(Tensor q, Tensor keys, Tensor values, Tensor lengths, Tensor words, Tensor? positions, int window, "
      "float scale) -> Tensor");
}
VF_IMPLEMENT(m) { m.impl("tree_attention", TORCH_BOX(&tree_attention)); }
