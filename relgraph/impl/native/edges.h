// Edges-only attention as Python passes it: plain numbers and pointers, which structs.py reads from here.
#pragma once
#include "problem.h"

namespace relgraph {

// Listed pairs, sorted by query. Batch rows share them, or their pairs differ; then row_ptr counts through the queries
// of all batch rows. Keys are always counted within a batch row.
struct EdgePairs {
  int64_t own;          // 1 if pairs differ between batch rows
  int64_t count;        // P
  int64_t rows;         // that row_ptr counts through
  const int64_t* row_ptr;
  const int32_t* col;   // key of each pair
  const int32_t* ids;   // label of each pair, -1 without one
};

struct EdgeProblem {
  int64_t bytes;  // 4: float32, 8: float64
  int64_t batch, heads, kv_heads, q_len, k_len, size, value_size, columns, edge_size;
  const EdgePairs* pairs;
  Tensor query, key, value;
  Tensor by_query;          // B, [batch, heads, q_len, columns]; data is null without it
  Tensor edge_query;        // [batch, heads, q_len, edge_size], or null: its product with a pair's vector joins q·k
  Tensor label_keys, label_values, label_queries;  // tables [heads, labels, size] (no batch stride), or null
  const void* attr;         // edge vectors of the pairs, [P, edge_size], or null
  int64_t attr_stride;
  const void* added;        // one number per pair that is added to finished scores, [lanes or 1, P], or null
  int64_t added_step;       // from one lane to the next; a lane is one head (of one batch row, if these share pairs)
  const void* factor;       // factor on weights after the softmax, [lanes or 1, P], or null
  int64_t factor_step;
  int64_t seed;             // dropout by counter
  int64_t origin[4];        // numbers that dropout adds to batch row, head, query and key, in a part of a larger call
  int64_t threshold;        // numbers of 32 bits below it are dropped; 0 drops none
  double scale, kept_factor;  // 1 / (1 - p): the factor on weights that dropout by counter keeps
  int64_t score_kind;       // 0 none, 1 softcap, 2 leaky relu
  double score_parameter;
  // outputs of forward; in backward the incoming gradients, null if an output was not used
  Tensor output, sums, mass, edge_sums;
  void* lse;                // [batch, heads, q_len]
  // gradients; data is null if none is needed
  Tensor dq, dk, dv, d_by_query, d_edge_query;
  Tensor d_label_keys, d_label_values, d_label_queries;
  void* label_parts;        // [batch, stretches, heads, numbers]: sums of a task, room for tables, maps and weights
  int64_t labels;           // R, of the tables
  void* d_attr;             // [P, edge_size]
  void* noted;              // gradient of the score and weight of every pair, [lanes, P, 2], if vectors learn
  void* key_parts;          // [stretches - 1, batch, kv_heads, k_len, size + value_size]: dk, dv of all but the first
  void* workspace;
  int64_t workspace_numbers;  // per thread
  int64_t packed;             // 1 to copy the keys and values of one head next to each other
  int64_t longest;            // most pairs of a query
  int64_t stretches;          // that the queries of a batch row are cut into
  int64_t threads;
  Parallel parallel;
  Tensor key_gates, value_gates;  // what labels multiply keys and values by, as the tables, or null; and their gradients
  Tensor d_key_gates, d_value_gates;
  void* d_added;            // gradient of what is added to each pair, [lanes, P], or null
  // Maps per label, [heads, labels, size · size] (no batch stride), and the same transposed; or null.
  Tensor value_maps, turned_value_maps, score_maps, turned_score_maps;
  Tensor score_weights;       // w of an additive score, [heads, size], in the place of products; or null
  int64_t activation;         // of such a score: 0 leaky relu, 1 tanh, 2 relu, 3 elu, 4 gelu, 5 silu
  Tensor vector_maps;         // maps of the pairs' vectors inside such a score, [heads, edge_size, size], or null
  Tensor d_value_maps, d_score_maps, d_score_weights, d_vector_maps;
};

}  // namespace relgraph
