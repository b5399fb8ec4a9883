"""Packed batches in which graphs of like size are worked on together: as each graph alone, and as the reference."""

from __future__ import annotations

import random

import pytest
import torch

import relgraph as rg
from relgraph.impl.chunked import groups
from relgraph.labels import BlockLabels, DistanceLabels, EdgeLabels, SumLabels
from tests.cases import F64, answer, assert_same, make, packed_edges
from tests.labelers import zoo

pytestmark = pytest.mark.usefixtures("poisoned")


PTR = torch.tensor([0, 3, 6, 6, 8, 11, 12, 14, 15, 15])
N = int(PTR[-1])


def blocks(num_labels=4):
    count = int((PTR.diff() ** 2).sum())
    return BlockLabels(torch.randint(-1, num_labels, (count,)), num_labels, PTR, attend=torch.rand(count) > 0.2)


def parallel():
    index, ids = packed_edges(PTR)
    return EdgeLabels(index.repeat(1, 2), ids.repeat(2), 4, q_len=N, ptr=PTR, default=3, duplicates="sum")


OFFSETS = torch.arange(9) % 3
KINDS = {
    "distance": lambda: DistanceLabels(N, lookup=range(5), left=2, ptr=PTR),
    "distance offsets": lambda: DistanceLabels(N, lookup=range(5), left=2, ptr=PTR, q_offset=OFFSETS),
    "block": blocks,
    "full block": lambda: BlockLabels(torch.randint(0, 4, (int((PTR.diff() ** 2).sum()),)), 4, PTR),
    "edges": lambda: EdgeLabels(*packed_edges(PTR), 4, q_len=N, ptr=PTR, default=3),
    "edges over nothing": lambda: EdgeLabels(*packed_edges(PTR), 4, q_len=N, ptr=PTR, default=-1),
    "edges over block": lambda: EdgeLabels(*packed_edges(PTR), 4, q_len=N, ptr=PTR, default=blocks(3)),
    "edges over offsets": lambda: EdgeLabels(
        *packed_edges(PTR), 5, q_len=N, ptr=PTR, default=KINDS["distance offsets"]()
    ),
    "edges alone": lambda: EdgeLabels(*packed_edges(PTR), 4, q_len=N, ptr=PTR),
    "parallel edges": parallel,
    "sum": lambda: SumLabels(KINDS["distance"](), KINDS["block"](), KINDS["edges"]()),
}


def check(case, **options):
    wanted, got = answer(case, "reference", **options), answer(case, "chunked", **options)
    assert_same(got[0], wanted[0], what="output")
    assert_same(got[1], wanted[1], what="gradient")


@pytest.mark.parametrize("kind", KINDS)
def test_same_meaning(kind):
    check(make(KINDS[kind](), n=N))


@pytest.mark.parametrize("kind", KINDS)
def test_causal_masked_and_dropped(kind):
    counted = kind.endswith("offsets") or kind in ("distance", "sum")  # these bring their offset with them
    options = {} if counted else {"q_offset": OFFSETS}
    case = make(KINDS[kind](), n=N, heads=2, kv_heads=1, per_head="kb", dropout_p=0.25, is_causal=True, **options)
    case.options["attn_mask"] = torch.rand(1, N, N) > 0.2
    check(case, keep=(torch.rand(1, 2, N, N) > 0.25).to(F64))


@pytest.mark.parametrize("shape", [(1, 1, N), (2, N, 1)])
def test_masks_that_broadcast(shape):
    case = make(KINDS["edges"](), n=N, heads=2, kv_heads=2)
    case.options["attn_mask"] = torch.rand(shape) > 0.2
    check(case)


@pytest.mark.parametrize("kind", zoo.PACKED)
@pytest.mark.parametrize("seed", range(6))
def test_any_labels(kind, seed):
    """Queries and keys with borders of their own, sizes 0 to 3."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    labels = zoo.make(kind, zoo.packed_setting(rng), rng)
    if kind == "edge" and labels.default is None and labels.parallel:
        return
    check(make(labels, n=labels.q_len))


@pytest.mark.parametrize("filled", [0.1, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_with_more_padding_and_with_none(kind, filled, monkeypatch):
    monkeypatch.setattr(groups, "LEAST_FILLED", filled)
    test_causal_masked_and_dropped(kind)
    check(make(KINDS[kind](), n=N))


def test_a_floating_mask_over_padding(monkeypatch):
    monkeypatch.setattr(groups, "LEAST_FILLED", 0.1)
    case = make(KINDS["block"](), n=N, heads=2)
    case.options["attn_mask"] = torch.randn(2, N, N, dtype=F64)
    check(case)


def test_graphs_of_like_size_share_a_group():
    sizes = [(10, 10), (8, 8), (7, 7), (0, 0), (100, 100), (9, 9), (4, 5), (4, 6), (1, 1), (1, 0)]
    assert groups.alike(sizes) == [[0, 5, 1], [2], [7, 6], [8]]
    for found in groups.alike(sizes):
        for graph in found:
            whole = max(sizes[g][0] for g in found) * max(sizes[g][1] for g in found)
            assert sizes[graph][0] * sizes[graph][1] >= groups.LEAST_FILLED * whole


def test_what_labels_say_of_groups_is_found_once():
    labels = blocks()
    x = torch.randn(N, 2, 4, dtype=F64)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        layout = groups._layout
        patch.setattr(groups, "_layout", lambda *given: found.append(given) or layout(*given))
        z = [rg.relation_attention(x, x, x, labels, impl="chunked") for _ in range(3)]
        once = len(found)
        labels.ids.zero_()  # labels that change are looked at again
        rg.relation_attention(x, x, x, labels, impl="chunked")
    assert len(found) == 2 * once > 0
    assert torch.equal(z[0], z[1])
    assert torch.equal(z[0], z[2])
