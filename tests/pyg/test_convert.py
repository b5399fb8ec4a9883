"""TransformerConv and what it becomes give the same."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn.functional import one_hot
from torch_geometric.nn import TransformerConv
from torch_geometric.nn.aggr import SoftmaxAggregation

from relgraph.pyg import from_transformer_conv
from tests.cases import F64

OPTIONS = list(itertools.product([True, False], repeat=5))


@pytest.mark.parametrize(("concat", "beta", "root_weight", "bias", "bipartite"), OPTIONS)
@pytest.mark.parametrize("edge_types", [True, False])
def test_same_outputs_and_weights(concat, beta, root_weight, bias, bipartite, edge_types):
    theirs = TransformerConv(
        (5, 4) if bipartite else 5, 3, 2, concat, beta, edge_dim=4, bias=bias, root_weight=root_weight
    ).to(F64)
    ours = from_transformer_conv(theirs, edge_types=edge_types)
    x = torch.randn(6, 5, dtype=F64)
    nodes = (x, torch.randn(7, 4, dtype=F64)) if bipartite else x
    edge_index, edge_type = torch.randint(6, (2, 20)), torch.randint(4, (20,))
    attr = one_hot(edge_type, 4).to(F64) if edge_types else torch.randn(20, 4, dtype=F64)
    given = {"edge_type": edge_type} if edge_types else {"edge_attr": attr}
    expected, (_, alpha) = theirs(nodes, edge_index, attr, return_attention_weights=True)
    out, (_, weights) = ours(nodes, edge_index, **given, return_attention_weights=True)
    torch.testing.assert_close(out, expected, atol=1e-10, rtol=0)
    torch.testing.assert_close(weights, alpha, atol=1e-10, rtol=0)


@pytest.mark.parametrize("heads", [1, 3])
def test_gradients_of_nodes_and_edges(heads):
    theirs = TransformerConv(5, 3, heads, beta=True, edge_dim=4).to(F64)
    ours, edge_index = from_transformer_conv(theirs), torch.randint(6, (2, 20))
    leaves = torch.randn(6, 5, dtype=F64, requires_grad=True), torch.randn(20, 4, dtype=F64, requires_grad=True)
    mine = torch.autograd.grad(ours(leaves[0], edge_index, edge_attr=leaves[1]).sin().sum(), leaves)
    expected = torch.autograd.grad(theirs(leaves[0], edge_index, leaves[1]).sin().sum(), leaves)
    for one, other in zip(mine, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=0)


def test_lazy_layer_after_its_first_call():
    theirs = TransformerConv((-1, -1), 3, heads=2, edge_dim=2)
    given = (torch.randn(6, 5), torch.randn(4, 7)), torch.randint(4, (2, 9)), torch.randn(9, 2)
    expected = theirs(*given)
    torch.testing.assert_close(from_transformer_conv(theirs)(given[0], given[1], edge_attr=given[2]), expected)


def test_without_edge_features():
    theirs = TransformerConv(5, 3, heads=2)
    x, edge_index = torch.randn(6, 5), torch.randint(6, (2, 20))
    torch.testing.assert_close(from_transformer_conv(theirs)(x, edge_index), theirs(x, edge_index))


@pytest.mark.parametrize("options", [{"flow": "target_to_source"}, {"aggr": "max"}])
def test_flow_and_aggregation_are_kept(options):
    theirs = TransformerConv((5, 4), 3, **options).to(F64)
    nodes = torch.randn(6, 5, dtype=F64), torch.randn(3, 4, dtype=F64)
    edge_index = torch.stack([torch.randint(6, (20,)), torch.randint(3, (20,))])
    edge_index = edge_index.flip(0) if "flow" in options else edge_index
    torch.testing.assert_close(from_transformer_conv(theirs)(nodes, edge_index), theirs(nodes, edge_index))


def test_weights_are_copies_and_options_pass_on():
    theirs = TransformerConv(5, 3, edge_dim=2, dropout=0.25).bfloat16().eval()
    ours = from_transformer_conv(theirs, edge_types=True, names=["a", "b"])
    assert ours.lin_key.weight.dtype == torch.bfloat16 and not ours.training and ours.dropout == 0.25
    assert ours.lin_key.weight.data_ptr() != theirs.lin_key.weight.data_ptr()
    assert ours.tables.key.names == ("a", "b")


def test_what_cannot_be_converted():
    with pytest.raises(TypeError, match="conv must be a TransformerConv, got Linear"):
        from_transformer_conv(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match="edge_types must be a bool"):
        from_transformer_conv(TransformerConv(5, 3), edge_types=1)
    with pytest.raises(ValueError, match="must know its sizes"):
        from_transformer_conv(TransformerConv(-1, 3))
    with pytest.raises(ValueError, match="edge_types needs a layer with edge_dim"):
        from_transformer_conv(TransformerConv(5, 3), edge_types=True)
    with pytest.raises(ValueError, match="conv must have an aggr without weights"):
        from_transformer_conv(TransformerConv(5, 3, aggr=SoftmaxAggregation()))
    with pytest.raises(NotImplementedError, match="decomposed_layers must be 1, got 3"):
        from_transformer_conv(TransformerConv(5, 3, decomposed_layers=3))
