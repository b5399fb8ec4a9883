// Biases that all batch rows share, written out for every pair, and their gradients' sums by label.
//
// This is for many short sequences. One row of numbers is added to a row of scores, in place of a look-up for each of
// its pairs, and one row of gradients is added to that of earlier batch rows.
#pragma once
#include "labels.h"
#include "room.h"

namespace relgraph {

// The biases of one head.
template <class T> class PairBiases {
 public:
  PairBiases(const Problem& p, int64_t head, T* room) : p_(p), head_(head), at_(p, p.most_keys), room_(room) {
    place_.keys = place_.stop = p.k_len;
  }

  // -inf for a pair that does not attend.
  void write() {
    const T* from = biases_of(p_, head_, room_ + at_.by_query);
    T* table = room_ + at_.table;
    for (int64_t part = 0; part < p_.num_parts; part++) load_part(p_.parts[part], part, table, from, -INF<T>);
    for (int64_t i = 0; i < p_.q_len; i++) {
      T* row = own_row<T>(p_.pair_biases, 0, head_, i);
      std::fill_n(row, p_.k_len, T(0));
      for (int64_t part = 0; part < p_.num_parts; part++)
        labels(part, i).add(row, ids_of(p_.parts[part], part, table), T(1));
    }
  }

  // The gradients of all shares are added to those of the first one.
  void sum_by_label() {
    T* lanes = room_ + at_.sums;
    std::fill_n(lanes, LANES * at_.width, T(0));
    for (int64_t i = 0; i < p_.q_len; i++) {
      T* row = own_row<T>(p_.d_pair_biases, 0, head_, i);
      for (int64_t share = 1; share < p_.shares; share++)
        add_row(row, row_of<T>(p_.d_pair_biases, share, head_, i), p_.k_len);
      for (int64_t part = 0; part < p_.num_parts; part++)
        labels(part, i).sum_into(ids_of(p_.parts[part], part, lanes), at_.width, row);
    }
    add_lanes(p_, lanes, at_.width, own_row<T>(p_.d_label_biases, 0, head_, 0));
  }

 private:
  RowLabels<T> labels(int64_t part, int64_t i) const { return {p_.parts[part], place_, i, room_ + at_.spare}; }

  const Problem& p_;
  int64_t head_;
  Room at_;
  T* room_;
  Place place_{};
};

}  // namespace relgraph
