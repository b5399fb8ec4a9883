// Additive scores of a query's pairs, w · act(q + k + a + v), and their gradients. Activations take most of the time,
// so these functions are compiled once for each, whatever the size. Their loops are vector code only if all pointers in
// them are local.
#pragma once
#include "activations.h"
#include "gathered.h"

namespace relgraph {

// A query, its weights, and what its pairs add: keys, rows of labels, and rows of their own.
template <class T> struct Summed {
  const T *query, *weights;
  Rows<T> keys;
  LabelRows<T> labels;
  NextRows<T> own;
  int64_t count, size;
};

// scores[e] = w · act(q + k + a + v)
template <class Act, class T> [[gnu::noinline]] void sum_activations(const Summed<T>& s, T* scores) {
  const T *query = s.query, *weights = s.weights;
  const int64_t n = s.size;
  for (int64_t e = 0; e < s.count; e++) {
    const T *key = s.keys[e], *label = s.labels[e], *own = s.own[e];
    T total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t d = 0; d < n; d++) total += weights[d] * Act::at(query[d] + key[d] + label[d] + own[d]).value;
    scores[e] = total;
  }
}

// Where the gradients of a query's sums go. All but those of the query and of the pairs' own rows are added to what is
// there. The own rows may be where they were read.
template <class T> struct SummedGradients {
  T *query, *weights, *keys, *labels, *own;  // labels: null without a table
  int64_t key_row, own_row;
  const int32_t *col, *ids;
};

// From the gradients of the scores.
template <class Act, class T>
[[gnu::noinline]] void spread_activations(const Summed<T>& s, const T* grads, const SummedGradients<T>& into) {
  const T *query = s.query, *weights = s.weights;
  T *d_query = into.query, *d_weights = into.weights;
  const int64_t n = s.size;
  std::fill_n(d_query, n, T(0));
  for (int64_t e = 0; e < s.count; e++) {
    const T *key = s.keys[e], *label = s.labels[e], *own = s.own[e], grad = grads[e];
    T* d_own = into.own + e * into.own_row;
    T* d_key = into.keys + into.col[e] * into.key_row;
#pragma omp simd
    for (int64_t d = 0; d < n; d++) {
      const ValueAndSlope<T> found = Act::at(query[d] + key[d] + label[d] + own[d]);
      const T share = grad * weights[d] * found.slope;
      d_weights[d] += grad * found.value;
      d_query[d] += share;
      d_key[d] += share;
      d_own[d] = share;
    }
    if (into.labels && into.ids[e] >= 0) add_row(into.labels + into.ids[e] * n, d_own, n);
  }
}

}  // namespace relgraph
