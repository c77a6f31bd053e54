#include <vector>

#include "distinct_rows.h"

namespace vf {

// In the kernel's order: by id % kSegments, then by id.
void distinct_rows_cpu(const DistinctRowsArguments& a) {
  std::vector<int> column(a.size, -1);
  const auto id_of = [&](int i) -> int {
    const int64_t id = a.wide ? static_cast<const int64_t*>(a.ids)[i] : static_cast<const int*>(a.ids)[i];
    return id < 0 || id >= a.size ? -1 : static_cast<int>(id);
  };
  for (int i = 0; i < a.total; ++i) {
    if (id_of(i) >= 0) column[id_of(i)] = 0;
  }
  int count = 0;
  for (int segment = 0; segment < kSegments; ++segment) {
    for (int id = segment; id < a.size; id += kSegments) {
      if (column[id] < 0) continue;
      a.rows[count] = id;
      column[id] = count++;
    }
  }
  for (int i = count; i < a.columns; ++i) a.rows[i] = -1;
  for (int i = 0; i < a.total; ++i) a.places[i] = id_of(i) < 0 ? -1 : column[id_of(i)];
  *a.count = count;
}

}  // namespace vf
