// Attention over listed pairs only, forward and backward.
//
// Forward takes a query and a head at a time: the scores of its few pairs lie in the first cache while labels, softmax,
// sums by label and the sum of values pass over them. Heads come one after the other if there are many nodes, so that
// the keys and values of one of them stay in the second cache, which rows are gathered from. Backward makes the weights
// again and notes, for every pair, its weight and the gradient of its score; a second pass, by key, sums these into the
// gradients of keys and values. Every row of a result is written by one task, so that no two threads meet and the same
// bits come out each time.
#include "edges.h"

#include <algorithm>

#include "dropout.h"
#include "loops.h"
#include "tasks.h"

namespace relgraph {
namespace {

constexpr int64_t LANES = 16;            // a row of scores is padded to a multiple, for loops without a remainder
constexpr int64_t HEADS_A_DRAW = 4;      // one draw of random numbers serves this many heads
constexpr int64_t ROW_COST = 4;          // a row counts as so many pairs

struct Range {
  int64_t begin, end;
};

template <class T> const T* row_of(const Tensor& x, int64_t b, int64_t h, int64_t i) {
  return static_cast<const T*>(x.data) + b * x.batch + h * x.head + i * x.row;
}

template <class T> T* own_row(const Tensor& x, int64_t b, int64_t h, int64_t i) {
  return static_cast<T*>(x.data) + b * x.batch + h * x.head + i * x.row;
}

// ---- products with rows that are gathered; N is the size of a row if it is known here, else 0 ----

// Rows of nodes by number.
template <class T> struct Rows {
  const T* data;
  int64_t stride;
  const int32_t* at;

  const T* operator[](int64_t e) const { return data + at[e] * stride; }
};

// Rows of a table by label; one of zeros for a pair without a label.
template <class T> struct LabelRows {
  const T* data;
  int64_t stride;
  const int32_t* ids;
  const T* zeros;

  const T* operator[](int64_t e) const { return ids[e] < 0 ? zeros : data + ids[e] * stride; }
};

// s[e] = a · x[e]
template <int64_t N, class T, class X> void dots(const T* a, const X& x, int64_t count, int64_t size, T* s) {
  const int64_t n = N ? N : size;
  for (int64_t e = 0; e < count; e++) {
    const T* row = x[e];
    T total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t d = 0; d < n; d++) total += a[d] * row[d];
    s[e] = total;
  }
}

// s[e] = a · (x[e] + y[e])
template <int64_t N, class T, class X, class Y>
void dots(const T* a, const X& x, const Y& y, int64_t count, int64_t size, T* s) {
  const int64_t n = N ? N : size;
  for (int64_t e = 0; e < count; e++) {
    const T *row = x[e], *more = y[e];
    T total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t d = 0; d < n; d++) total += a[d] * (row[d] + more[d]);
    s[e] = total;
  }
}

// s[e] = x[e] · y[e]
template <int64_t N, class T, class X, class Y>
void dots_of_both(const X& x, const Y& y, int64_t count, int64_t size, T* s) {
  const int64_t n = N ? N : size;
  for (int64_t e = 0; e < count; e++) {
    const T *row = x[e], *other = y[e];
    T total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t d = 0; d < n; d++) total += row[d] * other[d];
    s[e] = total;
  }
}

// into += Σ_e weight(e) x[e]
template <int64_t N, class T, class Weight, class X>
void weigh(const Weight& weight, const X& x, int64_t count, int64_t size, T* into) {
  if constexpr (N > 0) {
    T sums[N];  // stays in registers
    for (int64_t d = 0; d < N; d++) sums[d] = into[d];
    for (int64_t e = 0; e < count; e++) {
      const T* row = x[e];
      const T w = weight(e);
      asm volatile("");  // keeps the compiler from taking several e at once, which would gather numbers one by one
#pragma omp simd
      for (int64_t d = 0; d < N; d++) sums[d] += w * row[d];
    }
    for (int64_t d = 0; d < N; d++) into[d] = sums[d];
  } else {
    for (int64_t e = 0; e < count; e++) {
      const T* row = x[e];
      const T w = weight(e);
#pragma omp simd
      for (int64_t d = 0; d < size; d++) into[d] += w * row[d];
    }
  }
}

// into += Σ_e weight(e) (x[e] + y[e])
template <int64_t N, class T, class Weight, class X, class Y>
void weigh(const Weight& weight, const X& x, const Y& y, int64_t count, int64_t size, T* into) {
  if constexpr (N > 0) {
    T sums[N];
    for (int64_t d = 0; d < N; d++) sums[d] = into[d];
    for (int64_t e = 0; e < count; e++) {
      const T *row = x[e], *more = y[e];
      const T w = weight(e);
      asm volatile("");
#pragma omp simd
      for (int64_t d = 0; d < N; d++) sums[d] += w * (row[d] + more[d]);
    }
    for (int64_t d = 0; d < N; d++) into[d] = sums[d];
  } else {
    weigh<0>(weight, x, count, size, into);
    weigh<0>(weight, y, count, size, into);
  }
}

// into += Σ_e weight(e) x[e] and other += Σ_e factor(e) y[e], in one pass.
template <int64_t N, class T, class Weight, class Factor, class X, class Y>
void weigh_two(const Weight& weight, const X& x, int64_t size, T* into, const Factor& factor, const Y& y,
               int64_t other_size, T* other, int64_t count) {
  if constexpr (N > 0 && N <= 32) {
    T sums[N], others[N];
    for (int64_t d = 0; d < N; d++) sums[d] = into[d], others[d] = other[d];
    for (int64_t e = 0; e < count; e++) {
      const T *row = x[e], *more = y[e];
      const T w = weight(e), f = factor(e);
      asm volatile("");
#pragma omp simd
      for (int64_t d = 0; d < N; d++) sums[d] += w * row[d];
#pragma omp simd
      for (int64_t d = 0; d < N; d++) others[d] += f * more[d];
    }
    for (int64_t d = 0; d < N; d++) into[d] = sums[d], other[d] = others[d];
  } else {
    weigh<N>(weight, x, count, size, into);
    weigh<N>(factor, y, count, other_size, other);
  }
}

// into[ids[e]] += weights[e] x[e], rows of a table; pairs without a label add nothing.
template <int64_t N, class T, class X>
void spread(const T* weights, const X& x, const int32_t* ids, int64_t count, int64_t size, T* into) {
  const int64_t n = N ? N : size;
  for (int64_t e = 0; e < count; e++) {
    if (ids[e] < 0) continue;
    T* sums = into + ids[e] * n;
    const T* row = x[e];
    const T w = weights[e];
#pragma omp simd
    for (int64_t d = 0; d < n; d++) sums[d] += w * row[d];
  }
}

// The same row for every pair.
template <class T> struct OneRow {
  const T* row;

  const T* operator[](int64_t) const { return row; }
};

template <class T> void add_scaled(T factor, const T* row, int64_t size, T* into) {
#pragma omp simd
  for (int64_t d = 0; d < size; d++) into[d] += factor * row[d];
}

// Numbers per label in a part of the tables' gradients: keys, queries, values, each if there is such a table.
inline int64_t table_sizes(const EdgeProblem& p) {
  const int64_t tables = int64_t(p.label_keys.data != nullptr) + int64_t(p.label_queries.data != nullptr);
  return tables * p.size + (p.label_values.data ? p.value_size : 0);
}

// s[e] += row[ids[e]]; pairs without a label add nothing.
template <class T> void add_labels(T* s, const T* row, const int32_t* ids, int64_t count) {
#pragma omp simd
  for (int64_t e = 0; e < count; e++) {
    const T number = row[std::max(ids[e], 0)];
    s[e] += ids[e] < 0 ? T(0) : number;
  }
}

// ---- one query ----

// T: of all numbers; N: size of queries, keys and values if it is one of a few common ones, else 0.
template <class T, int64_t N> class Query {
 public:
  // `room` has room() numbers. `part` takes the sums of table gradients, [heads, labels, sizes], or is null.
  Query(const EdgeProblem& p, T* room, T* part = nullptr)
      : p_(p), pairs_(*p.pairs), stride_(padded(p.longest)), group_(p.heads / p.kv_heads), part_(part) {
    scores_ = room;
    grads_ = scores_ + stride_;
    other_ = grads_ + stride_;
    slopes_ = other_ + stride_;
    factors_ = slopes_ + stride_;
    zeros_ = factors_ + HEADS_A_DRAW * stride_;
    std::fill(zeros_, zeros_ + std::max(p.size, p.value_size), T(0));
  }

  static int64_t padded(int64_t count) { return (count + LANES - 1) / LANES * LANES; }
  static int64_t room(int64_t longest, int64_t size) { return (4 + HEADS_A_DRAW) * padded(longest) + padded(size); }

  // Row `row` of row_ptr; `batch` is the batch row if these share their pairs.
  void place(int64_t batch, int64_t row) {
    batch_ = pairs_.own ? row / p_.q_len : batch;
    query_ = pairs_.own ? row - batch_ * p_.q_len : row;
    first_ = pairs_.row_ptr[row];
    count_ = pairs_.row_ptr[row + 1] - first_;
    col_ = pairs_.col + first_;
    ids_ = pairs_.ids + first_;
    order_ = pairs_.order + first_;
  }

  void forward(Range heads) {
    const EdgeProblem& p = p_;
    for (int64_t h = heads.begin; h < heads.end; h++) {
      score(h, false);
      const T lse = softmax();
      static_cast<T*>(p.lse)[(batch_ * p.heads + h) * p.q_len + query_] = lse;
      if (p.mass.data) sum_labels(scores_, row(p.mass, h));
      if (const T* factors = kept(h))
        for (int64_t e = 0; e < count_; e++) scores_[e] *= factors[e];
      if (p.sums.data) sum_labels(scores_, row(p.sums, h));
      sum_rows(scores_, nodes(p.value, h), p.label_values, h, p.value_size, row(p.output, h));
      if (p.edge_sums.data) sum_vectors(scores_, row(p.edge_sums, h));
    }
  }

  void backward(Range heads) {
    const EdgeProblem& p = p_;
    for (int64_t h = heads.begin; h < heads.end; h++) {
      score(h, true);
      softmax();
      const T* factors = kept(h);
      incoming(h, factors);
      T delta = 0;
#pragma omp simd reduction(+ : delta)
      for (int64_t e = 0; e < count_; e++) delta += scores_[e] * grads_[e];
      if (p.lse) delta -= static_cast<const T*>(p.lse)[(batch_ * p.heads + h) * p.q_len + query_];
      softmax_backward(grads_, scores_, count_, delta);
      if (p.score_kind)
        for (int64_t e = 0; e < count_; e++) grads_[e] *= slopes_[e];
      note(h, factors);
      if (p.d_by_query.data) sum_labels(grads_, row(p.d_by_query, h));
      if (p.d_edge_query.data) {
        T* into = row(p.d_edge_query, h);
        sum_vectors(grads_, into);
        scale_row(into, p.edge_size, T(p.scale));
      }
      T* dq = row(p.dq, h);
      sum_rows(grads_, nodes(p.key, h), p.label_keys, h, p.size, dq);
      scale_row(dq, p.size, T(p.scale));
      if (part_) tables(h, factors);
    }
  }

  // What dropout multiplies the weights of each pair by, for all heads: [lanes, P].
  void factors(Range heads, T* into) {
    for (int64_t h = heads.begin; h < heads.end; h++) {
      const T* found = kept(h);
      for (int64_t e = 0; e < count_; e++) scores_[e] = found ? found[e] : T(1);
      write_pairs(scores_, into, h);
    }
  }

  // The gradient of the pairs' vectors; each batch row adds to it if they share them.
  void vectors() {
    const EdgeProblem& p = p_;
    for (int64_t e = 0; e < count_; e++) {
      T* into = static_cast<T*>(p.d_attr) + order_[e] * p.edge_size;
      if (batch_ == 0 || pairs_.own) std::fill(into, into + p.edge_size, T(0));
      for (int64_t h = 0; h < p.heads; h++) {
        const T* noted = static_cast<const T*>(p.noted) + 2 * (lane(h) * pairs_.count + first_ + e);
        if (p.edge_query.data) add_scaled(noted[0] * T(p.scale), row(p.edge_query, h), p.edge_size, into);
        if (p.edge_sums.data) add_scaled(noted[1], row(p.edge_sums, h), p.edge_size, into);
      }
    }
  }

 private:
  T* row(const Tensor& x, int64_t h) const { return own_row<T>(x, batch_, h, query_); }
  int64_t kv(int64_t h) const { return group_ == 1 ? h : h / group_; }
  // Numbers of a tensor [lanes or 1, P] for the pairs of this query.
  const T* per_pair(const void* x, int64_t step, int64_t h) const {
    return static_cast<const T*>(x) + lane(h) * step + first_;
  }

  void write_pairs(const T* from, void* into, int64_t h) const {
    std::copy(from, from + count_, static_cast<T*>(into) + lane(h) * pairs_.count + first_);
  }

  int64_t lane(int64_t h) const { return pairs_.own ? h : batch_ * p_.heads + h; }

  Rows<T> nodes(const Tensor& x, int64_t h) const { return {row_of<T>(x, batch_, kv(h), 0), x.row, col_}; }
  Rows<T> vectors_of_pairs() const { return {static_cast<const T*>(p_.attr), p_.attr_stride, order_}; }
  LabelRows<T> of_labels(const Tensor& x, int64_t h) const { return {row_of<T>(x, 0, h, 0), x.row, ids_, zeros_}; }

  // into = Σ_e weights[e] (x[e] + the table's row of its label)
  void sum_rows(const T* weights, const Rows<T>& x, const Tensor& table, int64_t h, int64_t size, T* into) const {
    std::fill(into, into + size, T(0));
    const auto weight = [&](int64_t e) { return weights[e]; };
    if (table.data) weigh<N>(weight, x, of_labels(table, h), count_, size, into);
    else weigh<N>(weight, x, count_, size, into);
  }

  void sum_vectors(const T* weights, T* into) const {
    std::fill(into, into + p_.edge_size, T(0));
    weigh<0>([&](int64_t e) { return weights[e]; }, vectors_of_pairs(), count_, p_.edge_size, into);
  }

  // The gradients of the tables, summed over the rows of a stretch.
  void tables(int64_t h, const T* factors) {
    const EdgeProblem& p = p_;
    const int64_t sizes = table_sizes(p);
    T* into = part_ + h * p.labels * sizes;
    if (p.label_keys.data) {
      spread<N>(grads_, OneRow<T>{row(p.query, h)}, ids_, count_, p.size, into);
      into += p.labels * p.size;
    }
    if (p.label_queries.data) {
      spread<N>(grads_, nodes(p.key, h), ids_, count_, p.size, into);
      into += p.labels * p.size;
    }
    if (p.label_values.data && p.output.data) {
      for (int64_t e = 0; e < count_; e++) other_[e] = factors ? scores_[e] * factors[e] : scores_[e];
      spread<N>(other_, OneRow<T>{row(p.output, h)}, ids_, count_, p.value_size, into);
    }
  }

  void sum_labels(const T* weights, T* into) const {
    std::fill(into, into + p_.columns, T(0));
    for (int64_t e = 0; e < count_; e++)
      if (ids_[e] >= 0) into[ids_[e]] += weights[e];
  }

  // The finished scores of a head, and in backward what the function of scores multiplies gradients by.
  void score(int64_t h, bool slopes) {
    const EdgeProblem& p = p_;
    T* s = scores_;
    const Rows<T> keys = nodes(p.key, h);
    if (p.label_keys.data) dots<N>(row(p.query, h), keys, of_labels(p.label_keys, h), count_, p.size, s);
    else dots<N>(row(p.query, h), keys, count_, p.size, s);
    if (p.label_queries.data) {
      dots_of_both<N>(keys, of_labels(p.label_queries, h), count_, p.size, other_);
      add_row(s, other_, count_);
    }
    if (p.edge_query.data) {
      dots<0>(row(p.edge_query, h), vectors_of_pairs(), count_, p.edge_size, other_);
      add_row(s, other_, count_);
    }
    scale_row(s, count_, T(p.scale));
    if (p.by_query.data) add_labels(s, row(p.by_query, h), ids_, count_);
    if (p.score_kind) finish(s, slopes);
    if (p.added) add_row(s, per_pair(p.added, p.added_step, h), count_);
  }

  void finish(T* s, bool slopes) {
    const T c = T(p_.score_parameter);
    if (p_.score_kind == 1) {
      for (int64_t e = 0; e < count_; e++) {
        const T bounded = std::tanh(s[e] / c);
        s[e] = c * bounded;
        if (slopes) slopes_[e] = 1 - bounded * bounded;
      }
    } else {
      for (int64_t e = 0; e < count_; e++) {
        if (slopes) slopes_[e] = s[e] > 0 ? T(1) : c;
        s[e] = s[e] > 0 ? s[e] : c * s[e];
      }
    }
  }

  // Scores become weights. Returns the log-sum-exp, -inf for a query that sees nothing.
  T softmax() {
    const int64_t whole = padded(count_);
    std::fill(scores_ + count_, scores_ + whole, -INF<T>);
    T top = largest(scores_, whole);
    if (top == -INF<T>) top = 0;  // a row with NaN only comes here too, and its sum is NaN
    const T total = exponentials(scores_, whole, top);
    scale_row(scores_, whole, total == 0 ? T(0) : 1 / total);
    return total == 0 ? -INF<T> : top + std::log(total);
  }

  // What dropout multiplies the weights of a head by; null without dropout.
  const T* kept(int64_t h) {
    if (p_.factor) return per_pair(p_.factor, p_.factor_step, h);
    if (p_.threshold == 0) return nullptr;
    if (h % HEADS_A_DRAW == 0 || p_.heads_apart) draw(h / HEADS_A_DRAW);
    return factors_ + h % HEADS_A_DRAW * stride_;
  }

  // Random numbers by (batch row, query, key, head), the heads in fours. Of parallel edges, which lie side by side,
  // the n-th has n in the generator's key, that is, a sequence of its own.
  void draw(int64_t four) {
    const uint32_t low = uint32_t(uint64_t(p_.seed)), high = uint32_t(uint64_t(p_.seed) >> 32);
    const uint32_t threshold = uint32_t(p_.threshold);
    const T factor = T(p_.kept_factor);
    uint32_t key[LANES], again[LANES], repeat = 0;
    for (int64_t start = 0; start < count_; start += LANES) {
      const int64_t stop = std::min(LANES, count_ - start);
      for (int64_t lane = 0; lane < LANES; lane++) {
        const int64_t e = std::min(start + lane, count_ - 1);
        repeat = e > 0 && col_[e] == col_[e - 1] ? repeat + 1 : 0;
        key[lane] = uint32_t(col_[e]);
        again[lane] = repeat;
      }
      uint32_t numbers[HEADS_A_DRAW][LANES];
#pragma omp simd
      for (int64_t lane = 0; lane < LANES; lane++) {
        uint32_t a = key[lane], b = uint32_t(query_), c = uint32_t(four), d = uint32_t(batch_);
        philox(a, b, c, d, low ^ again[lane], high);
        numbers[0][lane] = a;
        numbers[1][lane] = b;
        numbers[2][lane] = c;
        numbers[3][lane] = d;
      }
      for (int64_t h = 0; h < HEADS_A_DRAW; h++)
        for (int64_t e = 0; e < stop; e++)
          factors_[h * stride_ + start + e] = numbers[h][e] < threshold ? T(0) : factor;
    }
  }

  // The gradients of the weights.
  void incoming(int64_t h, const T* factors) {
    const EdgeProblem& p = p_;
    T* g = grads_;
    const Rows<T> values = nodes(p.value, h);
    if (!p.output.data) std::fill(g, g + count_, T(0));
    else if (p.label_values.data)
      dots<N>(row(p.output, h), values, of_labels(p.label_values, h), count_, p.value_size, g);
    else dots<N>(row(p.output, h), values, count_, p.value_size, g);
    if (p.sums.data) add_labels(g, row(p.sums, h), ids_, count_);
    if (p.edge_sums.data) {
      dots<0>(row(p.edge_sums, h), vectors_of_pairs(), count_, p.edge_size, other_);
      add_row(g, other_, count_);
    }
    if (factors)
      for (int64_t e = 0; e < count_; e++) g[e] *= factors[e];
    if (p.mass.data) add_labels(g, row(p.mass, h), ids_, count_);
  }

  // For the passes by key and by pair: two numbers per pair side by side, as both are read at once.
  void note(int64_t h, const T* factors) const {
    T* noted = static_cast<T*>(p_.noted) + 2 * (lane(h) * pairs_.count + first_);
    for (int64_t e = 0; e < count_; e++) {
      noted[2 * e] = grads_[e];
      noted[2 * e + 1] = factors ? scores_[e] * factors[e] : scores_[e];
    }
  }

  const EdgeProblem& p_;
  const EdgePairs& pairs_;
  int64_t stride_, group_, batch_ = 0, query_ = 0, first_ = 0, count_ = 0;
  const int32_t *col_ = nullptr, *ids_ = nullptr, *order_ = nullptr;
  T *part_, *scores_, *grads_, *other_, *slopes_, *factors_, *zeros_;
};

// ---- one key: its gradients ----

// Row `row` of key_ptr; `shared` is the batch row if these share their pairs.
template <class T, int64_t N> void at_key(const EdgeProblem& p, int64_t shared, int64_t row, Range kv_heads) {
  const EdgePairs& pairs = *p.pairs;
  const int64_t batch = pairs.own ? row / p.k_len : shared, key = pairs.own ? row - batch * p.k_len : row;
  const int64_t first = pairs.key_ptr[row], count = pairs.key_ptr[row + 1] - first, group = p.heads / p.kv_heads;
  const int32_t *query = pairs.query + first, *pair = pairs.pair + first;
  for (int64_t kv = kv_heads.begin; kv < kv_heads.end; kv++) {
    T *dk = own_row<T>(p.dk, batch, kv, key), *dv = own_row<T>(p.dv, batch, kv, key);
    std::fill(dk, dk + p.size, T(0));
    std::fill(dv, dv + p.value_size, T(0));
    for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
      const int64_t lane = pairs.own ? h : batch * p.heads + h;
      const T* noted = static_cast<const T*>(p.noted) + 2 * lane * pairs.count;
      const auto score = [&](int64_t e) { return noted[2 * int64_t(pair[e])]; };
      const auto weight = [&](int64_t e) { return noted[2 * int64_t(pair[e]) + 1]; };
      const Rows<T> queries{row_of<T>(p.query, batch, h, 0), p.query.row, query};
      if (p.output.data) {
        const Rows<T> grads{row_of<T>(p.output, batch, h, 0), p.output.row, query};
        weigh_two<N>(score, queries, p.size, dk, weight, grads, p.value_size, dv, count);
      } else {
        weigh<N>(score, queries, count, p.size, dk);
      }
      if (p.label_queries.data) {
        const T* table = row_of<T>(p.label_queries, 0, h, 0);
        for (int64_t e = 0; e < count; e++) {
          const int32_t id = pairs.ids[pair[e]];
          if (id >= 0) add_scaled(score(e), table + id * p.label_queries.row, p.size, dk);
        }
      }
    }
    scale_row(dk, p.size, T(p.scale));
  }
}

// ---- tasks: stretches of rows with about the same number of pairs ----

struct Stretches {
  const int64_t* ptr;
  int64_t rows, pairs_a_task;

  int64_t cost(int64_t row) const { return ptr[row] + ROW_COST * row; }
  int64_t count() const { return (cost(rows) + pairs_a_task - 1) / pairs_a_task; }

  // The first row of a stretch: costs grow with the rows, so it is found by halving.
  int64_t begin(int64_t number) const {
    const int64_t wanted = number * pairs_a_task;
    int64_t low = 0, high = rows;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (cost(middle) < wanted) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  Range range(int64_t number) const { return {begin(number), begin(number + 1)}; }
};

// work(rows, batch row, heads, thread, number of the stretch) for all rows of ptr and all of `heads` heads: in every
// batch row, or once if these have rows of their own.
template <class Work>
void for_each_stretch(const EdgeProblem& p, const int64_t* ptr, int64_t rows, int64_t heads, const Work& work) {
  const Stretches stretches{ptr, rows, p.pairs_a_task};
  const int64_t each = stretches.count(), step = p.heads_apart ? 1 : heads, groups = heads / step;
  for_each_task((p.pairs->own ? 1 : p.batch) * groups * each, p.threads, p.parallel, [&](int64_t task, int64_t thread) {
    const int64_t group = task / each % groups;
    const int64_t batch = task / each / groups, stretch = task % each;
    const Range mine{group * step, (group + 1) * step};
    work(stretches.range(stretch), batch, mine, thread, batch * each + stretch);
  });
}

// The gradients of the tables of a head: the sums of all stretches, one after the other.
template <class T> void sum_parts(const EdgeProblem& p, int64_t h) {
  const EdgePairs& pairs = *p.pairs;
  const int64_t stretches = Stretches{pairs.row_ptr, pairs.rows, p.pairs_a_task}.count() * (pairs.own ? 1 : p.batch);
  const int64_t a_head = p.labels * table_sizes(p);
  const T* part = static_cast<const T*>(p.label_parts) + h * a_head;
  const auto sum = [&](const Tensor& into, int64_t size, T factor) {
    if (!into.data) return;
    T* sums = own_row<T>(into, 0, h, 0);
    const int64_t numbers = p.labels * size;
    std::fill(sums, sums + numbers, T(0));
    for (int64_t s = 0; s < stretches; s++) add_row(sums, part + s * p.heads * a_head, numbers);
    scale_row(sums, numbers, factor);
    part += numbers;
  };
  sum(p.d_label_keys, p.size, T(p.scale));
  sum(p.d_label_queries, p.size, T(p.scale));
  sum(p.d_label_values, p.value_size, T(1));
}

enum class Pass { forward, backward, factors };

template <class T, int64_t N> void run(const EdgeProblem& p, Pass pass, T* factors) {
  const EdgePairs& pairs = *p.pairs;
  const auto room = [&](int64_t thread) { return static_cast<T*>(p.workspace) + thread * p.workspace_numbers; };
  const int64_t part_size = p.heads * p.labels * table_sizes(p);
  const auto queries = [&](Range rows, int64_t batch, Range heads, int64_t thread, int64_t stretch) {
    T* part = pass == Pass::backward && part_size ? static_cast<T*>(p.label_parts) + stretch * part_size : nullptr;
    const int64_t a_head = part_size / p.heads;
    if (part) std::fill(part + heads.begin * a_head, part + heads.end * a_head, T(0));
    Query<T, N> query(p, room(thread), part);
    for (int64_t row = rows.begin; row < rows.end; row++) {
      query.place(batch, row);
      if (pass == Pass::forward) query.forward(heads);
      else if (pass == Pass::backward) query.backward(heads);
      else query.factors(heads, factors);
    }
  };
  for_each_stretch(p, pairs.row_ptr, pairs.rows, p.heads, queries);
  if (pass != Pass::backward) return;
  const auto keys = [&](Range rows, int64_t batch, Range heads, int64_t, int64_t) {
    for (int64_t row = rows.begin; row < rows.end; row++) at_key<T, N>(p, batch, row, heads);
  };
  for_each_stretch(p, pairs.key_ptr, pairs.keys, p.kv_heads, keys);
  if (part_size) for_each_task(p.heads, p.threads, p.parallel, [&](int64_t h, int64_t) { sum_parts<T>(p, h); });
  if (!p.d_attr) return;
  const Stretches stretches{pairs.row_ptr, pairs.rows, p.pairs_a_task};
  const int64_t rounds = pairs.own ? 1 : p.batch;  // one batch row after the other, as they add to the same vectors
  for (int64_t batch = 0; batch < rounds; batch++)
    for_each_task(stretches.count(), p.threads, p.parallel, [&](int64_t task, int64_t thread) {
      Query<T, N> query(p, room(thread));
      const Range rows = stretches.range(task);
      for (int64_t row = rows.begin; row < rows.end; row++) {
        query.place(batch, row);
        query.vectors();
      }
    });
}

template <class T> void of_size(const EdgeProblem& p, Pass pass, T* factors) {
  const int64_t size = p.size == p.value_size ? p.size : 0;
  if (size == 16) run<T, 16>(p, pass, factors);
  else if (size == 32) run<T, 32>(p, pass, factors);
  else if (size == 64) run<T, 64>(p, pass, factors);
  else run<T, 0>(p, pass, factors);
}

void start(const EdgeProblem& p, Pass pass, void* factors) {
  if (p.heads == 0 || p.kv_heads == 0 || p.batch == 0) return;  // then all results are empty
  if (p.bytes == 8) of_size(p, pass, static_cast<double*>(factors));
  else of_size(p, pass, static_cast<float*>(factors));
}

}  // namespace
}  // namespace relgraph

extern "C" {
int64_t relgraph_edges_size() { return sizeof(relgraph::EdgeProblem); }
int64_t relgraph_edges_pairs_size() { return sizeof(relgraph::EdgePairs); }

// Numbers of workspace that a thread needs where a query has at most this many pairs, and rows have this size.
int64_t relgraph_edges_room(int64_t longest, int64_t size) { return relgraph::Query<float, 0>::room(longest, size); }

// Stretches that rows are cut into.
int64_t relgraph_edges_stretches(const relgraph::EdgeProblem* p) {
  return relgraph::Stretches{p->pairs->row_ptr, p->pairs->rows, p->pairs_a_task}.count();
}

void relgraph_edges_forward(const relgraph::EdgeProblem* p) { start(*p, relgraph::Pass::forward, nullptr); }

void relgraph_edges_backward(const relgraph::EdgeProblem* p) { start(*p, relgraph::Pass::backward, nullptr); }

// What dropout multiplies the weights by, [lanes, P].
void relgraph_edges_factors(const relgraph::EdgeProblem* p, void* into) {
  start(*p, relgraph::Pass::factors, into);
}

// Pairs sorted by query, for the kernels: narrower numbers of key, label and order, and the same pairs sorted by key
// (a key's pairs keep their order). `pairs` has all pointers; `next` [keys] is room. Returns the most pairs of a query,
// or -1 if a number does not fit its bounds.
int64_t relgraph_edges_prepare(const relgraph::EdgePairs* pairs, const int64_t* col, const int64_t* ids,
                               const int64_t* order, int64_t q_len, int64_t k_len, int64_t labels, int64_t* next) {
  const int64_t *row_ptr = pairs->row_ptr, rows = pairs->rows, keys = pairs->keys;
  const auto writable = [](const int32_t* x) { return const_cast<int32_t*>(x); };
  int64_t* key_ptr = const_cast<int64_t*>(pairs->key_ptr);
  const auto key_of = [&](int64_t row, int64_t e) { return (pairs->own ? row / q_len * k_len : 0) + col[e]; };
  const auto within = [](int64_t x, int64_t low, int64_t stop) { return low <= x && x < stop; };
  bool fits = row_ptr[0] == 0 && row_ptr[rows] == pairs->count;
  for (int64_t row = 0; row < rows; row++) fits = fits && row_ptr[row] <= row_ptr[row + 1];
  for (int64_t e = 0; e < pairs->count; e++)
    fits = fits && within(col[e], 0, k_len) && within(ids[e], -1, labels) && within(order[e], 0, pairs->count);
  if (!fits) return -1;
  for (int64_t e = 0; e < pairs->count; e++) {
    writable(pairs->col)[e] = int32_t(col[e]);
    writable(pairs->ids)[e] = int32_t(ids[e]);
    writable(pairs->order)[e] = int32_t(order[e]);
  }
  std::fill(key_ptr, key_ptr + keys + 1, 0);
  int64_t longest = 0;
  for (int64_t row = 0; row < rows; row++) {
    longest = std::max(longest, row_ptr[row + 1] - row_ptr[row]);
    for (int64_t e = row_ptr[row]; e < row_ptr[row + 1]; e++) key_ptr[key_of(row, e) + 1]++;
  }
  for (int64_t key = 0; key < keys; key++) {
    next[key] = key_ptr[key];
    key_ptr[key + 1] += key_ptr[key];
  }
  for (int64_t row = 0; row < rows; row++)
    for (int64_t e = row_ptr[row]; e < row_ptr[row + 1]; e++) {
      const int64_t at = next[key_of(row, e)]++;
      writable(pairs->query)[at] = int32_t(pairs->own ? row % q_len : row);
      writable(pairs->pair)[at] = int32_t(e);
    }
  return longest;
}
}
