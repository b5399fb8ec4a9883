"""Plans: the same ids as the labels, the same plan after a trip through tensors and ints."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relgraph.labels import DistanceLabels, Labels
from relgraph.plan import decode, dense_ids, encode, ids_at, lower, on_device, plain
from tests.cases import KINDS

CPU = torch.device("cpu")
NAMES = [
    name
    for name in KINDS
    if name not in ("none", "sum", "edges only parallel", "edges sum", "edges sum batch", "edges over edges")
]


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("n", [1, 2, 7, 20])
def test_all_pairs_and_single_ones_have_the_ids_of_the_labels(kind, n):
    labels = KINDS[kind](n)
    plan = lower(labels)
    (part,) = plan.parts
    ids, attend = labels.to_dense()
    wanted = ids.masked_fill(~attend, -2)
    assert torch.equal(dense_ids(plan, part, CPU), wanted)
    row, query, key = attend.nonzero().T  # pairs that attend stay within a graph
    if part.csr is not None:
        wanted = dense_ids(plan, replace(part, csr=None), CPU).expand_as(wanted)
    assert torch.equal(ids_at(plan, part, row, query, key).long(), wanted[row, query, key])


@given(lookup=st.lists(st.integers(-2, 2), min_size=1, max_size=8), left=st.integers(0, 7), n=st.integers(1, 12))
def test_any_lookup_loses_what_its_ends_repeat(lookup, left, n):
    labels = DistanceLabels(n, lookup=lookup, left=min(left, len(lookup) - 1), num_labels=3)
    plan = lower(labels)
    found = plan.parts[0].ids
    assert len(found.lookup) == 1 or (found.lookup[0] != found.lookup[1] and found.lookup[-1] != found.lookup[-2])
    ids, attend = labels.to_dense()
    assert torch.equal(dense_ids(plan, plan.parts[0], CPU), ids.masked_fill(~attend, -2))
    assert plan.parts[0].complete == (-2 not in lookup)


def test_distances_of_shaw():
    (part,) = lower(DistanceLabels(9, lookup=range(5), left=2)).parts
    assert (part.ids.first, part.ids.lookup, part.ids.last) == (-2, (0, 1, 2, 3, 4), 2)
    (part,) = lower(DistanceLabels(9, lookup=[0, 0, 0, 1, 2, 2], left=2)).parts
    assert (part.ids.first, part.ids.lookup) == (0, (0, 1, 2))


@pytest.mark.parametrize("kind", [name for name in KINDS if name != "none"])
def test_encode_and_decode(kind):
    plan = lower(KINDS[kind](7))
    if "function" in kind:
        with pytest.raises(NotImplementedError, match=r"FunctionLabels.* cannot enter compiled code.*by \.dense\(\)"):
            encode(plan)
        return
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

        def cols(self, start, stop):
            raise AssertionError

    odd = Odd.__new__(Odd)
    odd._set(q_len=1, k_len=1, batch_size=1, num_labels=1, q_ptr=None, k_ptr=None)
    with pytest.raises(TypeError, match="labels must be one of the kinds of relgraph.labels, got Odd"):
        lower(odd)
