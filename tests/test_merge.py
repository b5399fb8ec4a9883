"""Merging attention over disjoint key sets by log-sum-exp, region by region of a plan."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

import relgraph as rg
from relgraph.call import Call
from relgraph.functional.attention import answer_to
from relgraph.functional.merge import merge
from relgraph.plan import Csr, DistanceIds, LabelPlan, Part
from tests.cases import F64, KINDS, assert_same, call_of, make


def region_by_region(plan: LabelPlan) -> list[LabelPlan]:
    """The ends of the lookup and its middle, each a plan of its own, and the listed pairs, which are cut out of these."""
    (part,) = plan.parts
    pieces = [part.ids]
    if isinstance(part.ids, DistanceIds):
        size = len(part.ids.lookup)
        cuts = sorted({0, min(1, size), max(size - 1, 0), size})
        pieces = [
            replace(part.ids, lookup=tuple(x if a <= at < b else -2 for at, x in enumerate(part.ids.lookup)))
            for a, b in pairwise(cuts)
        ]
    plans = [replace(plan, parts=(replace(part, ids=ids, csr=None),)) for ids in pieces]
    if part.csr is not None:
        plans.append(replace(plan, parts=(replace(part, ids=DistanceIds(0, (-2,))),)))
    return plans


def attend_over(call: Call, plan: LabelPlan, cut: Csr | None):
    mask = call.mask
    if cut is not None and not plan.parts[0].csr:
        keep = torch.ones(max(cut.batch, 1), 1, plan.q_len, plan.k_len, dtype=torch.bool)
        keep[cut.row // plan.q_len, 0, cut.row % plan.q_len, cut.col] = False
        mask = keep if mask is None else mask & keep
    return answer_to(replace(call, plan=plan, mask=mask), "dense")


@pytest.mark.parametrize(
    "kind",
    ["distance", "distance window", "distance cross", "distance packed", "distance per row", "dense batch", "block",
     "edges default", "edges first", "edges over distance", "edges over distance packed"],
)  # fmt: skip
@pytest.mark.parametrize("causal", [False, True])
def test_regions_merge_to_the_whole_with_all_gradients(kind, causal):
    labels = KINDS[kind](9)
    case = make(labels)
    offset = 0 if labels.q_len == labels.k_len or getattr(labels, "q_offset", None) is not None else 1
    options = {"is_causal": causal, "q_offset": offset or None, "need_label_mass": True}
    call = call_of(*case.inputs, labels, *case.tables, **options)
    whole = answer_to(call, "reference")
    assert isinstance(call.plan.parts[0], Part)
    pieces = [attend_over(call, plan, call.plan.parts[0].csr) for plan in region_by_region(call.plan)]
    output, lse = merge([p.output for p in pieces], [p.lse for p in pieces])
    mass, _ = merge([p.mass[0] for p in pieces], [p.lse for p in pieces])
    assert_same([output, lse, mass], [whole.output, whole.lse, whole.mass[0]])

    def grads(out, mass):
        total = (out * torch.arange(out.numel(), dtype=F64).view(out.shape).sin()).sum() + mass.cos().sum()
        return torch.autograd.grad(total, case.leaves, allow_unused=True)

    for got, wanted in zip(grads(output, mass), grads(whole.output, whole.mass[0]), strict=True):
        torch.testing.assert_close(
            torch.zeros(()) if got is None else got, torch.zeros(()) if wanted is None else wanted, atol=1e-10, rtol=0
        )


def test_shards_of_a_sequence_merge():
    q, k, v = (torch.randn(1, 2, 12, 4, dtype=F64) for _ in range(3))
    tables = torch.randn(9, 4, dtype=F64), torch.randn(9, 4, dtype=F64)
    labels = rg.DistanceLabels(12, lookup=range(9), left=4)
    whole, aux = rg.relation_attention_with_aux(q, k, v, labels, *tables, need_lse=True)
    outputs, lses = [], []
    for start in (0, 5, 9):
        stop = {0: 5, 5: 9, 9: 12}[start]
        shard = rg.DistanceLabels(12, stop - start, lookup=range(9), left=4, q_offset=-start)
        out, piece = rg.relation_attention_with_aux(
            q, k[:, :, start:stop], v[:, :, start:stop], shard, *tables, need_lse=True, impl="chunked"
        )
        outputs.append(out)
        lses.append(piece.lse)
    assert_same(merge(outputs, lses), (whole, aux.lse))


def test_rows_that_saw_no_key_anywhere_stay_zero():
    nothing = torch.full((1, 2), float("-inf"), dtype=F64, requires_grad=True)
    out, lse = merge([torch.zeros(1, 2, 3, dtype=F64)] * 2, [nothing, nothing])
    assert (out == 0).all()
    assert (lse == float("-inf")).all()
    (grad,) = torch.autograd.grad(out.sum(), [nothing])
    assert not grad.isnan().any()


def test_what_is_no_number_stays_so():
    nan, inf = float("nan"), float("inf")
    outputs = [torch.ones(4, 2), torch.zeros(4, 2)]
    output, lse = rg.functional.merge(
        outputs, [torch.tensor([nan, inf, -inf, 0.0]), torch.tensor([0.0, 0.0, -inf, -inf])]
    )
    assert lse[0].isnan()
    assert lse[1:].tolist() == [inf, -inf, 0.0]
    assert output[:2].isnan().all()
    assert output[2:].tolist() == [[0.0, 0.0], [1.0, 1.0]]
