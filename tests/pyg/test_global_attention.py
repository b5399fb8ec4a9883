"""Attention inside each graph of a batch."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data

import relgraph as rg
from relgraph.pyg import AddRelationLabels, RelationGlobalAttention
from tests.cases import F64

LABELER = rg.ShortestPath(3)
EDGES = torch.tensor([[0, 1, 3], [1, 2, 4]])
BATCH = torch.tensor([0, 0, 0, 1, 1])


def graph(*ptr):
    return rg.Graph(EDGES, 5, ptr=torch.tensor(ptr) if ptr else None)


def layer(num_labels=LABELER.num_labels, **options):
    options = {"tables": (), **options} if num_labels is None and not options else options
    return RelationGlobalAttention(8, heads=2, num_labels=num_labels, **options).to(F64)


@pytest.fixture
def x():
    return torch.randn(5, 8, dtype=F64)


def test_a_graph_in_a_batch_gets_what_it_gets_alone(x):
    labeled, plain = layer(), layer(None)
    out = labeled(x, LABELER(graph(0, 3, 5)))
    torch.testing.assert_close(out[3:], labeled(x[3:], LABELER(rg.Graph(torch.tensor([[0], [1]]), 2))))
    torch.testing.assert_close(labeled(x, LABELER(graph(0, 3, 5)), BATCH), out)
    out = plain(x, batch=BATCH)
    torch.testing.assert_close(out, torch.cat([plain(x[:3]), plain(x[3:], batch=BATCH[3:])]))


def test_without_labels_it_is_multihead_attention(x):
    theirs, ours = nn.MultiheadAttention(8, 2, batch_first=True).to(F64), layer(None)
    ours.attention.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(x), theirs(x[None], x[None], x[None])[0][0])


def test_empty_graphs_and_no_nodes(x):
    labeled, plain = layer(), layer(None)
    gap = torch.tensor([0, 0, 0, 2, 2])
    torch.testing.assert_close(plain(x, batch=gap), plain(x, batch=BATCH))
    out = labeled(x, LABELER(graph(0, 3, 5)))
    torch.testing.assert_close(labeled(x, LABELER(graph(0, 3, 3, 5)), gap), out)
    torch.testing.assert_close(labeled(x, LABELER(graph(0, 3, 5, 5)), BATCH), out)
    assert plain(x[:0]).shape == plain(x[:0], batch=BATCH[:0]).shape == (0, 8)


def test_is_relation_attention_of_each_graph_with_all_gradients(x):
    layer, alone = RelationGlobalAttention(8, heads=2, num_labels=LABELER.num_labels).to(F64), []
    single = rg.RelationAttention(8, 2, num_labels=LABELER.num_labels).to(F64)
    single.load_state_dict(layer.attention.state_dict())
    for start, stop, edges in ((0, 3, EDGES[:, :2]), (3, 5, EDGES[:, 2:] - 3)):
        alone.append(single(x[start:stop], labels=LABELER(rg.Graph(edges, stop - start))))
    out, expected = layer(x, LABELER(graph(0, 3, 5)), BATCH), torch.cat(alone)
    torch.testing.assert_close(out, expected)
    mine = torch.autograd.grad(out.sin().sum(), [*layer.parameters()])
    theirs = torch.autograd.grad(expected.sin().sum(), [*single.parameters()])
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_pickle_reset_and_repr(x):
    labeled, labels = layer(), LABELER(graph(0, 3, 5))
    torch.testing.assert_close(pickle.loads(pickle.dumps(labeled))(x, labels), labeled(x, labels))
    before = labeled(x, labels)
    labeled.reset_parameters()
    assert not torch.equal(labeled(x, labels), before)
    assert repr(labeled) == ("RelationGlobalAttention(8, heads=2, num_labels=5)")
    assert repr(layer(None)) == "RelationGlobalAttention(8, heads=2)"
    assert repr(layer(score=rg.score.Softcap(5.0), value_map=True)).endswith(
        ", score=Softcap(cap=5.0), value_map=True)"
    )


def test_bad_input(x):
    labeled, plain, labels = layer(), layer(None), LABELER(graph(0, 3, 5))
    with pytest.raises(ValueError, match="labels must be given to a layer with num_labels"):
        labeled(x, batch=BATCH)
    with pytest.raises(ValueError, match="batch must be sorted, .* got 1 at node 1 before 0"):
        plain(x, batch=BATCH.flip(0))
    with pytest.raises(ValueError, match="labels must be packed for a batch of 2 graphs"):
        labeled(x, LABELER(graph()), BATCH)
    with pytest.raises(ValueError, match="labels must have the borders of batch"):
        labeled(x, labels, torch.tensor([0, 0, 1, 1, 1]))
    with pytest.raises(ValueError, match="heads must divide channels = 16, got 3"):
        rg.pyg.RelationGlobalAttention(16, 3)


def test_a_labeler_gets_what_it_reads(x):
    made, whole = RelationGlobalAttention(8, heads=2, labeler=LABELER).to(F64), graph(0, 3, 5)
    assert made.attention.tables.num_labels == LABELER.num_labels
    assert torch.equal(made(x, whole), made(x, LABELER(whole)))
    with pytest.raises(TypeError, match=r"labels must be Labels, or what ShortestPath\(3\) reads, got Tensor"):
        made(x, torch.zeros(5, 5))
    with pytest.raises(ValueError, match="labels must be given to a layer with num_labels and without a labeler"):
        layer()(x)


def batch_of(x, **more):
    parts = (x[:3], EDGES[:, :2]), (x[3:], EDGES[:, 2:] - 3)
    return Batch.from_data_list([Data(x=nodes, edge_index=index, **more) for nodes, index in parts])


def test_takes_data(x):
    """A Data or a Batch gives what its tensors give, with all gradients."""
    conv = RelationGlobalAttention(8, heads=2, labeler=LABELER).to(F64)
    for data, labels in ((batch_of(x), LABELER(graph(0, 3, 5))), (Data(x=x, edge_index=EDGES), LABELER(graph()))):
        data.x = x.clone().requires_grad_()
        expected = conv(data.x, labels)
        for out in (conv(data), conv(data, labels), conv(data.x, data)):
            torch.testing.assert_close(out, expected)
            leaves = [data.x, *conv.parameters()]
            grads = [torch.autograd.grad(z.sin().sum(), leaves, retain_graph=True) for z in (out, expected)]
            torch.testing.assert_close(*grads)
    plain, data = layer(None), batch_of(x)
    torch.testing.assert_close(plain(data), plain(x, batch=BATCH))
    del data.ptr
    torch.testing.assert_close(plain(data), plain(x, batch=BATCH))


def test_takes_labels_stored_with_data(x):
    conv = RelationGlobalAttention(8, heads=2, labeler=LABELER).to(F64)
    stored = Batch.from_data_list([AddRelationLabels(LABELER)(data) for data in batch_of(x).to_data_list()])
    expected = conv(x, LABELER(graph(0, 3, 5)))
    del stored.edge_index  # so that the labels can only be the stored ones
    torch.testing.assert_close(conv(stored), expected)
    some = torch.tensor([0, 1, 4])  # ptr stays that of all nodes
    torch.testing.assert_close(conv(stored.subgraph(some)).shape, torch.Size([3, 8]))
    with pytest.raises(ValueError, match=r"data.rel must hold labels of the labeler that reads them, Shor"):
        RelationGlobalAttention(8, heads=2, labeler=rg.ShortestPath(1)).to(F64)(stored)


def test_data_that_does_not_fit(x):
    conv, data = RelationGlobalAttention(8, heads=2, labeler=LABELER).to(F64), batch_of(x)
    with pytest.raises(ValueError, match="labels must have the borders of batch"):
        conv(data, LABELER(rg.Graph(EDGES[:, :1], 5, ptr=torch.tensor([0, 2, 5]))))
    with pytest.raises(TypeError, match="batch and edge_attr must be left out with a DataBatch"):
        conv(data, batch=BATCH)
    with pytest.raises(ValueError, match="labels must be given to a layer with num_labels and without a labeler"):
        layer()(data)
    with pytest.raises(TypeError, match=r"got DataBatch .*: make it a Graph with relgraph.pyg.from_data\(...\)"):
        rg.RelationAttention(8, 2, labeler=LABELER).to(F64)(x, labels=data)
    del data.x
    with pytest.raises(ValueError, match="data.x must be given, as the layer reads it, got a Data with"):
        conv(data)


def test_features_of_edges(x):
    """A layer without labels joins all nodes of a graph, and its edges carry features; in a batch as alone."""
    conv, attr = RelationGlobalAttention(8, heads=2, edge_dim=3).to(F64), torch.randn(3, 3, dtype=F64)
    parts = [Data(x=one.x, edge_index=one.edge_index) for one in batch_of(x).to_data_list()]
    parts[0].edge_attr, parts[1].edge_attr = attr[:2], attr[2:]
    data = Batch.from_data_list(parts)
    out = conv(data)
    labels = rg.EdgeLabels(EDGES[:, :2], torch.full((2,), -1), 0, q_len=3, default=-1)
    torch.testing.assert_close(out[:3], conv.attention(x[:3], labels=labels, edge_attr=attr[:2]))
    torch.testing.assert_close(out[3:], conv(Data(x=x[3:], edge_index=EDGES[:, 2:] - 3, edge_attr=attr[2:])))
    del data.ptr
    torch.testing.assert_close(conv(data), out)
    assert repr(conv) == "RelationGlobalAttention(8, heads=2, edge_dim=3)"
    by_type = rg.EdgeType(1, attend="all")
    typed = RelationGlobalAttention(8, heads=2, edge_dim=3, labeler=by_type).to(F64)
    torch.testing.assert_close(typed(data), typed(x, by_type(graph(0, 3, 5)), edge_attr=attr))
    stored = Batch.from_data_list([AddRelationLabels(by_type)(one) for one in parts])
    torch.testing.assert_close(typed(stored), typed(data))
    inverse = rg.EdgeType(1, attend="all", inverse=True)
    typed = RelationGlobalAttention(8, heads=2, edge_dim=3, labeler=inverse).to(F64)
    with pytest.raises(ValueError, match="labels must list the 3 edges of the Data in their order"):
        typed(data)
    both = torch.cat([attr, attr])  # of the edges, then of their inverses
    torch.testing.assert_close(typed(x, inverse(graph(0, 3, 5)), edge_attr=both).shape, torch.Size([5, 8]))
    with pytest.raises(ValueError, match="data.edge_attr must be given, as the layer reads it"):
        conv(batch_of(x))


def test_a_labeler_of_lengths_needs_no_labels(x):
    """A tensor gets the labels of its length, with ``batch`` those of each graph; so does a Data without edges."""
    labeler = rg.ClippedDistance(2)
    mine = layer(None, labeler=labeler)
    whole = mine(x, labeler(5, ptr=torch.tensor([0, 3, 5])))
    torch.testing.assert_close(mine(x), mine(x, labeler(5)))
    torch.testing.assert_close(mine(x, batch=BATCH), whole)
    torch.testing.assert_close(mine(Batch.from_data_list([Data(x=x[:3]), Data(x=x[3:])])), whole)
    with pytest.raises(TypeError, match="labels must be given, as the labeler ShortestPath.* does not label lengths"):
        layer(None, labeler=LABELER)(x)
