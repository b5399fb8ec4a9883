// Additive scores of a block, s_ij = Σ_d w_d act(q_id + k_jd + a_ijd), where a_ij is the sum of the vectors of the labels.
//
// A loop over keys computes one row and one number d of the vectors, so keys are turned, a tile of them at a time.
// Labels that follow the distance have one vector at all keys that are far away on one side: it is added to the query.
#pragma once
#include "activations.h"
#include "labels.h"

namespace relgraph {

// s += w act(x + c)
template <class A, class T> void add_activated(const T* x, T c, T w, int64_t n, T* s) {
#pragma omp simd
  for (int64_t j = 0; j < n; j++) s[j] += w * A::at(x[j] + c).value;
}

// From the gradients of scores those of the sums x + c: added to `into`, and their sum; and the sum for w.
template <class A, class T> void add_slopes(const T* x, T c, const T* grads, int64_t n, T* into, T& of_sum, T& of_w) {
  T all = 0, values = 0;
#pragma omp simd reduction(+ : all, values)
  for (int64_t j = 0; j < n; j++) {
    const auto y = A::at(x[j] + c);
    const T g = grads[j] * y.slope;
    into[j] += g;
    all += g;
    values += grads[j] * y.value;
  }
  of_sum += all;
  of_w += values;
}

template <class T> class Additive {
 public:
  // `room` has numbers(). The rows are those of one head, queries from `first` on, counted in the graph.
  Additive(const Problem& p, const Place& place, int64_t head, int64_t kv_head, int64_t first, int64_t rows, T* room)
      : p_(p), place_(place), head_(head), kv_head_(kv_head), first_(first), rows_(rows), size_(p.size) {
    const int64_t width = p.columns + p.num_parts;
    turned_ = room;
    d_turned_ = turned_ + size_ * TILE;
    numbers_ = d_turned_ + size_ * TILE;
    grads_ = numbers_ + TILE;
    spare_ = grads_ + TILE;
    d_weights_ = spare_ + TILE;
    lanes_ = d_weights_ + size_;
    width_ = width;
    weights_ = row_of<T>(p.score_weights, 0, head, 0);
    with_activation(p.activation, [&](auto act) {
      add_activated_ = add_activated<decltype(act), T>;
      add_slopes_ = add_slopes<decltype(act), T>;
    });
  }

  void scores(T* into, int64_t stride) {
    each_tile([&](int64_t at) {
      for (int64_t r = 0; r < rows_; r++) {
        T* s = into + r * stride + at;
        std::fill_n(s, tile_.stop - tile_.start, T(0));
        each_stretch(r, [&](int64_t from, int64_t n, int64_t d, const T* x, T c, T*, T*) {
          add_activated_(x, c, weights_[d], n, s + from);
        });
      }
    });
  }

  void begin_gradients() {
    std::fill_n(d_weights_, size_, T(0));
    if (p_.added_keys.data) std::fill_n(lanes_, size_ * LANES * width_, T(0));
  }

  // The share of some keys in all gradients; `grads` are those of their scores.
  void gradients(const Place& place, const T* grads, int64_t stride, T scale, T* dq, int64_t dq_row, T* dk,
                 int64_t dk_row) {
    place_ = place;
    each_tile([&](int64_t at) {
      std::fill_n(d_turned_, size_ * TILE, T(0));
      for (int64_t r = 0; r < rows_; r++) {
        const T* g = grads + r * stride + at;
        each_stretch(r, [&](int64_t from, int64_t n, int64_t d, const T* x, T c, T* into, T* of_label) {
          T sum = 0;
          add_slopes_(x, c, g + from, n, into, sum, d_weights_[d]);
          dq[r * dq_row + d] += sum * weights_[d];
          if (of_label) *of_label += sum;
        });
      }
      for (int64_t j = 0; j < tile_.stop - tile_.start; j++)
        for (int64_t d = 0; d < size_; d++)
          dk[(at + j) * dk_row + d] += scale * weights_[d] * d_turned_[d * TILE + j];
    });
  }

  // Adds what all keys gave to the gradients of the weights and of the labels' vectors.
  void end_gradients(int64_t copy) {
    add_row(own_row<T>(p_.d_score_weights, copy, head_, 0), d_weights_, size_);
    for (int64_t d = 0; p_.added_keys.data && d < size_; d++) {
      T* lanes = lanes_ + d * LANES * width_;
      scale_row(lanes, LANES * width_, weights_[d]);
      add_lanes(p_, lanes, width_, own_row<T>(p_.d_added_keys, copy, head_, d));
    }
  }

  static int64_t numbers(const Problem& p) {
    const int64_t lanes = p.is_backward && p.added_keys.data ? p.size * LANES * (p.columns + p.num_parts) : 0;
    return 2 * p.size * TILE + 3 * TILE + p.size + lanes;
  }

 private:
  static constexpr int64_t TILE = 256;

  // f(at) for each tile, whose first key is the place's key `at`; its keys are turned.
  template <class F> void each_tile(F f) {
    for (int64_t at = 0; place_.start + at < place_.stop; at += TILE) {
      tile_ = place_;
      tile_.start = place_.start + at;
      tile_.stop = std::min(tile_.start + TILE, place_.stop);
      const T* keys = row_of<T>(p_.key, place_.batch, kv_head_, place_.first_key + tile_.start);
      for (int64_t j = 0; j < tile_.stop - tile_.start; j++)
        for (int64_t d = 0; d < size_; d++) turned_[d * TILE + j] = keys[j * p_.key.row + d];
      f(at);
    }
  }

  // f(from, n, d, x, c, into, of_label) for stretches of a row and every d: n keys of the tile from this one on have the
  // sums x + c. The gradients of sums are added to `into`, and their sum to `of_label` unless it is null.
  template <class F> void each_stretch(int64_t r, F f) {
    const T* query = row_of<T>(p_.query, place_.batch, head_, place_.first_query + first_ + r);
    const int64_t n = tile_.stop - tile_.start;
    if (!p_.added_keys.data) {
      for (int64_t d = 0; d < size_; d++) f(0, n, d, turned_ + d * TILE, query[d], d_turned_ + d * TILE, nullptr);
      return;
    }
    int64_t left = 0, right = n;
    if (p_.num_parts == 1) {
      const RowLabels<T> row(p_.parts[0], tile_, first_ + r, spare_);
      const auto alike = [&](int64_t from, int64_t stop, int64_t id) {
        for (int64_t d = 0; from < stop && d < size_; d++)
          f(from, stop - from, d, turned_ + d * TILE + from, query[d] + ids_of(p_.parts[0], 0, table(d))[id],
            d_turned_ + d * TILE + from, ids_of(p_.parts[0], 0, lanes_ + d * LANES * width_) + id);
      };
      if (row.uniform(left, right)) {
        alike(0, left, row.left_id());
        alike(right, n, row.right_id());
      }
    }
    if (left < right) each_number_of_mixed(r, left, right, query, f);
  }

  template <class F> void each_number_of_mixed(int64_t r, int64_t left, int64_t right, const T* query, F f) {
    Place mixed = tile_;
    mixed.start = tile_.start + left;
    mixed.stop = tile_.start + right;
    const int64_t n = right - left;
    for (int64_t d = 0; d < size_; d++) {
      std::copy_n(turned_ + d * TILE + left, n, numbers_);
      std::fill_n(grads_, n, T(0));
      const auto each_part = [&](auto g) {
        for (int64_t i = 0; i < p_.num_parts; i++) g(i, RowLabels<T>(p_.parts[i], mixed, first_ + r, spare_));
      };
      each_part([&](int64_t i, const RowLabels<T>& row) { row.add(numbers_, ids_of(p_.parts[i], i, table(d)), T(1)); });
      f(left, n, d, numbers_, query[d], grads_, nullptr);
      if (!p_.is_backward) continue;
      add_row(d_turned_ + d * TILE + left, grads_, n);
      T* lanes = lanes_ + d * LANES * width_;
      each_part([&](int64_t i, const RowLabels<T>& row) { row.sum_into(ids_of(p_.parts[i], i, lanes), width_, grads_); });
    }
  }

  // The labels' numbers d.
  T* table(int64_t d) const { return own_row<T>(p_.added_keys, 0, head_, d); }

  const Problem& p_;
  Place place_, tile_{};
  int64_t head_, kv_head_, first_, rows_, size_, width_;
  const T* weights_;
  void (*add_activated_)(const T*, T, T, int64_t, T*);
  void (*add_slopes_)(const T*, T, const T*, int64_t, T*, T&, T&);
  T *turned_, *d_turned_, *numbers_, *grads_, *spare_, *d_weights_, *lanes_;
};

}  // namespace relgraph
