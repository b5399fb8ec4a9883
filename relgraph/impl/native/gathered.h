// Products with gathered rows: of nodes by number, of tables by label. N is the size of a row if the compiler knows it,
// else 0.
#pragma once
#include <algorithm>
#include <cstdint>

#include "problem.h"

namespace relgraph {

// Rows of nodes by number.
template <class T> struct Rows {
  const T* data;
  int64_t stride;
  const int32_t* at;

  const T* operator[](int64_t e) const { return data + at[e] * stride; }
};

// Rows that follow each other.
template <class T> struct NextRows {
  const T* data;
  int64_t stride;

  const T* operator[](int64_t e) const { return data + e * stride; }
};

// Rows of a table by label; another row for a pair without a label.
template <class T> struct LabelRows {
  const T* data;
  int64_t stride;
  const int32_t* ids;
  const T* other;

  const T* operator[](int64_t e) const { return ids[e] < 0 ? other : data + ids[e] * stride; }
};

// The rows of x times those of y, number by number.
template <class X, class Y> struct Times {
  X x;
  Y y;

  struct Row {
    decltype(x[0]) a;
    decltype(y[0]) b;
    auto operator[](int64_t d) const { return a[d] * b[d]; }
  };
  Row operator[](int64_t e) const { return {x[e], y[e]}; }
};

// s[e] = a · x[e]
template <int64_t N, class T, class X> void dots(const T* a, const X& x, int64_t count, int64_t size, T* s) {
  const int64_t n = N ? N : size;
  for (int64_t e = 0; e < count; e++) {
    const auto row = x[e];
    T total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t d = 0; d < n; d++) total += a[d] * row[d];
    s[e] = total;
  }
}

// s[e] = a · (x[e] + y[e])
template <int64_t N, class T, class X, class Y>
void dots(const T* a, const X& x, const Y& y, int64_t count, int64_t size, T* s) {
  const int64_t n = N ? N : size;
  for (int64_t e = 0; e < count; e++) {
    const auto row = x[e];
    const auto more = y[e];
    T total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t d = 0; d < n; d++) total += a[d] * (row[d] + more[d]);
    s[e] = total;
  }
}

// s[e] = x[e] · y[e]
template <int64_t N, class T, class X, class Y>
void dots_of_both(const X& x, const Y& y, int64_t count, int64_t size, T* s) {
  const int64_t n = N ? N : size;
  for (int64_t e = 0; e < count; e++) {
    const auto row = x[e];
    const auto other = y[e];
    T total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t d = 0; d < n; d++) total += row[d] * other[d];
    s[e] = total;
  }
}

// into += factor * row
template <class T, class Row> void add_scaled(T factor, const Row& row, int64_t size, T* into) {
#pragma omp simd
  for (int64_t d = 0; d < size; d++) into[d] += factor * row[d];
}

// Keeps the compiler from taking several e at once, which would gather numbers one by one.
inline void one_by_one() { asm volatile(""); }

// into += Σ_e weights[e] x[e]
template <int64_t N, class T, class X> void weigh(const T* weights, const X& x, int64_t count, int64_t size, T* into) {
  if constexpr (N > 0) {
    T sums[N];  // stays in registers
    for (int64_t d = 0; d < N; d++) sums[d] = into[d];
    for (int64_t e = 0; e < count; e++) {
      const auto row = x[e];
      one_by_one();
#pragma omp simd
      for (int64_t d = 0; d < N; d++) sums[d] += weights[e] * row[d];
    }
    for (int64_t d = 0; d < N; d++) into[d] = sums[d];
  } else {
    for (int64_t e = 0; e < count; e++) add_scaled(weights[e], x[e], size, into);
  }
}

// into += Σ_e weights[e] (x[e] + y[e])
template <int64_t N, class T, class X, class Y>
void weigh(const T* weights, const X& x, const Y& y, int64_t count, int64_t size, T* into) {
  if constexpr (N > 0) {
    T sums[N];
    for (int64_t d = 0; d < N; d++) sums[d] = into[d];
    for (int64_t e = 0; e < count; e++) {
      const auto row = x[e];
      const auto more = y[e];
      one_by_one();
#pragma omp simd
      for (int64_t d = 0; d < N; d++) sums[d] += weights[e] * (row[d] + more[d]);
    }
    for (int64_t d = 0; d < N; d++) into[d] = sums[d];
  } else {
    weigh<0>(weights, x, count, size, into);
    weigh<0>(weights, y, count, size, into);
  }
}

// into[at[e]] += weights[e] x[e], rows with this stride; a pair with a negative number adds nothing.
template <int64_t N, class T, class X>
void spread(const T* weights, const X& x, const int32_t* at, int64_t count, int64_t size, T* into, int64_t stride) {
  const int64_t n = N ? N : size;
  for (int64_t e = 0; e < count; e++) {
    if (at[e] < 0) continue;
    add_scaled(weights[e], x[e], n, into + at[e] * stride);
  }
}

// The same row for every pair.
template <class T> struct OneRow {
  const T* row;

  const T* operator[](int64_t) const { return row; }
};

// s[e] += row[ids[e]]; pairs without a label add nothing.
template <class T> void add_labels(T* s, const T* row, const int32_t* ids, int64_t count) {
#pragma omp simd
  for (int64_t e = 0; e < count; e++) {
    const T number = row[std::max(ids[e], 0)];
    s[e] += ids[e] < 0 ? T(0) : number;
  }
}

}  // namespace relgraph
