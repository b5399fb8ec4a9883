"""RelationConv: its two ways mean the same, and it behaves as PyG's layers do."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data
from torch_geometric.explain import AttentionExplainer, Explainer, GNNExplainer
from torch_geometric.utils import add_self_loops, remove_self_loops

import relgraph as rg
from relgraph.pyg import RelationConv, SelfLoops
from tests.cases import F64

N, E, R = 7, 20, 4


class Edgewise(RelationConv):
    """The same layer, made to take the message() path."""

    def _can_fuse(self):
        return False


@pytest.fixture
def graph():
    """Nodes, edges and relations; node N - 1 has no edges, some edges are parallel, some have no relation."""
    return torch.randn(N, 5, dtype=F64), torch.randint(N - 1, (2, E)), torch.randint(-1, R, (E,))


def layer(**options):
    return RelationConv(5, 3, heads=2, **{"num_relations": R, **options}).to(F64)


def tables(*kinds, **options):
    return rg.RelationTables(R, 3, 2, **{"kinds": kinds or ("key", "value"), "per_head": True, **options})


ALL = ("key", "value", "query", "bias")
LAYERS = [
    {"tables": ALL}, {"tables": tables(*ALL, per_head=False), "edge_dim": 2}, {"tables": tables("key", per_head=False)},
    {"tables": tables(*ALL, per_head=("bias",))}, {"tables": ("bias",), "edge_dim": 2}, {"tables": ("value", "query")},
    {"num_relations": None}, {"num_relations": None, "edge_dim": 3},
    {"tables": tables(tied=True), "tie_projections": ("edge",), "edge_dim": 2},
    {"concat": False, "beta": True}, {"beta": True}, {"root_weight": False, "bias": False},
    {"edge_dim": 2, "edge_terms": ("key",)}, {"edge_dim": 2, "edge_terms": ("value",), "tie_projections": ("edge",)},
    {"tie_projections": ("value",)}, {"tie_projections": ("query", "value")}, {"root_weight": False, "out_bias": True},
    {"add_self_loops": SelfLoops(relation=2), "edge_dim": 2}, {"add_self_loops": SelfLoops(0.5)},
    {"score": rg.score.Softcap(0.5), "tables": ("key", "bias", "query")}, {"score": rg.score.LeakyReLU()},
    {"score": lambda scores: scores.sin() + scores, "value_map": 2}, {"score": nn.Softplus(), "value_map": True},
    {"value_map": True, "tables": ()}, {"value_map": 3, "edge_dim": 2}, {"value_map": 2, "add_self_loops": True},
    {"value_map": 2, "score": rg.score.Softcap(2.0)},
]  # fmt: skip
LAYERS += [{"score": rg.score.Additive.learned(2, 3, activation), **options} for activation, options in (
    ("leaky_relu", {}), (torch.tanh, {"edge_dim": 2}), ("relu", {"num_relations": None, "edge_dim": 2}),
    ("elu", {"tables": ("key", "bias"), "value_map": True, "edge_dim": 2, "edge_terms": ("key",)}),
)]  # fmt: skip
LAYERS += [{"score": rg.score.Bilinear(nn.Parameter(torch.randn(*heads, R, 3, 3))), **options} for heads, options in (
    ([], {"tables": ()}), ([2], {"tables": ("key", "query", "bias")}), ([2], {"edge_dim": 2, "value_map": 2}),
)]  # fmt: skip


def _move(conv):
    """Away from where maps and biases begin."""
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)


@pytest.mark.parametrize("options", LAYERS)
def test_both_ways_agree_with_all_gradients(options, graph):
    x, edge_index, edge_type = graph
    fused = layer(**copy.deepcopy(options))
    _move(fused)
    edgewise = Edgewise(5, 3, heads=2, **{"num_relations": R, **copy.deepcopy(options)}).to(F64)
    edgewise.load_state_dict(fused.state_dict())
    attr = torch.randn(E, fused.edge_dim, dtype=F64) if fused.edge_dim else None
    found = []
    for conv in (fused, edgewise):
        nodes = x.clone().requires_grad_()
        features = None if attr is None else attr.clone().requires_grad_()
        types = None if fused.num_relations is None else edge_type
        out, (_, alpha) = conv(nodes, edge_index, types, features, return_attention_weights=True)
        assert conv._alpha is None
        leaves = [nodes, *conv.parameters(), *([] if features is None else [features])]
        grads = torch.autograd.grad(out.sin().sum() + alpha.cos().sum(), leaves, materialize_grads=True)
        found.append([out, alpha, *grads])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("impl", ["native", pytest.param("triton", marks=pytest.mark.cuda)])
def test_kernels_give_what_the_layer_gives_without_them(impl, graph):
    if impl == "triton":
        pytest.importorskip("triton", reason="triton is not installed")
    device = "cuda" if impl == "triton" and torch.cuda.is_available() else "cpu"
    plain, fused = (RelationConv(5, 3, heads=2, num_relations=R, impl=one).to(device) for one in ("edges", impl))
    fused.load_state_dict(plain.state_dict())
    x, edge_index, edge_type = (one.to(device) for one in graph)
    found = [outputs_and_grads(conv, x.float(), edge_index, edge_type, None) for conv in (plain, fused)]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-5)


def test_permutations_and_isolated_nodes(graph):
    x, edge_index, edge_type = graph
    conv = layer()
    out, (_, alpha) = conv(x, edge_index, edge_type, return_attention_weights=True)
    order = torch.randperm(E)
    again, (index, weights) = conv(x, edge_index[:, order], edge_type[order], return_attention_weights=True)
    torch.testing.assert_close(again, out)
    torch.testing.assert_close(weights, alpha[order])
    assert torch.equal(index, edge_index[:, order])
    nodes = torch.randperm(N)
    torch.testing.assert_close(conv(x[nodes], nodes.argsort()[edge_index], edge_type), out[nodes])
    torch.testing.assert_close(out[-1], conv.lin_skip(x)[-1])
    sums = torch.zeros(N, 2, dtype=F64).index_add(0, edge_index[1], alpha)
    torch.testing.assert_close(sums, torch.isin(torch.arange(N), edge_index[1]).to(F64)[:, None].expand(N, 2))


@pytest.mark.parametrize("kind", [RelationConv, Edgewise])
@pytest.mark.parametrize("edge_dim", [None, 2])
def test_empty_sizes(kind, edge_dim, graph):
    x, edge_index, edge_type = graph
    conv = kind(5, 3, heads=2, num_relations=R, edge_dim=edge_dim).to(F64)
    none = (edge_index[:, :0], edge_type[:0], None if edge_dim is None else torch.zeros(0, 2, dtype=F64))
    out, (_, alpha) = conv(x, *none, return_attention_weights=True)
    torch.testing.assert_close(out, conv.lin_skip(x))
    assert alpha.shape == (0, 2)
    assert conv((x, x[:0]), *none).shape == (0, 6)
    torch.testing.assert_close(conv((x[:0], x), *none), conv.lin_skip(x))
    nodes = x[:0].clone().requires_grad_()
    conv(nodes, *none).sum().backward()
    assert nodes.grad.shape == (0, 5)


def test_is_dense_attention_with_all_but_edges_masked(graph):
    x = graph[0]
    keys = torch.randperm(N * N)[:E]
    edge_index, edge_type = torch.stack([keys % N, keys // N]), torch.randint(R, (E,))
    conv = layer(root_weight=False)
    ids, attend = torch.full((N, N), -1), torch.zeros(N, N, dtype=torch.bool)
    ids[edge_index[1], edge_index[0]], attend[edge_index[1], edge_index[0]] = edge_type, True
    q, k, v = (lin(x).view(1, N, 2, 3).transpose(1, 2) for lin in (conv.lin_query, conv.lin_key, conv.lin_value))
    dense = rg.relation_attention(q, k, v, rg.DenseLabels(ids, R, attend=attend), **conv.tables(), impl="reference")
    torch.testing.assert_close(conv(x, edge_index, edge_type), dense[0].transpose(0, 1).flatten(1))


def test_torch_func(graph):
    x, *edges = graph
    conv, many = layer(), torch.stack([x, x + 1])
    torch.testing.assert_close(
        torch.vmap(lambda x: conv(x, *edges))(many), torch.stack([conv(x, *edges) for x in many])
    )
    jacobian = torch.autograd.functional.jacobian(lambda x: conv(x, *edges), x)
    torch.testing.assert_close(torch.func.jacrev(lambda x: conv(x, *edges))(x), jacobian)
    torch.testing.assert_close(torch.func.jacfwd(lambda x: conv(x, *edges))(x), jacobian)


def test_second_derivatives(graph):
    x, edge_index, edge_type = graph
    conv = layer(beta=True)
    assert torch.autograd.gradgradcheck(lambda x: conv(x, edge_index, edge_type), (x.requires_grad_(),))


def test_bipartite_both_flows_and_lazy(graph):
    x, edge_index, edge_type = graph
    pair, edges = (x, torch.randn(3, 4, dtype=F64)), torch.stack([edge_index[0], edge_index[1] % 3])
    conv = RelationConv((5, 4), 3, heads=2, num_relations=R).to(F64)
    other = RelationConv((5, 4), 3, heads=2, num_relations=R, flow="target_to_source").to(F64)
    lazy = RelationConv((-1, -1), 3, heads=2, num_relations=R).to(F64)
    other.load_state_dict(conv.state_dict())
    lazy.load_state_dict(conv.state_dict())
    expected = conv(pair, edges, edge_type)
    assert expected.shape == (3, 6)
    torch.testing.assert_close(other(pair, edges.flip(0), edge_type), expected)
    torch.testing.assert_close(lazy(pair, edges, edge_type), expected)
    assert RelationConv(-1, 3)(torch.randn(N, 9), edge_index).shape == (N, 3)


@pytest.mark.parametrize("what", ["propagate", "message", "aggregate"])
@pytest.mark.parametrize("when", ["forward_pre", "forward"])
def test_every_hook_is_heard(what, when, graph):
    conv, seen = layer(), []
    before = conv(*graph)
    handle = getattr(conv, f"register_{what}_{when}_hook")(lambda *_: seen.append(what))
    torch.testing.assert_close(conv(*graph), before)
    handle.remove()
    assert seen == [what] and torch.equal(conv(*graph), before) and seen == [what]


def test_what_a_subclass_overrides_is_used(graph):
    class DoubledSum(RelationConv):
        def aggregate(self, inputs, index, ptr=None, dim_size=None):
            return 2 * super().aggregate(inputs, index, ptr, dim_size)

    class DoubledUpdate(RelationConv):
        def update(self, inputs):
            return 2 * inputs

    class DoubledValue(RelationConv):
        def message(self, query_i, key_j, value_j, edge_type, edge_attr, index, ptr, size_i):
            return 2 * super().message(query_i, key_j, value_j, edge_type, edge_attr, index, ptr, size_i)

    conv = layer(root_weight=False)
    for kind in (DoubledSum, DoubledUpdate, DoubledValue):
        doubled = kind(5, 3, heads=2, num_relations=R, root_weight=False).to(F64)
        doubled.load_state_dict(conv.state_dict())
        torch.testing.assert_close(doubled(*graph), 2 * conv(*graph))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = layer(), RelationConv(6, 3, num_relations=R).to(F64)

    def forward(self, x, edge_index, edge_type):
        return self.second(self.first(x, edge_index, edge_type).relu(), edge_index, edge_type)


@pytest.mark.parametrize("algorithm", [AttentionExplainer(), GNNExplainer(epochs=3)])
def test_explainers_leave_no_trace(algorithm, graph):
    x, edge_index, edge_type = graph
    net = Net().eval()
    before, state = net(x, edge_index, edge_type), copy.deepcopy(net.state_dict())
    explainer = Explainer(
        net, algorithm, explanation_type="model", edge_mask_type="object",
        node_mask_type="attributes" if isinstance(algorithm, GNNExplainer) else None,
        model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
    )  # fmt: skip
    mask = explainer(x, edge_index, edge_type=edge_type).edge_mask
    assert mask.shape == (E,) and bool((mask > 0).any())
    assert torch.equal(net(x, edge_index, edge_type), before)
    assert all(torch.equal(state[name], value) for name, value in net.state_dict().items())
    assert all(conv._alpha is None and conv._can_fuse() for conv in (net.first, net.second))


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def outputs_and_grads(conv, x, edge_index, edge_type, attr):
    x = x.clone().requires_grad_()
    out = conv(x, edge_index, edge_type, attr)
    return [out, *torch.autograd.grad(out.sin().sum(), [x, *conv.parameters()])]


@pytest.mark.usefixtures("fresh_compiler")
def test_compiles_whole_for_any_number_of_edges(graph):
    x, edge_index, edge_type = graph
    conv, attr, order = layer(edge_dim=2), torch.randn(E, 2, dtype=F64), edge_index[1].argsort(stable=True)
    compiled = torch.compile(conv, backend="eager", fullgraph=True, dynamic=True)
    for count in (E, 13):
        here = order[:count]
        given = x, edge_index[:, here], edge_type[here], attr[here]
        for one, other in zip(outputs_and_grads(compiled, *given), outputs_and_grads(conv, *given), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("fresh_compiler")
def test_compiles_whole_with_score_and_maps_and_edge_index(graph):
    x, edge_index, edge_type = graph
    order = edge_index[1].argsort(stable=True)
    conv = layer(score=rg.score.Bilinear.learned(R, 2, 3), value_map=2, tie_projections=("value",))
    compiled = torch.compile(conv, backend="aot_eager", fullgraph=True)
    given = (x, edge_index[:, order], edge_type[order], None)
    for one, other in zip(outputs_and_grads(compiled, *given), outputs_and_grads(conv, *given), strict=True):
        torch.testing.assert_close(one, other)
    typed = EdgeIndex(edge_index[:, order], sort_order="col", sparse_size=(N, N))
    out, (_, alpha) = compiled(x, typed, edge_type[order], return_attention_weights=True)
    expected, (_, wanted) = conv(x, edge_index, edge_type, return_attention_weights=True)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(alpha, wanted[order])


def test_copies_autocast_dropout_and_repr(graph):
    conv = layer(dropout=0.5)
    assert not torch.equal(conv(*graph), conv(*graph))
    conv.eval()
    for other in (pickle.loads(pickle.dumps(conv)), copy.deepcopy(conv)):
        assert torch.equal(other(*graph), conv(*graph))
    before = conv(*graph)
    conv.reset_parameters()
    assert not torch.equal(conv(*graph), before)
    single, x = layer().float(), graph[0].float()
    edgewise = Edgewise(5, 3, heads=2, num_relations=R)
    edgewise.load_state_dict(single.state_dict())
    with torch.autocast("cpu", torch.bfloat16):
        answers = [conv(x, *graph[1:], return_attention_weights=True) for conv in (single, edgewise)]
    for out, (_, alpha) in answers:
        assert alpha.dtype == torch.bfloat16
        assert out.dtype == torch.bfloat16
        torch.testing.assert_close(out.float(), single(x, *graph[1:]), atol=5e-2, rtol=5e-2)
    assert repr(conv) == ("RelationConv(5, 3, heads=2, num_relations=4)")
    some = layer(tables=tables("value", "key", "bias", per_head=["key"], tied=True))
    assert repr(some).endswith("num_relations=4, kinds=('key', 'value', 'bias'), per_head=('key',), tied=True)")
    assert repr(layer(num_relations=None)) == "RelationConv(5, 3, heads=2)"
    shown = repr(layer(tables=["bias"], score=torch.sin, value_map=2))
    assert shown.endswith("kinds=('bias',), score=sin, value_map=2)")
    shown = repr(layer(num_relations=None, score=rg.score.Additive.learned(2, 3)))
    assert shown == "RelationConv(5, 3, heads=2, score=Additive([2, 3], activation='leaky_relu'))"


@pytest.mark.parametrize("kind", [RelationConv, Edgewise])
def test_self_loops_are_those_of_pyg(kind, graph):
    x, edge_index, edge_type = graph
    attr = torch.randn(E, 2, dtype=F64)
    options = {"num_relations": R, "edge_dim": 2, "heads": 2}
    conv = kind(5, 3, **options, add_self_loops=SelfLoops(relation=1)).to(F64)
    plain = RelationConv(5, 3, **options).to(F64)
    plain.load_state_dict(conv.state_dict())
    index, features = remove_self_loops(edge_index, attr)
    index, features = add_self_loops(index, features, fill_value="mean", num_nodes=N)
    types = torch.cat([edge_type[edge_index[0] != edge_index[1]], torch.full((N,), 1)])
    expected, (_, wanted) = plain(x, index, types, features, return_attention_weights=True)
    labels = rg.EdgeLabels(edge_index, edge_type, R, q_len=N)
    for given in ((edge_index, edge_type), (labels, None)):
        out, (found, alpha) = conv(x, *given, attr, return_attention_weights=True)
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(alpha, wanted)
        assert torch.equal(found, index)


def test_self_loops_of_fewer_sources_and_in_records(graph):
    x, edge_index, edge_type = graph
    conv = layer(add_self_loops=SelfLoops(relation=3))
    few = torch.stack([edge_index[0] % 3, edge_index[1]])
    _, (found, _) = conv((x[:3], x), few, edge_type, return_attention_weights=True)
    others = int((few[0] != few[1]).sum())
    assert torch.equal(found[:, others:], torch.arange(3).repeat(2, 1))
    with rg.record_attention(conv) as record:
        conv(x, edge_index, edge_type)
    mass, only_its_loop = record[""][0].label_mass, torch.tensor([[0.0, 0, 0, 1]] * 2, dtype=F64)
    torch.testing.assert_close(mass[:, -1], only_its_loop)
    assert bool((mass[:, :-1, 3] > 0).all())


def test_options_that_do_not_fit_each_other():
    additive, maps = rg.score.Additive.learned(1, 3), rg.score.Bilinear.learned(2, 1, 3)
    one_head, banks = rg.RelationTables(2, 3, 1, per_head=True), {"key": nn.Linear(2, 3)}
    for options, message in (
        ({"num_relations": 2, "tables": ()}, "tables must hold different kinds"),
        ({"num_relations": 3, "tables": one_head}, "num_relations must be that of the tables, 2, got 3"),
        ({"heads": 2, "tables": one_head}, "tables must be for 2 heads of 3, got 1 heads of 3"),
        ({"tables": rg.RelationTables((2, 3), 3)}, "tables must be of one label per edge, without banks"),
        ({"tables": rg.RelationTables(None, 3, kinds=("key",), banks=banks)}, "tables must be of one label per edge"),
        ({"value_map": True}, "value_map must be False .* with num_relations=None"),
        ({"score": maps}, "score=Bilinear needs num_relations"),
        ({"score": maps, "num_relations": 4}, r"score.weight must have shape .* = \[4, 3, 3\] or \[1, 4, 3, 3\], got"),
        ({"score": additive, "num_relations": 2, "tables": ("query",)}, "tables must leave out 'query' with score="),
        ({"out_bias": True}, "out_bias must be False with root_weight"),
        ({"in_channels": (5, 4), "tie_projections": ("query",)}, "tie_projections may hold 'query' if"),
        ({"add_self_loops": SelfLoops(torch.ones(3))}, "fill_value .* must be a number or a string without edge_dim"),
        ({"add_self_loops": SelfLoops(torch.ones(3)), "edge_dim": 2}, r"fill_value .* must be \[F\] = \[2\], got"),
        ({"add_self_loops": SelfLoops(relation=2), "num_relations": 2}, "relation .* must be at most 1, got 2"),
        ({"aggr": "no such thing"}, "aggr must be known to PyG, got 'no such thing': Could not resolve"),
        ({"edge_dim": 10**9}, "edge_dim must be smaller, as no parameter may hold more than"),
    ):
        with pytest.raises(ValueError, match=message):
            RelationConv(**{"in_channels": 5, "out_channels": 3, **options})


def test_bad_calls(graph):
    x, edge_index, edge_type = graph
    narrow, backwards = RelationConv((-1, -1), 3, tie_projections=("query",)).to(F64), layer(flow="target_to_source")
    with pytest.raises(ValueError, match="x must be sources and targets of one width, .* got 5 and 4"):
        narrow((x, x[:, :4]), edge_index)
    for edges in (rg.EdgeLabels(edge_index, edge_type, R, q_len=N), torch.eye(N).to_sparse()):
        with pytest.raises(ValueError, match="must be .* with flow='target_to_source', got (EdgeLabels|Tensor)"):
            backwards(x, edges)


def data_of(graph, **more):
    x, edge_index, edge_type = graph
    return Data(x=x, edge_index=edge_index, edge_type=edge_type, edge_attr=torch.randn(E, 2, dtype=F64), **more)


@pytest.mark.parametrize("options", [{}, {"edge_dim": 2}, {"num_relations": None}, {"add_self_loops": True}], ids=str)
def test_takes_data(options, graph):
    """A Data or a Batch gives what its tensors give, with all gradients; attributes that the layer lacks stay unread."""
    conv, one = layer(**options), data_of(graph)
    for data in (one, Batch.from_data_list([one, data_of(graph)])):
        data.x = data.x.clone().requires_grad_()
        types = None if conv.num_relations is None else data.edge_type
        attr = data.edge_attr if conv.edge_dim else None
        expected, (_, wanted) = conv(data.x, data.edge_index, types, attr, return_attention_weights=True)
        out, (index, alpha) = conv(data, return_attention_weights=True)
        torch.testing.assert_close(conv(data), expected)
        torch.testing.assert_close((out, alpha), (expected, wanted))
        assert conv.self_loops is not None or index is data.edge_index
        leaves = [data.x, *conv.parameters()]
        grads = [torch.autograd.grad(z.sin().sum(), leaves) for z in (conv(data), expected)]
        torch.testing.assert_close(*grads)
        with rg.record_attention(conv) as record:
            conv(data)
            conv(data.x, data.edge_index, types, attr)
        torch.testing.assert_close(*(call.label_mass for call in record[""])) if types is not None else None


def test_data_without_what_the_layer_reads(graph):
    conv = layer(edge_dim=2)
    for name in ("x", "edge_index", "edge_type", "edge_attr"):
        data = data_of(graph, num_nodes=N)
        del data[name]
        with pytest.raises(ValueError, match=rf"data.{name} must be given, as the layer reads it, got a Data with \["):
            conv(data)
    with pytest.raises(TypeError, match="edge_index, edge_type and edge_attr must be left out with a Data"):
        conv(data_of(graph), graph[1])


@pytest.mark.parametrize(
    ("score", "impl", "targets"),
    [("dot", None, 0), ("dot", "edges", 3), ("additive", None, 3), ("bilinear", "edges", 0)],
)
def test_every_parameter_gets_a_gradient_without_edges(score, impl, targets):
    """DistributedDataParallel waits for the gradient of every parameter, also on a process without edges."""
    made = {"dot": None, "additive": rg.score.Additive.learned(2, 4), "bilinear": rg.score.Bilinear.learned(3, 2, 4)}
    conv = rg.pyg.RelationConv(
        6, 4, heads=2, num_relations=3, edge_dim=2, score=made[score], tables=("key", "value", "bias"), impl=impl
    )
    x, none = torch.randn(5, 6, requires_grad=True), torch.zeros(0, dtype=torch.long)
    z = conv((x, torch.randn(targets, 6)), none.expand(2, 0), none, torch.zeros(0, 2))
    grads = torch.autograd.grad(z.sum(), [x, *conv.lin_key.parameters(), *conv.tables.parameters()])
    assert not any(grad.any() for grad in grads)
    torch.autograd.backward(conv((x, torch.randn(targets, 6)), none.expand(2, 0), none, torch.zeros(0, 2)).sum())
    assert all(parameter.grad is not None for parameter in conv.parameters())
