"""Labels by segment."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relgraph.labelers import Segments

from .conformance import Case, LabelerSuite


class TestConformance(LabelerSuite):
    cases = (
        Case(Segments(2), (torch.tensor([0, 0, 1, -1]),)),
        Case(Segments(3), (torch.tensor([[0, 2], [1, -1]]), torch.tensor([0, 1, 2]))),
        Case(Segments(1), (torch.zeros(0, dtype=torch.int32),)),
        Case(Segments(20), (torch.tensor([19, 3], dtype=torch.uint8),)),
    )


def segment_lists(count):
    return st.lists(st.integers(-1, count - 1), max_size=6)


@given(st.integers(1, 5), st.data())
def test_against_a_loop(count, data):
    query, key = data.draw(segment_lists(count)), data.draw(segment_lists(count))
    labeler = Segments(count)
    ids, attend = labeler(torch.tensor(query, dtype=torch.int64), torch.tensor(key, dtype=torch.int64)).to_dense()
    assert ids.shape == (1, len(query), len(key))
    assert bool(attend.all())
    for i, a in enumerate(query):
        for j, b in enumerate(key):
            if -1 in (a, b):
                assert ids[0, i, j] == -1
            else:
                assert labeler.names[ids[0, i, j]] == f"{a}→{b}"


def test_refuses_bad_input():
    with pytest.raises(ValueError, match="k_segments must have 1 or 2 dimensions"):
        Segments(2)(torch.tensor([0]), torch.tensor(0))
    with pytest.raises(ValueError, match=r"segments must lie in \[-1, 2\)"):
        Segments(2)(torch.tensor([0, 2]))
    with pytest.raises(ValueError, match="k_segments must have 2 batch rows like segments, got 3"):
        Segments(2)(torch.zeros(2, 4, dtype=torch.int64), torch.zeros(3, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match="k_segments must be on the device of segments"):
        Segments(2)(torch.tensor([0]), torch.tensor([0], device="meta"))
