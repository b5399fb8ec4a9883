// The weighted labels of a query's listed pairs: several labels for each pair, each with a weight. Products with rows
// of tables are computed once for each label that occurs among the pairs, and each pair sums its few of them.
#pragma once
#include <vector>

#include "edges.h"
#include "gathered.h"

namespace relgraph {

// Label m of pair e is number m * pairs + e of the query's, and so is its weight. N as in Query.
template <class T, int64_t N> class WeightedPairs {
 public:
  // The most labels that a query can have.
  static int64_t most(const EdgeProblem& p) { return std::min(p.labels + 1, p.longest * p.pairs->per_pair); }

  // `scores`, `values` and `sums` have room for a number of each label.
  WeightedPairs(const EdgeProblem& p, T* scores, T* values, T* sums)
      : scores(scores), values(values), sums(sums), p_(p), per_pair_(p.pairs->per_pair) {}

  // Of a row of pairs.
  void place(int64_t row, int64_t first, int64_t pairs) {
    pairs_ = pairs;
    first_ = first * per_pair_;
    present = p_.pairs->present[row];
    labels = p_.pairs->labels + first_;
    number_ = p_.pairs->number + first_;
    weights_ = static_cast<const T*>(p_.label_weights) + first_;
  }

  // s[e] += Σ_m weight · numbers[label]
  void add(const T* numbers, T* s) const {
    each([&](const int32_t* at, const T* w) {
#pragma omp simd
      for (int64_t e = 0; e < pairs_; e++) s[e] += w[e] * numbers[at[e]];
    });
  }

  // sums[label] = Σ weight · s[e]
  void sum(const T* s) {
    std::fill_n(sums, present, T(0));
    each([&](const int32_t* at, const T* w) {
      for (int64_t e = 0; e < pairs_; e++) sums[at[e]] += w[e] * s[e];
    });
  }

  // into[label] = sums[label], and 0 for labels that do not occur, [columns]
  void sums_by_column(T* into, int64_t columns) const {
    std::fill_n(into, columns, T(0));
    for (int64_t n = 0; n < present; n++)
      if (labels[n] >= 0) into[labels[n]] = sums[n];
  }

  // The gradients of the weights, of this lane: += s[e] · numbers[label]
  void slopes(const T* s, const T* numbers, int64_t lane) const {
    if (!p_.d_label_weights) return;
    T* into = slopes_of(lane);
    each([&](const int32_t* at, const T* w) {
      T* mine = into + (w - weights_);
#pragma omp simd
      for (int64_t e = 0; e < pairs_; e++) mine[e] += s[e] * numbers[at[e]];
    });
  }

  // rows[e] += Σ_m weight · the table's row of the label
  void mix(const T* table, int64_t stride, int64_t size, T* rows) const {
    each_label([&](int64_t n, int64_t e, int64_t label) {
      add_scaled(weights_[n], table + label * stride, size, rows + e * size);
    });
  }

  // From the gradients of these rows: those of the table, [labels, size], and of the weights, of this lane.
  void unmix(const T* rows, const T* table, int64_t stride, int64_t size, T* into, int64_t lane) const {
    T* slopes = p_.d_label_weights ? slopes_of(lane) : nullptr;
    each_label([&](int64_t n, int64_t e, int64_t label) {
      const T* row = rows + e * size;
      add_scaled(weights_[n], row, size, into + label * size);
      if (!slopes) return;
      T slope = 0;
      dots<N>(row, NextRows<T>{table + label * stride, 0}, 1, size, &slope);
      slopes[n] += slope;
    });
  }

  int64_t present = 0;              // how many labels occur,
  const int32_t* labels = nullptr;  // which, -1 too,
  T *scores, *values, *sums;        // and their numbers

 private:
  template <class F> void each(F f) const {
    for (int64_t m = 0; m < per_pair_; m++) f(number_ + m * pairs_, weights_ + m * pairs_);
  }

  template <class F> void each_label(F f) const {
    for (int64_t m = 0, n = 0; m < per_pair_; m++)
      for (int64_t e = 0; e < pairs_; e++, n++)
        if (labels[number_[n]] >= 0) f(n, e, labels[number_[n]]);
  }

  T* slopes_of(int64_t lane) const {
    return static_cast<T*>(p_.d_label_weights) + lane * p_.d_label_weights_step + first_;
  }

  const EdgeProblem& p_;
  int64_t per_pair_, pairs_ = 0, first_ = 0;
  const int32_t* number_ = nullptr;
  const T* weights_ = nullptr;
};

// Numbers the labels of each query as they come; `labels` has all of them and in the end those that occur.
inline void number_labels(const EdgePairs& pairs, int64_t num_labels) {
  int64_t* present = const_cast<int64_t*>(pairs.present);
  int32_t *labels = const_cast<int32_t*>(pairs.labels), *number = const_cast<int32_t*>(pairs.number);
  std::vector<int32_t> number_of(num_labels + 1, -1);
  for (int64_t row = 0; row < pairs.rows; row++) {
    const int64_t first = pairs.row_ptr[row] * pairs.per_pair, stop = pairs.row_ptr[row + 1] * pairs.per_pair;
    int64_t count = 0;
    for (int64_t n = first; n < stop; n++) {
      const int32_t label = labels[n];
      int32_t& known = number_of[label + 1];
      if (known < 0) labels[first + count] = label, known = int32_t(count++);
      number[n] = known;
    }
    for (int64_t n = first; n < first + count; n++) number_of[labels[n] + 1] = -1;
    present[row] = count;
  }
}

}  // namespace relgraph
