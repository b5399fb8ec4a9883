"""Looking up single pairs agrees with the labels written out."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relgraph.labels import EdgeLabels
from relgraph.labels.pairs import Pairs
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


def test_several_labels():
    twice, once = torch.tensor([[0, 0], [1, 1]]), torch.tensor([[0, 1], [1, 0]])
    ids = torch.tensor([0, 1])
    under = EdgeLabels(twice, ids, 2, q_len=2, default=0, duplicates="sum")
    assert EdgeLabels(twice, ids, 2, q_len=2)._several
    assert under._several
    assert EdgeLabels(once, ids, 2, q_len=2, default=under)._several
    assert not EdgeLabels(twice, ids, 2, q_len=2, default=0, duplicates="first")._several
    assert not EdgeLabels(once, ids, 2, q_len=2)._several
