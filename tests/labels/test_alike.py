"""Labels that cannot be combined say why."""

from __future__ import annotations

import pytest
import torch

from relgraph.labelers import ClippedDistance
from relgraph.labels import BlockLabels, DenseLabels, product
from relgraph.labels.join import common_offset

NEAR = ClippedDistance(2)
PTR = torch.tensor([0, 2, 5])


def dense(*shape, device=None):
    return DenseLabels(torch.zeros(shape, dtype=torch.int64, device=device), 1)


def test_refuses_other_lengths():
    with pytest.raises(ValueError, match=r"must cover the same pairs, \[N_q, N_k\], got \[3, 4\] and \[3, 3\]"):
        product(NEAR(3, 4), NEAR(3))


def test_refuses_packed_and_padded():
    with pytest.raises(ValueError, match=r"DistanceLabels with ptr and DenseLabels without ptr; \.dense\(\) writes"):
        product(NEAR(5, ptr=PTR), dense(5, 5))
    assert product(NEAR(5, ptr=PTR).dense(), dense(5, 5)).q_len == 5


def test_refuses_other_borders():
    with pytest.raises(ValueError, match="must have the same graph borders"):
        product(NEAR(5, ptr=PTR), NEAR(5, ptr=torch.tensor([0, 3, 5])))
    with pytest.raises(ValueError, match="must have the same graph borders"):
        product(NEAR(5, ptr=PTR, q_ptr=torch.tensor([0, 3, 5])), NEAR(5, ptr=PTR))
    with pytest.raises(ValueError, match="must have the same graph borders"):
        product(BlockLabels(torch.zeros(13, dtype=torch.int64), 1, PTR), NEAR(5, ptr=torch.tensor([0, 5])))
    assert product(NEAR(5, ptr=PTR), NEAR(5, ptr=PTR.clone())).packed


def test_refuses_other_batches():
    with pytest.raises(ValueError, match="must have the same batch_size, or 1, got 2 and 3"):
        product(dense(2, 4, 4), dense(3, 4, 4))
    assert product(dense(2, 4, 4), dense(1, 4, 4)).batch_size == 2


def test_refuses_other_devices():
    with pytest.raises(ValueError, match="must be on one device, got cpu and meta"):
        product(dense(4, 4), dense(4, 4, device="meta"))
    assert product(NEAR(4), dense(4, 4, device="meta")).device == torch.device("meta")


EQUAL = [
    (None, None, None),
    (None, 0, 0),
    (3, 3, 3),
    (torch.tensor(3), 3, torch.tensor(3)),
    (torch.tensor(0), None, torch.tensor(0)),
    (torch.tensor([3, 3]), 3, torch.tensor([3, 3])),
    (torch.tensor(3), torch.tensor([3, 3]), torch.tensor([3, 3])),
    (torch.tensor([1, 2]), torch.tensor([1, 2]), torch.tensor([1, 2])),
]
OTHER = [
    (None, 1, "None and 1"),
    (3, 4, "3 and 4"),
    (torch.tensor(3), 4, "3 and 4"),
    (torch.tensor([3, 4]), 3, r"\[3, 4\] and 3"),
    (torch.tensor([3, 4]), torch.tensor([3, 5]), r"\[3, 4\] and \[3, 5\]"),
]


@pytest.mark.parametrize(("a", "b", "expected"), EQUAL)
def test_equal_offsets(a, b, expected):
    for got in (common_offset(a, b), common_offset(b, a)):
        assert type(got) is type(expected)
        assert got is None or torch.equal(torch.as_tensor(got), torch.as_tensor(expected))


@pytest.mark.parametrize(("a", "b", "shown"), OTHER)
def test_refuses_other_offsets(a, b, shown):
    with pytest.raises(ValueError, match=f"must count distances from the same q_offset, got {shown}"):
        common_offset(a, b)
    with pytest.raises(ValueError, match="must count distances from the same q_offset"):
        product(NEAR(4, q_offset=a), NEAR(4, q_offset=b))
