// Loops over a row of scores. The compiler turns each into vector code.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace relgraph {

template <class T> constexpr T INF = std::numeric_limits<T>::infinity();
constexpr int64_t VECTOR = 16;  // numbers in a vector, at most

// Inside a loop over numbers; compilers would call a long one, and then no loop becomes vector code.
#define RELGRAPH_INSIDE inline __attribute__((always_inline))

// exp(x) = power (1 + rest) by range reduction, x = n ln 2 + r, and a polynomial of r, where x is at least `lowest`.
template <class T> struct Exponential {
  T power, rest;
};

constexpr float lowest(float) { return -87.0f; }
constexpr double lowest(double) { return -708.0; }

RELGRAPH_INSIDE Exponential<float> parts_of_exp(float x) {
  const float n = std::rint(x * 1.44269504f);
  float r = std::fma(n, -0.693359375f, x);
  r = std::fma(n, 2.12194440e-4f, r);
  float y = 1.9875691500e-4f;
  y = std::fma(y, r, 1.3981999507e-3f);
  y = std::fma(y, r, 8.3334519073e-3f);
  y = std::fma(y, r, 4.1665795894e-2f);
  y = std::fma(y, r, 1.6666665459e-1f);
  y = std::fma(y, r, 5.0000001201e-1f);
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return {power, std::fma(y * r, r, r)};
}

RELGRAPH_INSIDE Exponential<double> parts_of_exp(double x) {
  const double n = std::rint(x * 1.4426950408889634);
  double r = std::fma(n, -6.93145751953125e-1, x);
  r = std::fma(n, -1.42860682030941723212e-6, r);
  double y = 1.6059043836821613e-10;  // 1/13!, and so on down
  y = std::fma(y, r, 2.08767569878681e-9);
  y = std::fma(y, r, 2.505210838544172e-8);
  y = std::fma(y, r, 2.755731922398589e-7);
  y = std::fma(y, r, 2.7557319223985893e-6);
  y = std::fma(y, r, 2.48015873015873e-5);
  y = std::fma(y, r, 1.984126984126984e-4);
  y = std::fma(y, r, 1.388888888888889e-3);
  y = std::fma(y, r, 8.333333333333333e-3);
  y = std::fma(y, r, 4.1666666666666664e-2);
  y = std::fma(y, r, 1.6666666666666666e-1);
  y = std::fma(y, r, 0.5);
  const int64_t bits = (static_cast<int64_t>(n) + 1023) << 52;
  double power;
  std::memcpy(&power, &bits, sizeof power);
  return {power, std::fma(y * r, r, r)};
}

// exp of at most about 80. Below the lowest it is 0; NaN stays NaN.
template <class T> RELGRAPH_INSIDE T exp_of(T x) {
  const Exponential<T> e = parts_of_exp(x < lowest(x) ? lowest(x) : x);
  const T y = (e.rest + 1) * e.power;
  return x < lowest(x) ? T(0) : y;
}

// exp(x) - 1 with few wrong bits also near 0. The compiler may regroup sums, but not into or out of an fma.
template <class T> RELGRAPH_INSIDE T expm1_of(T x) {
  const Exponential<T> e = parts_of_exp(x < lowest(x) ? lowest(x) : x);
  return std::fma(e.rest, e.power, e.power - 1);
}

// bfloat16 nearest to x; ties go to the even one. NaN stays NaN.
inline uint16_t narrow(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return uint16_t(x != x ? (bits >> 16) | 0x40 : rounded);
}

inline float widen(uint16_t x) {
  const uint32_t bits = uint32_t(x) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

inline float widen(float x) { return x; }
inline double widen(double x) { return x; }

inline void narrow_row(uint16_t* into, const float* s, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; j++) into[j] = narrow(s[j]);
}

template <class T> void add_row(T* s, const T* row, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; j++) s[j] += row[j];
}

// Replaces a score whose byte is 0 by -inf. It writes one number for each score, so that the compiler uses vector code.
template <class T> void keep_seen(T* s, const bool* seen, int64_t n) {
  const uint8_t* byte = reinterpret_cast<const uint8_t*>(seen);
#pragma omp simd
  for (int64_t j = 0; j < n; j++) s[j] = byte[j] ? s[j] : -INF<T>;
}

// s = s * scale + value
template <class T> void scale_add(T* s, int64_t n, T scale, T value) {
#pragma omp simd
  for (int64_t j = 0; j < n; j++) s[j] = s[j] * scale + value;
}

template <class T> void scale_add_row(T* s, const T* row, int64_t n, T scale) {
#pragma omp simd
  for (int64_t j = 0; j < n; j++) s[j] = s[j] * scale + row[j];
}

// s = s * scale + table[id]
template <class T, class I> void scale_add_gathered(T* s, const I* id, const T* table, int64_t n, T scale) {
#pragma omp simd
  for (int64_t j = 0; j < n; j++) s[j] = s[j] * scale + table[id[j]];
}

// s[j] += columns[id[j]][j], a negative id being the row after all labels.
template <class T, class I>
void add_column_gathered(T* s, const I* id, const T* columns, int64_t keys, int64_t num_labels, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; j++) s[j] += columns[(id[j] < 0 ? num_labels : int64_t(id[j])) * keys + j];
}

// columns[id[j]][j] += s[j]: every key has its own column, so no two additions write to the same number.
template <class T, class I>
void add_to_columns(T* columns, const I* id, const T* s, int64_t keys, int64_t num_labels, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; j++) columns[(id[j] < 0 ? num_labels : int64_t(id[j])) * keys + j] += s[j];
}

template <class T> T largest(const T* s, int64_t n) {
  T top = -INF<T>;
#pragma omp simd reduction(max : top)
  for (int64_t j = 0; j < n; j++) top = s[j] > top ? s[j] : top;
  return top;
}

// The sum of a * b, where b may be in bfloat16.
template <class T, class E> T dot(const T* a, const E* b, int64_t n) {
  T total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t j = 0; j < n; j++) total += a[j] * widen(b[j]);
  return total;
}

// Whole vectors first. Compilers keep the sum of such a loop in memory; if the tail wrote there number by number, the
// processor would wait before it reads a vector.
template <class T> T sum(const T* s, int64_t n) {
  const int64_t whole = n / VECTOR * VECTOR;
  T total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t j = 0; j < whole; j++) total += s[j];
  for (int64_t j = whole; j < n; j++) total += s[j];
  return total;
}

// s = exp(s - top), and its sum
template <class T> T exponentials(T* s, int64_t n, T top) {
  T total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t j = 0; j < n; j++) {
    const T e = exp_of(s[j] - top);
    s[j] = e;
    total += e;
  }
  return total;
}

// into = s * factor, or added to what is there.
template <class T> void write_scaled(T* into, const T* s, int64_t n, T factor, bool add) {
  if (add) {
#pragma omp simd
    for (int64_t j = 0; j < n; j++) into[j] += s[j] * factor;
  } else {
#pragma omp simd
    for (int64_t j = 0; j < n; j++) into[j] = s[j] * factor;
  }
}

template <class T> void multiply_rows(T* s, const T* row, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; j++) s[j] *= row[j];
}

template <class T> void scale_row(T* s, int64_t n, T factor) {
#pragma omp simd
  for (int64_t j = 0; j < n; j++) s[j] *= factor;
}

// t = p * (t - delta)
template <class T> void softmax_backward(T* t, const T* p, int64_t n, T delta) {
#pragma omp simd
  for (int64_t j = 0; j < n; j++) t[j] = p[j] * (t[j] - delta);
}

}  // namespace relgraph
