// Attention over listed pairs only, forward and backward.
//
// Both take one query and one head at a time. The scores of its few pairs stay in the first-level cache while labels,
// softmax, sums by label and the sum of values pass over them. Backward computes the weights again and adds to the
// gradients of keys and values at the same time. Heads come one after the other. The keys, values and gradients of one
// head are packed together unless no cache could hold them, because waiting for gathered rows takes most of the time. A
// task owns everything that it writes. If one head is cut into several tasks, each has separate gradients of keys and
// values, which are added up in order. So no two threads write to the same number, and results repeat bit for bit.
#include "edges.h"

#include <algorithm>

#include "boundary.h"
#include "query.h"
#include "tasks.h"

namespace relgraph {
namespace {

constexpr int64_t ROW_COST = 4;  // a query costs as much as this many pairs

struct Range {
  int64_t begin, end;
};

enum class Pass { forward, backward, factors };

// The queries of a batch row, cut into stretches that cost about the same.
struct Stretches {
  const int64_t* ptr;  // of the batch row
  int64_t rows, count;

  int64_t cost(int64_t row) const { return ptr[row] - ptr[0] + ROW_COST * row; }

  // The first query of a stretch: costs grow with the queries, so it is found by halving.
  int64_t begin(int64_t number) const {
    if (number == count) return rows;
    const int64_t wanted = cost(rows) / count * number;
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

Stretches stretches_of(const EdgeProblem& p, int64_t batch, int64_t count) {
  return {p.pairs->row_ptr + (p.pairs->own ? batch * p.q_len : 0), p.q_len, count};
}

// Numbers of a key, with its value and their gradients, where they are packed.
int64_t packed_size(const EdgeProblem& p, bool gradients) { return (p.size + p.value_size) * (gradients ? 2 : 1); }

// One task: queries of a batch row, with one head of keys and values and the heads of queries that share it.
template <class T, int64_t N> class Task {
 public:
  Task(const EdgeProblem& p, Pass pass, int64_t number, T* room)
      : p_(p), pass_(pass), room_(room), stretch_(number % p.stretches), kv_(number / p.stretches % p.kv_heads),
        batch_(number / p.stretches / p.kv_heads) {}

  void run(T* factors) {
    const Nodes<T> nodes = pass_ == Pass::factors ? Nodes<T>{} : p_.packed ? pack() : in_place();
    const bool backward = pass_ == Pass::backward;
    if (backward) clear(nodes);
    Query<T, N> query(p_, batch_, nodes, room_, backward ? part() : nullptr);
    const Range queries = stretches_of(p_, batch_, p_.stretches).range(stretch_);
    const int64_t group = p_.heads / p_.kv_heads;
    for (int64_t i = queries.begin; i < queries.end; i++) {
      query.place(i);
      for (int64_t h = kv_ * group; h < (kv_ + 1) * group; h++) {
        if (pass_ == Pass::forward) query.forward(h);
        else if (backward) query.backward(h);
        else query.factors(h, factors);
      }
    }
    if (backward && p_.packed) unpack(nodes);
  }

 private:
  // Where this task's gradients of keys and values belong: those of the first stretch are the result, to which those of
  // the others are added later.
  Nodes<T> in_place() const {
    const T *key = row_of<T>(p_.key, batch_, kv_, 0), *value = row_of<T>(p_.value, batch_, kv_, 0);
    Nodes<T> nodes{key, value, nullptr, nullptr, p_.key.row, p_.value.row, 0, 0};
    if (pass_ != Pass::backward) return nodes;
    if (stretch_ == 0) {
      nodes.d_key = own_row<T>(p_.dk, batch_, kv_, 0), nodes.d_key_row = p_.dk.row;
      nodes.d_value = own_row<T>(p_.dv, batch_, kv_, 0), nodes.d_value_row = p_.dv.row;
    } else {
      const int64_t size = packed_size(p_, false), lane = ((stretch_ - 1) * p_.batch + batch_) * p_.kv_heads + kv_;
      nodes.d_key = static_cast<T*>(p_.key_parts) + lane * p_.k_len * size;
      nodes.d_value = nodes.d_key + p_.size;
      nodes.d_key_row = nodes.d_value_row = size;
    }
    return nodes;
  }

  // Copies of the keys and values, each key next to its value and, in backward, room for their gradients.
  Nodes<T> pack() const {
    const Nodes<T> from = in_place();
    const int64_t size = packed_size(p_, pass_ == Pass::backward);
    T* to = room_ + Query<T, N>::room(p_);
    for (int64_t j = 0; j < p_.k_len; j++) {
      std::copy_n(from.key + j * from.key_row, p_.size, to + j * size);
      std::copy_n(from.value + j * from.value_row, p_.value_size, to + j * size + p_.size);
    }
    T* gradients = to + p_.size + p_.value_size;
    return {to, to + p_.size, gradients, gradients + p_.size, size, size, size, size};
  }

  void clear(const Nodes<T>& nodes) const {
    for (int64_t j = 0; j < p_.k_len; j++) {
      std::fill_n(nodes.d_key + j * nodes.d_key_row, p_.size, T(0));
      std::fill_n(nodes.d_value + j * nodes.d_value_row, p_.value_size, T(0));
    }
  }

  void unpack(const Nodes<T>& nodes) const {
    const Nodes<T> to = in_place();
    for (int64_t j = 0; j < p_.k_len; j++) {
      std::copy_n(nodes.d_key + j * nodes.d_key_row, p_.size, to.d_key + j * to.d_key_row);
      std::copy_n(nodes.d_value + j * nodes.d_value_row, p_.value_size, to.d_value + j * to.d_value_row);
    }
  }

  // Cleared room for the sums of gradients, [heads, numbers] of which this task has its heads; or null.
  T* part() const {
    const int64_t head = part_numbers(p_), group = p_.heads / p_.kv_heads;
    if (head == 0) return nullptr;
    T* found = static_cast<T*>(p_.label_parts) + (batch_ * p_.stretches + stretch_) * p_.heads * head;
    std::fill_n(found + kv_ * group * head, group * head, T(0));
    return found;
  }

  const EdgeProblem& p_;
  Pass pass_;
  T* room_;
  int64_t stretch_, kv_, batch_;
};

// Adds the gradients of keys and values of one head that the other stretches computed.
template <class T> void add_stretches(const EdgeProblem& p, int64_t batch, int64_t kv) {
  const int64_t size = packed_size(p, false);
  for (int64_t s = 0; s + 1 < p.stretches; s++) {
    const T* part = static_cast<const T*>(p.key_parts) + ((s * p.batch + batch) * p.kv_heads + kv) * p.k_len * size;
    for (int64_t j = 0; j < p.k_len; j++) {
      add_row(own_row<T>(p.dk, batch, kv, j), part + j * size, p.size);
      add_row(own_row<T>(p.dv, batch, kv, j), part + j * size + p.size, p.value_size);
    }
  }
}

// The gradients of the tables, maps and weights of one head: the sums of all tasks, one after the other.
template <class T> void sum_parts(const EdgeProblem& p, int64_t h) {
  const int64_t tasks = p.batch * p.stretches, head = part_numbers(p);
  const T* part = static_cast<const T*>(p.label_parts) + h * head;
  const auto sum = [&](const Tensor& into, int64_t numbers) {
    if (!into.data) return;
    T* sums = own_row<T>(into, 0, h, 0);
    std::fill_n(sums, numbers, T(0));
    for (int64_t task = 0; task < tasks; task++) add_row(sums, part + task * p.heads * head, numbers);
    part += numbers;
  };
  sum(p.d_label_keys, p.labels * p.size);
  sum(p.d_label_queries, p.labels * p.size);
  sum(p.d_label_values, p.labels * p.value_size);
  sum(p.d_key_gates, p.labels * p.size);
  sum(p.d_value_gates, p.labels * p.value_size);
  sum(p.d_value_maps, p.labels * p.value_size * p.value_size);
  sum(p.d_score_maps, p.labels * p.size * p.size);
  sum(p.d_score_weights, p.size);
  sum(p.d_vector_maps, p.edge_size * p.size);
}

// The gradients of the pairs' vectors, in one batch row after the other, as these add to the same vectors.
template <class T, int64_t N> void of_vectors(const EdgeProblem& p) {
  const int64_t cuts = p.threads;
  for (int64_t batch = 0; batch < p.batch; batch++)
    for_each_task(cuts, p.threads, p.parallel, [&](int64_t cut, int64_t thread) {
      Query<T, N> query(p, batch, {}, static_cast<T*>(p.workspace) + thread * p.workspace_numbers);
      const Range queries = stretches_of(p, batch, cuts).range(cut);
      for (int64_t i = queries.begin; i < queries.end; i++) {
        query.place(i);
        query.vectors();
      }
    });
}

template <class T, int64_t N> void run(const EdgeProblem& p, Pass pass, T* factors) {
  const int64_t lanes = p.batch * p.kv_heads;
  for_each_task(lanes * p.stretches, p.threads, p.parallel, [&](int64_t task, int64_t thread) {
    Task<T, N>(p, pass, task, static_cast<T*>(p.workspace) + thread * p.workspace_numbers).run(factors);
  });
  if (pass != Pass::backward) return;
  if (p.stretches > 1)
    for_each_task(lanes, p.threads, p.parallel,
                  [&](int64_t lane, int64_t) { add_stretches<T>(p, lane / p.kv_heads, lane % p.kv_heads); });
  if (part_numbers(p)) for_each_task(p.heads, p.threads, p.parallel, [&](int64_t h, int64_t) { sum_parts<T>(p, h); });
  if (p.d_attr) of_vectors<T, N>(p);
}

template <class T> void of_size(const EdgeProblem& p, Pass pass, T* factors) {
  const int64_t size = p.size == p.value_size ? p.size : 0;
  if (size == 16) run<T, 16>(p, pass, factors);
  else if (size == 32) run<T, 32>(p, pass, factors);
  else if (size == 64) run<T, 64>(p, pass, factors);
  else run<T, 0>(p, pass, factors);
}

// Returns 0.
int64_t start(const EdgeProblem& p, Pass pass, void* factors) {
  return guarded([&] {
    if (p.heads == 0 || p.kv_heads == 0 || p.batch == 0) return 0;  // then all results are empty
    if (p.bytes == 8) of_size(p, pass, static_cast<double*>(factors));
    else of_size(p, pass, static_cast<float*>(factors));
    return 0;
  });
}

}  // namespace
}  // namespace relgraph

extern "C" {
int64_t relgraph_edges_size() { return sizeof(relgraph::EdgeProblem); }
int64_t relgraph_edges_pairs_size() { return sizeof(relgraph::EdgePairs); }

// Numbers of workspace that a thread needs.
int64_t relgraph_edges_room(const relgraph::EdgeProblem* p, int64_t backward) {
  using Query = relgraph::Query<float, 0>;
  return relgraph::guarded([=] {
    const int64_t packed = p->packed ? p->k_len * relgraph::packed_size(*p, backward) : 0;
    return Query::room(*p) + Query::padded(packed);
  });
}

int64_t relgraph_edges_forward(const relgraph::EdgeProblem* p) { return start(*p, relgraph::Pass::forward, nullptr); }

int64_t relgraph_edges_backward(const relgraph::EdgeProblem* p) { return start(*p, relgraph::Pass::backward, nullptr); }

// The factors of dropout on the weights, [lanes, P].
int64_t relgraph_edges_factors(const relgraph::EdgeProblem* p, void* into) {
  return start(*p, relgraph::Pass::factors, into);
}

// Narrower copies of key and label of pairs that are sorted by query. Returns the most pairs of a query, or -1 if
// a number does not fit its bounds.
int64_t relgraph_edges_prepare(const relgraph::EdgePairs* pairs, const int64_t* col, const int64_t* ids,
                               const int64_t* order, int64_t k_len, int64_t labels) {
  return relgraph::guarded([=] {
    const int64_t *row_ptr = pairs->row_ptr, rows = pairs->rows;
    const auto writable = [](const int32_t* x) { return const_cast<int32_t*>(x); };
    const auto within = [](int64_t x, int64_t low, int64_t stop) { return low <= x && x < stop; };
    bool fits = row_ptr[0] == 0 && row_ptr[rows] == pairs->count;
    int64_t longest = 0;
    for (int64_t row = 0; row < rows; row++) {
      fits = fits && row_ptr[row] <= row_ptr[row + 1];
      longest = std::max(longest, row_ptr[row + 1] - row_ptr[row]);
    }
    for (int64_t e = 0; e < pairs->count; e++) {
      fits = fits && within(col[e], 0, k_len) && within(ids[e], -1, labels) && within(order[e], 0, pairs->count);
      writable(pairs->col)[e] = int32_t(col[e]);
      writable(pairs->ids)[e] = int32_t(ids[e]);
    }
    return fits ? longest : -1;
  });
}
}
