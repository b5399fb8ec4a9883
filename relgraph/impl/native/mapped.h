// Maps by label for one head of a block, where row x_i meets key k_j through the map of the pair's label, W[l_ij]:
// products x_iᵀ W[l_ij] k_j, the sums Σ_j s_ij W[l_ij] k_j, and the gradients of both.
//
// Rows are mapped first, t_i,r = W[r]ᵀ x_i, and keys are summed by label first, Σ_{j: l_ij = r} s_ij k_j, so no map
// meets a pair. Keys come in tiles. If most pairs of a tile have one label, matrix products compute these, and the
// other pairs one by one. A pair without a label has the identity.
#pragma once
#include "gathered.h"
#include "labels.h"
#include "products.h"

namespace relgraph {

// The labels of the pairs of a tile, with the identity as the last one.
template <class T> class TileLabels {
 public:
  static constexpr int64_t KEYS = 128;

  // `room` has numbers().
  TileLabels(const Problem& p, T* room) : p_(p), labels_(reinterpret_cast<int32_t*>(room)) {
    key_ = labels_ + p.block_rows * KEYS;
    label_ = key_ + KEYS;
    spare_ = room + p.block_rows * KEYS + 2 * KEYS;
    numbers_ = spare_ + KEYS;
  }

  static int64_t numbers(const Problem& p) { return p.block_rows * KEYS + 4 * KEYS; }

  void read(const Place& tile, int64_t first, int64_t rows) {
    keys_ = tile.stop - tile.start;
    for (int64_t r = 0; r < rows; r++)
      RowLabels<T>(p_.parts[0], tile, first + r, spare_).write(labels_ + r * KEYS, int32_t(p_.parts[0].num_labels));
    const int32_t* middle = labels_ + rows / 2 * KEYS;
    const int64_t one = count(middle[0], rows), other = count(middle[keys_ - 1], rows), most = std::max(one, other);
    common_ = most * 2 < rows * keys_ ? NONE : one == most ? middle[0] : middle[keys_ - 1];
    uniform_ = most == rows * keys_;
  }

  // f(keys, labels, count, numbers) for the pairs of each row that do not have the common label; there is room for a
  // number for each.
  template <class F> void each_row_of_others(int64_t rows, F f) {
    for (int64_t r = 0; !uniform_ && r < rows; r++) {
      const int32_t* label = labels_ + r * KEYS;
      int64_t count = 0;
      for (int64_t j = 0; j < keys_; j++) {
        key_[count] = int32_t(j);
        label_[count] = label[j];
        count += label[j] != common_;
      }
      f(r, key_, label_, count, numbers_);
    }
  }

  static constexpr int32_t NONE = -1;
  int32_t common() const { return common_; }

 private:
  int64_t count(int32_t label, int64_t rows) const {
    int32_t found = 0;
    for (int64_t r = 0; r < rows; r++)
#pragma omp simd reduction(+ : found)
      for (int64_t j = 0; j < keys_; j++) found += labels_[r * KEYS + j] == label;
    return found;
  }

  const Problem& p_;
  int32_t *labels_, *key_, *label_, common_ = NONE;
  T *spare_, *numbers_;
  int64_t keys_ = 0;
  bool uniform_ = false;
};

template <class T> class Mapped {
 public:
  // `of` are the keys or values, `room` has numbers(), `shared` those of TileLabels. Rows are queries from `first` on,
  // counted in the graph.
  Mapped(const Problem& p, const Tensor& maps, const Tensor& of, int64_t size, int64_t head, int64_t kv_head,
         int64_t first, int64_t rows, T* room, T* shared)
      : p_(p), maps_(maps), of_(of), size_(size), labels_(p.parts[0].num_labels), head_(head), kv_head_(kv_head),
        first_(first), rows_(rows), tile_(p, shared) {
    mapped_ = room;
    sums_ = mapped_ + (labels_ + 1) * p.block_rows * size;
    known_ = reinterpret_cast<char*>(sums_ + (labels_ + 1) * p.block_rows * size);
    summed_ = known_ + labels_ + 1;
    std::fill_n(known_, 2 * (labels_ + 1), 0);
  }

  static int64_t numbers(const Problem& p, int64_t size) {
    const int64_t labels = p.parts[0].num_labels + 1;
    return 2 * labels * p.block_rows * size + labels;
  }

  // The rows that meet keys.
  void take(const T* rows, int64_t stride) {
    rows_of_ = rows;
    stride_ = stride;
  }

  // Every row's products with the keys of the place.
  void products(const Place& place, T* into, int64_t into_stride) {
    each_tile(place, [&](int64_t at, int64_t n, Matrix<T> keys) {
      if (tile_.common() != TileLabels<T>::NONE)
        multiply<T>(p_, 'N', 'T', rows_, n, size_, 1, {mapped(tile_.common()), size_}, keys, 0, into + at, into_stride);
      tile_.each_row_of_others(rows_, [&](int64_t r, const int32_t* key, const int32_t* label, int64_t count, T* found) {
        for (int64_t e = 0; e < count; e++) mapped(label[e]);
        by_size([&](auto N) {
          dots_of_both<N.value>(row_by_label(mapped_, r, label), Rows<T>{keys.data, keys.stride, key}, count, size_, found);
        });
        T* s = into + r * into_stride + at;
        for (int64_t e = 0; e < count; e++) s[key[e]] = found[e];
      });
    });
  }

  // Adds the keys of the place to the sums by label, each times the row's number for it; and to the keys' gradients, if
  // there are any, the mapped rows times these numbers and a factor. The numbers are lost.
  void sum(const Place& place, T* numbers, int64_t stride, T factor = 0, T* d_keys = nullptr, int64_t d_stride = 0) {
    each_tile(place, [&](int64_t at, int64_t n, Matrix<T> keys) {
      T *s = numbers + at, *into = d_keys ? d_keys + at * d_stride : nullptr;
      tile_.each_row_of_others(rows_, [&](int64_t r, const int32_t* key, const int32_t* label, int64_t count, T* mine) {
        for (int64_t e = 0; e < count; e++) {
          mine[e] = s[r * stride + key[e]];
          s[r * stride + key[e]] = 0;
          sums(label[e]);
          if (into) mapped(label[e]);
        }
        by_size([&](auto N) {
          const Rows<T> rows{keys.data, keys.stride, key};
          spread<N.value>(mine, rows, label, count, size_, sums_ + r * size_, p_.block_rows * size_);
        });
        if (!into) return;
        scale_row(mine, count, factor);
        by_size([&](auto N) {
          spread<N.value>(mine, row_by_label(mapped_, r, label), key, count, size_, into, d_stride);
        });
      });
      const int32_t common = tile_.common();
      if (common == TileLabels<T>::NONE) return;
      multiply<T>(p_, 'N', 'N', rows_, size_, n, 1, {s, stride}, keys, 1, sums(common), size_);
      if (into) multiply<T>(p_, 'T', 'N', n, size_, rows_, factor, {s, stride}, {mapped(common), size_}, 1, into, d_stride);
    });
  }

  // The mapped sums of each row, Σ_r W[r] Σ_{j: l_ij = r} s_ij k_j.
  void map_sums(T* into, int64_t into_stride) {
    for (int64_t r = 0; r < rows_; r++) std::fill_n(into + r * into_stride, size_, T(0));
    for (int64_t label = 0; label < labels_; label++)
      if (summed_[label])
        multiply<T>(p_, 'N', 'T', rows_, size_, size_, 1, {sums(label), size_}, map_of(label), 1, into, into_stride);
    if (summed_[labels_])
      for (int64_t r = 0; r < rows_; r++) add_row(into + r * into_stride, sums(labels_) + r * size_, size_);
  }

  // Adds to the gradient of each map.
  void add_gradients(const Tensor& into, int64_t copy) {
    for (int64_t label = 0; label < labels_; label++)
      if (summed_[label])
        multiply<T>(p_, 'T', 'N', size_, size_, rows_, 1, {rows_of_, stride_}, {sums(label), size_}, 1,
                    own_row<T>(into, copy, head_, label), size_);
  }

 private:
  template <class F> void each_tile(const Place& place, F f) {
    for (int64_t at = 0; place.start + at < place.stop; at += TileLabels<T>::KEYS) {
      Place tile = place;
      tile.start = place.start + at;
      tile.stop = std::min(tile.start + TileLabels<T>::KEYS, place.stop);
      tile_.read(tile, first_, rows_);
      f(at, tile.stop - tile.start,
        Matrix<T>{row_of<T>(of_, place.batch, kv_head_, place.first_key + tile.start), of_.row});
    }
  }

  // f with the size of a row if it is a common one, else with 0.
  template <class F> void by_size(F f) const {
    switch (size_) {
      case 16: return f(std::integral_constant<int64_t, 16>());
      case 32: return f(std::integral_constant<int64_t, 32>());
      case 64: return f(std::integral_constant<int64_t, 64>());
      default: return f(std::integral_constant<int64_t, 0>());
    }
  }

  // The rows mapped by a label, which are computed once; and the sums of a label, which begin as zeros.
  T* mapped(int64_t label) {
    T* mine = mapped_ + label * p_.block_rows * size_;
    if (known_[label]) return mine;
    known_[label] = 1;
    if (label < labels_)
      multiply<T>(p_, 'N', 'N', rows_, size_, size_, 1, {rows_of_, stride_}, map_of(label), 0, mine, size_);
    else
      for (int64_t r = 0; r < rows_; r++) std::copy_n(rows_of_ + r * stride_, size_, mine + r * size_);
    return mine;
  }

  T* sums(int64_t label) {
    T* mine = sums_ + label * p_.block_rows * size_;
    if (!summed_[label]) std::fill_n(mine, rows_ * size_, T(0));
    summed_[label] = 1;
    return mine;
  }

  Matrix<T> map_of(int64_t label) const { return {row_of<T>(maps_, 0, head_, label), size_}; }

  // Row r of the block for every label.
  Rows<T> row_by_label(const T* all, int64_t r, const int32_t* label) const {
    return {all + r * size_, p_.block_rows * size_, label};
  }

  const Problem& p_;
  const Tensor &maps_, &of_;
  int64_t size_, labels_;
  int64_t head_, kv_head_, first_, rows_;
  TileLabels<T> tile_;
  T *mapped_, *sums_;
  char *known_, *summed_;
  const T* rows_of_ = nullptr;
  int64_t stride_ = 0;
};

}  // namespace relgraph
