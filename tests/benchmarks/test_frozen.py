"""Pins the shapes and seeds of the benchmarks whose figures later versions compare with: docs/benchmarks/README.md."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("torch_geometric")

from docs.benchmarks import attention, graphs, measure, small


def test_shapes():
    assert attention.WORK == {
        "float32": ((1, 8, 2048), (8, 8, 512), (32, 8, 128)), "bfloat16": ((1, 8, 2048), (32, 8, 128)),
    }  # fmt: skip
    assert (attention.CLIP, attention.LABELS) == (16, 32)
    found = graphs.NODES, graphs.EDGES, graphs.TYPES, graphs.HEADS, graphs.SIZE, graphs.VECTOR
    assert found == (10_000, 200_000, 20, 8, 16, 16)
    assert small.BLOCK_MS == 10.0
    names = [case.name for make in (small.functions, small.layers, small.graphs) for case in make(False)]
    assert [name for name in names if "n = 128, b = 32" in name or "[32, 128, 512]" in name or "5,000 edges" in name] == [
        "relation_attention, n = 128, b = 32, distances", "relation_attention, n = 128, b = 32, 33 arbitrary labels",
        "RelationAttention(512, 8), [32, 128, 512]", "RelationConv, 1,000 nodes, 5,000 edges",
        "RelationConv, 1,000 nodes, 5,000 edges, new in each call",
    ]  # fmt: skip
    assert len(names) == 15


def test_protocol(monkeypatch):
    """Ways take turns, the first round does not count, and numbers are drawn after seed 0."""
    order, seeds = [], []
    measure.in_turn({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2)
    assert order == ["a", "b"] * 3
    monkeypatch.setattr(torch, "manual_seed", seeds.append)
    monkeypatch.setattr(attention, "MEASURES", {"table": lambda _: None})
    attention.main(["table"])
    assert seeds == [0]
