"""Labels refuse sizes that are too large, and reading values that are on no device."""

from __future__ import annotations

import pytest
import torch

import relgraph as rg
from relgraph.labels import BlockLabels, DenseLabels, DistanceLabels, EdgeLabels, padded

PTR = torch.tensor([0, 2, 3])
EDGES, IDS = torch.tensor([[0], [1]]), torch.tensor([0])
BLOCKS = BlockLabels(torch.tensor([0, 1, 1, 0, 1]), 2, PTR)


def edges(**options) -> EdgeLabels:
    return EdgeLabels(EDGES, IDS, **{"num_labels": 1, "q_len": 3, **options})


def test_what_stores_nothing_may_be_long():
    labels = DistanceLabels(2**62, lookup=[0, 1], left=1, num_labels=2**31 - 1)
    assert (labels.q_len, labels.num_labels) == (2**62, 2**31 - 1)
    assert padded(rg.Window()(3, ptr=PTR), 2**40).k_len == 2**40
    assert edges(q_len=2**31 - 1).k_len == 2**31 - 1


def test_counts_of_many_pairs_do_not_overflow():
    told = rg.ClippedDistance(1).describe(2**31)
    assert told.counts == {"-1": 2**30 * (2**31 - 1), "0": 2**31, "1": 2**30 * (2**31 - 1)}


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: DistanceLabels(2**62 + 1, lookup=[0], left=0), "q_len must be at most 4611686018427387904, got 4611686018427387905"),
        (lambda: DistanceLabels(2, lookup=[0], left=0, num_labels=2**31), "num_labels must be at most 2147483647, got 2147483648"),
        (lambda: edges(q_len=2**32), r"batch_size, q_len and k_len must make fewer than 2\^63 pairs, got 1 · 4294967296 · 4294967296"),
        (lambda: padded(edges(ptr=PTR), 2**32), r"graphs and length must make fewer than 2\^63 pairs, got 2 · 4294967296 · 4294967296"),
        (lambda: padded(BLOCKS, 10**9), "length must make at most 4,294,967,296 pairs, which are written out, got 2000000000000000000"),
        (lambda: padded(edges(ptr=PTR, num_labels=2, default=BLOCKS), 10**6), "length must make at most 4,294,967,296 pairs"),
        (lambda: rg.Window()(2**40).describe(), r"labels that are counted must make fewer than 2\^63 pairs"),
        (lambda: edges().rows(10**9, 10**9 + 1), "start must be at most 3, got 1000000000"),
        (lambda: edges().cols(0, 10**30), "stop must be at most 3, got 1000"),
        (lambda: edges(default=DistanceLabels(3, lookup=[0], left=0, ptr=PTR.to("meta")), ptr=PTR), "default must be on the device of ptr, cpu, got meta"),
        (lambda: BlockLabels.from_blocks([torch.zeros(1, 1).long(), torch.zeros(1, 1, device="meta").long()], 1), r"blocks\[1\] must be on the device of blocks\[0\]"),
        (lambda: BLOCKS.to("meta").describe(), "labels must hold numbers, got tensors on the device meta"),
        (lambda: BlockLabels(BLOCKS.ids, 2, PTR.to("meta")), "ptr must hold numbers when lengths are left out"),
        (lambda: BlockLabels(BLOCKS.ids, 2, PTR, lengths=(3,)), "lengths must be two ints, N_q and N_k, got 1 entries"),
    ],
)  # fmt: skip
def test_refused(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_labels_of_too_many_ids_are_not_counted():
    with pytest.raises(
        NotImplementedError, match="labels of more than 16,777,216 ids cannot be counted, got num_labels = 16,777,217"
    ):
        DenseLabels(torch.zeros(2, 2).long(), 2**24 + 1).describe()
