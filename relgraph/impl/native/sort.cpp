// Listed pairs in the order that kernels need: by query row, then by key; parallel pairs keep their order.
#include <algorithm>
#include <cstdint>

#include "boundary.h"

namespace {

// Writes into `to` the numbers of pairs `from` (null: 0, 1, 2, ...) in the order of `place`, each below `places`; pairs
// of one place keep their order. Afterwards `next` [places + 1] holds where the pairs of the next place begin.
void sort_by(const int64_t* place, int64_t places, const int64_t* from, int64_t count, int64_t* to, int64_t* next) {
  std::fill(next, next + places + 1, 0);
  for (int64_t e = 0; e < count; e++) next[place[e] + 1]++;
  for (int64_t p = 0; p < places; p++) next[p + 1] += next[p];
  for (int64_t n = 0; n < count; n++) {
    const int64_t e = from ? from[n] : n;
    to[next[place[e]]++] = e;
  }
}

}  // namespace

extern "C" {
// A pair's place is (row, col); all arrays but the last two have `count` numbers. `roles` gets `role` for each pair,
// `row_ptr` [rows + 1] where each row begins; `room` has count + max(rows, keys) + 1 numbers. Returns 1, or 0 if a row
// or a key is out of range.
int64_t relgraph_sort_pairs(int64_t count, int64_t rows, int64_t keys, const int64_t* row, const int64_t* col,
                            const int64_t* ids, int64_t* sorted_row, int64_t* sorted_col, int64_t* sorted_ids,
                            int64_t* order, int8_t role, int8_t* roles, int64_t* row_ptr, int64_t* room) {
  return relgraph::guarded([=] {
    bool fits = true;
    for (int64_t e = 0; e < count; e++) fits = fits && 0 <= row[e] && row[e] < rows && 0 <= col[e] && col[e] < keys;
    if (!fits) return 0;
    int64_t *by_col = room, *next = room + count;
    sort_by(col, keys, nullptr, count, by_col, next);
    sort_by(row, rows, by_col, count, order, next);
    std::fill_n(roles, count, role);
    row_ptr[0] = 0;
    std::copy(next, next + rows, row_ptr + 1);  // where the next row begins is where a row has ended
    for (int64_t n = 0; n < count; n++) {
      const int64_t e = order[n];
      sorted_row[n] = row[e];
      sorted_col[n] = col[e];
      sorted_ids[n] = ids[e];
    }
    return 1;
  });
}
}
