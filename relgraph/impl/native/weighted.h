// The weighted labels of one query row: several labels for each key, each with a weight.
#pragma once
#include "problem.h"

namespace relgraph {

constexpr int64_t WEIGHT_LANES = 4;  // sums by label use several accumulators in turn, as many as other labels have

// Label m of key j is ids[m * stride + j], its weight weights[m * stride + j]. An id of -1 has the number before id 0.
template <class T> class WeightedRow {
 public:
  WeightedRow() = default;
  WeightedRow(const Part& part, const T* weights, int64_t row, int64_t batch, int64_t start, int64_t n, int64_t k_len)
      : count_(part.per_pair), bytes_(part.several_bytes), n_(n), stride_(k_len), labels_(part.num_labels),
        weights_(weights) {
    const int64_t at = batch * part.several_step + row * count_ * k_len + start;
    ids_ = static_cast<const char*>(part.several) + at * bytes_;
  }

  // s += Σ_m weight · table[id] at every key.
  void add(T* s, const T* table) const {
    each([&](const auto* id, const T* w) {
#pragma omp simd
      for (int64_t j = 0; j < n_; j++) s[j] += w[j] * table[id[j]];
    });
  }

  // sums[id] += weight · s; `sums` has lanes, `width` numbers apart, which count together.
  void sum_into(T* sums, int64_t width, const T* s) const {
    each([&](const auto* id, const T* w) {
      int64_t j = 0;
      for (; j + WEIGHT_LANES <= n_; j += WEIGHT_LANES)
        for (int64_t lane = 0; lane < WEIGHT_LANES; lane++)
          sums[lane * width + id[j + lane]] += w[j + lane] * s[j + lane];
      for (; j < n_; j++) sums[id[j]] += w[j] * s[j];
    });
  }

  // The same for a table with a row of all keys for each label, the last one for the id -1.
  void add_by_key(T* s, const T* columns, int64_t keys) const {
    each([&](const auto* id, const T* w) {
      for (int64_t j = 0; j < n_; j++) s[j] += w[j] * columns[slot(id[j]) * keys + j];
    });
  }

  void sum_by_key(T* columns, int64_t keys, const T* s) const {
    each([&](const auto* id, const T* w) {
      for (int64_t j = 0; j < n_; j++) columns[slot(id[j]) * keys + j] += w[j] * s[j];
    });
  }

  // The gradients of the weights, laid out like them: into += s · table[id].
  void slopes(T* into, const T* s, const T* table) const {
    each([&](const auto* id, const T* w) {
      T* mine = into + (w - weights_);
#pragma omp simd
      for (int64_t j = 0; j < n_; j++) mine[j] += s[j] * table[id[j]];
    });
  }

  void slopes_by_key(T* into, const T* s, const T* columns, int64_t keys) const {
    each([&](const auto* id, const T* w) {
      T* mine = into + (w - weights_);
      for (int64_t j = 0; j < n_; j++) mine[j] += s[j] * columns[slot(id[j]) * keys + j];
    });
  }

 private:
  int64_t slot(int64_t id) const { return id < 0 ? labels_ : id; }

  template <class F> void each(F f) const {
    switch (bytes_) {
      case 1: return each_of(static_cast<const int8_t*>(ids_), f);
      case 2: return each_of(static_cast<const int16_t*>(ids_), f);
      case 4: return each_of(static_cast<const int32_t*>(ids_), f);
      default: return each_of(static_cast<const int64_t*>(ids_), f);
    }
  }

  template <class I, class F> void each_of(const I* ids, F f) const {
    for (int64_t m = 0; m < count_; m++) f(ids + m * stride_, weights_ + m * stride_);
  }

  int64_t count_ = 0, bytes_ = 1, n_ = 0, stride_ = 0, labels_ = 0;
  const void* ids_ = nullptr;
  const T* weights_ = nullptr;
};

}  // namespace relgraph
