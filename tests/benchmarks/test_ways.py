"""Every way in the comparison gives the values of its formula, and the check finds a way that does not."""

from __future__ import annotations

import importlib
import math
import warnings
from dataclasses import replace

import pytest
import torch

from docs.benchmarks import edge_layers, packed_graphs, peers, restated, sequences
from docs.benchmarks.sequence_inputs import Inputs, Meaning, expected
from docs.benchmarks.sweeps import Edges, Packed, Sequence
from docs.benchmarks.ways import Made, NotRun, Way, Wrong, distance_from, side_of

LINE = Sequence(batch=2, heads=2, length=9, size=4, labels=5, dtype="float64")
EDGES = Edges(edges=200, types=3, heads=2, size=4)
PACKED = Packed(graphs=3, most=9, heads=2, size=4)


def by_loops(query, key, value, key_rows, value_rows):
    """The formula, pair by pair; ``key_rows(i, j)`` is the key vector of a pair."""
    batch, heads, length, size = query.shape
    out = torch.zeros_like(value)
    for b in range(batch):
        for h in range(heads):
            for i in range(length):
                scores = torch.stack([query[b, h, i] @ (key[b, h, j] + key_rows(i, j)) for j in range(length)])
                weights = (scores / math.sqrt(size)).exp()
                weights = weights / weights.sum()
                out[b, h, i] = sum(weights[j] * (value[b, h, j] + value_rows(i, j)) for j in range(length))
    return out


def drawn(rows, length=5, size=4):
    qkv = [torch.randn(2, 2, length, size, dtype=torch.float64) for _ in range(3)]
    return *qkv, *(torch.randn(rows, size, dtype=torch.float64) for _ in range(2))


def clipped(clip):
    return lambda i, j: min(max(j - i, -clip), clip) + clip


@pytest.mark.parametrize("way", [restated.paper, restated.split])
def test_restated_with_any_labels(way):
    *qkv, a, b = drawn(6)
    ids = torch.randint(6, (5, 5))
    wanted = by_loops(*qkv, lambda i, j: a[ids[i, j]], lambda i, j: b[ids[i, j]])
    torch.testing.assert_close(way(*qkv, a, b, ids), wanted, atol=1e-12, rtol=0)


def test_restated_bert():
    *qkv, a, _ = drawn(2 * 7 - 1)
    wanted = by_loops(*qkv, lambda i, j: a[i - j + 6], lambda i, j: 0.0)
    torch.testing.assert_close(restated.bert_relative_key(*qkv, a), wanted, atol=1e-12, rtol=0)


def test_restated_opennmt():
    *qkv, a, _ = drawn(5)
    label = clipped(2)
    wanted = by_loops(*qkv, lambda i, j: a[label(i, j)], lambda i, j: a[label(i, j)])
    # its softmax is in float32 for every input type
    torch.testing.assert_close(restated.opennmt(*qkv, a), wanted, atol=1e-6, rtol=0)


def same(ours, theirs, leaves, atol):
    grad = torch.randn_like(ours)
    torch.testing.assert_close(theirs, ours, atol=atol, rtol=0)
    for mine, other in zip(
        torch.autograd.grad(ours, leaves, grad), torch.autograd.grad(theirs, leaves, grad), strict=True
    ):
        torch.testing.assert_close(other, mine, atol=atol, rtol=0)


def learning(rows, length=9):
    *qkv, table, _ = drawn(rows, length, 16)
    return [x.float().requires_grad_() for x in (*qkv, table)]


def test_restated_bert_is_that_of_transformers():
    leaves = learning(2 * 12 - 1)
    call, note = peers.bert(*leaves)
    if note.startswith("restated"):
        pytest.skip(note)
    same(restated.bert_relative_key(*leaves), call(), leaves, 1e-5)


def test_restated_opennmt_is_that_of_opennmt():
    leaves = learning(7)
    call, note = peers.opennmt(*leaves)
    if note.startswith("restated"):
        pytest.skip(note)
    same(restated.opennmt(*leaves), call(), leaves, 1e-5)


@pytest.mark.parametrize("peer", [peers.bert, peers.opennmt])
def test_a_missing_peer_is_said(peer, monkeypatch):
    monkeypatch.setattr(peers, "import_module", lambda name: importlib.import_module("no_such_package"))
    _, note = peer(*learning(7, length=4))
    assert note.startswith("restated (")
    assert "is not installed" in note


def test_a_transformers_without_relative_key_is_said(monkeypatch):
    class Attention:
        def __init__(self, config):
            pass

    class Module:
        BertConfig = BertSelfAttention = Attention

    monkeypatch.setattr(peers, "import_module", lambda name: Module)
    assert (
        peers.bert(*learning(7, length=4))[1] == "restated (this transformers has no relative_key any more; 4.56 has)"
    )


@pytest.mark.parametrize(("labels", "tables"), [
    ("none", "none"), ("distance", "key"), ("distance", "both"), ("distance", "tied"), ("arbitrary", "both"), ("positions", "key"),
])  # fmt: skip
def test_oracle(labels, tables):
    inputs = Inputs(LINE)
    leaves = inputs.leaves(Meaning(labels, tables))
    label = clipped(LINE.clip)
    if labels == "arbitrary":
        label = lambda i, j: int(inputs.written[i, j])  # noqa: E731
    elif labels == "positions":
        label = lambda i, j: i - j + LINE.length - 1  # noqa: E731
    a = leaves.get("key_table")
    b = leaves.get("value_table", a if tables == "tied" else None)
    wanted = by_loops(
        *inputs.qkv.values(),
        lambda i, j: 0.0 if a is None else a[label(i, j)],
        lambda i, j: 0.0 if b is None else b[label(i, j)],
    )
    grads = torch.autograd.grad(wanted, list(leaves.values()), inputs.grad)
    got = expected(inputs, Meaning(labels, tables), torch.arange(LINE.length))
    for name, exact in {"output": wanted.detach(), **dict(zip(leaves, grads, strict=True))}.items():
        torch.testing.assert_close(got[name], exact, atol=1e-12, rtol=0)


SIDES = [(sequences.SIDE, LINE), (edge_layers.SIDE, EDGES), (packed_graphs.SIDE, PACKED)]
WAYS = [(side, setting, way) for side, setting in SIDES for way in side.ways(setting) if not way.compiles]


@pytest.mark.parametrize(("side", "setting", "way"), WAYS, ids=[way.name for *_, way in WAYS])
def test_ways(side, setting, way):
    if way.name == "OpenNMT-py":
        setting = replace(setting, dtype="float32")  # its softmax is in float32
    inputs = side.inputs(setting)
    made = way.make(inputs)
    error = side.check(way, made, inputs)
    assert error < 1e-4 or (way.name == "RGATConv" and math.isnan(error))
    assert way.needs(setting) > 0
    assert made.trains


def test_ways_at_sizes_where_rows_are_sampled():
    for side, setting in ((sequences.SIDE, replace(LINE, length=80)), (edge_layers.SIDE, replace(EDGES, edges=2000)),
                          (packed_graphs.SIDE, replace(PACKED, graphs=7))):  # fmt: skip
        inputs = side.inputs(setting)
        for way in side.ways(setting)[:3]:
            assert side.check(way, way.make(inputs), inputs) < 1e-4


@pytest.mark.parametrize("length", [9, 80])
def test_a_wrong_way_is_found_out(length):
    setting = replace(LINE, length=length)
    inputs = Inputs(setting)
    ways = {way.name: way for way in sequences.ways(setting)}
    floor, chunked = next(iter(ways.values())), ways["relgraph chunked, distance"]
    made = floor.make(inputs)
    with pytest.raises(Wrong, match=r"relgraph chunked, distance: output is .* from the formula, at most 1e-10"):
        sequences.SIDE.check(chunked, made, inputs)


def test_a_wrong_gradient_is_found_out():
    inputs = Inputs(LINE)
    floor = sequences.ways(LINE)[0]
    right = floor.make(inputs).call
    made = Made(lambda: right() + (inputs.qkv["value"] - inputs.qkv["value"].detach()), inputs.qkv)
    with pytest.raises(Wrong, match="SDPA, no relations: value is"):
        sequences.SIDE.check(floor, made, inputs)


def test_a_wrong_graph_in_a_batch_is_found_out():
    inputs = packed_graphs.SIDE.inputs(PACKED)
    bias, plain = packed_graphs.ways(PACKED)[2], packed_graphs.ways(PACKED)[0]
    with pytest.raises(Wrong, match="packed, bias: output is"):
        packed_graphs.SIDE.check(bias, plain.make(inputs), inputs)


def test_a_way_without_formula_must_be_finite():
    inputs = edge_layers.SIDE.inputs(EDGES)
    way = edge_layers.ways(EDGES)[-1]
    made = way.make(inputs)
    endless = Made(lambda: made.call() / 0.0, made.leaves)
    with pytest.raises(Wrong, match="RGATConv: output and gradients must be finite"):
        edge_layers.SIDE.check(way, endless, inputs)


def test_nan_is_wrong():
    nan = {"output": torch.full((2,), math.nan)}
    with pytest.raises(Wrong, match="it: output is nan from the formula"):
        distance_from(nan, {"output": torch.ones(2)}, torch.float32, "it")


def test_flex_reads_the_label_of_the_distance(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    inputs = Inputs(replace(LINE, size=16, dtype="float32"))
    (way,) = [way for way in sequences.ways(inputs.setting) if way.compiles]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that it is not compiled
        made = way.make(inputs)
    assert not made.trains
    assert made.note == "key term only; forward only: no training on a CPU"
    assert sequences.SIDE.check(way, made, inputs) < 1e-5


def test_flex_that_does_not_compile_is_said(monkeypatch):
    def refuse(*_, **__):
        raise OSError("no compiler here\nand more")

    monkeypatch.setattr(torch, "compile", lambda function, **_: refuse)
    with pytest.raises(NotRun, match=r"not run: does not compile here \(OSError: no compiler here\)$"):
        sequences.flex(Inputs(LINE))


def test_flex_out_of_memory_is_no_news_of_the_compiler(monkeypatch):
    def refuse(*_, **__):
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(torch, "compile", lambda function, **_: refuse)
    with pytest.raises(torch.OutOfMemoryError, match="full"):
        sequences.flex(Inputs(LINE))


def test_a_side_whose_package_is_missing_is_said(monkeypatch):
    def missing(name):
        raise ImportError(f"no {name}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(NotRun, match=r"not run: no docs\.benchmarks\.edge_layers"):
        side_of(EDGES)


def test_memory_grows_as_said():
    """Doubling the length doubles linear memory and quadruples memory that holds every pair."""
    needs = {
        way.name: way.needs(replace(LINE, length=128)) / way.needs(replace(LINE, length=64))
        for way in sequences.ways(LINE)
    }
    quadratic = {name for name, ratio in needs.items() if ratio == 4}
    assert quadratic == {
        "relgraph dense, distance", "relgraph dense, arbitrary labels", "relgraph reference, distance",
        "paper's computation (eqs. 3–4)", "split term, plain torch", "BERT relative_key", "OpenNMT-py",
    }  # fmt: skip
    assert {ratio for name, ratio in needs.items() if name not in quadratic} == {2}


def test_ways_carry_their_names_once():
    for side, setting in SIDES:
        names = [way.name for way in side.ways(setting)]
        assert len(set(names)) == len(names)
        assert all(isinstance(way, Way) for way in side.ways(setting))
