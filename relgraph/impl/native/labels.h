// The labels of one query row: the terms that they add to its scores, and sums of a row by label.
#pragma once
#include <algorithm>

#include "loops.h"
#include "problem.h"

namespace relgraph {

constexpr int64_t GUARD = 2;  // a table row in memory begins with two more numbers, for the ids -2 and -1
constexpr int64_t LANES = 4;  // sums by written-out ids use several accumulators in turn, so that none waits for itself

// The place of a block of query rows: one batch row or graph, with the keys that it may attend to.
struct Place {
  int64_t batch;        // batch row; 0 when packed
  int64_t graph;        // graph, or batch row if not packed
  int64_t first_query;  // of the graph, counted through all graphs
  int64_t first_key;
  int64_t keys;         // of the whole graph
  int64_t start, stop;  // the block's keys, counted in the graph
};

// One part's ids of the keys of a row. Keys [0, left) have one id, keys [right, n) another one, those between are read.
template <class T> class RowLabels {
 public:
  RowLabels(const Part& part, const Place& place, int64_t row, T* spare)
      : part_(part), spare_(spare), n_(place.stop - place.start) {
    if (part.lookup_length > 0) {
      const int64_t offset = part.offsets[place.graph * part.offset_step];
      const int64_t at = place.start - row - offset - part.first_distance;  // where the first key is in the lookup
      left_ = std::clamp<int64_t>(1 - at, 0, n_);
      right_ = std::clamp<int64_t>(part.lookup_length - 1 - at, left_, n_);
      left_id_ = part.lookup[0];
      right_id_ = part.lookup[part.lookup_length - 1];
      if (left_ < right_) ids_ = part.lookup + at + left_;
      bytes_ = sizeof(int32_t);
    } else {
      const int64_t begin = part.starts ? part.starts[place.graph] : place.batch * part.ids_step;
      right_ = n_;
      bytes_ = part.id_bytes;
      ids_ = static_cast<const char*>(part.ids) + (begin + row * place.keys + place.start) * bytes_;
    }
    if (part.row_ptr) {
      const int64_t r = place.batch * part.list_step + place.first_query + row;
      shift_ = place.first_key + place.start;
      const int64_t *from = part.col + part.row_ptr[r], *to = part.col + part.row_ptr[r + 1];
      from = std::lower_bound(from, to, shift_);
      to = std::lower_bound(from, to, shift_ + n_);
      listed_ = from - part.col;
      count_ = to - from;
    }
  }

  // Whether ids follow the distance and no pair is listed. Such a row needs no copy of its numbers by label, and a copy
  // costs time: the processor waits if it reads numbers in other pieces than it has just written.
  bool is_plain() const { return part_.affine && !part_.row_ptr; }

  // Whether no pair is listed, so that keys [0, left) have one id and keys [right, n) one.
  bool uniform(int64_t& left, int64_t& right) const {
    if (part_.row_ptr) return false;
    left = left_;
    right = right_;
    return true;
  }

  int64_t left_id() const { return left_id_; }
  int64_t right_id() const { return right_id_; }

  // The ids of all keys; `without` in the place of a negative one.
  void write(int32_t* into, int32_t without) const {
    const auto known = [&](int64_t id) { return id < 0 ? without : int32_t(id); };
    std::fill(into, into + left_, known(left_id_));
    if (left_ < right_)
      read([&](auto* id) {
        for (int64_t j = 0; j < right_ - left_; j++) into[left_ + j] = id[j] < 0 ? without : int32_t(id[j]);
      });
    std::fill(into + right_, into + n_, known(right_id_));
    for (int64_t e = 0; e < count_; e++)
      if (role(e) == 1) into[key(e)] = known(id(e));
  }

  // A plain row's s = s * scale + row[id], where id -1 has the last number and id -2 the given one.
  void add_plain(T* s, const T* row, T scale, T not_attending) const {
    const auto end = [&](int64_t id) { return id == -2 ? not_attending : row[slot(id)]; };
    if (left_ > 0) scale_add(s, left_, scale, end(left_id_));
    if (left_ < right_) scale_add_row(s + left_, row + first_id(), right_ - left_, scale);
    if (right_ < n_) scale_add(s + right_, n_ - right_, scale, end(right_id_));
  }

  // A plain row's sums by label times a factor, written or added to a row whose last number is for id -1.
  void sum_plain(T* row, const T* s, T factor, bool add) const {
    if (!add) std::fill_n(row, part_.num_labels + 1, T(0));
    if (left_ < right_) write_scaled(row + first_id(), s + left_, right_ - left_, factor, add);
    if (left_ > 0 && left_id_ != -2) row[slot(left_id_)] += sum(s, left_) * factor;
    if (right_ < n_ && right_id_ != -2) row[slot(right_id_)] += sum(s + right_, n_ - right_) * factor;
  }

  // A plain row's s = s * scale + row[place], where `row` has a number for each place of the lookup from `first` on.
  void add_window(T* s, const T* row, int64_t first, T scale) const {
    if (left_ > 0) scale_add(s, left_, scale, row[0 - first]);
    if (left_ < right_) scale_add_row(s + left_, row + (place() - first), right_ - left_, scale);
    if (right_ < n_) scale_add(s + right_, n_ - right_, scale, row[part_.lookup_length - 1 - first]);
  }

  // A plain row's row[place] += s.
  void sum_window(T* row, int64_t first, const T* s) const {
    if (left_ > 0) row[0 - first] += sum(s, left_);
    if (left_ < right_) add_row(row + (place() - first), s + left_, right_ - left_);
    if (right_ < n_) row[part_.lookup_length - 1 - first] += sum(s + right_, n_ - right_);
  }

  // f(e, key) for every listed pair that counts.
  template <class F> void each_listed(F f) const {
    for (int64_t e = 0; e < count_; e++)
      if (role(e) != 0) f(listed_ + e, key(e));
  }

  // s = s * scale + table[id] for every key; labels of listed pairs replace the labels below them.
  void add(T* s, const T* table, T scale) const {
    keep_listed(s);
    if (left_ > 0) scale_add(s, left_, scale, table[left_id_]);
    if (left_ < right_) {
      if (part_.affine)
        scale_add_row(s + left_, table + first_id(), right_ - left_, scale);
      else
        read([&](auto* id) { scale_add_gathered(s + left_, id, table, right_ - left_, scale); });
    }
    if (right_ < n_) scale_add(s + right_, n_ - right_, scale, table[right_id_]);
    for (int64_t e = 0, first = 0; e < count_; e++)
      if (role(e) == 1) s[key(e)] = spare_[first++] * scale + table[id(e)];
    for (int64_t e = 0; e < count_; e++)
      if (role(e) == 2) s[key(e)] += table[id(e)];
  }

  // sums[id] += s for every key; `sums` has LANES rows, `width` numbers apart, which count together.
  void sum_into(T* sums, int64_t width, T* s) const {
    take_listed(s);
    if (left_ > 0) sums[left_id_] += sum(s, left_);
    if (left_ < right_) {
      const int64_t n = right_ - left_;
      if (part_.affine)
        add_row(sums + first_id(), s + left_, n);
      else
        read([&](auto* id) {
          int64_t j = 0;
          for (; j + LANES <= n; j += LANES)
            for (int64_t lane = 0; lane < LANES; lane++) sums[lane * width + id[j + lane]] += s[left_ + j + lane];
          for (; j < n; j++) sums[id[j]] += s[left_ + j];
        });
    }
    if (right_ < n_) sums[right_id_] += sum(s + right_, n_ - right_);
    put_listed(s);
    for (int64_t e = 0; e < count_; e++)
      if (role(e) != 0) sums[id(e)] += s[key(e)];
  }

  // s += columns[id] at every key: a table with a row of all keys for each label.
  void add_by_key(T* s, const T* columns, int64_t keys) const {
    keep_listed(s);
    if (left_ > 0) add_row(s, columns + slot(left_id_) * keys, left_);
    if (left_ < right_)
      read([&](auto* id) {
        add_column_gathered(s + left_, id, columns + left_, keys, part_.num_labels, right_ - left_);
      });
    if (right_ < n_) add_row(s + right_, columns + slot(right_id_) * keys + right_, n_ - right_);
    for (int64_t e = 0, first = 0; e < count_; e++)
      if (role(e) == 1) s[key(e)] = spare_[first++] + columns[slot(id(e)) * keys + key(e)];
    for (int64_t e = 0; e < count_; e++)
      if (role(e) == 2) s[key(e)] += columns[slot(id(e)) * keys + key(e)];
  }

  // columns[id] += s at every key.
  void sum_by_key(T* columns, int64_t keys, T* s) const {
    take_listed(s);
    if (left_ > 0) add_row(columns + slot(left_id_) * keys, s, left_);
    if (left_ < right_)
      read([&](auto* id) { add_to_columns(columns + left_, id, s + left_, keys, part_.num_labels, right_ - left_); });
    if (right_ < n_) add_row(columns + slot(right_id_) * keys + right_, s + right_, n_ - right_);
    put_listed(s);
    for (int64_t e = 0; e < count_; e++)
      if (role(e) != 0) columns[slot(id(e)) * keys + key(e)] += s[key(e)];
  }

 private:
  int64_t key(int64_t e) const { return part_.col[listed_ + e] - shift_; }
  int64_t id(int64_t e) const { return part_.listed[listed_ + e]; }
  int64_t role(int64_t e) const { return part_.role[listed_ + e]; }
  int64_t first_id() const { return *static_cast<const int32_t*>(ids_); }
  int64_t place() const { return static_cast<const int32_t*>(ids_) - part_.lookup; }  // of key left_, in the lookup
  int64_t slot(int64_t id) const { return id < 0 ? part_.num_labels : id; }

  template <class F> void read(F f) const {
    switch (bytes_) {
      case 1: f(static_cast<const int8_t*>(ids_)); break;
      case 2: f(static_cast<const int16_t*>(ids_)); break;
      case 4: f(static_cast<const int32_t*>(ids_)); break;
      default: f(static_cast<const int64_t*>(ids_)); break;
    }
  }

  // The numbers at listed pairs, one per pair.
  void keep_listed(const T* s) const {
    for (int64_t e = 0, first = 0; e < count_; e++)
      if (role(e) == 1) spare_[first++] = s[key(e)];
  }

  // Listed pairs count for their own labels only, so they are zero while the others are summed.
  void take_listed(T* s) const {
    keep_listed(s);
    for (int64_t e = 0; e < count_; e++)
      if (role(e) == 1) s[key(e)] = 0;
  }

  void put_listed(T* s) const {
    for (int64_t e = 0, first = 0; e < count_; e++)
      if (role(e) == 1) s[key(e)] = spare_[first++];
  }

  const Part& part_;
  T* spare_;
  int64_t n_, left_ = 0, right_ = 0, left_id_ = 0, right_id_ = 0, bytes_ = 0;
  const void* ids_ = nullptr;
  int64_t listed_ = 0, count_ = 0, shift_ = 0;
};

// ---- a row of numbers by label as RowLabels reads it: each part begins with the numbers for the ids -2 and -1 ----

// Where part `number` has its id 0.
template <class T> T* ids_of(const Part& part, int64_t number, T* row) {
  return row + part.first_column + number + GUARD;
}

// Copies a part's columns of a table's row; a null row is all zeros.
template <class T> void load_part(const Part& part, int64_t number, T* into, const T* from, T not_attending) {
  T* mine = ids_of(part, number, into) - GUARD;
  mine[0] = not_attending;
  mine[1] = from ? from[part.first_column + part.num_labels] : T(0);
  if (from) std::copy_n(from + part.first_column, part.num_labels, mine + GUARD);
  else std::fill_n(mine + GUARD, part.num_labels, T(0));
}

// The row of biases of one head, with a number for each column: `into`, which has room for it.
template <class T> const T* biases_of(const Problem& p, int64_t head, T* into) {
  std::copy_n(row_of<T>(p.label_biases, 0, head, 0), p.label_rows, into);
  std::fill(into + p.label_rows, into + p.columns, T(0));
  return into;
}

// The sum by one label over the lanes.
template <class T> T total_of(const T* ids, int64_t width, int64_t id) {
  static_assert(LANES == 4, "adds four lanes");
  const T* x = ids + id;
  return (x[0] + x[width]) + (x[2 * width] + x[3 * width]);
}

// Adds the sums of all parts to a row of all columns.
template <class T> void add_lanes(const Problem& p, T* lanes, int64_t width, T* into) {
  for (int64_t i = 0; i < p.num_parts; i++) {
    const Part& part = p.parts[i];
    const T* mine = ids_of(part, i, lanes);
    T* columns = into + part.first_column;
    for (int64_t c = 0; c < part.num_labels; c++) columns[c] += total_of(mine, width, c);
    columns[part.num_labels] += total_of(mine, width, -1);
  }
}

}  // namespace relgraph
