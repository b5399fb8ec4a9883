"""Relative positions: clipped and windowed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relgraph.labelers import BucketedDistance, ClippedDistance, DistanceLabeler, Window

from .conformance import Case, LabelerSuite

PACKED = {"ptr": torch.tensor([0, 4, 4, 9])}


class TestConformance(LabelerSuite):
    cases = (
        Case(ClippedDistance(16), (9,)),
        Case(ClippedDistance(2), (7, 5)),
        Case(ClippedDistance((3, 0)), (6, 9), {"q_offset": 3}),
        Case(ClippedDistance((0, 4)), (3, 5), {"q_offset": torch.tensor([0, 2])}),
        Case(ClippedDistance(0), (1,)),
        Case(ClippedDistance((2, 2)), (9,), PACKED),
        Case(Window(2), (7,)),
        Case(Window(3, 0), (5, 8), {"q_offset": 3}),
        Case(Window(0), (3,)),
        Case(Window(), (5, 3), {"q_offset": 1}),
        Case(Window(1, 5), (9,), PACKED),
    )


class TestClipped:
    @pytest.mark.parametrize("clip", [16, (2, 0), (0, 3), 0, (5, 5)])
    @pytest.mark.parametrize("offset", [None, 0, 4, -3])
    def test_against_a_loop(self, clip, offset):
        ids, attend = ClippedDistance(clip)(7, 11, q_offset=offset).to_dense()
        left, right = clip if isinstance(clip, tuple) else (clip, clip)
        for i in range(7):
            for j in range(11):
                distance = j - (i + (offset or 0))
                assert ids[0, i, j] == min(max(distance, -left), right) + left
        assert bool(attend.all())

    def test_names_and_numbers(self):
        assert ClippedDistance(16).num_labels == 33
        assert ClippedDistance(16).names[3] == "-13"
        assert ClippedDistance((2, 0)).names == ("-2", "-1", "0")

    def test_repr_is_short(self):
        assert repr(ClippedDistance(16)) == "ClippedDistance(16)"
        assert repr(ClippedDistance((16, 16))) == "ClippedDistance(16)"
        assert repr(ClippedDistance((16, 0))) == "ClippedDistance((16, 0))"
        assert ClippedDistance(16) == ClippedDistance((16, 16))


class TestWindow:
    @pytest.mark.parametrize(("left", "right"), [(2, None), (3, 0), (0, 2), (0, 0)])
    def test_against_a_loop(self, left, right):
        ids, attend = Window(left, right)(6, 9, q_offset=2).to_dense()
        right = left if right is None else right
        for i in range(6):
            for j in range(9):
                assert bool(attend[0, i, j]) == (-left <= j - (i + 2) <= right)
        assert bool((ids == -1).all())

    def test_has_no_labels(self):
        assert Window(4).num_labels == 0
        assert bool(Window()(3, 5).to_dense()[1].all())
        assert Window(4).names == ()


LABELERS = (ClippedDistance(3), ClippedDistance((2, 0)), BucketedDistance(8, 12), Window(2, 1))


@given(st.sampled_from(LABELERS), st.integers(0, 12), st.data())
def test_rows_of_the_whole_are_the_rows_at_an_offset(labeler, n, data):
    start = data.draw(st.integers(0, n))
    stop = data.draw(st.integers(start, n))
    whole = labeler(n)
    for there in (whole[start:stop], labeler(stop - start, n, q_offset=start)):
        for expected, got in zip(whole.to_dense(), there.to_dense(), strict=True):
            torch.testing.assert_close(got, expected[:, start:stop])


@pytest.mark.parametrize("labeler", LABELERS, ids=repr)
def test_compiles_without_breaks_or_recompiles(labeler):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    def use(x):
        labels = labeler(x.shape[0])
        return x.repeat(2) * labels.q_len + sum(labels.lookup) + labels.num_labels

    torch._dynamo.reset()
    compiled = torch.compile(use, fullgraph=True, dynamic=True, backend=backend)
    for n in (2, 3, 7, 64):
        x = torch.arange(n, dtype=torch.float32)
        torch.testing.assert_close(compiled(x), use(x))
    assert len(graphs) == 1


def test_a_user_can_write_one():
    class Sign(DistanceLabeler):
        lookup = (0, 1, 2)
        reach = 1
        num_labels = 3
        names = ("before", "here", "after")

    ids, _ = Sign()(2, 3).to_dense()
    assert ids.tolist() == [[[1, 2, 2], [0, 1, 2]]]


@dataclass(frozen=True)
class Parity(DistanceLabeler):
    """A labeler with properties of a frozen dataclass."""

    far: int
    num_labels = 2
    names = ("even", "odd")

    @property
    def reach(self):
        return self.far + 1

    @property
    def lookup(self):
        return (-1, *(distance % 2 for distance in range(-self.far, self.far + 1)), -2)


def test_lookup_and_reach_may_be_properties():
    ids, attend = Parity(1)(4).to_dense()
    assert ids[0].tolist() == [[0, 1, -1, -1], [1, 0, 1, -1], [-1, 1, 0, 1], [-1, -1, 1, 0]]
    assert attend[0].tolist() == [[j <= i + 1 for j in range(4)] for i in range(4)]
    assert repr(Parity(1)) == "Parity(far=1)"
    assert (Parity(1) | ClippedDistance(2)).names == ("even", "odd", "-2", "-1", "0", "1", "2")
