// Tries the functions that are found in torch's libraries on tiny products before any kernel relies on them.
//
// The name of a function does not show what it does on this processor: oneDNN's products throw if the processor lacks
// them, and another version of torch may take other arguments. Small whole numbers are exact in every type, so results
// are compared for equality.
#include <cstring>
#include <vector>

#include "problem.h"

namespace relgraph {
namespace {

constexpr int64_t ROWS = 5, COLUMNS = 32, DEPTH = 16;

inline int64_t number_a(int64_t i, int64_t k) { return (3 * i + k) % 5 - 2; }
inline int64_t number_b(int64_t k, int64_t j) { return (k + 2 * j) % 7 - 3; }

// Entry (i, j) of A B.
int64_t entry(int64_t i, int64_t j) {
  int64_t total = 0;
  for (int64_t k = 0; k < DEPTH; k++) total += number_a(i, k) * number_b(k, j);
  return total;
}

// A as [ROWS, DEPTH].
template <class T> std::vector<T> left() {
  std::vector<T> a;
  for (int64_t i = 0; i < ROWS; i++)
    for (int64_t k = 0; k < DEPTH; k++) a.push_back(T(number_a(i, k)));
  return a;
}

// B as [DEPTH, COLUMNS].
template <class T> std::vector<T> right() {
  std::vector<T> b;
  for (int64_t k = 0; k < DEPTH; k++)
    for (int64_t j = 0; j < COLUMNS; j++) b.push_back(T(number_b(k, j)));
  return b;
}

// Whether C is A B, or `times` of it.
template <class T> bool right_answer(const std::vector<T>& c, int64_t times = 1) {
  for (int64_t i = 0; i < ROWS; i++)
    for (int64_t j = 0; j < COLUMNS; j++)
      if (c[size_t(i * COLUMNS + j)] != T(times * entry(i, j))) return false;
  return true;
}

// BLAS counts matrices by columns: C = A B of rows is its B A.
template <class T, class Gemm> bool gemm_works(Gemm gemm) {
  const std::vector<T> a = left<T>(), b = right<T>();
  std::vector<T> c(size_t(ROWS * COLUMNS), T(0));
  const int m = ROWS, n = COLUMNS, k = DEPTH;
  const T one = 1, zero = 0;
  gemm("N", "N", &n, &m, &k, &one, b.data(), &n, a.data(), &k, &zero, c.data(), &n);
  return right_answer(c);
}

// bfloat16 keeps the upper half of a float32.
uint16_t upper_half(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return uint16_t(bits >> 16);
}

bool blocked_works(Blocked blocked) {
  const std::vector<float> a = left<float>(), b = right<float>();
  std::vector<float> c(size_t(ROWS * COLUMNS), 0.0f);
  blocked(ROWS, COLUMNS, DEPTH, DEPTH, COLUMNS, COLUMNS, false, a.data(), b.data(), c.data(), false);
  if (!right_answer(c)) return false;
  blocked(ROWS, COLUMNS, DEPTH, DEPTH, COLUMNS, COLUMNS, true, a.data(), b.data(), c.data(), false);
  return right_answer(c, 2);
}

bool blocked_half_works(BlockedHalf blocked) {
  std::vector<uint16_t> a, pairs(size_t(DEPTH * COLUMNS));
  for (const float x : left<float>()) a.push_back(upper_half(x));
  for (int64_t k = 0; k < DEPTH; k++)  // rows are stored in pairs, [DEPTH / 2, COLUMNS, 2]
    for (int64_t j = 0; j < COLUMNS; j++)
      pairs[size_t((k / 2 * COLUMNS + j) * 2 + k % 2)] = upper_half(float(number_b(k, j)));
  std::vector<float> c(size_t(ROWS * COLUMNS), 0.0f);
  blocked(ROWS, COLUMNS, DEPTH, DEPTH, COLUMNS, COLUMNS, false, a.data(), pairs.data(), c.data(), true);
  if (!right_answer(c)) return false;
  blocked(ROWS, COLUMNS, DEPTH, DEPTH, COLUMNS, COLUMNS, true, a.data(), pairs.data(), c.data(), true);
  return right_answer(c, 2);
}

// 1 if the products are right, 0 if they are wrong or the function throws.
template <class Try> int64_t tried(Try attempt) {
  try {
    return attempt() ? 1 : 0;
  } catch (...) {
    return 0;
  }
}

}  // namespace
}  // namespace relgraph

extern "C" {
int64_t relgraph_gemm32_works(relgraph::Gemm32 gemm) {
  return relgraph::tried([=] { return relgraph::gemm_works<float>(gemm); });
}
int64_t relgraph_gemm64_works(relgraph::Gemm64 gemm) {
  return relgraph::tried([=] { return relgraph::gemm_works<double>(gemm); });
}
int64_t relgraph_blocked_works(relgraph::Blocked blocked) {
  return relgraph::tried([=] { return relgraph::blocked_works(blocked); });
}
int64_t relgraph_blocked_half_works(relgraph::BlockedHalf blocked) {
  return relgraph::tried([=] { return relgraph::blocked_half_works(blocked); });
}
}
