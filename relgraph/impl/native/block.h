// Forward and backward of one block of query rows of one head.
#pragma once
#include <optional>

#include "additive.h"
#include "labels.h"
#include "mapped.h"
#include "pairs.h"
#include "products.h"
#include "room.h"
#include "slices.h"
#include "vectors.h"

namespace relgraph {

// T: of scores and sums; E: of the numbers that are multiplied.
template <class T, class E> class Block {
 public:
  // Backward: `split` is the part of the run, `share` the one of all runs that this block belongs to.
  Block(const Problem& p, int64_t number, int64_t head, int64_t split, int64_t share, T* room)
      : p_(p), head_(head), kv_head_(head / (p.heads / p.kv_heads)), split_(split), share_(share) {
    const int64_t* block = p.blocks + 3 * number;
    place_.graph = block[0];
    slot_ = p.shared_runs ? share : place_.graph;
    place_.batch = p.graphs ? 0 : block[0];
    place_.first_query = p.graphs ? p.q_ptr[block[0]] : 0;
    place_.first_key = p.graphs ? p.k_ptr[block[0]] : 0;
    place_.keys = p.graphs ? p.k_ptr[block[0] + 1] - p.k_ptr[block[0]] : p.k_len;
    first_ = block[1];
    rows_ = block[2];
    find_keys();
    if (p.panels) place_.start = place_.start / p.panel * p.panel;
    n_ = place_.stop - place_.start;
    const Room at(p, n_);
    stride_ = at.stride;
    other_stride_ = at.other_stride;
    by_query_stride_ = at.by_query_stride;
    if (p.sliced && n_ > 0) slice_ = Slice(p.parts[0], place_, first_, rows_);
    width_ = at.width;
    chunk_ = at.chunk;
    scores_ = room;
    other_ = room + at.other;
    slopes_ = p.is_backward && p.score_kind ? room + at.slopes : nullptr;
    table_ = room + at.table;
    sums_ = room + at.sums;
    by_label_ = p.turned_label_values.data && p.d_output.data ? room + at.by_label : nullptr;
    by_query_ = room + at.by_query;
    wide_ = room + at.wide;
    spare_ = room + at.spare;
    shares_ = deltas_ = room + at.shares;  // shares in forward, deltas in backward
    if constexpr (sizeof(E) == sizeof(T)) replace_products(at, room);
    if (sizeof(E) < sizeof(T)) {
      narrow_ = reinterpret_cast<E*>(room + at.narrow);
      turned_ = reinterpret_cast<E*>(room + at.turned);
      query_rows_ = reinterpret_cast<E*>(room + at.query_rows);
      output_rows_ = reinterpret_cast<E*>(room + at.output_rows);
    }
  }

  void forward() {
    const Problem& p = p_;
    if (n_ == 0) return see_nothing();
    score();
    for (int64_t r = 0; r < rows_; r++) {
      const T total = softmax(r);
      const T share = total == 0 ? T(0) : 1 / total;
      shares_[r] = share;
      T* s = scores_ + r * stride_;
      if (p.mass.data) write_sums(r, s, share, p.mass);
      drop(p, row(r), s);
      if (p.sums.data) write_sums(r, s, share, p.sums);
      if (p.vector_sums.data) with_vectors(r, [&](const auto& mine) { mine.sum(s, share, p.vector_sums, query(r), false); });
    }
    T* out = own_row<T>(p.output, place_.batch, head_, query(0));
    if (value_maps_) {
      value_maps_->sum(place_, scores_, stride_);
      value_maps_->map_sums(out, p.output.row);
    } else {
      weigh(scores_, stride_, n_, p.value, p.value_rows, p.value_size, false, out, p.output.row);
    }
    for (int64_t r = 0; r < rows_; r++) scale_row(out + r * p.output.row, p.value_size, shares_[r]);
    if (p.label_values.data)
      times(row_of<T>(p.sums, place_.batch, head_, query(0)), p.sums.row, p.label_rows, table_of(p.label_values),
            p.value_size, out, p.output.row, true);
  }

  void backward() {
    if (n_ == 0) return see_nothing();
    score();
    for (int64_t r = 0; r < rows_; r++) {
      const T total = softmax(r);
      scale_row(scores_ + r * stride_, n_, total == 0 ? T(0) : 1 / total);
      deltas_[r] = delta(r);
    }
    if constexpr (sizeof(E) < sizeof(T)) {
      lay(rows_of(p_.query), p_.query.row, rows_, p_.block_rows, p_.size, query_rows_);
      if (p_.output.data) lay(rows_of(p_.output), p_.output.row, rows_, p_.block_rows, p_.value_size, output_rows_);
    }
    if (by_label_) gradients_of_sums();
    const bool sum_biases = p_.d_label_biases.data && !p_.d_pair_biases.data && !p_.sliced;
    if (p_.sliced) std::fill_n(by_query_, rows_ * by_query_stride_, T(0));
    if (sum_biases) std::fill_n(sums_, LANES * width_, T(0));
    T* dq = own_row<T>(p_.dq, place_.batch, head_, query(0));
    if (additive_) {
      additive_->begin_gradients();
      for (int64_t r = 0; r < rows_; r++) std::fill_n(dq + r * p_.dq.row, p_.size, T(0));
    }
    const Place whole = place_;
    for (int64_t start = whole.start; start < whole.stop; start += chunk_) {
      place_.start = start;
      place_.stop = std::min(start + chunk_, whole.stop);
      gradients_of_keys(start - whole.start, start == whole.start);
    }
    if (sum_biases) add_lanes(p_, sums_, width_, own_row<T>(p_.d_label_biases, slot_, head_, split_));
    const int64_t copy = slot_ * p_.splits + split_;
    if (additive_) additive_->end_gradients(copy);
    if (score_maps_) {
      score_maps_->map_sums(dq, p_.dq.row);
      score_maps_->add_gradients(p_.d_score_maps, copy);
    }
    if (value_maps_ && p_.output.data) value_maps_->add_gradients(p_.d_value_maps, copy);
    if (p_.sliced) gradients_of_slice(dq);
    else if (p_.label_keys.data)
      multiply<T>(p_, 'N', 'N', rows_, p_.size, p_.label_rows, 1,
                  {row_of<T>(p_.d_by_query, place_.batch, head_, query(0)), p_.d_by_query.row}, table_of(p_.label_keys), 1,
                  dq, p_.dq.row);
    for (int64_t r = 0; r < rows_; r++) scale_row(dq + r * p_.dq.row, p_.size, T(p_.scale));
  }

 private:
  // What computes other scores than the dot product, and maps of values.
  void replace_products(const Room& at, T* room) {
    const Problem& p = p_;
    if (p.score_weights.data) additive_.emplace(p, place_, head_, kv_head_, first_, rows_, room + at.additive);
    const auto with_maps = [&](std::optional<Mapped<T>>& made, const Tensor& maps, const Tensor& of, int64_t size,
                               int64_t where, const Tensor& rows) {
      if (!maps.data) return;
      made.emplace(p, maps, of, size, head_, kv_head_, first_, rows_, room + where, room + at.tile_labels);
      if (rows.data) made->take(row_of<T>(rows, place_.batch, head_, query(0)), rows.row);
    };
    with_maps(score_maps_, p.score_maps, p.key, p.size, at.score_maps, p.query);
    with_maps(value_maps_, p.value_maps, p.value, p.value_size, at.value_maps, p.output);
  }

  // The results of rows that see no key, because libraries do not promise to support products without keys.
  void see_nothing() {
    const auto zeros = [&](const Tensor& x, int64_t size) {
      for (int64_t r = 0; x.data && r < rows_; r++)
        std::fill_n(own_row<T>(x, place_.batch, head_, query(r)), size, T(0));
    };
    if (p_.is_backward) {
      zeros(p_.dq, p_.size);
      zeros(p_.d_vector_queries, p_.vector_size);
      return zeros(p_.d_by_query, p_.columns);
    }
    zeros(p_.output, p_.value_size);
    zeros(p_.sums, p_.columns);
    zeros(p_.mass, p_.columns);
    zeros(p_.vector_sums, p_.vector_size);
    T* lse = static_cast<T*>(p_.lse) + (place_.batch * p_.heads + head_) * p_.q_len + query(0);
    std::fill_n(lse, rows_, -INF<T>);
  }

  // The number that softmax subtracts from the gradient of every weight of row r: the sum of weights times their
  // gradients, which equals the sum of outputs times theirs.
  T delta(int64_t r) const {
    const Problem& p = p_;
    const auto at = [&](const Tensor& x) { return row_of<T>(x, place_.batch, head_, query(r)); };
    T total = 0;
    if (p.output.data)
      total += dot(at(p.given_output), row_of<E>(p.output, place_.batch, head_, query(r)), p.value_size);
    if (p.sums.data) total += dot(at(p.given_sums), at(p.sums), p.columns);
    if (p.mass.data) total += dot(at(p.given_mass), at(p.mass), p.columns);
    if (p.vector_sums.data) total += dot(at(p.given_vector_sums), at(p.vector_sums), p.vector_size);
    const T* d_lse = static_cast<const T*>(p.d_lse);
    return d_lse ? total - d_lse[(place_.batch * p.heads + head_) * p.q_len + query(r)] : total;
  }

  // The gradients of the sums by label: the gradient of the output times the vectors that labels add to values, and the
  // given gradients.
  void gradients_of_sums() {
    const Problem& p = p_;
    const int64_t stride = p.turned_label_values.row;
    times(row_of<T>(p.d_output, place_.batch, head_, query(0)), p.d_output.row, p.value_size,
          table_of(p.turned_label_values), stride, by_label_, stride, false);
    for (int64_t r = 0; p.sums.data && r < rows_; r++) {
      load(table_ + width_, row_of<T>(p.sums, place_.batch, head_, query(r)), T(0));
      add_row(by_label_ + r * stride, table_ + width_, width_);
    }
  }

  // Some keys' share in all gradients, from the block's key `at` on. The first keys write the gradients of rows, the
  // next add to them.
  void gradients_of_keys(int64_t at, bool first) {
    const Problem& p = p_;
    const int64_t n = place_.stop - place_.start, stride = other_stride_;
    T* weights = scores_ + at;
    if (p.output.data && value_maps_)
      value_maps_->products(place_, other_, stride);
    else if (p.output.data)  // the gradient of the output times the values
      against(p.output, p.value, p.turned_values, p.value_size, n, other_, stride);
    else
      std::fill(other_, other_ + rows_ * stride, T(0));
    for (int64_t r = 0; r < rows_; r++) {
      T *s = weights + r * stride_, *t = other_ + r * stride;
      if (by_label_) add_row_by_label(r, t, by_label_ + r * p.turned_label_values.row);
      else add_incoming(r, t, p.sums);
      if (p.vector_sums.data) with_vectors(r, [&](const auto& mine) { mine.add_dots(p.vector_sums, query(r), t); });
      drop(p, row(r), t);
      add_incoming(r, t, p.mass);
      softmax_backward(t, s, n, deltas_[r]);
      if (p.d_mask.data) add_to_mask(r, t, n);
      if (slopes_) multiply_rows(t, slopes_ + r * stride_ + at, n);
      if (p.d_vector_queries.data)
        with_vectors(r, [&](const auto& mine) {
          mine.sum(t, T(p.scale), p.d_vector_queries, query(r), !first);
          mine.note(t, T(p.scale), 0);
        });
      if (p.d_by_query.data) write_sums(r, t, T(1), p.d_by_query, first);
      if (p.sliced) {
        labels(0, r).sum_window(by_query_ + r * by_query_stride_, slice_.first, t);
      } else if (p.d_pair_biases.data) {
        add_row(own_row<T>(p.d_pair_biases, share_, head_, first_ + r) + place_.start, t, n);
      } else if (p.d_label_biases.data) {
        for (int64_t part = 0; part < p.num_parts; part++)
          labels(part, r).sum_into(ids_of(sums_, part), width_, t);
      }
      if (p.d_by_key.data) {
        T* columns = own_row<T>(p.d_by_key, place_.batch, head_, 0) + split_ * p.d_by_key_split + key(0);
        for (int64_t part = 0; part < p.num_parts; part++)
          labels(part, r).sum_by_key(columns + p.parts[part].first_column * p.d_by_key.row, p.d_by_key.row, t);
      }
      drop(p, row(r), s);
      if (p.vector_sums.data) with_vectors(r, [&](const auto& mine) { mine.note(s, T(1), 1); });
    }
    T* dq = own_row<T>(p.dq, place_.batch, head_, query(0));
    T* dk = own_row<T>(p.dk, place_.batch, kv_head_, key(0)) + split_ * p.dk_split;
    T* dv = own_row<T>(p.dv, place_.batch, kv_head_, key(0)) + split_ * p.dv_split;
    if (additive_) {
      additive_->gradients(place_, other_, stride, T(p.scale), dq, p.dq.row, dk, p.dk.row);
    } else if (score_maps_) {
      score_maps_->sum(place_, other_, stride, T(p.scale), dk, p.dk.row);
    } else {
      weigh(other_, stride, n, p.key, p.key_rows, p.size, !first, dq, p.dq.row);
      spread(other_, stride, n, p.query, query_rows_, p.size, T(p.scale), dk, p.dk.row);
    }
    if (p.output.data && value_maps_) value_maps_->sum(place_, weights, stride_, T(1), dv, p.dv.row);
    else if (p.output.data) spread(weights, stride_, n, p.output, output_rows_, p.value_size, T(1), dv, p.dv.row);
  }

  // The share of the slice's numbers in the gradients of queries, of the table and of biases.
  void gradients_of_slice(T* dq) {
    const Problem& p = p_;
    const int64_t slot = slot_ * p.splits + split_, stride = by_query_stride_;
    slice_.each_stretch(p.parts[0], [&](int64_t at, int64_t count, int64_t id) {
      const T* numbers = by_query_ + at;
      const Matrix<T> keys = table_of(p.label_keys);
      multiply<T>(p, 'N', 'N', rows_, p.size, count, 1, {numbers, stride}, {keys.data + id * keys.stride, keys.stride},
                  1, dq, p.dq.row);
      multiply<T>(p, 'T', 'N', count, p.size, rows_, T(p.scale), {numbers, stride}, wide_queries(), 1,
                  own_row<T>(p.d_label_keys, slot, head_, id), p.d_label_keys.row);
      T* biases = p.d_label_biases.data ? own_row<T>(p.d_label_biases, slot_, head_, split_) + id : nullptr;
      for (int64_t r = 0; biases && r < rows_; r++) add_row(biases, numbers + r * stride, count);
    });
  }

  // A row's gradients of finished scores, which are those of the mask that was added to them.
  void add_to_mask(int64_t r, const T* t, int64_t n) {
    T* into = own_row<T>(p_.d_mask, place_.batch, head_, query(r)) + (share_ + split_) * p_.d_mask_room;
    if (p_.d_mask_key) add_row(into + key(0), t, n);
    else *into += sum(t, n);
  }

  // Rows of x against n keys (or values) from the place's first one.
  void against(const Tensor& x, const Tensor& keys, const void* turned, int64_t size, int64_t n, T* into,
               int64_t stride) {
    if constexpr (sizeof(T) == 4)
      if (p_.panels) {
        const int64_t even = (size + 1) / 2 * 2;
        const E* head = panels_of(turned, even);
        for (int64_t j = 0; j < n; j += p_.panel)
          product(p_.panel, size, rows_of(x), x.row, head + (place_.start + j) * even, into + j, stride, false);
        return;
      }
    if constexpr (sizeof(T) == sizeof(E))
      multiply<T>(p_, 'N', 'T', rows_, n, size, 1, {rows_of(x), x.row}, {keys_of(keys), keys.row}, 0, into, stride);
  }

  // Sums of the rows of x (keys or values), weighted.
  void weigh(T* weights, int64_t stride, int64_t n, const Tensor& x, const void* as_rows, int64_t size, bool add,
             T* into, int64_t into_stride) {
    if constexpr (sizeof(T) == 4)
      if (p_.panels) {
        const E* head = panels_of(as_rows, size);
        for (int64_t j = 0; j < n; j += p_.panel) {
          for (int64_t r = 0; n - j < p_.panel && r < rows_; r++)
            std::fill(weights + r * stride + n, weights + r * stride + j + p_.panel, T(0));
          const E* rows = head + (place_.start + j) * size;
          if constexpr (sizeof(E) == sizeof(T))
            product(size, p_.panel, weights + j, stride, rows, into, into_stride, add || j > 0);
          else {
            for (int64_t r = 0; r < rows_; r++) narrow_row(narrow_ + r * p_.panel, weights + r * stride + j, p_.panel);
            product(size, p_.panel, narrow_, p_.panel, rows, into, into_stride, add || j > 0);
          }
        }
        return;
      }
    if constexpr (sizeof(T) == sizeof(E)) {
      const int64_t by_steps = p_.step && rows_ == p_.block_rows ? n / p_.step * p_.step : 0;
      if (by_steps) times(weights, stride, by_steps, {keys_of(x), x.row}, size, into, into_stride, add);
      if (by_steps == n && n) return;
      const T before = add || by_steps ? T(1) : T(0);
      multiply<T>(p_, 'N', 'N', rows_, size, n - by_steps, 1, {weights + by_steps, stride},
                  {keys_of(x) + by_steps * x.row, x.row}, before, into, into_stride);
    }
  }

  // To the gradient of every key the rows of x, weighted.
  void spread(const T* weights, int64_t stride, int64_t n, const Tensor& x, const E* in_pairs, int64_t size, T factor,
              T* into, int64_t into_stride) {
    if constexpr (sizeof(E) < sizeof(T)) {
      if (size == 0) return;
      const int64_t rows = p_.block_rows;
      for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < n; j++)
          turned_[j * rows + r] = r < rows_ ? narrow(weights[r * stride + j] * factor) : 0;
      p_.blocked_half(n, size, rows, rows, size, into_stride, true, turned_, in_pairs, into, true);
    } else {
      multiply<T>(p_, 'T', 'N', n, size, rows_, factor, {weights, stride}, {rows_of(x), x.row}, 1, into, into_stride);
    }
  }

  // C (+)= A B for the block's rows, by the faster product.
  void product(int64_t n, int64_t k, const E* a, int64_t a_stride, const E* b, T* c, int64_t c_stride, bool add) const {
    if (rows_ == 0 || n == 0) return;
    if (k == 0) {  // libraries throw at products without numbers
      for (int64_t r = 0; r < rows_ && !add; r++) std::fill_n(c + r * c_stride, n, T(0));
      return;
    }
    if constexpr (sizeof(E) == 2) p_.blocked_half(rows_, n, k, a_stride, n, c_stride, add, a, b, c, true);
    else if constexpr (sizeof(T) == 4) p_.blocked(rows_, n, k, a_stride, n, c_stride, add, a, b, c, false);
  }

  // C (+)= A B for the block's rows, all of them dense.
  void times(const T* a, int64_t a_stride, int64_t k, Matrix<T> b, int64_t n, T* c, int64_t c_stride, bool add) const {
    if constexpr (sizeof(T) == 4)
      if (p_.blocked && rows_ == p_.block_rows && n && k)
        return p_.blocked(rows_, n, k, a_stride, b.stride, c_stride, add, a, b.data, c, false);
    multiply<T>(p_, 'N', 'N', rows_, n, k, 1, {a, a_stride}, b, add ? T(1) : T(0), c, c_stride);
  }

  Matrix<T> table_of(const Tensor& x) const { return {row_of<T>(x, 0, head_, 0), x.row}; }

  const E* panels_of(const void* all, int64_t numbers) const {
    return static_cast<const E*>(all) + (place_.batch * p_.kv_heads + kv_head_) * p_.panels * p_.panel * numbers;
  }

  // The block's queries in the type of scores.
  Matrix<T> wide_queries() const {
    if constexpr (sizeof(E) == sizeof(T)) return {rows_of(p_.query), p_.query.row};
    else return {wide_, p_.size};
  }

  Row row(int64_t r) const { return {place_, head_, first_ + r}; }
  int64_t query(int64_t r) const { return place_.first_query + first_ + r; }
  int64_t key(int64_t j) const { return place_.first_key + place_.start + j; }
  const E* rows_of(const Tensor& x) const { return row_of<E>(x, place_.batch, head_, query(0)); }
  const E* keys_of(const Tensor& x) const { return row_of<E>(x, place_.batch, kv_head_, key(0)); }
  RowLabels<T> labels(int64_t part, int64_t r) const { return {p_.parts[part], place_, first_ + r, spare_}; }

  // Calls f with the pairs of row r that have vectors.
  template <class F> void with_vectors(int64_t r, F f) const {
    const RowLabels<T> mine = labels(0, r);
    f(PairVectors<T>(p_, place_, head_, mine));
  }

  // The numbers that labels add to the scores of row r; biases that all rows share are there after score().
  const T* by_query_of(int64_t r) const {
    if (p_.label_keys.data) return by_query_ + r * by_query_stride_;
    if (p_.by_query.data) return row_of<T>(p_.by_query, place_.batch, head_, query(r));
    return p_.label_biases.data ? by_query_ : nullptr;
  }

  // The keys that some row of the block may attend to by distance and causal order.
  void find_keys() {
    int64_t start = 0, stop = place_.keys;
    const int64_t last = first_ + rows_ - 1;
    if (p_.causal) stop = std::min(stop, last + p_.causal_offsets[place_.graph * p_.causal_step] + 1);
    for (int64_t i = 0; i < p_.num_parts; i++) {
      const Part& part = p_.parts[i];
      if (part.lookup_length == 0 || part.row_ptr) continue;
      const int64_t zero = part.offsets[place_.graph * part.offset_step] + part.first_distance;
      if (part.lookup[0] == -2) start = std::max(start, first_ + zero + 1);
      if (part.lookup[part.lookup_length - 1] == -2) stop = std::min(stop, last + zero + part.lookup_length - 1);
    }
    place_.start = std::clamp<int64_t>(start, 0, place_.keys);
    place_.stop = std::clamp<int64_t>(stop, place_.start, place_.keys);
  }

  // A row of a table as RowLabels reads it: each part begins with the numbers for the ids -2 and -1.
  void load(T* into, const T* from, T not_attending) const {
    for (int64_t part = 0; part < p_.num_parts; part++) load_part(part, into, from, not_attending);
  }

  void load_part(int64_t number, T* into, const T* from, T not_attending) const {
    relgraph::load_part(p_.parts[number], number, into, from, not_attending);
  }

  T* ids_of(T* row, int64_t part) const { return relgraph::ids_of(p_.parts[part], part, row); }

  // The finished scores of all rows.
  void score() {
    if (additive_) additive_->scores(scores_, stride_);
    else if (score_maps_) score_maps_->products(place_, scores_, stride_);
    else against(p_.query, p_.key, p_.turned_keys, p_.size, n_, scores_, stride_);
    if (p_.label_keys.data) score_labels();
    const T* shared = p_.label_biases.data && !p_.label_keys.data ? biases_of(p_, head_, by_query_) : nullptr;
    for (int64_t r = 0; r < rows_; r++) {
      T* s = scores_ + r * stride_;
      const T* from = by_query_of(r);
      if (p_.vector_queries.data)
        with_vectors(r, [&](const auto& mine) { mine.add_dots(p_.vector_queries, query(r), s); });
      if (from == shared && r == 0) load(table_, shared, -INF<T>);
      if (p_.pair_biases.data)
        scale_add_row(s, row_of<T>(p_.pair_biases, 0, head_, first_ + r) + place_.start, n_, T(p_.scale));
      for (int64_t part = 0; !p_.pair_biases.data && part < p_.num_parts; part++) {
        const T factor = part == 0 ? T(p_.scale) : T(1);
        if (!from && p_.parts[part].full) {
          if (part == 0) scale_row(s, n_, factor);
          continue;
        }
        const RowLabels<T> mine = labels(part, r);
        if (p_.sliced) {
          mine.add_window(s, from, slice_.first, factor);
          continue;
        }
        if (from && mine.is_plain()) {
          mine.add_plain(s, from + p_.parts[part].first_column, factor, -INF<T>);
          continue;
        }
        if (from != shared) load_part(part, table_, from, -INF<T>);
        mine.add(s, ids_of(table_, part), factor);
      }
      if (p_.by_key.data) {
        const T* columns = row_of<T>(p_.by_key, place_.batch, head_, 0) + key(0);
        for (int64_t part = 0; part < p_.num_parts; part++)
          labels(part, r).add_by_key(s, columns + p_.parts[part].first_column * p_.by_key.row, p_.by_key.row);
      }
      if (p_.score_kind) finish(p_, row(r), s, slopes_ ? slopes_ + r * stride_ : nullptr);
      mask(p_, row(r), s);
    }
  }

  // The number that each label adds to the scores of each row, made of the vectors that labels add to keys.
  void score_labels() {
    const Problem& p = p_;
    if constexpr (sizeof(E) < sizeof(T))
      for (int64_t r = 0; r < rows_; r++)
        for (int64_t d = 0; d < p.size; d++) wide_[r * p.size + d] = widen(rows_of(p.query)[r * p.query.row + d]);
    if (p.sliced) return score_slice();
    for (int64_t r = 0; r < rows_; r++) {
      T* row = by_query_ + r * p.columns;
      if (p.label_biases.data) biases_of(p, head_, row);
      else std::fill(row + p.label_rows, row + p.columns, T(0));
    }
    multiply<T>(p, 'N', 'T', rows_, p.label_rows, p.size, T(p.scale), wide_queries(), table_of(p.label_keys),
                p.label_biases.data ? T(1) : T(0), by_query_, p.columns);
  }

  // The same by place of the slice.
  void score_slice() {
    const Problem& p = p_;
    const Part& part = p.parts[0];
    for (int64_t end : {int64_t(0), part.lookup_length - 1}) {  // an end may be without a label
      const int64_t at = end - slice_.first;
      for (int64_t r = 0; at >= 0 && at < slice_.width && r < rows_; r++)
        by_query_[r * by_query_stride_ + at] = part.lookup[end] == -2 ? -INF<T> : T(0);
    }
    slice_.each_stretch(part, [&](int64_t at, int64_t count, int64_t id) {
      T* numbers = by_query_ + at;
      const Matrix<T> keys = table_of(p.label_keys);
      for (int64_t r = 0; p.label_biases.data && r < rows_; r++)
        std::copy_n(row_of<T>(p.label_biases, 0, head_, 0) + id, count, numbers + r * by_query_stride_);
      multiply<T>(p, 'N', 'T', rows_, count, p.size, T(p.scale), wide_queries(),
                  {keys.data + id * keys.stride, keys.stride}, p.label_biases.data ? T(1) : T(0), numbers,
                  by_query_stride_);
    });
  }

  // Scores of row r become exp(s - max); their sum, 0 for a row that sees nothing. Forward notes the log-sum-exp.
  T softmax(int64_t r) {
    T* s = scores_ + r * stride_;
    T top = largest(s, n_);
    if (top == -INF<T>) top = 0;  // a row with NaN only comes here too, and its sum is NaN
    const T total = exponentials(s, n_, top);
    if (p_.lse) {
      T* lse = static_cast<T*>(p_.lse) + (place_.batch * p_.heads + head_) * p_.q_len + query(r);
      *lse = total == 0 ? -INF<T> : top + std::log(total);
    }
    return total;
  }

  // Sums of a row by label, times a factor.
  void write_sums(int64_t r, T* s, T factor, const Tensor& into, bool first = true) {
    T* out = own_row<T>(into, place_.batch, head_, query(r));
    for (int64_t i = 0; i < p_.num_parts; i++) {
      const Part& part = p_.parts[i];
      T* columns = out + part.first_column;
      const RowLabels<T> row = labels(i, r);
      if (row.is_plain()) {
        row.sum_plain(columns, s, factor, !first);
        continue;
      }
      T* mine = ids_of(sums_, i);
      for (int64_t lane = 0; lane < LANES; lane++)
        std::fill_n(mine - GUARD + lane * width_, part.num_labels + GUARD, T(0));
      row.sum_into(mine, width_, s);
      const auto total = [&](int64_t id) { return total_of(mine, width_, id) * factor; };
      for (int64_t c = 0; c < part.num_labels; c++) columns[c] = first ? total(c) : columns[c] + total(c);
      columns[part.num_labels] = first ? total(-1) : columns[part.num_labels] + total(-1);
    }
  }

  void add_incoming(int64_t r, T* t, const Tensor& from) {
    if (!from.data) return;
    load(table_ + width_, row_of<T>(from, place_.batch, head_, query(r)), T(0));
    add_row_by_label(r, t, table_ + width_);
  }

  // To every pair of row r the number of its label.
  void add_row_by_label(int64_t r, T* t, T* numbers) const {
    for (int64_t i = 0; i < p_.num_parts; i++) labels(i, r).add(t, ids_of(numbers, i), T(1));
  }

  const Problem& p_;
  int64_t head_, kv_head_, split_, share_, slot_ = 0, first_ = 0, rows_ = 0, n_ = 0, stride_ = 0, other_stride_ = 0;
  int64_t width_ = 0;
  Place place_{};
  std::optional<Additive<T>> additive_;
  std::optional<Mapped<T>> score_maps_, value_maps_;
  Slice slice_;
  int64_t chunk_ = 0, by_query_stride_ = 0;
  T *scores_, *other_, *slopes_, *table_, *sums_, *by_label_, *by_query_, *wide_, *spare_, *shares_, *deltas_;
  E *narrow_ = nullptr, *turned_ = nullptr, *query_rows_ = nullptr, *output_rows_ = nullptr;
};

}  // namespace relgraph
