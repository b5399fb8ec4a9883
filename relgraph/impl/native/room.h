// Where a thread's numbers are in its workspace.
#pragma once
#include <algorithm>

#include "additive.h"
#include "labels.h"
#include "mapped.h"
#include "problem.h"

namespace relgraph {

struct Room {
  int64_t chunk;   // keys at a time in backward
  int64_t stride;  // of a row of scores
  int64_t by_query_stride;  // of a row of numbers that labels add to scores
  int64_t width;   // of a table row in memory: the columns, and two guards for each part's one column of zeros
  int64_t other_stride, other, slopes, table, sums, by_label, by_query, wide, spare, shares, narrow, turned, query_rows, output_rows;
  int64_t additive, score_maps, value_maps, tile_labels;
  int64_t total;

  Room(const Problem& p, int64_t keys) {
    const bool is_backward = p.is_backward != 0;
    const int64_t rows = p.block_rows;
    chunk = p.panels ? p.panel : std::max<int64_t>(keys, 1);
    stride = up(keys, p.panels ? p.panel : p.step ? p.step : 16);
    width = p.columns + p.num_parts;
    other_stride = std::min(stride, up(chunk, p.step ? p.step : 16));
    other = rows * stride;
    slopes = other + (is_backward ? rows * other_stride : 0);
    table = slopes + (is_backward && p.score_kind ? rows * stride : 0);
    sums = table + 2 * width;
    by_label = up(sums + LANES * width, 16);
    by_query_stride = p.sliced ? up(std::min(keys + rows - 1, p.parts[0].lookup_length), 16) : p.columns;
    by_query = by_label + (p.turned_label_values.data ? rows * p.turned_label_values.row : 0);
    wide = by_query + (p.label_keys.data ? rows * by_query_stride : p.label_biases.data ? p.columns : 0);
    spare = wide + (p.label_keys.data && p.half ? rows * p.size : 0);
    shares = spare + keys;
    narrow = up(shares + rows, 16);
    // numbers of two bytes from here on, counted in float32
    turned = narrow + (p.half ? rows * chunk / 2 : 0);
    query_rows = turned + (p.half && is_backward ? rows * chunk / 2 : 0);
    output_rows = query_rows + (p.half && is_backward ? rows * p.size / 2 : 0);
    additive = up(output_rows + (p.half && is_backward ? rows * p.value_size / 2 : 0), 16);
    score_maps = up(additive + (p.score_weights.data ? Additive<float>::numbers(p) : 0), 16);
    value_maps = up(score_maps + (p.score_maps.data ? Mapped<float>::numbers(p, p.size) : 0), 16);
    tile_labels = up(value_maps + (p.value_maps.data ? Mapped<float>::numbers(p, p.value_size) : 0), 16);
    total = up(tile_labels + (p.score_maps.data || p.value_maps.data ? TileLabels<float>::numbers(p) : 0), 16);
  }

 private:
  static int64_t up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }
};

}  // namespace relgraph
