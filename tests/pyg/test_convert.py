"""TransformerConv, GATv2Conv and what they become give the same."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import one_hot
from torch_geometric.nn import GATv2Conv, GPSConv, TransformerConv
from torch_geometric.nn.aggr import SoftmaxAggregation

import relgraph as rg
from relgraph.pyg import RelationConv, from_gatv2_conv, from_gps_conv, from_transformer_conv
from tests.cases import F64

PAIRS = [
    (True, True, True, True, True), (True, False, False, False, False), (False, True, False, True, False),
    (False, False, True, False, True), (False, False, True, True, False), (True, True, False, False, True),
]  # fmt: skip
"""Values of five options: each pair of options takes each pair of values."""


@pytest.mark.parametrize(("concat", "beta", "root_weight", "bias", "bipartite"), PAIRS)
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


def test_gradients_of_nodes_and_edges():
    theirs = TransformerConv(5, 3, 3, beta=True, edge_dim=4).to(F64)
    ours, edge_index = from_transformer_conv(theirs), torch.randint(6, (2, 20))
    leaves = torch.randn(6, 5, dtype=F64, requires_grad=True), torch.randn(20, 4, dtype=F64, requires_grad=True)
    mine = torch.autograd.grad(ours(leaves[0], edge_index, edge_attr=leaves[1]).sin().sum(), leaves)
    expected = torch.autograd.grad(theirs(leaves[0], edge_index, leaves[1]).sin().sum(), leaves)
    for one, other in zip(mine, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=0)


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
    with pytest.raises(RuntimeError, match=r"lin_edge_value.weight is missing, .* with tie_projections=\('edge',\)"):
        RelationConv(5, 3, edge_dim=2).load_state_dict(TransformerConv(5, 3, edge_dim=2).state_dict())
    tied = RelationConv(5, 3, edge_dim=2, tie_projections=("edge",))
    assert not tied.load_state_dict(TransformerConv(5, 3, edge_dim=2).state_dict()).missing_keys
    with pytest.raises(ValueError, match="names must be left out without edge_types"):
        from_transformer_conv(TransformerConv(5, 3), names=["a"])
    with pytest.raises(ValueError, match="must know its sizes"):
        from_transformer_conv(TransformerConv(-1, 3))
    with pytest.raises(ValueError, match="edge_types needs a layer with edge_dim"):
        from_transformer_conv(TransformerConv(5, 3), edge_types=True)
    with pytest.raises(ValueError, match="conv must have an aggr without weights"):
        from_transformer_conv(TransformerConv(5, 3, aggr=SoftmaxAggregation()))
    with pytest.raises(NotImplementedError, match="decomposed_layers must be 1, got 3"):
        from_transformer_conv(TransformerConv(5, 3, decomposed_layers=3))


def gatv2(**options):
    conv = GATv2Conv(options.pop("in_channels", 5), 3, **{"heads": 2, **options}).to(F64)
    for parameter in conv.parameters():  # a bias begins as zeros
        torch.nn.init.normal_(parameter)
    return conv


def by_name(conv, grads):
    """Gradients of a GATv2Conv, or of what became of it, by GATv2Conv's names."""
    mine = dict(zip((name for name, _ in conv.named_parameters()), grads, strict=True))
    if isinstance(conv, GATv2Conv):
        return mine
    names = {"lin_key": "lin_l", "lin_query": "lin_r", "lin_skip.weight": "res.weight", "lin_skip.bias": "bias"}
    names |= {"out_bias": "bias", "score.weight": "att"}
    found = {}
    for name, grad in mine.items():
        old = next((old for old in names if name.startswith(old)), None)
        found[name if old is None else name.replace(old, names[old])] = grad[None] if name == "score.weight" else grad
    return found


def assert_same_with_gradients(theirs, ours, nodes, edge_index, attr):
    found = []
    for conv, given in ((theirs, {"edge_attr": attr}), (ours, {"edge_attr": attr})):
        given = {} if attr is None else given
        out, (index, alpha) = conv(nodes, edge_index, **given, return_attention_weights=True)
        leaves = [*(nodes if isinstance(nodes, tuple) else [nodes]), *([] if attr is None else [attr])]
        grads = torch.autograd.grad(out.sin().sum() + alpha.cos().sum(), [*leaves, *conv.parameters()])
        found.append([out, index, alpha, *grads[: len(leaves)], by_name(conv, grads[len(leaves) :])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(("concat", "residual", "bias", "share_weights", "bipartite"), PAIRS)
@pytest.mark.parametrize("edge_dim", [None, 4])
def test_gatv2_with_all_gradients(concat, residual, bias, share_weights, edge_dim, bipartite):
    widths = (5, 5) if share_weights else (5, 4)
    theirs = gatv2(
        in_channels=widths if bipartite else 5, concat=concat, residual=residual, bias=bias,
        share_weights=share_weights, edge_dim=edge_dim, negative_slope=0.2 if concat else 0.3,
    )  # fmt: skip
    nodes = torch.randn(6, 5, dtype=F64, requires_grad=True)
    if bipartite:
        nodes = (nodes, torch.randn(6, widths[1], dtype=F64, requires_grad=True))
    attr = None if edge_dim is None else torch.randn(20, edge_dim, dtype=F64, requires_grad=True)
    assert_same_with_gradients(theirs, from_gatv2_conv(theirs), nodes, torch.randint(6, (2, 20)), attr)


@pytest.mark.parametrize(
    ("fill", "options"),
    [
        ("mean", {}), ("add", {"aggr": "mean"}), ("min", {"flow": "target_to_source"}), ("max", {}), ("mul", {}),
        (0.5, {"heads": 1, "dropout": 0.5}), (None, {}), (torch.tensor([1.0, 2.0, 3.0, 4.0]), {}),
    ],
)  # fmt: skip
def test_gatv2_and_its_self_loops(fill, options):
    theirs = gatv2(edge_dim=4, fill_value=fill, **options).eval()
    edge_index = torch.cat([torch.randint(6, (2, 17)), torch.tensor([[2, 2, 3], [2, 2, 3]])], 1)
    attr, nodes = (torch.randn(size, dtype=F64, requires_grad=True) for size in ((20, 4), (6, 5)))
    assert_same_with_gradients(theirs, from_gatv2_conv(theirs), nodes, edge_index, attr)


@pytest.mark.parametrize("loops", [False, True])
def test_gatv2_with_edge_types(loops):
    theirs = gatv2(edge_dim=4, add_self_loops=loops, fill_value=0.0)
    ours = from_gatv2_conv(theirs, edge_types=True, names=list("abcd"))
    x, edge_index, types = torch.randn(6, 5, dtype=F64), torch.randint(6, (2, 20)), torch.randint(4, (20,))
    torch.testing.assert_close(ours(x, edge_index, types), theirs(x, edge_index, one_hot(types, 4).to(F64)))
    assert torch.equal(ours.tables.key()[0], theirs.lin_edge.weight[:3].T)


@pytest.mark.parametrize("kind", [TransformerConv, GATv2Conv])
def test_lazy_layers_after_their_first_call_and_reset(kind):
    theirs = kind((-1, -1), 3, heads=2, edge_dim=2)
    given = (torch.randn(4, 5), torch.randn(4, 7)), torch.randint(4, (2, 9)), torch.randn(9, 2)
    expected = theirs(*given)
    ours = from_gatv2_conv(theirs) if kind is GATv2Conv else from_transformer_conv(theirs)
    torch.testing.assert_close(ours(given[0], given[1], edge_attr=given[2]), expected)
    if kind is GATv2Conv:
        assert ours.score.weight.data_ptr() != theirs.att.data_ptr()
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    ours.reset_parameters()
    assert not any(torch.equal(before[name], value) for name, value in ours.state_dict().items() if "bias" not in name)


def test_what_of_gatv2_cannot_be_converted():
    with pytest.raises(NotImplementedError, match="edge_types needs .* fill_value=0, got fill_value='mean'"):
        from_gatv2_conv(GATv2Conv(5, 3, edge_dim=2), edge_types=True)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("labeler", [None, rg.ShortestPath(3)], ids=repr)
def test_the_attention_of_gps_conv(bias, labeler):
    theirs = GPSConv(6, None, heads=3, norm=None, attn_kwargs={"bias": bias, "dropout": 0.3}).to(F64).eval()
    if bias:
        torch.nn.init.normal_(theirs.attn.in_proj_bias)
    options = {"tables": ()} if labeler is None else {"labeler": labeler}
    ours = from_gps_conv(theirs, **options)
    assert ours.attention.dropout == 0.3 and not ours.training
    x, batch = torch.randn(7, 6, dtype=F64), torch.tensor([0, 0, 0, 0, 2, 2, 2])
    graph = rg.Graph(torch.tensor([[0, 1, 4], [1, 2, 5]]), 7, ptr=torch.tensor([0, 4, 4, 7]))

    def mine(x):
        h = x + (ours(x, batch=batch) if labeler is None else ours(x, graph))
        return h + theirs.mlp(h)

    got, wanted = ([x.clone().requires_grad_()] for _ in range(2))
    got.append(mine(got[0]))
    wanted.append(theirs(wanted[0], graph.edge_index, batch))
    torch.testing.assert_close(got[1], wanted[1], atol=1e-10, rtol=0)
    grads = (torch.autograd.grad(z.sin().sum(), x)[0] for x, z in (got, wanted))
    torch.testing.assert_close(*grads, atol=1e-10, rtol=0)
    if labeler is not None:
        moved = from_gps_conv(theirs, **options, new_tables="random")
        assert not torch.allclose(moved(x, graph), ours(x, graph))


def test_what_gps_conv_cannot_give_is_refused():
    with pytest.raises(NotImplementedError, match="conv must have attn_type='multihead', got 'performer'"):
        from_gps_conv(GPSConv(6, None, heads=3, attn_type="performer"))
    with pytest.raises(NotImplementedError, match=r"conv\.attn must not add keys of its own"):
        from_gps_conv(GPSConv(6, None, heads=3, attn_kwargs={"add_zero_attn": True}))
    with pytest.raises(TypeError, match="conv must be a GPSConv, got Linear"):
        from_gps_conv(torch.nn.Linear(3, 3))
