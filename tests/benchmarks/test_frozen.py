"""Pins the shapes and seeds of the benchmarks whose figures later versions compare with: docs/benchmarks/README.md."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

pytest.importorskip("torch_geometric")

from docs.benchmarks import attention, graphs, measure, patched, small


def test_shapes():
    assert attention.WORK == {
        "float32": ((1, 8, 2048), (8, 8, 512), (32, 8, 128)), "bfloat16": ((1, 8, 2048), (32, 8, 128)),
    }  # fmt: skip
    assert (attention.CLIP, attention.LABELS) == (16, 32)
    found = graphs.NODES, graphs.EDGES, graphs.TYPES, graphs.HEADS, graphs.SIZE, graphs.VECTOR
    assert found == (10_000, 200_000, 20, 8, 16, 16)
    assert small.BLOCK_MS == 10.0


RELATION_CONV = ("20 nodes, 40 edges", "192 nodes, 448 edges", "1,000 nodes, 5,000 edges")
SMALL = (
    *(f"relation_attention, n = {n}, b = {b}, {labels}" for n, b in ((16, 1), (128, 1), (128, 32))
      for labels in ("distances", "33 arbitrary labels")),
    *(f"RelationAttention(512, 8), [{b}, {n}, 512]" for b, n in ((1, 16), (1, 128), (32, 128))),
    *(f"a step of decoding, from {n} tokens on" for n in ("64", "4,096")),
    *(f"RelationConv, {sizes}{new}" for sizes in RELATION_CONV for new in ("", ", new in each call")),
    *2 * ("RelationConv, full maps, 64 chains of kinship, 40 relations, new in each call",),
    "an encoder, 256 molecules of 10 to 40 atoms",
)  # fmt: skip
PATCHED = (
    "T5-small encoder: 512 2048 8192", "DeBERTa-v3-base layer: 512 2048", "Parakeet attention: 1500",
    "Wav2Vec2-BERT layer: 500 1500 3000", "VITS text encoder: 1000", "SAM window attention: 25 × 14 × 14",
    "SAM global attention: 64 × 64", "Inkling sliding attention: 2048", "Inkling full attention: 2048",
    "MPNet-base, two layers: 384", "LayoutLMv3-base, two layers: 512 + 197", "UDOP-large encoder, two layers: 512 + 196",
    "LongT5-base encoder, two layers: 2048", "XLNet-base, two layers: 512", "BEiT-base, two layers: 384 640",
    "SpeechT5, two layers: 500", "WavLM-base, two layers: 500 1500", "Granite Speech layer: 1500",
    "Wav2Vec2-Conformer-large layer: 1500",
)  # fmt: skip
WHOLE = ("DeBERTa-v3-base: 128 256 384 512", "T5-base: 128 → 32 512 → 128", "GLiNER base: 128 256 384 512")


def test_names_and_lengths():
    makers = small.functions, small.layers, small.decoding, small.graphs, small.kinship, small.molecules
    assert tuple(case.name for make in makers for case in make(False)) == SMALL
    for cases, pinned in ((patched.cases(False), PATCHED), (patched.whole_cases(False), WHOLE)):
        lengths: dict[str, list[str]] = {}
        for case in cases:
            lengths.setdefault(case.name, []).append(case.length)
        found = tuple(f"{name}: {' '.join(each)}" for name, each in lengths.items())
        assert found == (pinned if find_spec("gliner") else tuple(x for x in pinned if "GLiNER" not in x))


def test_protocol(monkeypatch):
    """Ways take turns, the first round does not count, and numbers are drawn after seed 0."""
    order, seeds = [], []
    measure.in_turn({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2)
    assert order == ["a", "b"] * 3
    monkeypatch.setattr(torch, "manual_seed", seeds.append)
    monkeypatch.setattr(attention, "MEASURES", {"table": lambda _: None})
    attention.main(["table"])
    assert seeds == [0]
