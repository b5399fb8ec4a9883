// The arguments from Python: plain numbers and pointers, no torch headers, so one binary serves every torch version.
// structs.py reads this file, so plain data only: numbers, arrays, structs, pointers.
#pragma once
#include <cstdint>

namespace relgraph {

using Gemm32 = void (*)(const char*, const char*, const int*, const int*, const int*, const float*, const float*,
                        const int*, const float*, const int*, const float*, float*, const int*);
using Gemm64 = void (*)(const char*, const char*, const int*, const int*, const int*, const double*, const double*,
                        const int*, const double*, const int*, const double*, double*, const int*);
// C (+)= A B of row-major matrices: m, n, k, strides of A, B and C, whether to add, A, B, C, and a layout that is not
// used.
using Blocked = void (*)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, const float*, const float*, float*,
                         bool);
// The same with A and B in bfloat16; the rows of B are stored in pairs, [k / 2, n, 2].
using BlockedHalf = void (*)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, const uint16_t*,
                             const uint16_t*, float*, bool);
using Release = void (*)(bool);
// Runs a function once on each thread of the framework's pool: GOMP_parallel.
using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

// A tensor [batch, heads, rows, size] whose last dimension is dense.
struct Tensor {
  void* data;
  int64_t batch, head, row;  // strides, in numbers
};

// A row that is read, and one that the caller owns.
template <class T> const T* row_of(const Tensor& x, int64_t b, int64_t h, int64_t i) {
  return static_cast<const T*>(x.data) + b * x.batch + h * x.head + i * x.row;
}

template <class T> T* own_row(const Tensor& x, int64_t b, int64_t h, int64_t i) {
  return static_cast<T*>(x.data) + b * x.batch + h * x.head + i * x.row;
}

// One summand of the labels: ids by distance or written out, with listed pairs over either.
// Ids: -1 is without a label, -2 does not attend.
struct Part {
  int64_t num_labels;
  int64_t first_column;     // in B, C and the sums; the labels' columns are followed by one of zeros
  const int64_t* offsets;   // key position of query row 0, per batch row or graph
  int64_t offset_step;      // 1, or 0 if one offset serves all
  int64_t first_distance;   // ids by distance: distance first_distance + s has id lookup[s]
  int64_t lookup_length;    // 0 if ids are written out
  int64_t affine;           // whether the ids between both ends go up one by one
  const int32_t* lookup;
  const void* ids;          // written out: [batch or 1, q_len, k_len], or one block per graph
  int64_t id_bytes;
  int64_t ids_step;         // numbers from one batch row to the next, or 0
  const int64_t* starts;    // packed: where each graph's block begins
  const int64_t* row_ptr;   // listed pairs by query row, or null
  const int64_t* col;
  const int64_t* listed;
  const int8_t* role;       // 1 first, 2 further label of the same pair, 0 ignored
  int64_t list_step;        // rows from one batch row to the next, or 0
  int64_t full;             // whether every pair is known to attend
};

struct Problem {
  int64_t bytes;  // 4: float32, 8: float64
  int64_t batch, heads, kv_heads, q_len, k_len, size, value_size, columns;
  int64_t graphs;  // 0 if the batch is not packed
  const int64_t *q_ptr, *k_ptr;
  int64_t num_parts;
  const Part* parts;
  Tensor query, key, value;
  Tensor by_query;  // B; data is null without it
  Tensor by_key;    // C transposed, [batch, heads, columns, k_len]
  // The vectors that labels add to keys, [label_rows, size], in the place of B, shared by the heads or one set per head.
  Tensor label_keys;
  // b, which all queries share: [1, heads, 1, label_rows]. Without label_keys, and if batch rows share their labels, the
  // biases of all pairs, [1, heads, q_len, k_len], may be written out once for all of them.
  Tensor label_biases, pair_biases;
  // The vectors that labels add to values, [label_rows, value_size]. In backward also their transpose, [value_size,
  // columns in the order of a table's row in memory], and the gradient of the output in the type of sums.
  Tensor label_values, turned_label_values, d_output;
  // W, which maps values by label, and that of scores qᵀ W k: [heads, labels, size * size]. They need one part.
  Tensor value_maps, score_maps;
  // w of scores w · act(q + k + a): [1, heads, 1, size]. The vectors a that labels add, as turned_label_values has them.
  Tensor score_weights, added_keys;
  int64_t label_rows;  // the columns; of one part without the last one, which is of zeros
  int64_t sliced;      // whether a block multiplies only the rows of label_keys that it reads; of one plain part
  const void* mask;
  int64_t mask_kind;  // 0 none, 1 bool, 2 added
  int64_t mask_strides[4];
  const void* keep;  // a given dropout mask, 1 keeps
  int64_t keep_strides[4];
  int64_t seed;       // of a drawn one
  int64_t origin[4];  // batch row, head, query and key of the first ones here, if this is a part of a larger problem
  int64_t causal;  // whether query i sees keys up to i + causal_offsets
  const int64_t* causal_offsets;
  int64_t causal_step;
  double scale, dropout_p;
  int64_t score_kind;  // 0 none, 1 softcap, 2 leaky relu
  double score_parameter;
  int64_t activation;  // with score_weights: 0 leaky relu, 1 tanh, 2 relu, 3 elu, 4 gelu, 5 silu
  // outputs of forward; in backward their gradients, without data if there is none
  Tensor output, sums, mass;
  void* lse;  // [batch, heads, q_len]; in backward null
  int64_t is_backward;
  // backward: the outputs of forward, the gradient of the log-sum-exp or null, and the gradients to compute
  Tensor given_output, given_sums, given_mass;
  const void* d_lse;
  Tensor dq, dk, dv, d_by_query, d_by_key;  // dk, dv, d_by_key: [splits, batch, heads, rows, size]
  int64_t dk_split, dv_split, d_by_key_split;  // numbers from one split to the next
  // The gradients of b, which begin as zeros: a row for each split and slot, [slots, heads, splits, columns], where a
  // slot is a share of shared runs, else a run. If the biases of all pairs are written out: the gradients of pairs for
  // each share, [shares, heads, q_len, k_len], and their sums by label, [1, heads, 1, columns].
  Tensor d_label_biases, d_pair_biases;
  Tensor d_label_keys;  // if sliced: it begins as zeros, [slots * splits, heads, label_rows, size]
  // The same for maps and weights: [slots * splits, heads, rows, numbers]. That of added_keys has a row for each number of
  // a vector, [size, columns].
  Tensor d_value_maps, d_score_maps, d_score_weights, d_added_keys;
  // Whether all runs, and whether all heads, add to the same gradients of labels or pairs. Tasks that do are cut into
  // shares, each with gradients of its own.
  int64_t shared_runs, shared_heads, shares;
  const int64_t* blocks;  // [num_blocks, 3]: graph or batch row, first query in it, number of queries
  int64_t num_blocks, block_rows;
  const int64_t* block_ptr;  // [runs + 1]: a run is the blocks of one graph or batch row, the costly ones first
  const int64_t* run_graphs;  // [runs]: which graph or batch row
  int64_t runs;
  int64_t splits;       // backward: into how many parts a run's blocks are cut; each has separate gradients of keys
  int64_t most_keys;    // of a graph
  void* workspace;
  int64_t workspace_numbers;  // per thread
  int64_t threads;
  void* gemm;  // Gemm32 or Gemm64
  Parallel parallel;
  // faster products, or null: of float32, of bfloat16
  Blocked blocked;
  BlockedHalf blocked_half;
  Release release;  // each thread calls it after them
  int64_t half;    // whether query, key and value (and in backward the gradient of the output) are bfloat16
  int64_t step;    // without panels, float32: the faster products sum over multiples of this many keys; or 0
  int64_t panel;   // keys per panel
  int64_t panels;  // per head, or 0 if keys and values are multiplied in place
  // [batch, kv_heads, panels, ...]: keys and values transposed, [size, panel], and as rows, [panel, size]
  void *turned_keys, *turned_values, *key_rows, *value_rows;
  // The gradient of an added mask, which begins as zeros: [rooms, batch or 1, heads or 1, q_len, k_len] with a room per
  // share. If all keys have the same number: a sum per row, [batch, heads, q_len, 1]; if all queries do: sums per key,
  // [splits, batch, heads, 1, k_len].
  Tensor d_mask;
  int64_t d_mask_key;   // 1, or 0 for a sum per row
  int64_t d_mask_room;  // numbers from one room to the next; 0 if there is one
  // A vector for each listed pair of the only part, in their order, [vector_count, vector_size], or null. What meets them
  // in the score of each query and head, [batch, heads, q_len, vector_size], and their sums by weight, of the same shape;
  // each without data if there is none. In backward the latter is its gradient.
  const void* vectors;
  int64_t vector_count, vector_size;
  Tensor vector_queries, vector_sums;
  // Backward: the sums of forward, the gradient of vector_queries, and if the vectors need one: theirs, and room for two
  // numbers per pair, which begin as zeros, [batch or 1, heads, vector_count, 2].
  Tensor given_vector_sums, d_vector_queries;
  void *d_vectors, *noted;
};

}  // namespace relgraph
