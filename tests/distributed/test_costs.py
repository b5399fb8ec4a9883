"""Work of each row: against the pairs written out."""

from __future__ import annotations

import pytest
import torch

import relgraph as rg
from tests.cases import KINDS


def written_out(labels, is_causal):
    """The keys of each row, counted pair by pair; parallel edges count each where there is no default."""
    attend, counts = attending(labels), []
    for i in range(labels.q_len):
        graph = 0 if labels.q_ptr is None else int((labels.q_ptr[1:] <= i).sum())
        q_start, k_start = (0, 0) if labels.q_ptr is None else (int(labels.q_ptr[graph]), int(labels.k_ptr[graph]))
        counts.append(0)
        for b, row in enumerate(attend[:, i].tolist()):
            last = k_start + i - q_start + offset_at(labels, b, graph)
            counts[i] += sum(often for j, often in enumerate(row) if not is_causal or j <= last)
    return counts


def attending(labels):
    """How often each pair attends, ``[B, N_q, N_k]``."""
    if not isinstance(labels, rg.EdgeLabels):
        return labels.to_dense()[1].long()
    often = torch.zeros(labels.batch_size, labels.q_len, labels.k_len, dtype=torch.int64)
    batch = range(labels.batch_size)
    for e, (source, target) in enumerate(labels.edge_index.T.tolist()):
        often[batch if labels.batch is None else labels.batch[e], target, source] += 1
    if labels.default is None:
        return often
    if isinstance(labels.default, rg.labels.Labels):
        return ((often + attending(labels.default)) > 0).long()
    same_graph = rg.DistanceLabels(labels.q_len, labels.k_len, lookup=[0], left=0, ptr=labels.k_ptr, q_ptr=labels.q_ptr)
    return same_graph.to_dense()[1].long().expand_as(often)


def offset_at(labels, row, graph):
    """The position of query 0 among the keys of its batch row or graph."""
    offset = getattr(labels, "q_offset", None)
    if not isinstance(offset, torch.Tensor) or offset.dim() == 0:
        return int(offset or 0)
    return int(offset[graph if labels.packed else row])


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("n", [0, 1, 2, 11])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("none", "sum")])
def test_rows_cost_their_keys(kind, n, is_causal):
    torch.manual_seed(n)
    labels = KINDS[kind](n)
    got = rg.distributed.row_costs(labels, is_causal)
    assert got.dtype == torch.int64
    assert got.tolist() == written_out(labels, is_causal)


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_window_moves_with_the_offset(is_causal):
    labels = rg.Window(1)(4, 9, q_offset=torch.tensor([4, -1]))
    assert rg.distributed.row_costs(labels, is_causal).tolist() == written_out(labels, is_causal)


def test_a_sum_costs_no_more_than_each_part():
    near, edges = rg.Window(1)(5), rg.EdgeLabels(torch.tensor([[0, 1], [3, 3]]), torch.tensor([0, 0]), 1, q_len=5)
    assert rg.distributed.row_costs(rg.SumLabels(near, edges)).tolist() == [0, 0, 0, 2, 0]


def test_packed_rows_see_their_own_graph():
    labels = rg.DistanceLabels(7, lookup=[0], left=0, ptr=torch.tensor([0, 2, 2, 7]))
    assert rg.distributed.row_costs(labels).tolist() == [2, 2, 5, 5, 5, 5, 5]
    assert rg.distributed.row_costs(labels, is_causal=True).tolist() == [1, 2, 1, 2, 3, 4, 5]


def test_refused():
    with pytest.raises(TypeError, match="labels must be Labels, got"):
        rg.distributed.row_costs(torch.ones(3, 3))
    with pytest.raises(TypeError, match="is_causal must be"):
        rg.distributed.row_costs(rg.Window(1)(3), 1)
    with pytest.raises(ValueError, match="labels must hold numbers"):
        rg.distributed.row_costs(rg.Window(1)(3).dense().to("meta"))
