"""Edges-only attention by both of its ways, gathered and sparse, with table rows by label and pair by pair."""

from __future__ import annotations

import pytest
import torch

from relgraph.impl.eager import edges as attend
from relgraph.impl.eager import sparse
from relgraph.impl.eager.sparse import row_softmax, sampled_dot, weighted_sum
from relgraph.impl.listed import Pattern
from tests.cases import F64, KINDS, answer, assert_same, make

ALONE = [kind for kind in KINDS if kind.startswith("edges only")]
pytestmark = pytest.mark.usefixtures("poisoned")


@pytest.fixture(params=["gathered", "sparse", "runs"])
def way(request, monkeypatch):
    monkeypatch.setattr(sparse, "GATHERED", 0 if request.param == "sparse" else 1 << 40)
    if request.param == "runs":
        monkeypatch.setattr(sparse, "RUN_NUMBERS", 30)


@pytest.mark.parametrize("labels_a_pair", [0.0, float("inf")])
@pytest.mark.parametrize("n", [0, 7, 63])
@pytest.mark.parametrize("kind", ALONE)
def test_every_way_means_the_same(kind, n, labels_a_pair, way, monkeypatch):
    monkeypatch.setattr(attend, "LABELS_A_PAIR", labels_a_pair)
    case = make(KINDS[kind](n), n=n, size=3, value_size=2, per_head="kv", heads=2, kv_heads=1)
    wanted, got = answer(case, "reference"), answer(case, "edges")
    assert_same(got[0], wanted[0], what="output")
    assert_same(got[1], wanted[1], what="gradient")


def pattern(rows=5, columns=4, pairs=12):
    row = torch.randint(rows, (pairs,)).sort().values
    col = torch.randint(columns, (pairs,))
    return Pattern.of(torch.searchsorted(row, torch.arange(rows + 1)), row, col, columns)


def test_a_pattern_turned_twice_is_itself():
    p = pattern()
    for mine, again in zip(p, p.transposed.transposed, strict=True):
        torch.testing.assert_close(mine, again)
    torch.testing.assert_close(p.transposed.row, p.col.sort(stable=True).values)
    torch.testing.assert_close(p.transposed.row_ptr.diff(), torch.bincount(p.col, minlength=4))


@pytest.mark.parametrize(("lanes_a", "lanes_b"), [(2, 2), (4, 2), (1, 3), (2, 1)])
def test_derivatives_of_first_and_second_order(way, lanes_a, lanes_b):
    p = pattern()
    a = torch.randn(lanes_a, 5, 3, dtype=F64, requires_grad=True)
    b = torch.randn(lanes_b, 4, 3, dtype=F64, requires_grad=True)
    w = torch.randn(max(lanes_a, lanes_b), 12, dtype=F64, requires_grad=True)
    for fn, inputs in (
        (lambda a, b: sampled_dot(a, b, p), (a, b)),
        (lambda w, b: weighted_sum(w, b, p), (w, b)),
        (lambda w: row_softmax(w, p), (w,)),
    ):
        assert torch.autograd.gradcheck(fn, inputs)
        assert torch.autograd.gradgradcheck(fn, inputs)


def test_sums_into_fewer_lanes(way):
    p = pattern()
    w, b = torch.randn(4, 12, dtype=F64), torch.randn(4, 4, 3, dtype=F64)
    got = torch.ops.relgraph.weighted_sum(w, b, list(p), 2)
    torch.testing.assert_close(got, weighted_sum(w, b, p).unflatten(0, (2, 2)).sum(1))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of opcheck in torch 2.15
@pytest.mark.parametrize("size", [2, 300])
def test_ops_are_what_they_say_they_are(size):
    p = pattern(pairs=40)
    a, b = (torch.randn(2, n, size, requires_grad=True) for n in (5, 4))
    w = torch.rand(2, 40, requires_grad=True)
    torch.library.opcheck(torch.ops.relgraph.sampled_dot.default, (a, b, list(p), 2))
    torch.library.opcheck(torch.ops.relgraph.weighted_sum.default, (w, b, list(p), 2))
    torch.library.opcheck(torch.ops.relgraph.row_softmax.default, (w, p.row_ptr, p.row))


def test_more_pairs_than_places(way):
    """Two nodes joined a hundred times: sparse products refuse it."""
    row = torch.arange(2).repeat_interleave(50)
    p = Pattern.of(torch.tensor([0, 50, 100]), row, 1 - row, 2)
    x = torch.randn(1, 2, 3, dtype=F64)
    torch.testing.assert_close(sampled_dot(x, x, p), (x[0, 0] @ x[0, 1]).expand(1, 100))
