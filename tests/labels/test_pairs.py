"""Looking up single pairs agrees with the labels written out."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relgraph.labels import EdgeLabels
from relgraph.labels.pairs import Pairs, union
from tests.labelers.zoo import PACKED, PADDED, codes, make, packed_setting, padded_setting


@pytest.mark.parametrize("kind", PADDED)
@given(seed=st.integers(0, 10**6))
def test_codes_at_every_pair(kind, seed):
    rng = random.Random(seed)
    labels = make(kind, padded_setting(rng), rng)
    expected = codes(labels).expand(2, -1, -1)
    row, query, key = torch.ones_like(expected).nonzero(as_tuple=True)
    torch.testing.assert_close(labels._codes_at(Pairs(row, query, key)), expected[row, query, key])


@pytest.mark.parametrize("kind", PACKED)
@given(seed=st.integers(0, 10**6))
def test_codes_at_every_pair_of_each_graph(kind, seed):
    rng = random.Random(seed)
    setting = packed_setting(rng)
    labels, block = make(kind, setting, rng), make("block", setting, rng)
    pairs = block._pairs()
    torch.testing.assert_close(labels._codes_at(pairs), codes(labels)[0, pairs.query, pairs.key])
    torch.testing.assert_close(block._codes_at(pairs), block.ids.long())


@given(st.integers(0, 10**6))
def test_union_lists_each_pair_once(seed):
    rng = random.Random(seed)
    setting = padded_setting(rng)
    a, b = make("edge batch", setting, rng), make("edge", setting, rng)
    mine, theirs = a._pairs(2)[0], b._pairs(2)[0]
    listed = [set(zip(*(column.tolist() for column in pairs), strict=True)) for pairs in (mine, theirs)]
    got = list(zip(*(column.tolist() for column in union(mine, theirs, a)), strict=True))
    assert len(got) == len(set(got))
    assert set(got) == listed[0] | listed[1]


def test_where_keeps_what_is_true():
    pairs = Pairs(*torch.arange(6).view(3, 2)).where(torch.tensor([False, True]))
    assert [column.tolist() for column in pairs] == [[1], [3], [5]]


def test_several_labels():
    twice, once = torch.tensor([[0, 0], [1, 1]]), torch.tensor([[0, 1], [1, 0]])
    ids = torch.tensor([0, 1])
    under = EdgeLabels(twice, ids, 2, q_len=2, default=0, duplicates="sum")
    assert EdgeLabels(twice, ids, 2, q_len=2)._several
    assert under._several
    assert EdgeLabels(once, ids, 2, q_len=2, default=under)._several
    assert not EdgeLabels(twice, ids, 2, q_len=2, default=0, duplicates="first")._several
    assert not EdgeLabels(once, ids, 2, q_len=2)._several
