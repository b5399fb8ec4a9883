"""Weighted labels as labels: counts, slices, padding, composition, and what their constructors refuse."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
import torch

import relgraph as rg
from relgraph.labels import WeightedLabels
from tests.cases import F64, WEIGHTED

IDS = torch.tensor([[[0, 1], [2, -1]], [[-1, -1], [1, 1]]])
WEIGHTS = torch.rand(2, 2, 2)
EDGES = torch.tensor([[0, 1, 1], [1, 0, 1]])
OF_EDGES = torch.tensor([[0, 1], [2, -1], [-1, -1]])


def over_edges(**options):
    return WeightedLabels.over_edges(EDGES, OF_EDGES, torch.rand(3, 2), 3, **{"q_len": 2, **options})


def test_counts_of_every_label_of_a_pair():
    counts = WeightedLabels(IDS, WEIGHTS, 3).describe(["a", "b", "c"])
    assert (counts.counts, counts.unlabeled, counts.not_attending) == ({"a": 1, "b": 3, "c": 1}, 1, 0)
    attend = torch.tensor([[[True, False], [True, True]], [[False, True], [True, True]]])
    counts = WeightedLabels(IDS, WEIGHTS, 3, attend=attend).describe()
    assert (counts.counts, counts.unlabeled, counts.not_attending) == ({0: 1, 1: 5, 2: 1}, 2, 2)
    counts = over_edges().describe()
    assert (counts.counts, counts.unlabeled, counts.not_attending) == ({0: 1, 1: 1, 2: 1}, 1, 1)


def test_slices_keep_the_gradient_of_the_weights():
    weights = WEIGHTS.clone().requires_grad_()
    part = WeightedLabels(IDS, weights, 3).rows(1, 2).cols(1, 2)
    part.weights.sum().backward()
    assert weights.grad.nonzero().tolist() == [[1, 1, 0], [1, 1, 1]]
    listed = torch.rand(3, 2, requires_grad=True)
    part = WeightedLabels.over_edges(EDGES, OF_EDGES, listed, 3, q_len=2).cols(1, 2)
    assert part.ids.tolist() == [[2, -1], [-1, -1]]
    assert part.pairs.edge_index.tolist() == [[0, 0], [0, 1]]
    part.weights.sum().backward()
    assert listed.grad.tolist() == [[0, 0], [1, 1], [1, 1]]


def test_batch_rows_and_padding():
    batched = WeightedLabels(IDS, torch.rand(3, 2, 2, 2), 3)
    assert (batched.batch_size, batched._batch_rows(1, 3).weights.shape[0]) == (3, 2)
    own = over_edges(batch=torch.tensor([0, 1, 1]), batch_size=2)._batch_rows(1, 2)
    assert own.ids.tolist() == OF_EDGES[1:].tolist()
    packed = WEIGHTED["weighted edges packed"](9)
    padded = rg.labels.padded(packed)
    assert padded.batch_size == packed.k_ptr.shape[0] - 1
    x, table = torch.randn(9, 2, 4, dtype=F64), torch.randn(3, 4, dtype=F64)
    alone = rg.relation_attention(x, x, x, packed, table, table)
    ptr, together = packed.k_ptr.tolist(), x.new_zeros(padded.batch_size, 2, padded.q_len, 4)
    for g, (start, stop) in enumerate(pairwise(ptr)):
        together[g, :, : stop - start] = x[start:stop].transpose(0, 1)
    z = rg.relation_attention(together, together, together, padded, table, table)
    for g, (start, stop) in enumerate(pairwise(ptr)):
        torch.testing.assert_close(z[g, :, : stop - start].transpose(0, 1), alone[start:stop])


def test_a_sum_takes_them_and_other_algebra_does_not():
    labels, near = WeightedLabels(IDS, WEIGHTS, 3), rg.ClippedDistance(1)(2)
    assert (labels + near).num_labels == (3, 3)
    for combine in (lambda: labels * near, lambda: near | labels, lambda: labels & near):
        with pytest.raises(TypeError, match="takes labels with one id per pair, got weighted labels"):
            combine()
    with pytest.raises(TypeError, match=re.escape("read .ids and .weights")):
        labels.to_dense()
    with pytest.raises(TypeError, match="default must be .* other than a sum or weighted labels, got WeightedLabels"):
        rg.EdgeLabels(EDGES, torch.zeros(3, dtype=torch.long), 3, q_len=2, default=labels)


def test_ids_are_copied_and_weights_are_not():
    ids, weights = IDS.clone(), WEIGHTS.clone()
    labels = WeightedLabels(ids, weights, 3)
    ids.zero_()
    assert labels.ids[0].tolist() == IDS.tolist()
    assert labels.weights.data_ptr() == weights.data_ptr()
    assert labels.with_weights(weights[None].expand(4, -1, -1, -1)).batch_size == 4


@pytest.mark.parametrize(
    ("error", "message", "make"),
    [
        (TypeError, "weights must be a Tensor, got list", lambda: WeightedLabels(IDS, [1.0], 3)),
        (ValueError, "weights must have a floating dtype, got torch.int64", lambda: WeightedLabels(IDS, IDS, 3)),
        (ValueError, "ids must have an integer dtype", lambda: WeightedLabels(WEIGHTS, WEIGHTS, 3)),
        (ValueError, "ids must have 3 or 4 dimensions", lambda: WeightedLabels(IDS[0], WEIGHTS, 3)),
        (ValueError, r"ids must lie in \[-1, 2\), got values from -1 to 2", lambda: WeightedLabels(IDS, WEIGHTS, 2)),
        (ValueError, "at least one label per pair", lambda: WeightedLabels(IDS[..., :0], WEIGHTS[..., :0], 3)),
        (
            ValueError,
            r"weights must have the shape of ids, \[N_q, N_k, M\] or .*, got \[2, 2, 1\] and ids \[2, 2, 2\]",
            lambda: WeightedLabels(IDS, WEIGHTS[..., :1], 3),
        ),
        (
            ValueError,
            "weights must have batch size 1 or 2, got 3",
            lambda: WeightedLabels(IDS.expand(2, 2, 2, 2), torch.rand(3, 2, 2, 2), 3),
        ),
        (
            ValueError,
            r"attend must have shape \[N_q, N_k\] = \[2, 2\] or \[B, 2, 2\], got \[2, 3\]",
            lambda: WeightedLabels(IDS, WEIGHTS, 3, attend=torch.ones(2, 3).bool()),
        ),
        (ValueError, r"weights must have the shape of ids, \[E, M\]", lambda: over_edges().with_weights(WEIGHTS)),
        (
            ValueError,
            r"edge_index must have shape \[2, P\] and ids shape \[P\], got \[2, 3\] and \[2\]",
            lambda: WeightedLabels.over_edges(EDGES, OF_EDGES[:2], torch.rand(2, 2), 3, q_len=2),
        ),
        (ValueError, "every source", lambda: over_edges(k_len=1)),
    ],
)
def test_bad_input(error, message, make):
    with pytest.raises(error, match=message):
        make()
