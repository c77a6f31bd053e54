#include <cstring>
#include <vector>

#include "../common/numbers.h"
#include "compact_kv.h"

namespace vf {

void compact_kv_cpu(const CompactKvArguments& a) {
  const size_t bytes = static_cast<size_t>(a.slot_bytes);
  std::vector<unsigned char> staged(static_cast<size_t>(a.pairs) * bytes);
  auto inside = [&](int64_t slot) { return slot >= 0 && slot < a.slots; };
  const int64_t heads = int64_t{2} * a.layers * a.rows * a.heads;
  for (int64_t index = 0; index < heads; ++index) {
    const int64_t head = index % a.heads, row = index / a.heads % a.rows, layer = index / a.heads / a.rows % a.layers;
    const CacheView& cache = a.caches[index / a.heads / a.rows / a.layers];
    unsigned char* slots = cache.data + layer * cache.layer_step + row * cache.row_step + head * cache.head_step;
    const int64_t* source = a.source + row * a.pairs;
    const int64_t* destination = a.destination + row * a.pairs;
    for (int pair = 0; pair < a.pairs; ++pair) {
      if (inside(source[pair])) std::memcpy(&staged[pair * bytes], slots + source[pair] * a.slot_bytes, bytes);
    }
    for (int pair = 0; pair < a.pairs; ++pair) {
      if (!inside(source[pair]) || !inside(destination[pair])) continue;
      std::memcpy(slots + destination[pair] * a.slot_bytes, &staged[pair * bytes], bytes);
    }
  }
}

}  // namespace vf
