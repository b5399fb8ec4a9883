"""Long tables by distance: a block of rows multiplies only the rows of the table that it reads."""

from __future__ import annotations

import pytest
import torch

import relgraph as rg
from relgraph.impl.native import attend, build, problem
from relgraph.labels import DistanceLabels
from tests.budget import assert_within_budget, twins
from tests.cases import F64, KINDS, answer, assert_same, distance, make

pytestmark = [
    pytest.mark.skipif(build.missing() is not None, reason=f"no compiled kernels: {build.missing()}"),
    pytest.mark.usefixtures("poisoned"),
]
BY_DISTANCE = [kind for kind in KINDS if kind.startswith("distance")]
ENDS = {
    "labels of their own": lambda n: distance(n, reach=n // 2 + 1),
    "labels from the middle": lambda n: DistanceLabels(n, lookup=[n // 2, *range(n), 0], left=n // 2 + 1),
    "no label, and no attention": lambda n: DistanceLabels(n, lookup=[-1, *range(n), -2], left=n // 2),
    "nothing between them": lambda n: DistanceLabels(n, lookup=[1, 0], left=0),
}


@pytest.fixture
def sliced(monkeypatch):
    """Every table is long; which runs read slices."""
    monkeypatch.setattr(problem, "LONG_TABLE", 0)
    seen, start = [], attend._Run.start

    def watched(run, way):
        seen.append(bool(run.struct.sliced))
        start(run, way)

    monkeypatch.setattr(attend._Run, "start", watched)
    return seen


def check(case, atol=1e-11, **options):
    wanted, got = answer(case, "reference", **options), answer(case, "native", **options)
    assert_same(got[0], wanted[0], atol, what="output")
    assert_same(got[1], wanted[1], atol, what="gradient")


@pytest.mark.parametrize(("n", "per_head"), [(0, "k"), (1, ""), (7, "kb"), (150, "")])
@pytest.mark.parametrize("kind", [*BY_DISTANCE, *ENDS])
def test_outputs_and_gradients(kind, n, per_head, sliced):
    """At every end of the distances, with offsets and packed; over several blocks of rows."""
    labels = (KINDS | ENDS)[kind](n)
    check(make(labels, n=n, kinds="kb" if n != 7 else "k", per_head=per_head))
    written_out = isinstance(labels, DistanceLabels) and kind == "distance window"  # its ids do not go up
    assert set(sliced) == {not written_out and labels.num_labels > 0}


@pytest.mark.parametrize("kind", [*BY_DISTANCE, *ENDS])
def test_with_every_option(kind, sliced):
    """Shared key heads, all tables, causal, masked, a softcap, dropout by a given mask, label masses."""
    labels = (KINDS | ENDS)[kind](63)
    case = make(labels, n=63, kv_heads=1, per_head="k", dropout_p=0.25, score=rg.score.Softcap(3.0))
    lead = () if labels.packed else (case.inputs[0].shape[0],)
    case.options["attn_mask"] = torch.rand(*lead, 1, 63, labels.k_len) > 0.2
    if labels.q_len == labels.k_len:
        case.options["is_causal"] = True
    keep = (torch.rand(lead[0] if lead else 1, 2, 63, labels.k_len) > 0.25).to(F64)
    check(case, keep=keep)


@pytest.mark.parametrize(("batch", "count", "per_head"), [(1, 2, "kb"), (1, 5, ""), (7, 2, ""), (7, 5, "kb")])
def test_threads_have_gradients_of_the_table_of_their_own(batch, count, per_head, threads, sliced):
    """Blocks of one batch row are split, or batch rows are; the bits are the same twice."""
    case = make(distance(150, reach=149), heads=3, kv_heads=1, kinds="kb", per_head=per_head, batch=batch)
    threads(count)
    check(case)
    first, second = answer(case, "native"), answer(case, "native")
    for one, two in zip(first[1], second[1], strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("short_panels")
def test_rounding(dtype):
    """A table that is long by itself, over several panels of keys."""
    draws = [twins(distance(150, reach=149), dtype, kinds="kb", per_head="k", size=16, value_size=16, batch=1)]
    assert_within_budget(draws, lambda low: answer(low, "native"), weights=dtype)


@pytest.mark.usefixtures("sliced")
def test_a_block_has_room_for_what_it_reads(monkeypatch):
    """N + b - 1 numbers for each of its rows, not one for each label."""
    rooms, start = {}, attend._Run.start

    def noted(run, way):
        start(run, way)
        rooms[run.struct.columns] = run.struct.workspace_numbers

    monkeypatch.setattr(attend._Run, "start", noted)
    for reach in (2000, 20_000):
        answer(make(distance(100, reach=reach), kinds="k", batch=1), "native", mass=False)
    (few, small), (many, large) = sorted(rooms.items())
    assert large - small < 8 * (many - few)  # some rows of all labels, but not for each of 64 queries
