"""Plans: each pair in exactly one region, the same ids as the labels, the same plan after a trip through tensors and ints."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relgraph.labels import DistanceLabels, Labels
from relgraph.plan import (
    Band,
    Block,
    Uniform,
    decode,
    dense_ids,
    distances,
    encode,
    ids_by_distance,
    inside_graphs,
    lower,
    on_device,
    plain,
)
from tests.cases import KINDS

CPU = torch.device("cpu")
NAMES = [
    name
    for name in KINDS
    if name not in ("none", "sum", "edges only parallel", "edges sum", "edges sum batch", "edges over edges")
]


def times_covered(plan, part):
    """In how many regions each pair lies, counted region by region, ``[B, N_q, N_k]``."""
    count = torch.zeros(plan.batch, plan.q_len, plan.k_len, dtype=torch.long)
    inside = inside_graphs(plan)
    inside = torch.ones(plan.q_len, plan.k_len, dtype=torch.bool) if inside is None else inside
    for region in part.regions:
        if isinstance(region, Block):
            ids = dense_ids(plan, type(part)(part.num_labels, part.offset, (region,)), CPU)
        else:
            ids = ids_by_distance((region,), distances(plan, part.offset, CPU))
        count += (ids > -2) & inside
    if part.csr is not None:
        csr = part.csr
        live = csr.role == 1
        rows, cols = csr.row[live], csr.col[live]
        spread = torch.zeros(csr.batch, plan.q_len, plan.k_len, dtype=torch.long)
        spread.index_put_((rows // plan.q_len, rows % plan.q_len, cols), torch.ones_like(cols), accumulate=True)
        assert spread.max() <= 1, "the first of each listed pair stands once"
        count = torch.where(spread.expand_as(count) > 0, spread.expand_as(count), count)
    return count


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("n", [1, 2, 7, 20])
def test_plans_cover_every_attending_pair_once(kind, n):
    labels = KINDS[kind](n)
    plan = lower(labels)
    (part,) = plan.parts
    ids, attend = labels.to_dense()
    assert torch.equal(times_covered(plan, part), attend.expand(plan.batch, -1, -1).long())
    got = dense_ids(plan, part, CPU)
    assert torch.equal(got > -2, attend)
    assert torch.equal(got.clamp(min=-1), ids)


@given(lookup=st.lists(st.integers(-2, 2), min_size=1, max_size=8), left=st.integers(0, 7), n=st.integers(1, 12))
def test_any_lookup_splits_into_two_ends_and_a_band(lookup, left, n):
    labels = DistanceLabels(n, lookup=lookup, left=min(left, len(lookup) - 1), num_labels=3)
    plan = lower(labels)
    (part,) = plan.parts
    assert sum(isinstance(r, Band) for r in part.regions) <= 1
    assert sum(isinstance(r, Uniform) for r in part.regions) <= 2
    assert torch.equal(times_covered(plan, part), labels.to_dense()[1].long())


def test_distance_regions_of_shaw():
    (part,) = lower(DistanceLabels(9, lookup=range(5), left=2)).parts
    left, band, right = part.regions
    assert (left.label, left.low, left.high) == (0, None, -1)
    assert (band.low, band.lookup) == (-1, (1, 2, 3))
    assert (right.label, right.low, right.high) == (4, 2, None)


@pytest.mark.parametrize("kind", [name for name in KINDS if name != "none"])
def test_encode_and_decode(kind):
    plan = lower(KINDS[kind](7))
    tensors, ints = encode(plan)
    assert all(isinstance(i, int) for i in ints)
    again = decode(tensors, ints)
    tensors_again, ints_again = encode(again)
    assert ints == ints_again
    assert all(a is b for a, b in zip(tensors, tensors_again, strict=True))
    assert on_device(plan, CPU) is plan
    assert all(t.device.type == "meta" for t in encode(on_device(plan, torch.device("meta")))[0]) or not tensors


def test_a_plan_is_made_once():
    labels = KINDS["edges default"](5)
    assert lower(labels) is lower(labels)


def test_plain_attention_is_one_region():
    plan = plain(2, 3)
    assert dense_ids(plan, plan.parts[0], CPU).tolist() == [[[-1] * 3] * 2]
    assert plan.num_labels == (0,)
    assert plan.total_labels == 0


def test_listed_pairs_are_sorted_and_remember_their_order():
    labels = KINDS["edges only parallel"](7)
    csr = lower(labels).parts[0].csr
    assert torch.equal(labels.edge_index[1][csr.order], csr.row)
    assert torch.equal(labels.edge_index[0][csr.order], csr.col)
    assert torch.equal(labels.ids[csr.order].long(), csr.ids)
    assert (csr.row.diff() >= 0).all()
    assert torch.equal(csr.row_ptr.diff(), torch.bincount(csr.row, minlength=7))
    assert csr.parallel


def test_unknown_labels():
    class Odd(Labels):
        def to_dense(self):
            raise AssertionError

        def rows(self, start, stop):
            raise AssertionError

    odd = Odd.__new__(Odd)
    odd._set(q_len=1, k_len=1, batch_size=1, num_labels=1, q_ptr=None, k_ptr=None)
    with pytest.raises(TypeError, match="labels must be one of the kinds of relgraph.labels, got Odd"):
        lower(odd)
