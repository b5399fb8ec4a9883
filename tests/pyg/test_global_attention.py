"""Attention inside each graph of a batch."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn
from torch_geometric.nn import GPSConv

import relgraph as rg
from relgraph.pyg import RelationConv, RelationGlobalAttention
from tests.cases import F64

LABELER = rg.ShortestPath(3)
EDGES = torch.tensor([[0, 1, 3], [1, 2, 4]])
BATCH = torch.tensor([0, 0, 0, 1, 1])


def graph(*ptr):
    return rg.Graph(EDGES, 5, ptr=torch.tensor(ptr) if ptr else None)


def layer(num_labels=LABELER.num_labels, **options):
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


class Block(nn.Module):
    """A local layer and a global one, each added to the nodes."""

    def __init__(self):
        super().__init__()
        self.near, self.far = RelationConv(8, 4, heads=2, num_relations=2).to(F64), layer()

    def forward(self, x, graph, batch=None):
        x = x + self.near(x, graph.edge_index, graph.edge_type)
        return x + self.far(x, LABELER(graph), batch)


def test_as_residuals_of_a_block(x):
    block, types = Block(), torch.tensor([0, 1, 1])
    out = block(x, rg.Graph(EDGES, 5, edge_type=types, ptr=torch.tensor([0, 3, 3, 5])), torch.tensor([0, 0, 0, 2, 2]))
    one = block(x[:3], rg.Graph(EDGES[:, :2], 3, edge_type=types[:2]))
    two = block(x[3:], rg.Graph(EDGES[:, 2:] - 3, 2, edge_type=types[2:]))
    torch.testing.assert_close(out, torch.cat([one, two]))


def test_compiles_whole_beside_packed_labels(x):
    torch._dynamo.reset()
    labeled, labels = layer(), LABELER(graph(0, 3, 5))
    compiled = torch.compile(labeled, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, labels, BATCH), labeled(x, labels))


def test_narrow_batch_and_permuted_nodes(x):
    plain, labeled = layer(None), layer()
    torch.testing.assert_close(plain(x, batch=BATCH.int()), plain(x, batch=BATCH))
    order = torch.tensor([2, 0, 1, 4, 3])
    moved = rg.Graph(order.argsort()[EDGES], 5, ptr=torch.tensor([0, 3, 5]))
    torch.testing.assert_close(labeled(x[order], LABELER(moved)), labeled(x, LABELER(graph(0, 3, 5)))[order])


def test_gradients(x):
    labeled, labels = layer(), LABELER(graph(0, 3, 5))
    assert torch.autograd.gradcheck(lambda x: labeled(x, labels), (x.requires_grad_(),))


def test_labels_of_one_graph_with_a_batch_of_one(x):
    labeled, labels = layer(), LABELER(graph())
    torch.testing.assert_close(labeled(x, labels, torch.zeros(5, dtype=torch.long)), labeled(x, labels))


def test_beside_a_local_layer(x):
    block = GPSConv(8, RelationConv(8, 8, concat=False), heads=2).to(F64)
    out = block(x, EDGES, BATCH)
    assert out.shape == x.shape and bool(out.isfinite().all())


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


SCORES = {
    "softcap": lambda: rg.score.Softcap(1.0),
    "additive": lambda: rg.score.Additive.learned(2, 4, dtype=F64),
    "bilinear": lambda: rg.score.Bilinear.learned(LABELER.num_labels, 2, 4, dtype=F64),
}


@pytest.mark.parametrize("name", SCORES)
def test_scores_and_maps_within_each_graph(name, x):
    labeled = layer(score=SCORES[name](), value_map=2)
    torch.nn.init.normal_(labeled.attention.value_map.coefficients)
    out = labeled(x, LABELER(graph(0, 3, 5)))
    plain = layer()
    plain.load_state_dict(labeled.state_dict(), strict=False)
    assert not torch.allclose(plain(x, LABELER(graph(0, 3, 5))), out)
    torch.testing.assert_close(out[3:], labeled(x[3:], LABELER(rg.Graph(torch.tensor([[0], [1]]), 2))))
    torch.testing.assert_close(out[:3], labeled(x[:3], LABELER(rg.Graph(EDGES[:, :2], 3))))
    other = layer(score=SCORES[name](), value_map=2)
    other.load_state_dict(labeled.state_dict())
    torch.testing.assert_close(other(x, LABELER(graph(0, 3, 5))), out)


def test_bad_input(x):
    labeled, plain, labels = layer(), layer(None), LABELER(graph(0, 3, 5))
    with pytest.raises(ValueError, match=r"x must have shape \[N, 8\], got \[1, 5, 8\]"):
        plain(x[None])
    with pytest.raises(ValueError, match=r"x must have shape \[N, 8\], got \[5, 7\]"):
        plain(x[:, 1:])
    with pytest.raises(TypeError, match="x must be a Tensor, got list"):
        plain([x])
    with pytest.raises(TypeError, match="batch must be a Tensor, got list"):
        plain(x, batch=[0, 0, 0, 1, 1])
    with pytest.raises(ValueError, match="batch must have an integer dtype"):
        plain(x, batch=BATCH.double())
    with pytest.raises(ValueError, match="batch must be on the device of x, cpu, got meta"):
        plain(x, batch=BATCH.to("meta"))
    with pytest.raises(ValueError, match="labels must be given to a layer with num_labels"):
        labeled(x, batch=BATCH)
    with pytest.raises(TypeError, match="labels must be Labels or None, got Tensor"):
        labeled(x, torch.zeros(5, 5, dtype=torch.long))
    with pytest.raises(ValueError, match=r"batch must have shape \[N\] = \[5\], got \[3\]"):
        plain(x, batch=BATCH[:3])
    with pytest.raises(ValueError, match="batch must be sorted, .* got 1 at node 1 before 0"):
        plain(x, batch=BATCH.flip(0))
    with pytest.raises(ValueError, match="batch must count from 0, got -1"):
        plain(x, batch=BATCH - 1)
    with pytest.raises(ValueError, match="labels must be packed for a batch of 2 graphs"):
        labeled(x, LABELER(graph()), BATCH)
    with pytest.raises(ValueError, match="labels must be on the device of batch, cpu, got meta"):
        labeled(x, labels.to("meta"), BATCH)
    with pytest.raises(ValueError, match="labels must have the borders of batch"):
        labeled(x, labels, torch.tensor([0, 0, 1, 1, 1]))


def test_heads_divide_channels():
    with pytest.raises(ValueError, match="heads must divide channels = 16, got 3"):
        rg.pyg.RelationGlobalAttention(16, 3)
    with pytest.raises(ValueError, match="channels must be at least 1, got 0"):
        rg.pyg.RelationGlobalAttention(0, 1)


def test_a_labeler_gets_what_it_reads():
    labeler, graph = rg.ShortestPath(2), rg.Graph(torch.tensor([[0, 1, 3], [1, 2, 4]]), 5, ptr=torch.tensor([0, 3, 5]))
    made, x = RelationGlobalAttention(8, heads=2, labeler=labeler).to(F64), torch.randn(5, 8, dtype=F64)
    assert made.attention.tables.num_labels == labeler.num_labels
    assert torch.equal(made(x, graph), made(x, labeler(graph)))
    with pytest.raises(TypeError, match=r"labels must be Labels, or what ShortestPath\(2\) reads, got Tensor"):
        made(x, torch.zeros(5, 5))
    with pytest.raises(ValueError, match="labels must be given to a layer with num_labels, got None"):
        made(x)
