// What a query carries per label. A map per label is then multiplied once for each label that occurs among the pairs
// of a query, not once for each pair.
#pragma once
#include <algorithm>

#include "edges.h"
#include "gathered.h"

namespace relgraph {

// The labels that occur among the pairs of a query, numbered as they come. Pairs without a label have a number too.
class Present {
 public:
  explicit Present(const EdgeProblem& p) : labels_(p.labels + 1), most_(most(p)) {}

  // The most that a query can have.
  static int64_t most(const EdgeProblem& p) { return std::min(p.labels + 1, p.longest); }
  static int64_t room(const EdgeProblem& p) { return p.labels + 1 + most(p) + p.longest; }

  // `room` has room() numbers.
  void start(int32_t* room) {
    number_of_ = room;
    label_ = number_of_ + labels_;
    at = label_ + most_;
    std::fill_n(number_of_, labels_, -1);
  }

  void place(const int32_t* ids, int64_t pairs) {
    for (int64_t n = 0; n < count; n++) number_of_[label_[n] + 1] = -1;
    count = 0;
    for (int64_t e = 0; e < pairs; e++) {
      int32_t& number = number_of_[ids[e] + 1];
      if (number < 0) {
        number = int32_t(count);
        label_[count++] = ids[e];
      }
      at[e] = number;
    }
  }

  int32_t label(int64_t number) const { return label_[number]; }

  int64_t count = 0;
  int32_t* at = nullptr;  // the number of each pair's label

 private:
  int64_t labels_, most_;
  int32_t *number_of_ = nullptr, *label_ = nullptr;
};

// The maps W of one kind and the rows of their labels; a pair without a label has the identity. N as in Query.
template <class T, int64_t N> class QueryMaps {
 public:
  // `rows` has a row for each present label; `sums` too, and others may use it in between.
  QueryMaps(const Present& present, const Tensor& maps, const Tensor& turned, int64_t size, T* rows, T* sums)
      : present_(present), maps_(maps), turned_(turned), size_(N ? N : size), rows_(rows), sums_(sums) {}

  // The row of each pair's label.
  Rows<T> rows() const { return {rows_, size_, present_.at}; }

  // rows = Wᵀ x
  void map(const T* x, int64_t h) {
    for (int64_t n = 0; n < present_.count; n++) {
      T* row = rows_ + n * size_;
      if (present_.label(n) < 0) {
        std::copy_n(x, size_, row);
        continue;
      }
      std::fill_n(row, size_, T(0));
      weigh<N>(x, NextRows<T>{row_of<T>(maps_, 0, h, present_.label(n)), size_}, size_, size_, row);
    }
  }

  // sums = Σ weights[e] x[e] over the pairs with a label
  template <class X> void sum(const T* weights, const X& x, int64_t pairs) {
    std::fill_n(sums_, present_.count * size_, T(0));
    spread<N>(weights, x, present_.at, pairs, size_, sums_, size_);
  }

  // into += Σ W sums over the labels
  void add_mapped_sums(int64_t h, T* into) const {
    for (int64_t n = 0; n < present_.count; n++) {
      const T* row = sums_ + n * size_;
      if (present_.label(n) < 0) add_scaled(T(1), row, size_, into);
      else weigh<N>(row, NextRows<T>{row_of<T>(turned_, 0, h, present_.label(n)), size_}, size_, size_, into);
    }
  }

  // dW += x ⊗ sums, [labels, size, size]
  void add_gradients(const T* x, T* into) const {
    for (int64_t n = 0; n < present_.count; n++) {
      if (present_.label(n) < 0) continue;
      const T* row = sums_ + n * size_;
      T* map = into + present_.label(n) * size_ * size_;
      for (int64_t a = 0; a < size_; a++) add_scaled(x[a], row, size_, map + a * size_);
    }
  }

 private:
  const Present& present_;
  const Tensor &maps_, &turned_;
  int64_t size_;
  T *rows_, *sums_;
};

}  // namespace relgraph
