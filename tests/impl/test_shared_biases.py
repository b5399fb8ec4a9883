"""Biases that all queries share: compiled kernels take them as one row, or written out for every pair."""

from __future__ import annotations

import pytest
import torch

from relgraph.impl.native import attend, build
from relgraph.labels import BlockLabels, DenseLabels, DistanceLabels
from tests.budget import assert_within_budget, twins
from tests.cases import F64, KINDS, answer, assert_same, make

pytestmark = [
    pytest.mark.skipif(build.missing() is not None, reason=f"no compiled kernels: {build.missing()}"),
    pytest.mark.usefixtures("poisoned"),
]
ALL_PAIRS = [kind for kind in KINDS if not kind.startswith("edges only")]
WRITTEN_OUT, LOOKED_UP = 1e9, 0.0


def make_shared(labels, **options):
    """A call over three batch rows, where the labels allow it."""
    shared = labels is None or labels.batch_size == 1
    return make(labels, batch=3 if shared else 2, **options)


def check(case, **options):
    wanted, got = answer(case, "reference", **options), answer(case, "native", **options)
    assert_same(got[0], wanted[0], what="output")
    assert_same(got[1], wanted[1], what="gradient")


@pytest.fixture(params=[WRITTEN_OUT, LOOKED_UP])
def both_ways(request, monkeypatch):
    monkeypatch.setattr(attend, "PAIRS_PER_NUMBER", request.param)


@pytest.mark.parametrize(("n", "per_head"), [(0, "b"), (1, ""), (7, "b"), (70, "")])
@pytest.mark.parametrize("kind", ALL_PAIRS)
@pytest.mark.usefixtures("both_ways")
def test_outputs_and_gradients(kind, n, per_head):
    check(make_shared(KINDS[kind](n), n=n, kinds="b", per_head=per_head))


@pytest.mark.parametrize("kind", ALL_PAIRS)
@pytest.mark.usefixtures("both_ways")
def test_with_every_option(kind):
    """Shared key heads, tables for values and queries, causal, masked, dropout by a given mask."""
    labels = KINDS[kind](63)
    case = make_shared(labels, n=63, kinds="vqb", kv_heads=1, per_head="b", dropout_p=0.25)
    batch, k_len = case.inputs[0].shape[0], 63 if labels is None else labels.k_len
    lead = () if labels is not None and labels.packed else (batch,)
    case.options["attn_mask"] = torch.rand(*lead, 1, 63, k_len) > 0.2
    if labels is None or labels.q_len == labels.k_len:
        case.options["is_causal"] = True
    keep = (torch.rand(1 if lead == () else batch, 2, 63, k_len) > 0.25).to(F64)
    check(case, keep=keep)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("kind", ["sum", "dense", "distance window", "edges default"])
@pytest.mark.usefixtures("both_ways")
def test_threads_share_the_batch_rows(kind, count, threads):
    """Each number of threads has gradients of pairs of its own, and gives the same bits twice."""
    case = make(KINDS[kind](21), n=21, heads=3, kv_heads=1, kinds="b", batch=7)
    threads(count)
    check(case)
    first, second = answer(case, "native"), answer(case, "native")
    for one, two in zip(first[1], second[1], strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "batch"), [(49, 40), (150, 4)])
@pytest.mark.usefixtures("both_ways", "short_panels")
def test_rounding(n, batch, dtype):
    """Over many batch rows, and over several panels of keys."""
    labels = DenseLabels(torch.randint(-1, 9, (n, n)), 9)
    draws = [twins(labels, dtype, kinds="b", per_head="b", size=16, value_size=16, batch=batch) for _ in range(2)]
    assert_within_budget(draws, lambda low: answer(low, "native"), weights=dtype)


def written_out(labels, batch, size=8, monkeypatch=None, heads=2):
    """Whether the biases of all pairs are written out for these labels."""
    seen = []
    if monkeypatch is not None:
        start = attend._Run.start
        monkeypatch.setattr(
            attend._Run, "start", lambda run, way: (seen.append(bool(run.struct.pair_biases.data)), start(run, way))
        )
    answer(make(labels, kinds="b", heads=heads, kv_heads=heads, size=size, batch=batch), "native")
    assert len(set(seen)) == 1
    return seen[0]


def test_only_what_batch_rows_share_is_written_out(monkeypatch):
    monkeypatch.setattr(attend, "PAIRS_PER_NUMBER", WRITTEN_OUT)
    ptr = torch.tensor([0, 3, 7])
    per_row = DistanceLabels(7, 9, lookup=range(3), left=1, q_offset=torch.tensor([1, 2]))
    for labels, batch, wanted in (
        (DenseLabels(torch.randint(0, 3, (7, 7)), 3), 2, True),
        (DenseLabels(torch.randint(0, 3, (7, 7)), 3), 1, False),
        (DenseLabels(torch.randint(0, 3, (2, 7, 7)), 3), 2, False),
        (per_row, 2, False),
        (BlockLabels(torch.zeros(25, dtype=torch.long), 3, ptr), 1, False),
        (DistanceLabels(7, lookup=range(3), left=1, ptr=ptr), 1, False),
    ):
        assert written_out(labels, batch, monkeypatch=monkeypatch) is wanted, labels
        monkeypatch.undo()
        monkeypatch.setattr(attend, "PAIRS_PER_NUMBER", WRITTEN_OUT)


@pytest.mark.parametrize(("batch", "wanted"), [(11, False), (12, True)])
def test_the_memory_of_what_is_written_out_is_bounded(batch, wanted, monkeypatch):
    """H · N · N numbers, at most half of the B · H · N · D of the queries: 12 · 8 / 2 = 48 keys."""
    labels = DenseLabels(torch.randint(0, 3, (48, 48)), 3)
    assert written_out(labels, batch, monkeypatch=monkeypatch) is wanted
