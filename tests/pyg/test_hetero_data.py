"""PyTorch Geometric's heterogeneous graphs in one id space."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Batch, HeteroData

import relgraph as rg
from relgraph.pyg import from_hetero_data


def edges(*pairs):
    return torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T


def listed(graph):
    return sorted(zip(*graph.edge_index.tolist(), graph.edge_type.tolist(), strict=True))


def bibliography(papers=2):
    data = HeteroData()
    data["author"].x = torch.zeros(2, 1)
    data["paper"].num_nodes = papers
    data["author", "wrote", "paper"].edge_index = edges((1, 0), (0, 1))
    data["paper", "cites", "paper"].edge_index = edges((1, 0))
    return data


def test_hetero_in_one_id_space():
    made = from_hetero_data(bibliography())
    assert made.node_types == ("author", "paper")
    assert made.edge_types == ("author__wrote__paper", "paper__cites__paper")
    assert {kind: at.tolist() for kind, at in made.nodes.items()} == {"author": [0, 1], "paper": [2, 3]}
    assert made.graph == rg.Graph(
        edges((1, 2), (0, 3), (3, 2)), 4, edge_type=torch.tensor([0, 0, 1]), node_type=torch.tensor([0, 0, 1, 1]),
        edge_types=made.edge_types, node_types=made.node_types,
    )  # fmt: skip
    same = bibliography().to_homogeneous()
    assert torch.equal(made.graph.edge_index, same.edge_index)
    assert torch.equal(made.graph.edge_type, same.edge_type)


def test_hetero_batch_is_its_graphs_end_to_end():
    several = [bibliography(2), bibliography(3)]
    alone = [from_hetero_data(data) for data in several]
    made = from_hetero_data(Batch.from_data_list(several))
    whole = rg.Graph.batch([one.graph for one in alone])
    assert torch.equal(made.graph.ptr, whole.ptr)
    assert torch.equal(made.graph.node_type, whole.node_type)
    assert listed(made.graph) == listed(whole)
    for kind in made.node_types:
        assert made.nodes[kind].tolist() == [*alone[0].nodes[kind].tolist(), *(alone[1].nodes[kind] + 4).tolist()]
    rg.EdgeType(made.edge_types, inverse=True)(made.graph)


def test_refuses_hetero_edges_that_do_not_fit():
    data = bibliography()
    for bad, match in (
        (edges((0, 2)), r"the ends of data\[.*\].edge_index at 'paper' must lie in \[0, 2\)"),
        (edges((0, -1)), r"the ends of data\[.*\].edge_index at 'paper' must lie in \[0, 2\)"),
        (edges((0, 0)).repeat(2, 1), r"edge_index must have shape \[2, E\], got \[4, 1\]"),
    ):
        data["author", "wrote", "paper"].edge_index = bad
        with pytest.raises(ValueError, match=match):
            from_hetero_data(data)


def test_refuses_what_is_missing():
    data = bibliography()
    data["venue", "prints", "paper"].edge_index = edges((0, 0))
    with pytest.raises(ValueError, match=r"data\['venue'\] must have num_nodes"):
        from_hetero_data(data)
    data["venue"].num_nodes = 1
    data["venue", "lists", "paper"].edge_attr = torch.zeros(1)
    with pytest.raises(ValueError, match=r"data\[\('venue', 'lists', 'paper'\)\] must have edge_index"):
        from_hetero_data(data)


def test_refuses_batches_that_do_not_fit():
    data = bibliography()
    data["author"].batch = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match="data must have a batch for all node types or for none, got 1 of 2"):
        from_hetero_data(data)
    data["paper"].batch = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="data must have a batch entry per node, 4 in all, got 3"):
        from_hetero_data(data)
    data["paper"].batch = torch.tensor([0, -1])
    with pytest.raises(ValueError, match="data must have batches that count from 0, got -1"):
        from_hetero_data(data)
    data["paper"].batch = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="edge_index must not cross from graph to graph"):
        from_hetero_data(data)
