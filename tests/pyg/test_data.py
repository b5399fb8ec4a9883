"""PyTorch Geometric's data objects as graphs, and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data

import relgraph as rg
from relgraph.pyg import from_data, to_data


def edges(*pairs):
    return torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T


@st.composite
def datas(draw):
    count = draw(st.integers(0, 4))
    node = st.integers(0, max(count - 1, 0))
    table = torch.tensor(
        draw(st.lists(st.tuples(node, node, st.integers(0, 2)), max_size=5 if count else 0)), dtype=torch.int64
    ).view(-1, 3)
    return Data(
        edge_index=table[:, :2].T.contiguous(),
        edge_type=table[:, 2],
        node_type=torch.arange(count) % 2,
        num_nodes=count,
    )


@given(datas())
def test_one_graph_there_and_back(data):
    graph = from_data(data)
    assert graph.ptr is None
    assert (graph.num_nodes, graph.edge_index.tolist()) == (data.num_nodes, data.edge_index.tolist())
    back = to_data(graph)
    assert set(back.keys()) == {"edge_index", "num_nodes", "edge_type", "node_type"}
    assert all(torch.equal(back[key], data[key]) for key in ("edge_index", "edge_type", "node_type"))
    assert from_data(back) == graph


@given(st.lists(datas(), min_size=1, max_size=4))
def test_a_batch_is_its_graphs_end_to_end(several):
    graph = from_data(Batch.from_data_list(several))
    assert graph == rg.Graph.batch([from_data(data) for data in several])
    back = to_data(graph)
    assert isinstance(back, Batch) and back.num_graphs == len(several)
    assert from_data(back) == graph
    for data, alone in zip(several, back.to_data_list(), strict=True):
        assert all(torch.equal(alone[key], data[key]) for key in ("edge_index", "edge_type", "node_type"))
        assert alone.num_nodes == data.num_nodes


def test_edges_of_a_mixed_batch_are_sorted_by_graph():
    graph = rg.Graph(edges((2, 3), (0, 1), (3, 2)), 4, edge_type=torch.tensor([5, 6, 7]), ptr=torch.tensor([0, 2, 4]))
    batch = to_data(graph)
    assert batch.edge_index.tolist() == [[0, 2, 3], [1, 3, 2]]
    assert batch.edge_type.tolist() == [6, 5, 7]
    assert batch[1].edge_index.tolist() == [[0, 1], [1, 0]]
    assert "node_type" not in batch


def test_without_types():
    data = Data(edge_index=edges((0, 1)), num_nodes=2, edge_type=torch.tensor([3]))
    assert from_data(data, edge_type=None).edge_type is None
    del data.edge_type
    graph = from_data(data)
    assert graph.edge_type is None and graph.node_type is None
    assert sorted(to_data(graph).keys()) == ["edge_index", "num_nodes"]


@pytest.mark.parametrize(
    ("values", "ids"),
    [
        (torch.tensor([2, 0]), [2, 0]),
        (torch.tensor([[2], [0]]), [2, 0]),
        (torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]), [2, 0]),
        (torch.tensor([[0, 1], [1, 0]]), [1, 0]),
        (torch.tensor([[True, False], [False, True]]), [0, 1]),
        (torch.tensor([[1.0], [1.0]]), [0, 0]),
    ],
)
def test_types_from_other_attributes(values, ids):
    data = Data(x=values, edge_attr=values, edge_index=edges((0, 1), (1, 0)))
    graph = from_data(data, edge_type="edge_attr", node_type="x")
    assert graph.edge_type.tolist() == graph.node_type.tolist() == ids
    none = Data(edge_attr=values[:0], edge_index=edges(), num_nodes=1)
    assert from_data(none, edge_type="edge_attr").edge_type.tolist() == []


def test_graphs_by_batch_vector_alone():
    data = Data(edge_index=edges((0, 1), (2, 2)), num_nodes=3, batch=torch.tensor([0, 0, 2]))
    assert from_data(data).ptr.tolist() == [0, 2, 2, 3]
    nothing = Data(edge_index=edges(), num_nodes=0, batch=torch.zeros(0, dtype=torch.int64))
    assert from_data(nothing).ptr.tolist() == [0]
    del data.batch
    data.ptr = torch.tensor([0, 2, 3])
    assert from_data(data).num_graphs == 2


def test_refusals():
    index = edges((0, 1), (1, 0))
    half, pair = torch.tensor([[1.0, 0.0], [0.5, 0.5]]), {"edge_index": index, "num_nodes": 2}
    for fields, options, match in (
        ({"edge_index": index}, {}, r"data must have num_nodes, or an attribute such as x .* got \['edge_index'\]"),
        ({"num_nodes": 3}, {}, r"data must have edge_index, got \['num_nodes'\]"),
        (pair, {"edge_type": "edge_attr"}, "edge_type must name an attribute of data, one of .*, got 'edge_attr'"),
        ({**pair, "kind": half}, {"edge_type": "kind"}, r"one-hot rows to be types, got row 1 = \[0.5, 0.5\]"),
        ({**pair, "kind": torch.rand(2)}, {"edge_type": "kind"}, "edge_type must have an integer dtype, got"),
    ):
        with pytest.raises(ValueError, match=match):
            from_data(Data(**fields), **options)
    with pytest.raises(ValueError, match="graph must hold at least one graph to become a Batch, got none"):
        to_data(rg.Graph(edges(), 0, ptr=torch.tensor([0])))


@pytest.mark.parametrize(
    ("batch", "ptr", "match"),
    [
        ([0, 0], None, r"data.batch must have shape \[3\], got \[2\]"),
        ([1, 1, 0], None, "data.batch must be sorted, .* got 1 at node 1 before 0"),
        ([-1, 0, 0], None, "data.batch must count from 0, got -1"),
        ([0, 0, 2**40], None, "data.batch must be of at most 16,777,216 graphs, got graph 1099511627776"),
        ([0, 1, 1], None, "edge_index must not cross from graph to graph, got edge 0: 0 -> 1"),
        ([0, 0, 1], [0, 1, 3], "data.ptr and data.batch must agree, got other borders: delete ptr"),
        ([0, 0, 1], [0, 2, 4], "data.ptr must start at 0, never fall and end at 3"),
    ],
)
def test_refuses_borders_that_do_not_fit(batch, ptr, match):
    more = {} if ptr is None else {"ptr": torch.tensor(ptr)}
    with pytest.raises(ValueError, match=match):
        from_data(Data(edge_index=edges((0, 1)), num_nodes=3, batch=torch.tensor(batch), **more))


def test_numbers_of_nodes():
    for number in (3, np.int64(3), torch.tensor(3)):
        assert from_data(Data(edge_index=edges(), num_nodes=number)).num_nodes == 3
    for number, error, match in (
        (3.5, TypeError, "an int, got float"),
        (True, TypeError, "an int, got bool"),
        (-1, ValueError, "at least 0, got -1"),
    ):
        with pytest.raises(error, match=f"data.num_nodes must be {match}"):
            from_data(Data(edge_index=edges(), num_nodes=number))
