// A query and its listed pairs.
#pragma once
#include <algorithm>
#include <optional>

#include "dropout.h"
#include "edges.h"
#include "gathered.h"
#include "loops.h"
#include "present.h"
#include "summed.h"

namespace relgraph {

constexpr int64_t PADDED = 16;       // a row of scores is padded to a multiple, for loops without a remainder
constexpr int64_t PAIRS_AHEAD = 40;  // how many pairs before their use the rows of a pair are prefetched,
constexpr int64_t ROWS_AHEAD = 4;    // and how many queries before for those of a query

// Numbers of one head in a part of the gradients that a task sums: of keys, queries, values, gates, both kinds of maps, the
// weights of additive scores and the maps of their vectors, each if there are such.
inline int64_t part_numbers(const EdgeProblem& p) {
  const auto one = [](const Tensor& x, int64_t numbers) { return x.data ? numbers : 0; };
  const int64_t tables = one(p.label_keys, p.size) + one(p.label_queries, p.size) + one(p.label_values, p.value_size);
  const int64_t gates = one(p.key_gates, p.size) + one(p.value_gates, p.value_size);
  const int64_t maps = one(p.value_maps, p.value_size * p.value_size) + one(p.score_maps, p.size * p.size);
  return p.labels * (tables + gates + maps) + one(p.score_weights, p.size) + one(p.vector_maps, p.edge_size * p.size);
}

inline int64_t most_size(const EdgeProblem& p) { return std::max(p.size, p.value_size); }
inline bool has_maps(const EdgeProblem& p) { return p.score_maps.data || p.value_maps.data; }

// Room for the mapped vectors of pairs, or for one row of additive scores without them.
inline int64_t own_numbers(const EdgeProblem& p) {
  return (p.vector_maps.data ? p.longest : p.score_weights.data ? 1 : 0) * p.size;
}

// The keys and values of one head in a batch row, where they are read, and room for their gradients.
template <class T> struct Nodes {
  const T *key, *value;
  T *d_key, *d_value;
  int64_t key_row, value_row, d_key_row, d_value_row;  // strides
};

// The queries of a batch row, one after the other, with the heads that share one head of keys and values. T: the type
// of all numbers; N: size of queries, keys and values if it is one of a few common sizes, else 0.
template <class T, int64_t N> class Query {
 public:
  // `room` has room() numbers. `part` takes the sums of gradients, [heads, numbers], or is null.
  Query(const EdgeProblem& p, int64_t batch, const Nodes<T>& nodes, T* room, T* part = nullptr)
      : p_(p), pairs_(*p.pairs), nodes_(nodes), batch_(batch), part_(part), present_(p) {
    const auto take = [&](int64_t numbers) {
      T* found = room;
      room += padded(numbers);
      return found;
    };
    for (T** row : {&scores_, &grads_, &other_, &slopes_, &factors_}) *row = take(p.longest);
    zeros_ = take(most_size(p));
    std::fill(zeros_, zeros_ + most_size(p), T(0));
    ones_ = take(most_size(p));
    std::fill(ones_, ones_ + most_size(p), T(1));
    own_ = take(own_numbers(p));
    if (!has_maps(p)) return;
    present_.start(reinterpret_cast<int32_t*>(take(Present::room(p))));
    const int64_t labels = Present::most(p);
    T* sums = take(labels * most_size(p));
    if (p.score_maps.data)
      score_maps_.emplace(present_, p.score_maps, p.turned_score_maps, p.size, take(labels * p.size), sums);
    if (p.value_maps.data)
      value_maps_.emplace(present_, p.value_maps, p.turned_value_maps, p.value_size, take(labels * p.value_size), sums);
  }

  static int64_t padded(int64_t count) { return (count + PADDED - 1) / PADDED * PADDED; }
  static int64_t room(const EdgeProblem& p) {
    const int64_t rows = 5 * padded(p.longest) + 2 * padded(most_size(p)), labels = Present::most(p);
    const int64_t maps = has_maps(p) ? padded(Present::room(p)) + 3 * padded(labels * most_size(p)) : 0;
    return rows + padded(own_numbers(p)) + maps;
  }

  void place(int64_t query) {
    const int64_t row = pairs_.own ? batch_ * p_.q_len + query : query;
    query_ = query;
    first_ = pairs_.row_ptr[row];
    count_ = pairs_.row_ptr[row + 1] - first_;
    col_ = pairs_.col + first_;
    ids_ = pairs_.ids + first_;
    if (score_maps_ || value_maps_) present_.place(ids_, count_);
  }

  void forward(int64_t h) {
    const EdgeProblem& p = p_;
    ask(h, false);
    score(h, false);
    const T lse = softmax();
    static_cast<T*>(p.lse)[(batch_ * p.heads + h) * p.q_len + query_] = lse;
    if (p.mass.data) sum_labels(scores_, row(p.mass, h));
    if (const T* factors = kept(h))
      for (int64_t e = 0; e < count_; e++) scores_[e] *= factors[e];
    if (p.sums.data) sum_labels(scores_, row(p.sums, h));
    gated(values(), p.value_gates, h, [&](const auto& values) {
      sum_rows(scores_, values, value_maps_, p.label_values, h, p.value_size, row(p.output, h));
    });
    if (p.edge_sums.data) sum_vectors(scores_, row(p.edge_sums, h));
  }

  // Weights are computed again. Gradients of keys and values are added to those of other queries.
  void backward(int64_t h) {
    const EdgeProblem& p = p_;
    ask(h, true);
    score(h, true);
    softmax();
    const T* factors = kept(h);
    incoming(h, factors);
    T delta = 0;
#pragma omp simd reduction(+ : delta)
    for (int64_t e = 0; e < count_; e++) delta += scores_[e] * grads_[e];
    if (p.lse) delta -= static_cast<const T*>(p.lse)[(batch_ * p.heads + h) * p.q_len + query_];
    softmax_backward(grads_, scores_, count_, delta);
    if (p.d_added) std::copy_n(grads_, count_, static_cast<T*>(p.d_added) + lane(h) * pairs_.count + first_);
    if (p.score_kind)
      for (int64_t e = 0; e < count_; e++) grads_[e] *= slopes_[e];
    if (p.d_by_query.data) sum_labels(grads_, row(p.d_by_query, h));
    scale_row(grads_, count_, T(p.scale));  // from here on those of products, which the scale multiplies
    if (factors)
      for (int64_t e = 0; e < count_; e++) scores_[e] *= factors[e];
    if (p.noted) note(h);
    if (p.d_edge_query.data) sum_vectors(grads_, row(p.d_edge_query, h));
    if (p.score_weights.data) {
      additive([&](auto act) { spread_activations<decltype(act)>(summed(h), grads_, into_summed(h)); });
      if (p.vector_maps.data) map_gradients(part(h).vector_maps);
    } else {
      gated(keys(), p.key_gates, h,
            [&](const auto& keys) { sum_rows(grads_, keys, score_maps_, p.label_keys, h, p.size, row(p.dq, h)); });
      if (score_maps_) score_maps_->add_gradients(row(p.query, h), part(h).score_maps);
      gated(OneRow<T>{row(p.query, h)}, p.key_gates, h, [&](const auto& queries) {
        spread_rows(grads_, queries, score_maps_, p.size, nodes_.d_key, nodes_.d_key_row);
      });
    }
    if (p.label_queries.data)
      spread<N>(grads_, of_labels(p.label_queries, h), col_, count_, p.size, nodes_.d_key, nodes_.d_key_row);
    if (p.output.data) {
      const T* grad = row(p.output, h);
      gated(OneRow<T>{grad}, p.value_gates, h, [&](const auto& outputs) {
        spread_rows(scores_, outputs, value_maps_, p.value_size, nodes_.d_value, nodes_.d_value_row);
      });
      if (value_maps_) {
        value_maps_->sum(scores_, values(), count_);
        value_maps_->add_gradients(grad, part(h).value_maps);
      }
    }
    if (part_) tables(h);
  }

  // The factor of dropout on the weight of each pair: [lanes, P].
  void factors(int64_t h, T* into) {
    const T* found = kept(h);
    T* mine = into + lane(h) * pairs_.count + first_;
    for (int64_t e = 0; e < count_; e++) mine[e] = found ? found[e] : T(1);
  }

  // The gradient of the pairs' vectors; each batch row adds to it if they share them.
  void vectors() {
    const EdgeProblem& p = p_;
    for (int64_t e = 0; e < count_; e++) {
      T* into = static_cast<T*>(p.d_attr) + (first_ + e) * p.edge_size;
      if (batch_ == 0 || pairs_.own) std::fill(into, into + p.edge_size, T(0));
      for (int64_t h = 0; h < p.heads; h++) {
        const T* noted = noted_of(h) + 2 * e;
        if (p.edge_query.data) add_scaled(noted[0], row(p.edge_query, h), p.edge_size, into);
        if (p.edge_sums.data) add_scaled(noted[1], row(p.edge_sums, h), p.edge_size, into);
      }
    }
  }

 private:
  // Prefetches the rows that the next pairs and queries will read and write. These rows are far apart, so the processor
  // does not prefetch them, and waiting for them would take most of the time. Always inlined, because g++ drops a call
  // of a function that only prefetches.
  [[gnu::always_inline]] void ask(int64_t h, bool backward) const {
    const int64_t query = std::min(query_ + ROWS_AHEAD, p_.q_len - 1);
    __builtin_prefetch(row_of<T>(p_.query, batch_, h, query));
    if (p_.output.data) __builtin_prefetch(row_of<T>(p_.output, batch_, h, query));
    if (backward) __builtin_prefetch(row_of<T>(p_.dq, batch_, h, query), 1);
    const Nodes<T>& n = nodes_;
    const int32_t* next = col_ + PAIRS_AHEAD;
    const int64_t left = std::min(count_, pairs_.count - first_ - PAIRS_AHEAD);
    for (int64_t e = 0; e < left; e++) {
      __builtin_prefetch(n.key + next[e] * n.key_row);
      __builtin_prefetch(n.value + next[e] * n.value_row);
      if (!backward) continue;
      __builtin_prefetch(n.d_key + next[e] * n.d_key_row, 1);
      __builtin_prefetch(n.d_value + next[e] * n.d_value_row, 1);
    }
  }

  T* row(const Tensor& x, int64_t h) const { return own_row<T>(x, batch_, h, query_); }
  // Numbers of a tensor [lanes or 1, P] for the pairs of this query.
  const T* per_pair(const void* x, int64_t step, int64_t h) const {
    return static_cast<const T*>(x) + lane(h) * step + first_;
  }
  T* noted_of(int64_t h) const { return static_cast<T*>(p_.noted) + 2 * (lane(h) * pairs_.count + first_); }

  int64_t lane(int64_t h) const { return pairs_.own ? h : batch_ * p_.heads + h; }

  Rows<T> keys() const { return {nodes_.key, nodes_.key_row, col_}; }
  Rows<T> values() const { return {nodes_.value, nodes_.value_row, col_}; }
  NextRows<T> vectors_of_pairs() const {
    return {static_cast<const T*>(p_.attr) + first_ * p_.attr_stride, p_.attr_stride};
  }
  LabelRows<T> of_labels(const Tensor& x, int64_t h) const { return {row_of<T>(x, 0, h, 0), x.row, ids_, zeros_}; }

  // Calls f with x, or with x times the row of each pair's label if there are gates.
  template <class X, class F> void gated(const X& x, const Tensor& gates, int64_t h, const F& f) const {
    if (!gates.data) return f(x);
    const LabelRows<T> rows{row_of<T>(gates, 0, h, 0), gates.row, ids_, ones_};
    f(Times<X, LabelRows<T>>{x, rows});
  }

  // into = Σ_e weights[e] (x[e], mapped by its label, + the table's row of its label)
  template <class X>
  void sum_rows(const T* weights, const X& x, std::optional<QueryMaps<T, N>>& maps, const Tensor& table, int64_t h,
                int64_t size, T* into) {
    std::fill(into, into + size, T(0));
    if (maps) {
      maps->sum(weights, x, count_);
      maps->add_mapped_sums(h, into);
      if (table.data) weigh<N>(weights, of_labels(table, h), count_, size, into);
    } else if (table.data) weigh<N>(weights, x, of_labels(table, h), count_, size, into);
    else weigh<N>(weights, x, count_, size, into);
  }

  // s[e] = a, mapped for its label if there are maps, · x[e], + a · the table's row of its label
  template <class X>
  void dot_rows(const T* a, const X& x, std::optional<QueryMaps<T, N>>& maps, const Tensor& table, int64_t h,
                int64_t size, T* s) {
    if (maps) {
      maps->map(a, h);
      dots_of_both<N>(x, maps->rows(), count_, size, s);
      if (!table.data) return;
      dots<N>(a, of_labels(table, h), count_, size, other_);
      add_row(s, other_, count_);
    } else if (table.data) dots<N>(a, x, of_labels(table, h), count_, size, s);
    else dots<N>(a, x, count_, size, s);
  }

  // into[col[e]] += weights[e] x[e], or what dot_rows() mapped for its label if there are maps
  template <class X>
  void spread_rows(const T* weights, const X& x, const std::optional<QueryMaps<T, N>>& maps, int64_t size, T* into,
                   int64_t stride) const {
    if (maps) spread<N>(weights, maps->rows(), col_, count_, size, into, stride);
    else spread<N>(weights, x, col_, count_, size, into, stride);
  }

  // Calls f with the activation of additive scores.
  template <class F> void additive(F f) const { with_activation(p_.activation, f); }

  Summed<T> summed(int64_t h) const {
    LabelRows<T> labels = of_labels(p_.label_keys, h);
    if (!p_.label_keys.data) labels.data = zeros_, labels.stride = 0;
    const NextRows<T> own = p_.vector_maps.data ? NextRows<T>{own_, p_.size} : NextRows<T>{zeros_, 0};
    return {row(p_.query, h), row_of<T>(p_.score_weights, 0, h, 0), keys(), labels, own, count_, p_.size};
  }

  SummedGradients<T> into_summed(int64_t h) const {
    const Part part = this->part(h);
    T* labels = p_.label_keys.data ? part.label_keys : nullptr;
    const int64_t own_row = p_.vector_maps.data ? p_.size : 0;  // else nobody reads them
    return {row(p_.dq, h), part.score_weights, nodes_.d_key, labels, own_, nodes_.d_key_row, own_row, col_, ids_};
  }

  // own[e] = the pair's vector, mapped
  void map_vectors(int64_t h) {
    const NextRows<T> maps{row_of<T>(p_.vector_maps, 0, h, 0), p_.size}, vectors = vectors_of_pairs();
    std::fill_n(own_, count_ * p_.size, T(0));
    for (int64_t e = 0; e < count_; e++) weigh<N>(vectors[e], maps, p_.edge_size, p_.size, own_ + e * p_.size);
  }

  // From the gradients of the mapped vectors, [edge_size, size].
  void map_gradients(T* into) const {
    const NextRows<T> vectors = vectors_of_pairs();
    for (int64_t e = 0; e < count_; e++)
      for (int64_t f = 0; f < p_.edge_size; f++)
        add_scaled(vectors[e][f], own_ + e * p_.size, p_.size, into + f * p_.size);
  }

  void sum_vectors(const T* weights, T* into) const {
    std::fill(into, into + p_.edge_size, T(0));
    if (p_.edge_size == N) weigh<N>(weights, vectors_of_pairs(), count_, N, into);
    else weigh<0>(weights, vectors_of_pairs(), count_, p_.edge_size, into);
  }

  void dot_vectors(const T* a, T* s) const {
    if (p_.edge_size == N) dots<N>(a, vectors_of_pairs(), count_, N, s);
    else dots<0>(a, vectors_of_pairs(), count_, p_.edge_size, s);
  }

  // The sums of gradients of one head.
  struct Part {
    T *label_keys, *label_queries, *label_values, *key_gates, *value_gates, *value_maps, *score_maps, *score_weights;
    T* vector_maps;
  };

  Part part(int64_t h) const {
    const EdgeProblem& p = p_;
    T* next = part_ + h * part_numbers(p);
    const auto take = [&](const Tensor& x, int64_t numbers) {
      T* found = next;
      next += x.data ? p.labels * numbers : 0;
      return found;
    };
    T *keys = take(p.label_keys, p.size), *queries = take(p.label_queries, p.size);
    T *values = take(p.label_values, p.value_size), *key_gates = take(p.key_gates, p.size);
    T *value_gates = take(p.value_gates, p.value_size), *maps = take(p.value_maps, p.value_size * p.value_size);
    T* score_maps = take(p.score_maps, p.size * p.size);
    return {keys, queries, values, key_gates, value_gates, maps, score_maps, next, next + p.size};
  }

  // The gradients of tables and gates, summed over the queries of a task.
  void tables(int64_t h) {
    const EdgeProblem& p = p_;
    const Part into = part(h);
    const auto add = [&](const T* weights, const auto& x, int64_t size, T* sums) {
      spread<N>(weights, x, ids_, count_, size, sums, size);
    };
    const OneRow<T> query{row(p.query, h)}, output{row(p.output, h)};
    if (p.label_keys.data && !p.score_weights.data) add(grads_, query, p.size, into.label_keys);
    if (p.label_queries.data) add(grads_, keys(), p.size, into.label_queries);
    if (p.label_values.data && p.output.data) add(scores_, output, p.value_size, into.label_values);
    if (p.key_gates.data) add(grads_, Times<OneRow<T>, Rows<T>>{query, keys()}, p.size, into.key_gates);
    if (p.value_gates.data && p.output.data)
      add(scores_, Times<OneRow<T>, Rows<T>>{output, values()}, p.value_size, into.value_gates);
  }

  void sum_labels(const T* weights, T* into) {
    std::fill(into, into + p_.columns, T(0));
    for (int64_t e = 0; e < count_; e++)
      if (ids_[e] >= 0) into[ids_[e]] += weights[e];
  }

  // The finished scores of one head, and in backward the derivative of the function of scores.
  void score(int64_t h, bool slopes) {
    const EdgeProblem& p = p_;
    T* s = scores_;
    if (p.score_weights.data) {
      if (p.vector_maps.data) map_vectors(h);
      additive([&](auto act) { sum_activations<decltype(act)>(summed(h), s); });
    } else
      gated(keys(), p.key_gates, h,
            [&](const auto& keys) { dot_rows(row(p.query, h), keys, score_maps_, p.label_keys, h, p.size, s); });
    if (p.label_queries.data) {
      dots_of_both<N>(keys(), of_labels(p.label_queries, h), count_, p.size, other_);
      add_row(s, other_, count_);
    }
    if (p.edge_query.data) {
      dot_vectors(row(p.edge_query, h), other_);
      add_row(s, other_, count_);
    }
    scale_row(s, count_, T(p.scale));
    if (p.by_query.data) add_labels(s, row(p.by_query, h), ids_, count_);
    if (p.score_kind) finish(s, slopes);
    if (p.added) mask(s, per_pair(p.added, p.added_step, h));
  }

  // -inf hides a pair whatever its score is.
  void mask(T* s, const T* added) const {
#pragma omp simd
    for (int64_t e = 0; e < count_; e++) s[e] = added[e] == -INF<T> ? -INF<T> : s[e] + added[e];
  }

  void finish(T* s, bool slopes) {
    const T c = T(p_.score_parameter);
    for (int64_t e = 0; e < count_; e++) {
      T slope = 0;
      if (s[e] == -INF<T>) {  // such a pair does not attend
      } else if (p_.score_kind == 1) {
        const T bounded = std::tanh(s[e] / c);
        s[e] = c * bounded;
        slope = 1 - bounded * bounded;
      } else {
        slope = s[e] > 0 ? T(1) : c;
        s[e] *= slope;
      }
      if (slopes) slopes_[e] = slope;
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

  // The factors of dropout on the weights of one head; null without dropout.
  const T* kept(int64_t h) {
    if (p_.factor) return per_pair(p_.factor, p_.factor_step, h);
    if (p_.threshold == 0) return nullptr;
    draw(h);
    return factors_;
  }

  // Random numbers by (batch row, query, key, head); a draw gives those of four heads. Parallel edges are next to each
  // other; the n-th has n in the generator's key, and so another sequence.
  void draw(int64_t h) {
    const uint32_t low = uint32_t(uint64_t(p_.seed)), high = uint32_t(uint64_t(p_.seed) >> 32);
    const uint32_t threshold = uint32_t(p_.threshold), batch = uint32_t(batch_ + p_.origin[0]);
    const uint32_t head = uint32_t(h + p_.origin[1]), query = uint32_t(query_ + p_.origin[2]);
    const T factor = T(p_.kept_factor);
    uint32_t key[PADDED], again[PADDED], repeat = 0;
    for (int64_t start = 0; start < count_; start += PADDED) {
      for (int64_t lane = 0; lane < PADDED; lane++) {
        const int64_t e = std::min(start + lane, count_ - 1);
        repeat = e > 0 && col_[e] == col_[e - 1] ? repeat + 1 : 0;
        key[lane] = uint32_t(col_[e] + p_.origin[3]);
        again[lane] = repeat;
      }
#pragma omp simd
      for (int64_t lane = 0; lane < PADDED; lane++) {
        uint32_t a = key[lane], b = query, c = head / 4, d = batch;
        philox(a, b, c, d, low ^ again[lane], high);
        const uint32_t number = head & 2 ? (head & 1 ? d : c) : (head & 1 ? b : a);
        factors_[start + lane] = number < threshold ? T(0) : factor;
      }
    }
  }

  // The gradients of the weights.
  void incoming(int64_t h, const T* factors) {
    const EdgeProblem& p = p_;
    T* g = grads_;
    if (!p.output.data) std::fill(g, g + count_, T(0));
    else
      gated(values(), p.value_gates, h, [&](const auto& values) {
        dot_rows(row(p.output, h), values, value_maps_, p.label_values, h, p.value_size, g);
      });
    if (p.sums.data) add_labels(g, row(p.sums, h), ids_, count_);
    if (p.edge_sums.data) {
      dot_vectors(row(p.edge_sums, h), other_);
      add_row(g, other_, count_);
    }
    if (factors)
      for (int64_t e = 0; e < count_; e++) g[e] *= factors[e];
    if (p.mass.data) add_labels(g, row(p.mass, h), ids_, count_);
  }

  // For the gradients of vectors.
  void note(int64_t h) const {
    T* noted = noted_of(h);
    for (int64_t e = 0; e < count_; e++) {
      noted[2 * e] = grads_[e];
      noted[2 * e + 1] = scores_[e];
    }
  }

  const EdgeProblem& p_;
  const EdgePairs& pairs_;
  const Nodes<T> nodes_;
  int64_t batch_, query_ = 0, first_ = 0, count_ = 0;
  const int32_t *col_ = nullptr, *ids_ = nullptr;
  T *part_, *scores_, *grads_, *other_, *slopes_, *factors_, *zeros_, *ones_, *own_ = nullptr;
  Present present_;
  std::optional<QueryMaps<T, N>> score_maps_, value_maps_;
};

}  // namespace relgraph
