// Products of matrices by the framework's own code, and the order in which they read their second matrix.
#pragma once
#include <algorithm>
#include <type_traits>

#include "problem.h"

namespace relgraph {

// Row i of one head.
// ---- products of row-major matrices, by the framework's BLAS ----

template <class T> using Gemm = std::conditional_t<sizeof(T) == 4, Gemm32, Gemm64>;

template <class T> struct Matrix {
  const T* data;
  int64_t stride;
};

// C = alpha A op(B) + beta C, with A [m, k] and C [m, n].
template <class T>
void multiply(const Problem& p, char how_a, char how_b, int64_t m, int64_t n, int64_t k, T alpha, Matrix<T> a,
              Matrix<T> b, T beta, T* c, int64_t stride) {
  if (m == 0 || n == 0) return;
  if (k == 0) {  // BLAS requires strides that such matrices do not have
    for (int64_t i = 0; beta == 0 && i < m; i++) std::fill(c + i * stride, c + i * stride + n, T(0));
    return;
  }
  const int mi = int(m), ni = int(n), ki = int(k), lda = int(std::max<int64_t>(a.stride, 1)),
            ldb = int(std::max<int64_t>(b.stride, 1)), ldc = int(stride);
  reinterpret_cast<Gemm<T>>(p.gemm)(&how_b, &how_a, &ni, &mi, &ki, &alpha, b.data, &ldb, a.data, &lda, &beta, c, &ldc);
}

// ---- panels: keys and values in the layout that the faster products need for their second matrix ----

// Rows in pairs, [rows / 2, n, 2], for bfloat16; unchanged for float32. Missing rows are zeros.
inline void lay(const float* from, int64_t stride, int64_t rows, int64_t padded, int64_t n, float* to) {
  for (int64_t i = 0; i < padded; i++)
    for (int64_t j = 0; j < n; j++) to[i * n + j] = i < rows ? from[i * stride + j] : 0.0f;
}

inline void lay(const uint16_t* from, int64_t stride, int64_t rows, int64_t padded, int64_t n, uint16_t* to) {
  for (int64_t i = 0; i < padded; i += 2)
    for (int64_t j = 0; j < n; j++) {
      to[i * n + 2 * j] = i < rows ? from[i * stride + j] : 0;
      to[i * n + 2 * j + 1] = i + 1 < rows ? from[(i + 1) * stride + j] : 0;
    }
}

// The same of the rows' transpose: [size, panel], or in pairs [size / 2, panel, 2].
inline void lay_turned(const float* from, int64_t stride, int64_t rows, int64_t panel, int64_t size, float* to) {
  constexpr int64_t STEP = 16;
  for (int64_t j0 = 0; j0 < panel; j0 += STEP)
    for (int64_t d = 0; d < size; d++)
      for (int64_t j = j0; j < j0 + STEP; j++) to[d * panel + j] = j < rows ? from[j * stride + d] : 0.0f;
}

inline void lay_turned(const uint16_t* from, int64_t stride, int64_t rows, int64_t panel, int64_t size, uint16_t* to) {
  constexpr int64_t STEP = 16;
  for (int64_t j0 = 0; j0 < panel; j0 += STEP)
    for (int64_t d = 0; d < size; d += 2)
      for (int64_t j = j0; j < j0 + STEP; j++) {
        to[d * panel + 2 * j] = j < rows ? from[j * stride + d] : 0;
        to[d * panel + 2 * j + 1] = j < rows && d + 1 < size ? from[j * stride + d + 1] : 0;
      }
}

template <class E> void lay_panel(const Problem& p, int64_t task) {
  const int64_t panel = task % p.panels, head = task / p.panels % p.kv_heads, batch = task / p.panels / p.kv_heads;
  const int64_t rows = std::min(p.panel, p.k_len - panel * p.panel);
  const auto make = [&](const Tensor& x, int64_t size, void* turned, void* as_rows) {
    const E* from = static_cast<const E*>(x.data) + batch * x.batch + head * x.head + panel * p.panel * x.row;
    const int64_t even = (size + 1) / 2 * 2;
    if (turned) lay_turned(from, x.row, rows, p.panel, size, static_cast<E*>(turned) + task * even * p.panel);
    if (as_rows) lay(from, x.row, rows, p.panel, size, static_cast<E*>(as_rows) + task * size * p.panel);
  };
  make(p.key, p.size, p.turned_keys, p.key_rows);
  make(p.value, p.value_size, p.turned_values, p.value_rows);
}

}  // namespace relgraph
