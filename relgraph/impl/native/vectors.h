// The vectors of listed pairs over all pairs: they meet a row of their query in the score, and are summed by weight.
#pragma once
#include <algorithm>

#include "gathered.h"
#include "labels.h"
#include "loops.h"
#include "problem.h"

namespace relgraph {

// Two numbers for each pair that a head lists: the gradient of its score, and its weight after dropout.
template <class T> T* noted_of(const Problem& p, int64_t batch, int64_t head) {
  const int64_t lane = (p.parts[0].list_step ? 0 : batch) * p.heads + head;
  return static_cast<T*>(p.noted) + 2 * lane * p.vector_count;
}

// The pairs of one query row of one head that have vectors; `labels` are those of the part that lists them.
template <class T> class PairVectors {
 public:
  PairVectors(const Problem& p, const Place& place, int64_t head, const RowLabels<T>& labels)
      : p_(p), place_(place), head_(head), labels_(labels) {}

  // s += x · vector at every listed pair; x is a row of the query.
  void add_dots(const Tensor& x, int64_t query, T* s) const {
    const T* row = row_of<T>(x, place_.batch, head_, query);
    labels_.each_listed([&](int64_t e, int64_t key) { s[key] += dot(row, vector(e), p_.vector_size); });
  }

  // into = Σ factor · s · vector, or added to what is there.
  void sum(const T* s, T factor, const Tensor& x, int64_t query, bool add) const {
    T* into = own_row<T>(x, place_.batch, head_, query);
    if (!add) std::fill_n(into, p_.vector_size, T(0));
    labels_.each_listed([&](int64_t e, int64_t key) { add_scaled(s[key] * factor, vector(e), p_.vector_size, into); });
  }

  // For the gradients of the vectors: number 0 or 1 of every listed pair.
  void note(const T* s, T factor, int64_t number) const {
    if (!p_.noted) return;
    T* noted = noted_of<T>(p_, place_.batch, head_) + number;
    labels_.each_listed([&](int64_t e, int64_t key) { noted[2 * e] = s[key] * factor; });
  }

 private:
  const T* vector(int64_t e) const { return static_cast<const T*>(p_.vectors) + e * p_.vector_size; }

  const Problem& p_;
  const Place& place_;
  int64_t head_;
  const RowLabels<T>& labels_;
};

// The gradients of the vectors of a query row's pairs, summed over all heads, and over all batch rows that share them.
template <class T> void vector_gradients(const Problem& p, int64_t row) {
  const Part& part = p.parts[0];
  const int64_t step = part.list_step, first = step ? row / step : 0, last = step ? first + 1 : p.batch;
  const int64_t query = step ? row % step : row, size = p.vector_size;
  for (int64_t e = part.row_ptr[row]; e < part.row_ptr[row + 1]; e++) {
    T* into = static_cast<T*>(p.d_vectors) + e * size;
    std::fill_n(into, size, T(0));
    for (int64_t b = first; b < last; b++)
      for (int64_t h = 0; h < p.heads; h++) {
        const T* noted = noted_of<T>(p, b, h) + 2 * e;
        if (p.vector_queries.data) add_scaled(noted[0], row_of<T>(p.vector_queries, b, h, query), size, into);
        if (p.vector_sums.data) add_scaled(noted[1], row_of<T>(p.vector_sums, b, h, query), size, into);
      }
  }
}

}  // namespace relgraph
