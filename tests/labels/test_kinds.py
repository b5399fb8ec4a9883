"""Every kind of labels has row slices, moves, equality and a pytree, and cannot be changed."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.utils import _pytree as pytree

from relgraph.labels import SumLabels
from tests.cases import KINDS, distance

NAMES = [name for name in KINDS if name != "none"]
DENSE = [
    name
    for name in KINDS
    if name not in ("none", "sum", "edges only parallel", "edges sum", "edges sum batch", "edges over edges")
]


@pytest.mark.parametrize("kind", DENSE)
@pytest.mark.parametrize("rows", [(2, 5), (3, 3)])
def test_rows_are_rows_of_the_whole(kind, rows):
    labels = KINDS[kind](7)
    ids, attend = labels.to_dense()
    part = labels[rows[0] : rows[1]]
    assert part == labels.rows(*rows)
    assert (part.q_len, part.k_len, part.num_labels) == (rows[1] - rows[0], labels.k_len, labels.num_labels)
    part_ids, part_attend = part.to_dense()
    assert torch.equal(part_ids, ids[:, slice(*rows)])
    assert torch.equal(part_attend, attend[:, slice(*rows)])
    again = part[1:].to_dense()[0] if rows[1] - rows[0] > 1 else None
    assert again is None or torch.equal(again, ids[:, rows[0] + 1 : rows[1]])


@pytest.mark.parametrize("kind", NAMES)
def test_equality_and_moves(kind):
    torch.manual_seed(1)
    labels = KINDS[kind](7)
    torch.manual_seed(1)
    same = KINDS[kind](7)
    assert labels == same
    assert labels.to("cpu") == labels
    assert labels == pickle.loads(pickle.dumps(labels))
    assert labels != KINDS["distance" if kind != "distance" else "dense"](7)
    assert labels != labels.rows(0, 6)
    assert labels != "labels"
    with pytest.raises(AttributeError, match="cannot assign to field .q_len"):
        labels.q_len = 3
    meta = labels.to("meta")
    assert meta.device in (None, torch.device("meta"))
    assert type(meta) is type(labels)
    leaves, spec = pytree.tree_flatten(labels)
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    assert pytree.tree_unflatten(leaves, spec) == labels
    with pytest.raises(TypeError, match="unhashable"):
        hash(labels)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("dense batch", "DenseLabels(q_len=7, k_len=8, num_labels=3, batch_size=2)"),
        ("block", "BlockLabels(q_len=7, k_len=7, num_labels=3, graphs=4)"),
        (
            "distance packed offsets",
            "DistanceLabels(q_len=7, k_len=7, num_labels=5, graphs=4, distances=-2..2, q_offset=<tensor [4]>)",
        ),
        ("edges only", "EdgeLabels(q_len=7, k_len=7, num_labels=3, edges=16, default=None)"),
        ("edges sum", "EdgeLabels(q_len=7, k_len=7, num_labels=4, edges=24, default=3, duplicates='sum')"),
        (
            "edges over distance",
            "EdgeLabels(q_len=7, k_len=7, num_labels=5, edges=16, "
            "default=DistanceLabels(q_len=7, k_len=7, num_labels=5, distances=-2..2))",
        ),
        (
            "sum",
            "SumLabels(DistanceLabels(q_len=7, k_len=7, num_labels=5, distances=-2..2), "
            "EdgeLabels(q_len=7, k_len=7, num_labels=3, edges=16, default=None), "
            "DenseLabels(q_len=7, k_len=7, num_labels=2))",
        ),
    ],
)
def test_what_is_printed(kind, text):
    assert repr(KINDS[kind](7)) == str(KINDS[kind](7)) == text


def test_indexing_refuses_all_but_row_slices():
    labels = KINDS["distance"](7)
    for index in (3, slice(0, 4, 2), (slice(0, 2), 0)):
        with pytest.raises(TypeError, match="indexed by a slice of query rows with step 1, got"):
            labels[index]
    with pytest.raises(ValueError, match="stop must be at most 7, got 8"):
        labels.rows(0, 8)


def test_sum_and_parallel_edges_have_no_dense_form():
    labels = KINDS["sum"](5)
    with pytest.raises(TypeError, match="several ids per pair: call to_dense on each of .parts"):
        labels.to_dense()
    with pytest.raises(TypeError, match="cannot become DenseLabels; take .parts first"):
        labels.dense()
    for kind in ("edges only parallel", "edges sum"):
        with pytest.raises(ValueError, match="parallel edges have no dense form"):
            KINDS[kind](7).to_dense()


def test_only_the_device_changes():
    labels = KINDS["distance"](5)
    with pytest.raises(TypeError, match="device must be a torch.device or its name, got dtype"):
        labels.to(torch.float16)
    assert labels.to(device="cpu", non_blocking=True) == labels


@pytest.mark.cuda
def test_pin_memory():
    labels = KINDS["dense"](4)
    assert distance(4).pin_memory() == distance(4)
    with pytest.raises(ValueError, match="labels must be on the CPU to be pinned, got them on meta"):
        labels.to("meta").pin_memory()
    if not torch.cuda.is_available():
        with pytest.raises(NotImplementedError, match="pin_memory needs an accelerator"):
            labels.pin_memory()
    else:
        assert labels.pin_memory().ids.is_pinned()


def test_sums_flatten_and_check_their_parts():
    a, b, c = KINDS["distance"](4), KINDS["dense"](4), KINDS["edges default"](4)
    assert SumLabels(SumLabels(a, b), c) == SumLabels(a, b, c)
    assert SumLabels(a, b).num_labels == (5, 4)
    with pytest.raises(ValueError, match="at least two parts, got 1"):
        SumLabels(a)
    with pytest.raises(TypeError, match="parts must be Labels, got int"):
        SumLabels(a, 3)
    with pytest.raises(ValueError, match="parts must cover the same pairs"):
        SumLabels(a, KINDS["dense"](5))
    with pytest.raises(ValueError, match="parts must have the same graph borders"):
        SumLabels(distance(9, ptr=torch.tensor([0, 4, 9])), distance(9, ptr=torch.tensor([0, 5, 9])))
    with pytest.raises(ValueError, match="parts must have the same batch_size, or 1, got 2 and 3"):
        SumLabels(KINDS["dense batch"](4), _batch_of_three())
    with pytest.raises(ValueError, match="must not hold parallel edges that attend separately"):
        SumLabels(KINDS["distance"](7), KINDS["edges only parallel"](7))


def _batch_of_three():
    from relgraph.labels import DenseLabels

    return DenseLabels(torch.zeros(3, 4, 5, dtype=torch.long), 1)
