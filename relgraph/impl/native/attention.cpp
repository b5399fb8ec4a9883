// Attention with labels on a CPU: forward and backward of the one primitive, a block of query rows at a time.
//
// A block's scores with all keys fit into the second-level cache. One product makes them, then loops pass over each row
// while it is in the first-level cache (terms by label, maximum, exponentials, sums by label), then one product makes
// the output.
// Backward computes the weights again, maxima included: the log-sum-exp of large scores is too coarse to give them.
#include <utility>

#include "block.h"
#include "boundary.h"
#include "pair_biases.h"
#include "tasks.h"

#ifndef RELGRAPH_SOURCES  // the hash of all these files, which compiler.py gives
#define RELGRAPH_SOURCES ""
#endif

namespace relgraph {
namespace {

// T: of scores and sums; E: of the numbers that are multiplied.
template <class T, class E> class Passes {
 public:
  explicit Passes(const Problem& p) : p_(p) {}

  void forward() const {
    lay_panels();
    write_pair_biases();
    start(p_.num_blocks * p_.heads, [&](int64_t task, int64_t thread) {
      const auto [block, head] = block_and_head(task);
      Block<T, E>(p_, block, head, 0, 0, room(thread)).forward();
    });
  }

  void backward() const {
    lay_panels();
    write_pair_biases();
    // One task has all runs and heads that add to the same gradients of labels or pairs, or a share of them. Without
    // such gradients it has one run of one head, or a split of it. Costly runs come first.
    if (p_.runs == 0 || p_.kv_heads == 0) return;
    const int64_t runs = p_.shared_runs ? p_.runs : 1, heads = p_.shared_heads ? p_.kv_heads : 1;
    const int64_t first_heads = p_.kv_heads / heads, together = runs * heads, lanes = p_.runs / runs * first_heads;
    start(lanes * p_.shares * p_.splits, [&](int64_t task, int64_t thread) {
      const int64_t split = task % p_.splits, rest = task / p_.splits, share = rest / lanes, lane = rest % lanes;
      for (int64_t i = together * share / p_.shares; i < together * (share + 1) / p_.shares; i++)
        gradients(lane / first_heads + i % runs, lane % first_heads + i / runs, split, share, room(thread));
    });
    if (p_.d_vectors) {
      const int64_t rows = std::max<int64_t>(p_.parts[0].list_step * p_.batch, p_.q_len), stretches = (rows + 63) / 64;
      start(stretches, [&](int64_t task, int64_t) {
        for (int64_t row = 64 * task; row < std::min(64 * task + 64, rows); row++) vector_gradients<T>(p_, row);
      });
    }
    if (!p_.d_pair_biases.data) return;
    start(p_.heads, [&](int64_t head, int64_t thread) { PairBiases<T>(p_, head, room(thread)).sum_by_label(); });
  }

 private:
  void lay_panels() const {
    if constexpr (sizeof(T) == 4)
      start(p_.batch * p_.kv_heads * p_.panels, [&](int64_t task, int64_t) { lay_panel<E>(p_, task); });
  }

  // The biases of all pairs, if they are written out.
  void write_pair_biases() const {
    if (!p_.pair_biases.data) return;
    start(p_.heads, [&](int64_t head, int64_t thread) { PairBiases<T>(p_, head, room(thread)).write(); });
  }

  // A task owns the gradients of its keys: a part of its run's blocks, with all query heads of its key head.
  void gradients(int64_t run, int64_t kv_head, int64_t split, int64_t share, T* room) const {
    const int64_t group = p_.heads / p_.kv_heads;
    clear(p_.run_graphs[run], kv_head, split);
    const int64_t first = p_.block_ptr[run], count = p_.block_ptr[run + 1] - first;
    const int64_t from = first + count * split / p_.splits, to = first + count * (split + 1) / p_.splits;
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
      for (int64_t block = from; block < to; block++) Block<T, E>(p_, block, head, split, share, room).backward();
  }

  // Zeros for the gradients of a graph's keys, just before they are added up in the cache.
  void clear(int64_t graph, int64_t kv_head, int64_t split) const {
    const Problem& p = p_;
    const int64_t batch = p.graphs ? 0 : graph, group = p.heads / p.kv_heads;
    const int64_t first = p.graphs ? p.k_ptr[graph] : 0, keys = p.graphs ? p.k_ptr[graph + 1] - first : p.k_len;
    const auto zeros = [](T* at, int64_t stride, int64_t rows, int64_t n) {
      for (int64_t i = 0; i < rows; i++) std::fill_n(at + i * stride, n, T(0));
    };
    if (p.dk.data) zeros(own_row<T>(p.dk, batch, kv_head, first) + split * p.dk_split, p.dk.row, keys, p.size);
    if (p.dv.data) zeros(own_row<T>(p.dv, batch, kv_head, first) + split * p.dv_split, p.dv.row, keys, p.value_size);
    if (!p.d_by_key.data) return;
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
      zeros(own_row<T>(p.d_by_key, batch, head, 0) + split * p.d_by_key_split + first, p.d_by_key.row, p.columns, keys);
  }

  // In a batch the blocks of one head follow each other, so that its keys and values stay in the cache.
  std::pair<int64_t, int64_t> block_and_head(int64_t task) const {
    if (p_.graphs) return {task / p_.heads, task % p_.heads};
    const int64_t blocks = p_.num_blocks / p_.batch;
    return {task / (blocks * p_.heads) * blocks + task % blocks, task / blocks % p_.heads};
  }

  T* room(int64_t thread) const { return static_cast<T*>(p_.workspace) + thread * p_.workspace_numbers; }

  template <class Body> void start(int64_t tasks, const Body& body) const {
    for_each_task(tasks, p_.threads, p_.parallel, body, [&] {
      if (p_.release) p_.release(true);
    });
  }

  const Problem& p_;
};

// Calls `pass` with the passes of the problem's types.
template <class Pass> int64_t with_types(const Problem& p, Pass pass) {
  return guarded([&] {
    if (p.half) pass(Passes<float, uint16_t>(p));
    else if (p.bytes == 4) pass(Passes<float, float>(p));
    else pass(Passes<double, double>(p));
    return 0;
  });
}

}  // namespace
}  // namespace relgraph

extern "C" {
const char* relgraph_message() { return relgraph::message(); }
const char* relgraph_sources() { return RELGRAPH_SOURCES; }
int64_t relgraph_problem_size() { return sizeof(relgraph::Problem); }
int64_t relgraph_part_size() { return sizeof(relgraph::Part); }

// How many numbers each thread needs; everything but the workspace is known.
int64_t relgraph_workspace(const relgraph::Problem* p) {
  return relgraph::guarded([=] { return relgraph::Room(*p, p->most_keys).total; });
}

// These return 0.
int64_t relgraph_forward(const relgraph::Problem* p) {
  return relgraph::with_types(*p, [](const auto& passes) { passes.forward(); });
}

int64_t relgraph_backward(const relgraph::Problem* p) {
  return relgraph::with_types(*p, [](const auto& passes) { passes.backward(); });
}
}
