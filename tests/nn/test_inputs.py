"""The attention layer refuses arguments that do not fit together."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from relgraph.labelers import ClippedDistance, Window
from relgraph.labels import DenseLabels, DistanceLabels, EdgeLabels, SumLabels
from relgraph.nn import KVCache, RelationTables
from tests.layers import attention_layer, decoder_layer, encoder_layer

LABELER = ClippedDistance(2)
X = torch.zeros(2, 5, 12)
M = torch.zeros(2, 3, 12)
LABELS = LABELER(5)


def layer(num_labels=5, **options):
    return attention_layer(12, 3, num_labels=num_labels, **options)


EDGE = torch.tensor([[0], [1]])
ONE, NONE = torch.zeros(1, dtype=torch.long), torch.full((1,), -1)

WITH_IDS = {
    "distance": LABELS,
    "dense": DenseLabels(torch.eye(5).long() - 1, 3),
    "batch": DenseLabels(torch.zeros(2, 5, 5, dtype=torch.long), 3),
    "edges": EdgeLabels(EDGE, ONE, 3, q_len=5),
    "edges over none": EdgeLabels(EDGE, ONE, 3, q_len=5, default=-1),
    "default": EdgeLabels(EDGE, NONE, 3, q_len=5, default=0),
    "over distance": EdgeLabels(EDGE, NONE, 5, q_len=5, default=LABELS),
    "sum": SumLabels(Window(1)(5), LABELS),
}
WITHOUT_IDS = {
    "window": Window(1)(5),
    "distance": DistanceLabels(5, lookup=[-2, -1], left=0, num_labels=3),
    "dense": DenseLabels(torch.full((5, 5), -1), 0, attend=torch.eye(5, dtype=torch.bool)),
    "dense of three": DenseLabels(torch.full((5, 5), -1), 3, attend=torch.eye(5, dtype=torch.bool)),
    "edges": EdgeLabels(EDGE, NONE, 0, q_len=5),
    "edges over none": EdgeLabels(EDGE, NONE, 3, q_len=5, default=-1),
    "no edges": EdgeLabels(EDGE[:, :0], NONE[:0], 3, q_len=5),
    "over window": EdgeLabels(EDGE, NONE, 3, q_len=5, default=Window(1)(5)),
    "sum": SumLabels(Window(1)(5), Window(2)(5)),
}


@pytest.mark.parametrize("labels", WITH_IDS.values(), ids=WITH_IDS)
def test_a_layer_without_tables_refuses_ids(labels):
    refused = pytest.raises(
        ValueError, match=r"labels must say who attends .* give the layer num_labels=.*, got .*Labels"
    )
    for made in (layer(None), encoder_layer(12, 3, 16)):
        with refused:
            made(X, labels=labels)
    with pytest.raises(ValueError, match="memory_labels must say who attends .* cross_attention with num_labels="):
        decoder_layer(12, 3, 16)(X, X, memory_labels=labels)


@pytest.mark.parametrize("labels", WITHOUT_IDS.values(), ids=WITHOUT_IDS)
def test_labels_without_ids_say_who_attends(labels):
    bare, x = layer(None), torch.randn(2, 5, 12)
    attend = (labels.parts[0] if isinstance(labels, SumLabels) else labels).to_dense()[1]
    torch.testing.assert_close(bare(x, labels=labels), bare(x, attn_mask=~attend[0]))


def test_ids_that_cannot_be_looked_at_are_refused():
    none = DenseLabels(torch.full((5, 5), -1), 3)
    bare = layer(None).to("meta")
    with pytest.raises(ValueError, match="or make the labels with num_labels=0"):
        bare(X.to("meta"), labels=none.to("meta"))
    bare(X.to("meta"), labels=DenseLabels(torch.full((5, 5), -1), 0).to("meta"))


def test_raw_labels_need_one_table():
    ids = torch.zeros(5, 5, dtype=torch.long)
    for num_labels in (None, (5, 3)):
        with pytest.raises(ValueError, match="labels must be Labels if the layer has no tables, or tables for a sum"):
            layer(num_labels)(X, labels=ids)


def test_options_without_labels():
    for labels in (None, Window(1)(5)):
        with pytest.raises(ValueError, match="need_label_mass must be False for a layer without tables"):
            layer(None)(X, labels=labels, need_label_mass=True)
    with pytest.raises(ValueError, match="features .*must be None for a layer without tables"):
        layer(None)(X, bank_features=X)
    with pytest.raises(ValueError, match="q_offset must be given with is_causal when queries and keys differ"):
        layer(None)(X, M, is_causal=True)


def test_caches():
    grown = KVCache()
    layer(None)(X, is_causal=True, cache=grown)
    for options, match in (
        ({"q_offset": 5}, "q_offset must be left out with a cache that grows, which sets it"),
        (
            {"labels": LABELER(5, 10)},
            "labels must be built with q_offset = 5, the number of keys in the cache, got None",
        ),
        ({"labels": LABELER(5, 10, q_offset=4)}, "labels must be built with q_offset = 5, .* got 4"),
        ({"labels": LABELER(5)}, r"labels must cover \[N_q, N_k\] = \[5, 10\], got \[5, 5\]"),
    ):
        with pytest.raises(ValueError, match=match):
            layer(5 if "labels" in options else None)(X, is_causal=True, cache=grown, **options)
    with pytest.raises(ValueError, match="cache must be static when key is not query, got one that grows"):
        layer(None)(X, M, cache=grown)
    with pytest.raises(ValueError, match="cache holds 2 batch rows, got 1: reset or reorder it first"):
        layer(None)(X[:1], is_causal=True, cache=grown)
    with pytest.raises(ValueError, match=r"cache must hold at most max_len = 4 keys, got 0 \+ 5"):
        layer(None)(X, cache=KVCache(4))
    assert len(grown) == 5


def test_labels_within_others_must_start_where_the_cache_ends():
    cache = KVCache()
    layer(None)(X, is_causal=True, cache=cache)
    both = (LABELER + LABELER)(5, 10, q_offset=3)
    with pytest.raises(ValueError, match="labels must be built with q_offset = 5, .* got 3"):
        layer((5, 5))(X, is_causal=True, cache=cache, labels=both)
    edge = torch.zeros(2, 1, dtype=torch.long), torch.zeros(1, dtype=torch.long)
    for offset, found in ((3, pytest.raises(ValueError, match="q_offset = 5, .* got 3")), (5, nullcontext())):
        over = EdgeLabels(*edge, 5, q_len=5, k_len=10, default=LABELER(5, 10, q_offset=offset))
        with found:
            layer()(X, is_causal=True, cache=cache, labels=over)


def test_static_caches():
    cache = KVCache(static=True)
    with pytest.raises(ValueError, match="key must be given to fill the static cache, got None"):
        layer(None)(X, cache=cache)
    layer(None)(X, M, cache=cache)
    with pytest.raises(ValueError, match=r"the memory that the static cache holds, 3, got 5: reset the cache"):
        layer(None)(X, X, cache=cache)
    with pytest.raises(ValueError, match="cache holds 2 batch rows, got 1"):
        layer(None)(X[:1], cache=cache)
    with pytest.raises(ValueError, match=r"key_padding_mask must have shape \[B, N_k\] = \[2, 3\], got \[2, 5\]"):
        layer(None)(X, cache=cache, key_padding_mask=torch.zeros(2, 5))


def test_tables_that_do_not_fit():
    tables = RelationTables(5, 4, 3, per_head=True)
    with pytest.raises(ValueError, match="num_labels must be that of the tables, 5, got 6"):
        attention_layer(12, 3, num_labels=6, tables=tables)
    with pytest.raises(ValueError, match="tables must be for 2 heads of 4, got 3 heads of 4"):
        attention_layer(8, 2, tables=tables)
    with pytest.raises(ValueError, match="tables must be for 3 heads of 5, got any number of heads of 4"):
        attention_layer(15, 3, tables=RelationTables(5, 4))
    assert attention_layer(12, 3, num_labels=5, tables=tables).tables is tables
