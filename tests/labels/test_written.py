"""Dense, block and edge labels: values against loops, storage, and what they refuse."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import relgraph as rg
from relgraph.labels import BlockLabels, DenseLabels, EdgeLabels, SumLabels
from tests.cases import distance


@pytest.mark.parametrize(
    ("num_labels", "dtype"), [(1, torch.int8), (128, torch.int8), (129, torch.int16), (40_000, torch.int32)]
)
def test_ids_are_stored_in_the_smallest_type(num_labels, dtype):
    ids = torch.tensor([[-1, num_labels - 1]])
    attend = torch.tensor([[True, True]])
    for labels in (
        DenseLabels(ids, num_labels, attend=attend),
        BlockLabels(ids[0], num_labels, torch.tensor([0, 2]), q_ptr=torch.tensor([0, 1])),
        EdgeLabels(torch.tensor([[0, 1], [0, 0]]), ids[0], num_labels, q_len=1, k_len=2),
    ):
        assert labels.ids.dtype == dtype
        assert labels.to_dense()[0].tolist() == [[[-1, num_labels - 1]]]


def test_ids_that_do_not_attend_are_not_looked_at():
    labels = DenseLabels(torch.tensor([[7, 0]]), 1, attend=torch.tensor([[False, True]]))
    assert labels.to_dense()[0].tolist() == [[[-1, 0]]]
    assert not labels.full


def test_blocks_stand_on_the_diagonal():
    blocks = [torch.randint(0, 3, (2, 2)), torch.randint(0, 3, (0, 1)), torch.randint(0, 3, (1, 3))]
    ids, attend = BlockLabels.from_blocks(blocks, 3).to_dense()
    assert ids.shape == (1, 3, 6)
    assert torch.equal(ids[0, :2, :2], blocks[0])
    assert torch.equal(ids[0, 2:, 3:], blocks[2])
    assert attend[0].int().tolist() == [[1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1]]


def test_edges_without_batch_serve_every_row_of_a_batched_default():
    base = DenseLabels(torch.zeros(2, 3, 3, dtype=torch.long), 2)
    labels = EdgeLabels(torch.tensor([[1], [0]]), torch.tensor([1]), 2, q_len=3, default=base)
    assert labels.batch_size == 2
    assert labels.to_dense()[0][:, 0, 1].tolist() == [1, 1]
    assert labels.to_dense()[0].sum() == 2


def test_labels_own_what_was_checked():
    ids, index = torch.zeros(2, 2, dtype=torch.int8), torch.tensor([[0], [1]])
    labels, edges = DenseLabels(ids, 1), EdgeLabels(index, torch.zeros(1, dtype=torch.int8), 1, q_len=2)
    ids.fill_(100)
    index.fill_(100)
    assert labels.ids.max() == 0
    assert edges.edge_index.tolist() == [[0], [1]]


def dense(ids=((0, 1), (1, 0)), num_labels=2, **options):
    return DenseLabels(torch.tensor(ids), num_labels, **options)


def block(ids=(0, 1, 1, 0), num_labels=2, ptr=(0, 2), **options):
    return BlockLabels(torch.tensor(ids), num_labels, torch.tensor(ptr), **options)


def edge(index=((0, 1), (1, 0)), ids=(0, 1), num_labels=2, q_len=2, **options):
    return EdgeLabels(torch.tensor(index), torch.tensor(ids), num_labels, q_len=q_len, **options)


@pytest.mark.parametrize(
    ("error", "message", "build"),
    [
        (ValueError, r"ids must have 2 or 3 dimensions, got shape \[2\]", lambda: dense((0, 1))),
        (ValueError, r"ids must lie in \[-1, 2\), got values from 0 to 2", lambda: dense(((0, 2),))),
        (ValueError, r"attend must be a bool tensor of the shape of ids, \[2, 2\]", lambda: dense(attend=torch.ones(2, 2))),
        (ValueError, "ids must hold one id per pair of each graph, 4 in all, got 3", lambda: block((0, 1, 1))),
        (ValueError, r"ptr must hold at least one border, \[0\], got an empty tensor", lambda: BlockLabels(torch.tensor([0]), 1, torch.zeros(0, dtype=torch.long))),
        (ValueError, r"edge_index must have shape \[2, P\] and ids shape \[P\]", lambda: edge(ids=(0,))),
        (ValueError, r"every source \(key\) must lie in \[0, 2\), got values from 0 to 2", lambda: edge(((0, 2), (1, 0)))),
        (ValueError, r"every target \(query\) must lie in \[0, 2\), got values from -1 to 0", lambda: edge(((0, 1), (-1, 0)))),
        (ValueError, "duplicates must be 'first' or 'sum' .* more than one edge from 1 to 0",
         lambda: edge(((1, 1), (0, 0)), default=0)),
        (ValueError, "default must be at most 1, got 2", lambda: edge(default=2)),
        (TypeError, "Labels other than a sum, got SumLabels", lambda: edge(default=SumLabels(dense(), dense()))),
        (ValueError, "default must have at most num_labels = 2 labels, got 5", lambda: edge(default=distance(2))),
        (ValueError, r"default must cover \[N_q, N_k\] = \[2, 2\], not packed, got", lambda: edge(num_labels=5, default=distance(3))),
        (ValueError, "default must have batch_size 1 or 3, got 2",
         lambda: edge(batch=torch.tensor([0, 2]), batch_size=3, default=DenseLabels(torch.zeros(2, 2, 2, dtype=torch.long), 1))),
        (ValueError, "default must not hold parallel edges that attend separately", lambda: edge(default=edge(((1, 1), (0, 0))))),
        (ValueError, "edge_index must not cross from graph to graph, got edge 0: 0 -> 1", lambda: edge(ptr=torch.tensor([0, 1, 2]))),
        (ValueError, "default must have the same ptr as the edges, got other borders",
         lambda: edge(num_labels=5, ptr=torch.tensor([0, 2]), default=distance(2, ptr=torch.tensor([0, 0, 2])))),
        (ValueError, r"batch must have shape \[2\], without a ptr", lambda: edge(batch=torch.tensor([0]), batch_size=1)),
        (ValueError, "batch must be given when batch_size is not 1", lambda: edge(batch_size=2)),
        (ValueError, r"batch must lie in \[0, batch_size\) = \[0, 2\), got values from 0 to 2: give batch_size, the number of batch rows",
         lambda: edge(batch=torch.tensor([0, 2]), batch_size=2)),
        (ValueError, r"batch must lie in \[0, batch_size\) = \[0, 1\), got values from 0 to 1: give batch_size",
         lambda: edge(batch=torch.tensor([0, 1]))),
        (ValueError, r"batch must lie in \[0, batch_size\) = \[0, 2\), got values from -1 to 0$",
         lambda: edge(batch=torch.tensor([0, -1]), batch_size=2)),
        (ValueError, "ids must be on the device of edge_index, cpu, got meta",
         lambda: EdgeLabels(torch.zeros(2, 1, dtype=torch.long), torch.zeros(1, dtype=torch.long, device="meta"), 1, q_len=1)),
    ],
)  # fmt: skip
def test_bad_input(error, message, build):
    with pytest.raises(error, match=message):
        build()


def test_a_pickle_holds_labels_without_their_plan():
    labels = EdgeLabels(torch.tensor([[0, 1], [1, 0]]), torch.tensor([0, 1]), 2, q_len=2)
    fresh = len(pickle.dumps(labels))
    x = torch.randn(2, 1, 3)
    rg.edge_attention(x, x, x, labels)
    assert labels._plan is not None
    assert len(pickle.dumps(labels)) == fresh
    assert pickle.loads(pickle.dumps(labels)) == copy.deepcopy(labels) == labels
