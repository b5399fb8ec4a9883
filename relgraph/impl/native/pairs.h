// The steps for the pairs of a query row other than labels: a function of scores, masks, causal order and dropout.
#pragma once
#include "activations.h"
#include "dropout.h"
#include "labels.h"

namespace relgraph {

// The pairs of one query row with the keys of its place.
struct Row {
  const Place& place;
  int64_t head;
  int64_t number;  // counted in the graph

  int64_t query() const { return place.first_query + number; }
  int64_t key(int64_t j) const { return place.first_key + place.start + j; }
  int64_t size() const { return place.stop - place.start; }
};

// A function of finished scores, and its slope for backward. A pair that does not attend keeps its -inf.
template <class T> void finish(const Problem& p, const Row& row, T* s, T* slope) {
  const int64_t n = row.size();
  const T c = T(p.score_parameter);
  // Two loops without conditions around long computations, which would not become vector code.
  constexpr int64_t SOME = 4 * VECTOR;
  T values[SOME], slopes[SOME];
  const auto finish_by = [&](auto at) {
    for (int64_t begin = 0; begin < n; begin += SOME) {
      const int64_t count = std::min(SOME, n - begin);
      T* mine = s + begin;
#pragma omp simd
      for (int64_t j = 0; j < count; j++) {
        const ValueAndSlope<T> y = at(mine[j]);
        values[j] = y.value;
        slopes[j] = y.slope;
      }
      for (int64_t j = 0; slope && j < count; j++) slope[begin + j] = mine[j] == -INF<T> ? T(0) : slopes[j];
#pragma omp simd
      for (int64_t j = 0; j < count; j++) mine[j] = mine[j] == -INF<T> ? mine[j] : values[j];
    }
  };
  if (p.score_kind == 1) {
    finish_by([c](T x) __attribute__((always_inline)) {
      const ValueAndSlope<T> y = Tanh::at(x / c);
      return ValueAndSlope<T>{c * y.value, y.slope};
    });
  } else {
    finish_by([c](T x) __attribute__((always_inline)) {
      const T factor = x > 0 ? T(1) : c;
      return ValueAndSlope<T>{factor * x, factor};
    });
  }
}

// Causal order, and the given mask.
template <class T> void mask(const Problem& p, const Row& row, T* s) {
  const Place& place = row.place;
  const int64_t n = row.size();
  if (p.causal) {
    const int64_t last = row.number + p.causal_offsets[place.graph * p.causal_step];
    const int64_t seen = std::clamp<int64_t>(last + 1 - place.start, 0, n);
    std::fill(s + seen, s + n, -INF<T>);
  }
  if (!p.mask_kind) return;
  const int64_t* step = p.mask_strides;
  const int64_t at = place.batch * step[0] + row.head * step[1] + row.query() * step[2] + row.key(0) * step[3];
  if (p.mask_kind == 1) {
    const bool* seen = static_cast<const bool*>(p.mask) + at;
    if (step[3] == 1) return keep_seen(s, seen, n);
    for (int64_t j = 0; j < n; j++) s[j] = seen[j * step[3]] ? s[j] : -INF<T>;
  } else {
    const T* added = static_cast<const T*>(p.mask) + at;
    if (step[3] == 1) return add_row(s, added, n);
    for (int64_t j = 0; j < n; j++) s[j] += added[j * step[3]];
  }
}

// Dropout: a dropped weight becomes zero, any other is scaled.
template <class T> void drop(const Problem& p, const Row& row, T* s) {
  if (p.dropout_p == 0) return;
  const int64_t n = row.size();
  const T factor = T(1 / (1 - p.dropout_p));
  if (!p.keep) {
    const int64_t* origin = p.origin;
    const Keeper keeper{uint64_t(p.seed), Keeper::threshold_of(p.dropout_p), uint32_t(row.place.batch + origin[0]),
                        uint32_t(row.head + origin[1])};
    return keeper.apply(s, n, row.query() + origin[2], row.key(0) + origin[3], factor);
  }
  const int64_t* step = p.keep_strides;
  const int64_t at = row.place.batch * step[0] + row.head * step[1] + row.query() * step[2];
  const T* keep = static_cast<const T*>(p.keep) + at;
  for (int64_t j = 0; j < n; j++) s[j] *= keep[row.key(j) * step[3]] * factor;
}

}  // namespace relgraph
