"""The algebra on labels: laws, and labels whose inputs differ."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relgraph.labelers import ClippedDistance
from relgraph.labels import EdgeLabels, SumLabels, first_of, product, restrict, total
from tests.labelers.zoo import PACKED, PADDED, codes, make, packed_setting, padded_setting

SEEDS = st.integers(0, 10**6)


def several(seed, count, kinds=None):
    """Make random labels of the same pairs."""
    rng = random.Random(seed)
    packed = rng.random() < 0.5
    setting = packed_setting(rng) if packed else padded_setting(rng)
    return [make(rng.choice(kinds or (PACKED if packed else PADDED)), setting, rng) for _ in range(count)]


def same(a, b):
    x, y = torch.broadcast_tensors(codes(a), codes(b))
    torch.testing.assert_close(x, y)
    assert a.num_labels == b.num_labels


def or_refused(fn, *labels):
    """Call ``fn`` on the labels; None if it refuses."""
    try:
        return fn(*labels)
    except NotImplementedError:
        return None


@given(SEEDS, st.sampled_from([product, first_of, restrict]))
def test_grouping_does_not_matter(seed, rule):
    a, b, c = several(seed, 3)
    left = or_refused(lambda: rule(rule(a, b), c))
    right = or_refused(lambda: rule(a, rule(b, c)))
    at_once = or_refused(rule, a, b, c)
    if left is not None and at_once is not None:
        same(left, at_once)
    if left is not None and right is not None:
        same(left, right)


@given(SEEDS)
def test_restriction_twice_is_once(seed):
    a, b = several(seed, 2)
    same(restrict(restrict(a, b), b), restrict(a, b))
    same(restrict(a, a), a)
    same(restrict(a, b, b), restrict(a, b))


@given(SEEDS)
def test_a_sum_holds_its_parts(seed):
    a, b, c = several(seed, 3)
    labels = total(total(a, b), c)
    assert isinstance(labels, SumLabels)
    assert labels.num_labels == (3, 3, 3)
    assert all(mine is theirs for mine, theirs in zip(labels.parts, (a, b, c), strict=True))


@given(SEEDS)
def test_restricting_a_sum_restricts_where_it_attends(seed):
    a, b, c = several(seed, 3)
    restricted = restrict(total(a, b), c)
    assert restricted.num_labels == (3, 3)
    attend = torch.stack(torch.broadcast_tensors(*(part.to_dense()[1] for part in restricted.parts))).all(0)
    wanted = torch.stack(torch.broadcast_tensors(*(part.to_dense()[1] for part in (a, b, c)))).all(0)
    torch.testing.assert_close(attend.expand_as(wanted), wanted)
    same(restrict(a, total(b, c)), restrict(a, b, c))


def test_edges_stay_edges():
    n = 10**6
    tree = EdgeLabels(torch.tensor([[0, 5], [n - 1, 4]]), torch.tensor([0, -1]), 1, q_len=n, default=-1)
    labels = first_of(tree, ClippedDistance(2)(n))
    assert isinstance(labels, EdgeLabels)
    assert labels.ids.tolist() == [0, 4]
    assert product(labels, ClippedDistance(1)(n)).ids.tolist() == [0, 14]


def test_refuses_what_is_no_labels():
    labels = ClippedDistance(1)(3)
    for rule in (product, first_of, restrict):
        with pytest.raises(TypeError, match="labels must be Labels, got ClippedDistance"):
            rule(ClippedDistance(1), labels)
        with pytest.raises(TypeError, match="labels must be Labels, got Tensor"):
            rule(labels, torch.zeros(3, 3))
        with pytest.raises(TypeError, match="labels must be Labels, got int"):
            rule(labels, labels, 3)
    with pytest.raises(TypeError, match="parts must be Labels, got int"):
        total(labels, 3)
