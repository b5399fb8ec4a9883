"""Distance labels against a loop over pairs, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import relgraph as rg
from relgraph.labels import DistanceLabels
from tests import cases
from tests.cases import answer, assert_same, distance


@given(
    q_len=st.integers(0, 6),
    k_len=st.integers(0, 6),
    lookup=st.lists(st.integers(-2, 4), min_size=1, max_size=6),
    left=st.integers(0, 5),
    offset=st.integers(-5, 5),
)
def test_every_pair(q_len, k_len, lookup, left, offset):
    left = min(left, len(lookup) - 1)
    labels = DistanceLabels(q_len, k_len, lookup=lookup, left=left, q_offset=offset)
    ids, attend = labels.to_dense()
    for i in range(q_len):
        for j in range(k_len):
            wanted = lookup[min(max(j - i - offset, -left), len(lookup) - 1 - left) + left]
            assert ids[0, i, j] == max(wanted, -1)
            assert attend[0, i, j] == (wanted != -2)


def test_packed_graphs_count_for_themselves():
    ptr = torch.tensor([0, 3, 3, 7])
    ids, attend = distance(7, ptr=ptr, q_offset=torch.tensor([0, 0, 1])).to_dense()
    assert attend[0].sum() == 9 + 16
    assert torch.equal(ids[0, :3, :3], distance(3).to_dense()[0][0])
    assert torch.equal(ids[0, 3:, 3:], distance(4, q_offset=1).to_dense()[0][0])


def test_nothing_is_materialised():
    labels = distance(1 << 40)
    assert labels.k_len == 1 << 40
    assert pytree.tree_leaves(labels) == []
    assert labels.device is None


def test_repr():
    assert repr(distance(3, 5, q_offset=2)) == (
        "DistanceLabels(q_len=3, k_len=5, num_labels=5, distances=-2..2, q_offset=2)"
    )
    assert "q_offset=<tensor [2]>" in repr(distance(3, 5, q_offset=torch.tensor([2, 1])))


def make(q_len=4, k_len=4, lookup=(0, 1, 2), left=1, **options):
    return DistanceLabels(q_len, k_len, lookup=lookup, left=left, **options)


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (ValueError, "lookup must hold at least one id, got none", {"lookup": ()}),
        (ValueError, r"lookup must hold ids in \[-2, 2\), got 2", {"num_labels": 2}),
        (ValueError, "left must be at most 2, got 3", {"left": 3}),
        (ValueError, "q_offset must have 0 or 1 dimensions", {"q_offset": torch.zeros(1, 1, dtype=torch.long)}),
        (ValueError, "q_ptr needs ptr", {"q_ptr": torch.tensor([0, 4])}),
        (ValueError, r"ptr must start at 0, never fall and end at 4, got \[0, 5\]", {"ptr": torch.tensor([0, 5])}),
        (ValueError, "ptr must start at 0, never fall", {"ptr": torch.tensor([0, 3, 2, 4])}),
        (ValueError, r"end at 4, got \[0, 1, 2, 3, ..., 9\]", {"ptr": torch.arange(10)}),
        (ValueError, "q_ptr must be given when q_len and k_len differ", {"q_len": 3, "ptr": torch.tensor([0, 4])}),
        (
            ValueError,
            "q_ptr must name as many graphs as ptr, 1, got 2",
            {"ptr": torch.tensor([0, 4]), "q_ptr": torch.tensor([0, 1, 4])},
        ),
        (
            ValueError,
            "q_offset must hold one number per graph, 1, got 2",
            {"ptr": torch.tensor([0, 4]), "q_offset": torch.tensor([0, 1])},
        ),
    ],
)
def test_bad_input(error, message, options):
    with pytest.raises(error, match=message):
        make(**options)


@pytest.mark.parametrize("offset", [2**31 + 1, -(2**31) - 1, 2**63, -(2**63), 10**30])
def test_offsets_beyond_the_bound_are_refused(offset):
    with pytest.raises(ValueError, match="q_offset must be at (least|most) -?2147483648, got"):
        DistanceLabels(3, lookup=[0], left=0, q_offset=offset)
    with pytest.raises(ValueError, match="q_offset must be at (least|most) -?2147483648, got"):
        rg.relation_attention(*(torch.zeros(1, 1, 3, 2) for _ in range(3)), None, is_causal=True, q_offset=offset)
    if abs(offset) < 2**63:
        with pytest.raises(ValueError, match=r"q_offset must lie in \[-2\*\*31, 2\*\*31\], got values from"):
            DistanceLabels(3, lookup=[0], left=0, q_offset=torch.tensor([0, offset]))


@pytest.mark.parametrize("offset", [2**31, -(2**31), torch.tensor([2**31, -(2**31)])])
@pytest.mark.parametrize("impl", ["dense", "chunked", "native"])
def test_offsets_at_the_bound(offset, impl):
    labels = DistanceLabels(5, lookup=range(5), left=2, q_offset=offset)
    for causal in (False, True):
        case = cases.make(labels, is_causal=causal)
        wanted, found = answer(case, "reference"), answer(case, impl)
        assert_same(found[0], wanted[0])
        assert_same(found[1], wanted[1])
