// Additive scores of a query's pairs, w · act(q + k + a), and their gradients. Activations take most of the time,
// so these functions are compiled once for each, whatever the size.
#pragma once
#include "activations.h"
#include "gathered.h"

namespace relgraph {

// A query, its weights and the keys and vectors of labels of its pairs.
template <class T> struct Summed {
  const T *query, *weights;
  Rows<T> keys;
  LabelRows<T> labels;
  int64_t count, size;
};

// scores[e] = w · act(q + k + a)
template <class Act, class T> [[gnu::noinline]] void sum_activations(const Summed<T>& s, T* scores) {
  const int64_t n = s.size;
  for (int64_t e = 0; e < s.count; e++) {
    const T *key = s.keys[e], *label = s.labels[e];
    T total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t d = 0; d < n; d++) total += s.weights[d] * Act::at(s.query[d] + key[d] + label[d]).value;
    scores[e] = total;
  }
}

// Where the gradients of a query's sums go. All but that of the query are added to what is there.
template <class T> struct SummedGradients {
  T *query, *weights, *keys, *labels;  // labels: null without a table
  int64_t key_row;
  const int32_t *col, *ids;
};

// From the gradients of the scores.
template <class Act, class T>
[[gnu::noinline]] void spread_activations(const Summed<T>& s, const T* grads, const SummedGradients<T>& into) {
  const int64_t n = s.size;
  std::fill_n(into.query, n, T(0));
  for (int64_t e = 0; e < s.count; e++) {
    const T *key = s.keys[e], *label = s.labels[e], grad = grads[e];
    T *d_key = into.keys + into.col[e] * into.key_row;
    T *d_label = into.labels && into.ids[e] >= 0 ? into.labels + into.ids[e] * n : nullptr;
    const auto add = [&](auto labeled) {
#pragma omp simd
      for (int64_t d = 0; d < n; d++) {
        const ValueAndSlope<T> found = Act::at(s.query[d] + key[d] + label[d]);
        const T share = grad * s.weights[d] * found.slope;
        into.weights[d] += grad * found.value;
        into.query[d] += share;
        d_key[d] += share;
        if constexpr (labeled) d_label[d] += share;
      }
    };
    if (d_label) add(std::true_type());
    else add(std::false_type());
  }
}

}  // namespace relgraph
