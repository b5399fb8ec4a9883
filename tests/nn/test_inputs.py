"""What the attention layer refuses, before it does anything."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

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


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (([0.0],), TypeError, "query must be a Tensor, got list"),
        ((X[0, 0],), ValueError, r"query must have shape \[B, N, E\] or \[N, E\], got \[12\]"),
        ((X[..., :8],), ValueError, r"query must end in embed_dim = 12, got \[2, 5, 8\]"),
        ((X.double(),), ValueError, "query must have the dtype of the layer, torch.float32, got torch.float64"),
        ((X.to("meta"),), ValueError, "query must be on the device of the layer, cpu, got meta"),
        ((X, [0.0]), TypeError, "key must be a Tensor, got list"),
        ((X, M[0]), ValueError, r"key must share its batch axis with query, \[2, 5, 12\], got \[3, 12\]"),
        ((X, M[:1]), ValueError, r"key must share its batch axis with query, \[2, 5, 12\], got \[1, 3, 12\]"),
        ((X, M[..., :8]), ValueError, r"key must end in kdim = 12, got \[2, 3, 8\]"),
        ((X, M, M[..., :8]), ValueError, r"value must end in vdim = 12, got \[2, 3, 8\]"),
        ((X, M, X), ValueError, "value must have the length of key, 3, got 5"),
        ((X, None, M), ValueError, "key must be given with value, got None"),
    ],
)
def test_inputs(arguments, error, match):
    with pytest.raises(error, match=match):
        layer()(*arguments, labels=LABELS)


def test_inputs_of_other_widths():
    with pytest.raises(ValueError, match=r"key must end in kdim = 5, got \[2, 5, 12\]"):
        layer(kdim=5)(X, labels=LABELS)
    with pytest.raises(ValueError, match=r"value must end in vdim = 7, got \[2, 5, 12\]"):
        layer(vdim=7)(X, labels=LABELS)


def test_packed_inputs():
    packed = LABELER(5, ptr=torch.tensor([0, 2, 5]))
    with pytest.raises(ValueError, match=r"query must have shape \[T, E\], as the labels are packed, got \[2, 5, 12\]"):
        layer()(X, labels=packed)
    with pytest.raises(
        NotImplementedError, match="labels must not be packed with a cache, which holds one sequence per batch row"
    ):
        layer()(X[0], labels=packed, cache=KVCache())


@pytest.mark.parametrize(
    ("labels", "error", "match"),
    [
        (None, ValueError, "labels must be given, as the layer has tables for 5, got None"),
        ("near", TypeError, "labels must be Labels, an integer Tensor or None, got str"),
        (LABELER, TypeError, "labels must be Labels, an integer Tensor or None, got ClippedDistance"),
        (ClippedDistance(3)(5), ValueError, "labels must have num_labels = 5, got 7"),
        ((LABELER + LABELER)(5), ValueError, r"labels must have num_labels = 5, got \(5, 5\)"),
        (LABELER(4), ValueError, r"labels must cover \[N_q, N_k\] = \[5, 5\], got \[4, 4\]"),
        (
            DenseLabels(torch.zeros(3, 5, 5, dtype=torch.long), 5),
            ValueError,
            "labels must have batch_size 1 or 2, got 3",
        ),
        (torch.zeros(5, 5), ValueError, "labels must have an integer dtype, got torch.float32"),
        (torch.zeros(5, dtype=torch.long), ValueError, r"= \[5, 5\] or \[2, 5, 5\], got \[5\]"),
        (
            torch.zeros(3, 5, 5, dtype=torch.long),
            ValueError,
            r"= \[5, 5\] or \[2, 5, 5\], got \[3, 5, 5\]",
        ),
        (torch.full((5, 5), 5), ValueError, r"labels must lie in \[-1, 5\)"),
    ],
)
def test_labels(labels, error, match):
    with pytest.raises(error, match=match):
        layer()(X, labels=labels)


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


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"attn_mask": torch.zeros(4, 5)}, ValueError, r"attn_mask must have shape .* got \[4, 5\]"),
        ({"attn_mask": 1}, TypeError, "attn_mask must be a Tensor, got int"),
        ({"key_padding_mask": torch.zeros(2, 4)}, ValueError, r"key_padding_mask must have shape .* got \[2, 4\]"),
        ({"is_causal": 1}, TypeError, "is_causal must be a bool, got int"),
        ({"q_offset": 1.0}, TypeError, "q_offset must be an int, got float"),
        ({"need_weights": None}, TypeError, "need_weights must be a bool, got NoneType"),
        ({"need_label_mass": 1}, TypeError, "need_label_mass must be a bool, got int"),
        ({"cache": {}}, TypeError, "cache must be a KVCache or None, got dict"),
        ({"bank_features": X}, ValueError, "features .*must be None, as no bank reads them, got Tensor"),
    ],
)
def test_options(options, error, match):
    with pytest.raises(error, match=match):
        layer()(X, labels=LABELS, **options)


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
    layer(None)(X, cache=grown)
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
            layer(5 if "labels" in options else None)(X, cache=grown, **options)
    with pytest.raises(ValueError, match="cache must be static when key is not query, got one that grows"):
        layer(None)(X, M, cache=grown)
    with pytest.raises(ValueError, match="cache holds 2 batch rows, got 1: reset or reorder it first"):
        layer(None)(X[:1], cache=grown)
    with pytest.raises(ValueError, match=r"cache must hold at most max_len = 4 keys, got 0 \+ 5"):
        layer(None)(X, cache=KVCache(4))
    assert len(grown) == 5


def test_labels_within_others_must_start_where_the_cache_ends():
    cache = KVCache()
    layer(None)(X, cache=cache)
    both = (LABELER + LABELER)(5, 10, q_offset=3)
    with pytest.raises(ValueError, match="labels must be built with q_offset = 5, .* got 3"):
        layer((5, 5))(X, cache=cache, labels=both)
    edge = torch.zeros(2, 1, dtype=torch.long), torch.zeros(1, dtype=torch.long)
    for offset, found in ((3, pytest.raises(ValueError, match="q_offset = 5, .* got 3")), (5, nullcontext())):
        over = EdgeLabels(*edge, 5, q_len=5, k_len=10, default=LABELER(5, 10, q_offset=offset))
        with found:
            layer()(X, cache=cache, labels=over)


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


@pytest.mark.parametrize(
    ("arguments", "options", "error", "match"),
    [
        ((12.0, 3), {}, TypeError, "embed_dim must be an int, got float"),
        ((0, 3), {}, ValueError, "embed_dim must be at least 1, got 0"),
        ((12, 0), {}, ValueError, "num_heads must be at least 1, got 0"),
        ((12, 5), {}, ValueError, "num_heads must divide embed_dim = 12, got 5: or give a head_dim"),
        ((12, 4), {"num_kv_heads": 3}, ValueError, "num_kv_heads must divide num_heads = 4, got 3"),
        ((12, 4), {"num_kv_heads": 0}, ValueError, "num_kv_heads must be at least 1, got 0"),
        ((12, 4, 1.0), {}, ValueError, r"dropout must lie in \[0, 1\), got 1.0"),
        ((12, 4, "0.1"), {}, TypeError, "dropout must be a float, got str"),
        ((12, 4, 0.0, None), {}, TypeError, r"bias must be a bool or a sequence of names of \['query', .*, got None"),
        ((12, 4, 0.0, "query"), {}, TypeError, r"bias must be a bool or a sequence of names .*, got 'query'"),
        (
            (12, 4, 0.0, ("out",)),
            {},
            ValueError,
            r"unknown bias 'out'; expected one of \['query', 'key', 'value', 'out",
        ),
        ((12, 4, 0.0, ("key", "key")), {}, ValueError, r"bias must hold different names of .*, got \['key', 'key'\]"),
        ((12, 5), {"head_dim": 0}, ValueError, "head_dim must be at least 1, got 0"),
        ((12, 5), {"head_dim": 2.0}, TypeError, "head_dim must be an int, got float"),
        ((12, 4), {"scale": "1"}, TypeError, "scale must be a float, got str"),
        ((12, 4), {"scale": float("inf")}, ValueError, "scale must be finite, got inf"),
        ((12, 4), {"kdim": 0}, ValueError, "kdim must be at least 1, got 0"),
        ((12, 4), {"vdim": -1}, ValueError, "vdim must be at least 1, got -1"),
        ((12, 4), {"impl": "flash"}, ValueError, "unknown impl 'flash'"),
        (
            (12, 4),
            {"num_labels": 5, "tables": "key"},
            TypeError,
            "tables must be a sequence of kinds of tables, got 'key'",
        ),
        (
            (12, 4),
            {"labeler": ClippedDistance(1), "num_labels": 3},
            ValueError,
            "num_labels must be left out with a labeler, which has its own, got 3",
        ),
        (
            (12, 4),
            {"num_labels": ClippedDistance(1)},
            TypeError,
            "num_labels must be an int, got ClippedDistance: pass it as labeler=",
        ),
        ((12, 4), {"batch_first": True}, TypeError, "unexpected keyword argument 'batch_first'"),
    ],
)
def test_bad_arguments(arguments, options, error, match):
    with pytest.raises(error, match=match):
        attention_layer(*arguments, **options)


def test_tables_that_do_not_fit():
    tables = RelationTables(5, 4, 3, per_head=True)
    with pytest.raises(ValueError, match="num_labels must be that of the tables, 5, got 6"):
        attention_layer(12, 3, num_labels=6, tables=tables)
    with pytest.raises(ValueError, match="tables must be for 2 heads of 4, got 3 heads of 4"):
        attention_layer(8, 2, tables=tables)
    with pytest.raises(ValueError, match="tables must be for 3 heads of 5, got any number of heads of 4"):
        attention_layer(15, 3, tables=RelationTables(5, 4))
    assert attention_layer(12, 3, num_labels=5, tables=tables).tables is tables


def test_nothing_is_done_before_the_checks():
    class Refuses(nn.Module):
        def forward(self, features):
            raise AssertionError("the bank ran")

    tables = RelationTables(None, 4, kinds=("key",), banks={"key": Refuses()})
    with pytest.raises(ValueError, match="attn_mask must have shape"):
        attention_layer(12, 3, tables=tables)(X, labels=LABELS, bank_features=X, attn_mask=torch.zeros(1))


def test_labels_that_carry_no_distance_need_no_offset():
    cache = KVCache()
    attention = layer()
    attention(X, labels=LABELS, cache=cache)
    ids = torch.randint(0, 5, (5, 10))
    z = attention(X, labels=DenseLabels(ids, 5), is_causal=True, cache=cache)
    assert z.shape == (2, 5, 12)


def test_distance_labels_with_an_offset_a_row_are_taken_as_they_are():
    cache, attention = KVCache(), layer()
    attention(X, labels=LABELS, cache=cache)
    labels = DistanceLabels(1, 6, lookup=range(5), left=2, q_offset=torch.tensor([5, 5]))
    same = LABELER(1, 6, q_offset=5)
    kept = KVCache()
    attention(X, labels=LABELS, cache=kept)
    row = torch.randn(2, 1, 12)
    got = attention(row, labels=labels, is_causal=True, cache=cache)
    torch.testing.assert_close(got, attention(row, labels=same, is_causal=True, cache=kept))


def test_where_there_is_no_autocast():
    layer = attention_layer(12, 4, num_labels=5, device="meta")
    assert layer(torch.zeros(2, 5, 12, device="meta"), labels=LABELER(5)).shape == (2, 5, 12)
    with pytest.raises(ValueError, match=r"query must have the dtype of the layer, torch.float32, got torch.float64"):
        layer(torch.zeros(2, 5, 12, device="meta", dtype=torch.float64), labels=LABELER(5))
