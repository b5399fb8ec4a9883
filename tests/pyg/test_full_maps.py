"""Maps from the whole input to all heads: against loops over edges, and PyG's RGATConv and RGCNConv as settings."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.nn import FastRGCNConv, RGATConv, RGCNConv

import relgraph as rg
from relgraph.pyg import LinearScore, RelationConv, RelationHeteroConv, SelfLoops
from tests.cases import F64

N, E, R, F, H, C = 7, 24, 4, 6, 2, 3


@pytest.fixture
def graph():
    """Node N - 1 has no edges, some edges are parallel, and relation 2 has none."""
    types = torch.randint(R, (E,))
    return torch.randn(N, F, dtype=F64), torch.randint(N - 1, (2, E)), torch.where(types == 2, 1, types)


def layer(**options):
    conv = RelationConv(F, C, H, **{"num_relations": R, **options}).to(F64)
    with torch.no_grad():
        for one in conv.parameters():
            one.normal_()
    return conv


def full(*names, **options):
    return {f"{name}_map": "full" for name in names} | options


def tied(*names):
    return {"tie_projections": names}


LINEAR = {"score": LinearScore(H, C), "tables": ("value", "bias")}
LAYERS = [
    full("value"), full("key"), full("key", "value"),
    full("value", normalize="softmax", **LINEAR), full("key", "value", num_bases=2, tables=()),
    full("key", "value", num_blocks=3, beta=True, concat=False), full("key", "value", tables=(), **tied("value")),
    full("key", "value", tables=("key", "value", "query", "bias"), edge_dim=2, score=rg.score.Softcap(2.0)),
    full("key", value_map=True), full("key", value_map=2, **tied("query") | {"query_map": "full", "tables": ("bias",)}),
    full("key", "value", score=rg.score.Additive.learned(H, C)),
    full("value", score=rg.score.Bilinear(torch.nn.Parameter(torch.randn(R, C, C))), add_self_loops=SelfLoops(relation=2)),
    full("query", tables=("value", "bias")), full("key", "value", "query", num_bases=3, tables=()),
    full("key", "value", "query", tables=("value",), score=rg.score.LeakyReLU(), edge_dim=2, edge_terms=("value",)),
    full("key", "value", "query", num_blocks=3, tables=(), **tied("value", "query")),
    LINEAR, full("value", "key", **LINEAR), full("query", num_bases=2, **LINEAR),
    full("key", "value", "query", num_blocks=3, **LINEAR, **tied("value", "query")),
    full("key", "value", "query", **LINEAR | {"score": LinearScore(H, C, 0.1, edge=True)}, edge_dim=2),
    full("key", **LINEAR | {"score": LinearScore(H, C, edge=True)}, edge_dim=2, edge_terms=("key",)),
    {"normalize": "relation", "tables": ("value",)}, full("value", normalize="relation", tables=()),
    full("value", normalize="relation", tables=("value",), num_bases=2, concat=False),
]  # fmt: skip


def weights_of(maps):
    """W ``[R, F, H·C]``, from the parameters."""
    if maps.bases is not None:
        return sum(maps.coefficients[:, k, None, None] * one for k, one in enumerate(maps.bases))
    return maps.maps if maps.blocks is None else torch.stack([torch.block_diag(*one) for one in maps.blocks])


def looped(conv, x, edge_index, edge_type, attr):
    """The output before the root term, and the weights, edge by edge."""
    if conv.self_loops is not None:
        keep = edge_index[0] != edge_index[1]
        edge_index = torch.cat([edge_index[:, keep], torch.arange(N).repeat(2, 1)], 1)
        edge_type = torch.cat([edge_type[keep], edge_type.new_full((N,), conv.self_loops.relation)])
    tables = {} if conv.tables is None else dict(conv.tables())
    maps = {
        name: None if name not in conv.full_maps else getattr(conv, f"{name}_map") for name in ("key", "value", "query")
    }
    for name in conv.tie_projections:
        maps[name] = maps["key"]

    def project(name, node, relation):
        if maps[name] is not None:
            return (x[node] @ weights_of(maps[name])[relation]).view(H, C)
        lin = getattr(conv, f"lin_{name}")
        return (conv.lin_key if lin is None else lin)(x[node]).view(H, C)

    def edge_vector(lin, e):
        return 0.0 if attr is None or lin is None else lin(attr[e]).view(H, C)

    def row(name, relation):
        return tables[name][:, relation] if name in tables else 0.0

    scores, values = [], []
    for e, (j, i) in enumerate(edge_index.T.tolist()):
        r = int(edge_type[e])
        value = project("value", j, r)
        if "value" not in conv.full_maps and conv.value_map is not None:
            within = conv.value_map()
            within = within if isinstance(within, torch.Tensor) else torch.einsum("rk,hkij->hrij", *within)
            value = (within[:, r] @ value[..., None])[..., 0]
        values.append(value + row("value_table", r) + edge_vector(conv._edge_projections()[1], e))
        if conv.normalize == "relation":
            scores.append(torch.zeros(H, dtype=F64))
            continue
        query, key, linear = project("query", i, r), project("key", j, r), conv.linear_score
        if linear is not None:
            score = query.flatten() @ linear.query + key.flatten() @ linear.key
            if linear.edge is not None:
                score = score + edge_vector(conv.lin_edge, e).flatten() @ linear.edge
        else:
            keys = key + row("key_table", r) + edge_vector(conv._edge_projections()[0], e)
            if isinstance(conv.score, rg.score.Additive):
                score = (torch.nn.functional.leaky_relu(query + keys, 0.2) * conv.score.weight).sum(-1)
            elif isinstance(conv.score, rg.score.Bilinear):
                score = (query * (keys - key + key @ conv.score.weight[r].T)).sum(-1) / math.sqrt(C)
            else:
                score = ((query * keys).sum(-1) + (key * row("query_table", r)).sum(-1)) / math.sqrt(C)
        score = score + row("bias_table", r)
        scores.append(conv.score(score) if isinstance(conv.score, (rg.score.LeakyReLU, rg.score.Softcap)) else score)
    scores, values = torch.stack(scores), torch.stack(values)
    alpha, out = torch.zeros_like(scores), torch.zeros(N, H, C, dtype=F64)
    for i in range(N):
        mine = edge_index[1] == i
        if conv.normalize == "relation":
            same = (mine[:, None] & mine & (edge_type[:, None] == edge_type)).sum(1)
            alpha = alpha + torch.where(mine, 1.0 / same.to(F64), 0.0)[:, None]
        elif mine.any():
            alpha = alpha.index_put((mine.nonzero()[:, 0],), scores[mine].softmax(0))
        out = out.index_put((torch.tensor(i),), (alpha[mine][..., None] * values[mine]).sum(0))
    return out.flatten(1) if conv.concat else out.mean(1), alpha


@pytest.mark.parametrize("options", LAYERS)
def test_values_and_all_gradients_against_a_loop(options, graph):
    x, edge_index, edge_type = graph
    conv = layer(**copy.deepcopy(options))
    x.requires_grad_()
    attr = None if conv.edge_dim is None else torch.randn(E, conv.edge_dim, dtype=F64, requires_grad=True)
    leaves = [x, *conv.parameters(), *([] if attr is None else [attr])]
    found = []
    for way in ("ours", "loop"):
        if way == "ours":
            out, (_, alpha) = conv(x, edge_index, edge_type, attr, return_attention_weights=True)
            torch.testing.assert_close(conv(x, edge_index, edge_type, attr), out, atol=1e-12, rtol=1e-12)
        else:
            out, alpha = looped(conv, x, edge_index, edge_type, attr)
            out = conv._with_root(out, x)
        loss = out.sin().sum() + alpha.cos().sum()
        found.append([out, alpha, *torch.autograd.grad(loss, leaves, materialize_grads=True)])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-12, rtol=1e-12)


class Edgewise(RelationConv):
    """The same layer, made to take the message() path."""

    def _can_fuse(self):
        return False


def test_message_path_agrees(graph):
    options = full("key", "value", num_bases=2, tables=("key", "value", "query", "bias"))
    fused = layer(**options)
    edgewise = Edgewise(F, C, H, num_relations=R, **options).to(F64)
    edgewise.load_state_dict(fused.state_dict())
    found = []
    for conv in (fused, edgewise):
        x = graph[0].clone().requires_grad_()
        out, (index, alpha) = conv(x, *graph[1:], return_attention_weights=True)
        assert torch.equal(index, graph[1])
        grads = torch.autograd.grad(out.sin().sum() + alpha.cos().sum(), [x, *conv.parameters()])
        found.append([out, alpha, *grads])
    torch.testing.assert_close(found[1], found[0], atol=1e-12, rtol=1e-12)
    reverse = layer(flow="target_to_source", **options)
    reverse.load_state_dict(fused.state_dict())
    torch.testing.assert_close(reverse(graph[0], graph[1].flip(0), graph[2]), found[0][0])
    jacobian = torch.func.jacrev(lambda x: fused(x, *graph[1:]).sum())(graph[0])
    torch.testing.assert_close(jacobian, torch.autograd.grad(fused(x, *graph[1:]).sum(), x)[0])
    explainer = Explainer(
        fused, GNNExplainer(epochs=2), explanation_type="model", edge_mask_type="object", node_mask_type=None,
        model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
    )  # fmt: skip
    assert explainer(graph[0], graph[1], edge_type=graph[2]).edge_mask.shape == (E,)


def test_products_by_relation_differentiate_twice(graph):
    conv = layer(**full("value", num_blocks=3, normalize="relation", tables=()))
    maps, runs = conv.value_map, rg.pyg.full_maps._ByRelation
    rows = torch.randn(9, 3, 2, dtype=F64, requires_grad=True)
    assert torch.autograd.gradgradcheck(
        lambda rows, blocks: runs.apply(rows, blocks, ((0, 0, 4), (1, 4, 5), (3, 5, 9))), (rows, maps.blocks)
    )


def test_means_by_relation_differentiate_twice(graph):
    x, edge_index, edge_type = graph
    conv = layer(normalize="relation", tables=("value",), root_weight=False)
    weight = conv.lin_value.weight

    def output(x, weight):
        return torch.func.functional_call(conv, {"lin_value.weight": weight}, (x, edge_index, edge_type)).square()

    assert torch.autograd.gradgradcheck(output, (x.detach().requires_grad_(), weight))


@pytest.mark.parametrize("options", [full("key", "value", "query"), full("value", normalize="relation")])
def test_order_empty_graphs_and_other_forms(options, graph):
    x, edge_index, edge_type = graph
    conv = layer(tables=(), **options)
    out, order = conv(x, edge_index, edge_type), torch.randperm(E)
    torch.testing.assert_close(conv(x, edge_index[:, order], edge_type[order]), out)
    torch.testing.assert_close(out[-1], conv.lin_skip(x)[-1])
    labels = rg.EdgeLabels(edge_index, edge_type, R, q_len=N)
    torch.testing.assert_close(conv(x, labels), out)
    torch.testing.assert_close(conv(Data(x, edge_index, edge_type=edge_type)), out)
    with rg.nn.record_attention(conv) as seen:
        _, (_, alpha) = conv(x, labels, return_attention_weights=True)
    shares = torch.zeros(N, H, dtype=F64).index_add(0, edge_index[1], alpha)
    torch.testing.assert_close(seen[""][0].label_mass.sum(-1), shares.T)
    none = (edge_index[:, :0], edge_type[:0])
    torch.testing.assert_close(conv(x, *none), conv.lin_skip(x))
    assert conv(x[:0], *none).shape == (0, H * C)
    with torch.autocast("cpu"):
        low = conv.float()(x.float(), edge_index, edge_type)
    torch.testing.assert_close(low.to(F64), out, atol=0.2, rtol=0.05)


def normal(conv):
    for one in conv.parameters():
        torch.nn.init.normal_(one)
    return conv


def same_with_gradients(theirs, ours, names, x, *edges, **options):
    """Outputs, weights if there are any, and gradients by PyG's names."""
    found = []
    for conv in (theirs, ours):
        out = conv(x, *edges, **options)
        out, alpha = (out[0], out[1][1]) if isinstance(out, tuple) else (out, out)
        loss = out.sin().sum() + alpha.cos().sum()
        leaves = (
            dict(conv.named_parameters()) | {"x": x} | {"f": edges[2]}
            if len(edges) > 2
            else {"x": x} | dict(conv.named_parameters())
        )
        grads = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()), allow_unused=True), strict=True))
        found.append(
            {
                "out": out,
                "alpha": alpha,
                **{names.get(name, name): one for name, one in grads.items() if one is not None},
            }
        )
    if "root" in found[0]:
        found[0]["root"] = found[0]["root"].T
    assert found[0].keys() == found[1].keys()
    torch.testing.assert_close(found[1], found[0], atol=1e-10, rtol=1e-10)


SIZES = [{}, {"num_bases": 3}, {"num_blocks": 2}]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    "options", [{}, {"heads": 2, "concat": False, "negative_slope": 0.1}, {"heads": 2, "edge_dim": 3, "bias": False}]
)
def test_rgat_conv(sizes, options, graph):
    theirs = normal(RGATConv(F, 4, R, **sizes, **options).to(F64)).eval()
    ours = RelationConv.from_rgat_conv(theirs, impl=None)
    assert not ours.training
    names = {"linear_score.query": "q", "linear_score.key": "k", "linear_score.edge": "e", "out_bias": "bias"}
    names |= {
        "key_map.maps": "weight",
        "key_map.blocks": "weight",
        "key_map.bases": "basis",
        "key_map.coefficients": "att",
    }
    attr = [torch.randn(E, 3, dtype=F64, requires_grad=True)] if "edge_dim" in options else []
    same_with_gradients(
        theirs, ours, names, graph[0].requires_grad_(), *graph[1:], *attr, return_attention_weights=True
    )


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("kind", [RGCNConv, FastRGCNConv])
@pytest.mark.parametrize(
    "options", [{}, {"root_weight": False}, {"bias": False}, {"root_weight": False, "bias": False}]
)
def test_rgcn_conv(sizes, kind, options, graph):
    theirs = normal(kind(F, 4, R, **sizes, **options).to(F64))
    ours = RelationConv.from_rgcn_conv(theirs)
    names = {"lin_skip.weight": "root", "lin_skip.bias": "bias", "out_bias": "bias", "value_map.maps": "weight"}
    names |= {"value_map.blocks": "weight", "value_map.bases": "weight", "value_map.coefficients": "comp"}
    same_with_gradients(theirs, ours, names, graph[0].requires_grad_(), *graph[1:])


def test_rgcn_conv_of_two_kinds_of_nodes_and_flow(graph):
    theirs = normal(RGCNConv((F, 5), 4, R, flow="target_to_source").to(F64))
    x = (torch.randn(N, F, dtype=F64), torch.randn(N, 5, dtype=F64))
    ours = RelationConv.from_rgcn_conv(theirs)
    torch.testing.assert_close(ours(x, *graph[1:]), theirs(x, *graph[1:]), atol=1e-10, rtol=1e-10)


def test_names_and_repr():
    conv = layer(**full("key", "value", "query", num_bases=2), score=LinearScore(H, C), tables=("bias",))
    names = [f"{one}_map.{part}" for one in ("key", "query", "value") for part in ("bases", "coefficients")]
    assert sorted(name for name, _ in conv.named_parameters() if "_map" in name) == sorted(names)
    assert repr(conv) == (
        "RelationConv(6, 3, heads=2, num_relations=4, kinds=('bias',), score=LinearScore(2, 3, negative_slope=0.2), "
        "key_map='full', value_map='full', query_map='full', num_bases=2)"
    )
    assert repr(layer(**full("value", num_blocks=3, normalize="relation", tables=()))) == (
        "RelationConv(6, 3, heads=2, num_relations=4, value_map='full', num_blocks=3, normalize='relation')"
    )
    before = conv.key_map.bases.clone()
    conv.reset_parameters()
    assert not torch.equal(before, conv.key_map.bases) and conv.linear_score.query.abs().max() < 1.5


REFUSED = [
    (ValueError, r"value_map and key_map must both be 'full' or neither, as tie_projections holds 'value', got 'full' and False",
     full("value", **tied("value"))),
    (ValueError, r"num_bases must be None without a map that is 'full', got 2: see value_map=K", {"num_bases": 2}),
    (ValueError, r"num_blocks must be None with num_bases, got 2", full("key", num_bases=2, num_blocks=2)),
    (ValueError, r"num_blocks must divide in_channels and heads · out_channels, \(6, 6\) and 6, got 4", full("key", num_blocks=4)),
    (ValueError, r"num_relations must be given with maps that are 'full'", full("key", num_relations=None)),
    (ValueError, r"must be SelfLoops\(relation=r\) with maps that are 'full'", full("key", add_self_loops=True)),
    (NotImplementedError, r"tables must be of 'value' and 'bias' with query_map='full', got \['key', 'value'\]", full("query")),
    (NotImplementedError, r"tables must be of 'value' and 'bias' with score=LinearScore, got", {"score": LinearScore(H, C)}),
    (ValueError, r"LinearScore of heads and out_channels \(2, 3\), got \(1, 3\)", {"score": LinearScore(1, C), "tables": ("bias",)}),
    (ValueError, r"must be LinearScore\(edge=True\), as edge features enter it, got edge=False", LINEAR | {"edge_dim": 2}),
    (NotImplementedError, r"score must be a dot product or LinearScore with query_map='full', got Additive",
     full("query", score=rg.score.Additive.learned(H, C), tables=("bias",))),
    (NotImplementedError, r"edge_terms must leave out 'key' with query_map='full'", full("query", edge_dim=2, tables=("bias",))),
    (ValueError, r"num_relations must be given with normalize='relation'", {"normalize": "relation", "num_relations": None}),
]  # fmt: skip
REFUSED += [
    (NotImplementedError, f"{name} must be left out with normalize='relation'", {"normalize": "relation", "tables": (), **full("value"), name: one})
    for name, one in (
        ("tables", ("key",)), ("score", rg.score.Softcap(1.0)), ("key_map", "full"), ("query_map", "full"), ("impl", "edges"),
        ("value_map", True), ("edge_dim", 2), ("dropout", 0.5), ("aggr", "max"),
    )
]  # fmt: skip


@pytest.mark.parametrize(("error", "message", "options"), REFUSED)
def test_options_that_do_not_fit(error, message, options):
    with pytest.raises(error, match=message):
        layer(**copy.deepcopy(options))


class OfSources(RGATConv):
    """A layer that sends what sources hold."""

    def message(self, x_j):
        return x_j


class OfNodes(FastRGCNConv):
    """A layer that gives nodes back."""

    def forward(self, x, *_):
        return x


def test_what_is_refused(graph):
    x, edge_index, edge_type = graph
    with pytest.raises(ValueError, match=r"in_channels must be at least 1 with maps that are 'full', got \(-1, -1\)"):
        RelationConv(-1, C, num_relations=R, value_map="full")
    with pytest.raises(
        NotImplementedError, match=r"value_map='full' is for rg.pyg.RelationConv; this layer has maps within"
    ):
        RelationHeteroConv(4, 4, (["a"], [("a", "to", "a")]), value_map="full")
    with pytest.raises(NotImplementedError, match="LinearScore is for RelationConv, not for RelationHeteroConv"):
        RelationHeteroConv(4, 4, (["a"], [("a", "to", "a")]), score=LinearScore(1, 4))
    for options in (full("key"), {"normalize": "relation", "tables": ()}):
        with pytest.raises(
            ValueError, match=r"edge_type must be in \[0, R\) for full maps and normalize='relation', got -1"
        ):
            layer(**options)(x, edge_index, edge_type - 1)
    with pytest.raises(NotImplementedError, match=r"query_map='full' and score=LinearScore have no message\(\) path"):
        layer(**LINEAR, aggr="max")(x, edge_index, edge_type)
    means = layer(normalize="relation", tables=())
    with pytest.raises(NotImplementedError, match=r"normalize='relation' has no message\(\) path"):
        torch.func.jacrev(lambda x: means(x, edge_index, edge_type))(x)
    for name, options in (
        ("attention_mechanism='across-relation', got 'within-relation'", {"attention_mechanism": "within-relation"}),
        ("attention_mode='additive-self-attention', got", {"attention_mode": "multiplicative-self-attention"}),
        ("mod=None, got 'f-scaled'", {"mod": "f-scaled"}), ("aggr='add', got 'mean'", {"aggr": "mean"}),
        ("flow='source_to_target', got", {"flow": "target_to_source"}),
    ):  # fmt: skip
        with pytest.raises(NotImplementedError, match=f"conv must have {name}"):
            RelationConv.from_rgat_conv(RGATConv(F, C, R, **options))
    with pytest.raises(NotImplementedError, match="conv must have aggr='mean', got 'add'"):
        RelationConv.from_rgcn_conv(RGCNConv(F, C, R, aggr="add"))
    with pytest.raises(NotImplementedError, match="conv must have the message of RGATConv, got one of its own"):
        RelationConv.from_rgat_conv(OfSources(F, C, R))
    with pytest.raises(NotImplementedError, match="conv must have the forward of FastRGCNConv, got one of its own"):
        RelationConv.from_rgcn_conv(OfNodes(F, C, R))
