"""Labels by a function of the positions."""

from __future__ import annotations

import copy
import pickle
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relgraph.graphs import Graph
from relgraph.labelers import ClippedDistance, FromFunction
from relgraph.labelers.sequence import function

from .conformance import Case, LabelerSuite, before, parity


class TestConformance(LabelerSuite):
    cases = (
        Case(FromFunction(parity, 2), (5,)),
        Case(FromFunction(parity, 2, names=["even", "odd"]), (5, 3)),
        Case(FromFunction(before, 2), (4, 6), {"q_offset": 2}),
        Case(FromFunction(before, 3), (0, 6), {"q_offset": torch.tensor(1)}),
        Case(FromFunction(before, 7, names=tuple("abcdefg")), (3,), {"q_offset": torch.tensor([0, 2, 5])}),
    )


@given(st.integers(0, 6), st.integers(0, 6), st.integers(-3, 3))
def test_against_a_loop(q_len, k_len, offset):
    ids, attend = FromFunction(before, 2)(q_len, k_len, q_offset=offset).to_dense()
    for i in range(q_len):
        for j in range(k_len):
            at = i + offset
            assert ids[0, i, j] == (1 if j < at else -1 if j > at else 0)
    assert bool(attend.all())


def test_positions_broadcast():
    seen = []

    def look(i, j):
        seen.append((i.dtype, i.shape, i.flatten().tolist(), j.dtype, j.shape, j.flatten().tolist()))
        return i * 0 + j * 0

    FromFunction(look, 1)(2, 3, q_offset=7)
    assert seen == [(torch.int64, (2, 1), [7, 8], torch.int64, (1, 3), [0, 1, 2])]


def test_the_result_may_broadcast():
    assert FromFunction(lambda i, j: torch.tensor(1), 2)(2, 3).to_dense()[0].tolist() == [[[1] * 3] * 2]
    assert FromFunction(lambda i, j: j.to(torch.int8), 3)(2, 3).to_dense()[0].tolist() == [[[0, 1, 2]] * 2]
    assert FromFunction(lambda i, j: i, 2)(2, 3).to_dense()[0].tolist() == [[[0] * 3, [1] * 3]]
    batched = FromFunction(lambda i, j: torch.tensor([0, 1])[:, None, None], 2)(1, 2)
    assert batched.to_dense()[0].tolist() == [[[0, 0]], [[1, 1]]]


def test_truth_values_are_the_ids_0_and_1():
    kind = torch.tensor([4, 7, 4])
    same, ids = (FromFunction(fn, 2) for fn in (lambda i, j: kind[i] == kind[j], lambda i, j: (kind[i] == kind[j]) * 1))
    assert same(3).to_dense()[0].tolist() == [[[1, 0, 1], [0, 1, 0], [1, 0, 1]]]
    packed = Graph(torch.zeros(2, 0, dtype=torch.int64), 5, ptr=torch.tensor([0, 2, 5]))
    for nodes in (3, packed):
        assert same(nodes) == ids(nodes)
    assert same(1, 3, q_offset=torch.tensor([0, 1])) == ids(1, 3, q_offset=torch.tensor([0, 1]))


def test_names():
    assert FromFunction(parity, 3).names == ("0", "1", "2")
    assert FromFunction(parity, 2, names=["even", "odd"]).names == ("even", "odd")
    assert repr(FromFunction(parity, 2, ["even", "odd"])) == "FromFunction(parity, 2, names=('even', 'odd'))"
    assert repr(FromFunction(partial(parity, 1), 2)).startswith("FromFunction(functools.partial(")


@pytest.mark.parametrize("local", [True, False])
def test_a_function_without_an_address_cannot_be_pickled(local):
    def inner(i, j):
        return parity(i, j)

    labeler = FromFunction(inner if local else lambda i, j: parity(i, j), 2)
    with pytest.raises(pickle.PicklingError, match="lambda or a local function; define it at the top of a module"):
        pickle.dumps(labeler)
    with pytest.raises(pickle.PicklingError, match="top of a module"):
        pickle.dumps(labeler & ClippedDistance(1))
    assert copy.deepcopy(labeler) is labeler
    assert copy.copy(labeler) is labeler


def test_refuses_bad_results():
    with pytest.raises(ValueError, match="fn returns may be truth values only if num_labels is 2, got num_labels = 3"):
        FromFunction(lambda i, j: i < j, 3)(2)
    with pytest.raises(ValueError, match=r"must broadcast to \[2, 3\], got shape \[3, 2\]"):
        FromFunction(lambda i, j: (i + j).T, 4)(2, 3)
    with pytest.raises(ValueError, match=r"must broadcast to \[2, 2, 3\], got shape \[3, 2, 3\]"):
        FromFunction(lambda i, j: torch.zeros(3, 2, 3, dtype=torch.int64), 4)(2, 3, q_offset=torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"ids must lie in \[-1, 2\)"):
        FromFunction(lambda i, j: i + j, 2)(2)


@pytest.mark.parametrize("q_offset", [None, torch.tensor([0, 5])])
def test_blocks_of_rows(q_offset, monkeypatch):
    labeler = FromFunction(lambda i, j: (i * j) % 7 - 1, 6)
    whole = labeler(11, 13, q_offset=q_offset)
    monkeypatch.setattr(function, "BLOCK", 30)  # two rows of 13 keys, one of two batch rows
    assert labeler(11, 13, q_offset=q_offset) == whole
    assert whole.ids.dtype == torch.int8
