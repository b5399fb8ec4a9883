"""Every way in the comparison gives the values of its formula, and the check finds a way that does not."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import pytest
import torch

from docs.benchmarks import edge_layers, packed_graphs, sequences
from docs.benchmarks.sequence_inputs import Inputs, Meaning, expected
from docs.benchmarks.sweeps import Edges, Packed, Sequence
from docs.benchmarks.ways import Made, NotRun, Wrong

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


def clipped(clip):
    return lambda i, j: min(max(j - i, -clip), clip) + clip


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
    try:
        made = way.make(inputs)
    except NotRun as reason:
        pytest.skip(str(reason))
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
