// The rows of a long table that a block of query rows reads.
#pragma once
#include <algorithm>

#include "labels.h"
#include "problem.h"

namespace relgraph {

// Ids go up with the distance, so a block reads neighbouring places of the lookup: a row of numbers by place serves a
// query by a window, which is one place further to the left for each next query (RowLabels::add_window). With N keys
// and b queries there are N + b - 1 places, however many labels there are.
struct Slice {
  int64_t first = 0, width = 0;  // in the lookup

  Slice() = default;
  Slice(const Part& part, const Place& place, int64_t row, int64_t rows) {
    const int64_t zero = part.offsets[place.graph * part.offset_step] + part.first_distance;
    const int64_t last = part.lookup_length - 1;
    first = std::clamp<int64_t>(place.start - (row + rows - 1) - zero, 0, last);
    width = std::clamp<int64_t>(place.stop - 1 - row - zero, 0, last) + 1 - first;
  }

  // Calls f(place, count, id) for places whose ids go up one by one from `id`; places count from the slice's first one.
  template <class F> void each_stretch(const Part& part, F f) const {
    const int32_t* ids = part.lookup + first;
    for (int64_t at = 0, stop; at < width; at = stop) {
      stop = at + 1;
      if (ids[at] < 0) continue;
      while (stop < width && ids[stop] == ids[at] + (stop - at)) stop++;
      f(at, stop - at, int64_t(ids[at]));
    }
  }
};

}  // namespace relgraph
