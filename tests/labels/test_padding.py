"""Packed labels as those of a padded batch."""

from __future__ import annotations

import random

import pytest
import torch

import relgraph as rg
from relgraph.labels import padded
from tests.labelers import zoo


def square(rng):
    setting = zoo.packed_setting(rng)
    return zoo.Setting(setting.k_len, setting.k_len, setting.q_offset, setting.ptr)


@pytest.mark.parametrize("kind", zoo.PACKED)
@pytest.mark.parametrize("seed", range(8))
def test_every_row_holds_one_graph(kind, seed):
    rng = random.Random(seed)
    labels = zoo.make(kind, square(rng), rng)
    length = int(labels.k_ptr.diff().max()) + rng.randint(0, 2)
    rows, codes = padded(labels, length), zoo.codes(labels)[0]
    assert (rows.q_len, rows.k_len, rows.num_labels) == (length, length, labels.num_labels)
    assert not rows.packed
    out = zoo.codes(rows).expand(labels.k_ptr.shape[0] - 1, length, length)
    for row, (a, b) in enumerate(zip(labels.k_ptr[:-1].tolist(), labels.k_ptr[1:].tolist(), strict=True)):
        torch.testing.assert_close(out[row, : b - a, : b - a], codes[a:b, a:b])


def test_a_sum_part_by_part():
    graph = rg.Graph.from_parents(torch.tensor([-1, 0, -1]), ptr=torch.tensor([0, 2, 3]))
    labels = (rg.EdgeType(1) + rg.ClippedDistance(1))(graph)
    parts = padded(labels).parts
    assert parts[0] == padded(labels.parts[0], 2)
    assert parts[1] == rg.ClippedDistance(1)(2)
