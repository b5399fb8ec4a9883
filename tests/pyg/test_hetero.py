"""One softmax over all kinds of edges of a heterogeneous graph, and PyG's own way for RelationConv."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import nn
from torch_geometric.data import HeteroData
from torch_geometric.explain import AttentionExplainer, Explainer, GNNExplainer
from torch_geometric.nn import HGTConv, to_hetero

import relgraph as rg
from relgraph.pyg import RelationConv, RelationHeteroConv
from tests.cases import F64

WRITES, CITES, READS = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "read_by", "author")
METADATA = (["author", "paper"], [WRITES, CITES, READS])
EDGES = {
    WRITES: torch.tensor([[0, 1, 2, 2], [0, 0, 1, 1]]),
    CITES: torch.tensor([[0, 1, 2], [0, 2, 2]]),
    READS: torch.tensor([[3], [1]]),
}


@pytest.fixture
def x():
    return {"author": torch.randn(3, 5, dtype=F64), "paper": torch.randn(4, 6, dtype=F64)}


def layer(**options):
    return RelationHeteroConv({"author": 5, "paper": 6}, 4, METADATA, heads=2, **options).to(F64)


FEATURES = {WRITES: torch.randn(4, 3, dtype=F64), READS: torch.randn(1, 2, dtype=F64)}


def looped(conv, x, features=()):
    """The same, node by node and edge by edge, without the root's part."""
    q, k, v = (lin(x) for lin in (conv.lin_query, conv.lin_key, conv.lin_value))
    tables = {name: table.expand(2, 3, 4) for name, table in conv.tables().items()}
    out = {kind: torch.zeros(nodes.shape[0], 2, 4, dtype=F64) for kind, nodes in x.items()}
    for kind, nodes in x.items():
        for i in range(nodes.shape[0]):
            for h in range(2):
                part = slice(4 * h, 4 * h + 4)
                scores, values = [], []
                for number, triple in enumerate(conv.edge_types):
                    if triple[2] != kind:
                        continue
                    for e, (j, target) in enumerate(EDGES[triple].T.tolist()):
                        if target != i:
                            continue
                        keys = k[triple[0]][j, part] + tables["key_table"][h, number]
                        values.append(v[triple[0]][j, part] + tables["value_table"][h, number])
                        if triple in features:
                            keys = keys + conv.lin_edge[triple](features[triple][e])[part]
                            values[-1] = values[-1] + conv.lin_edge_value[triple](features[triple][e])[part]
                        scores.append(q[kind][i, part] @ keys / math.sqrt(4))
                if scores:
                    out[kind][i, h] = torch.stack(scores).softmax(0) @ torch.stack(values)
    return out


def tables(**options):
    return rg.RelationTables(3, 4, 2, **{"per_head": True, **options})


@pytest.mark.parametrize("options", [{}, {"tied": True}, {"per_head": False}])
def test_against_loops(x, options):
    conv, mean = layer(tables=tables(**options), dropout=0.5).eval(), layer(concat=False, root_weight=False)
    roots, expected, of_mean = conv.lin_skip(x), looped(conv, x), looped(mean, x)
    for kind in x:
        torch.testing.assert_close(conv(x, EDGES)[kind], expected[kind].flatten(1) + roots[kind])
        torch.testing.assert_close(mean(x, EDGES)[kind], of_mean[kind].mean(1))
    other = conv(dict(reversed(x.items())), dict(reversed(EDGES.items())))
    assert all(torch.equal(other[kind], conv(x, EDGES)[kind]) for kind in METADATA[0])
    assert not torch.equal(conv.train()(x, EDGES)["paper"], conv(x, EDGES)["paper"])


def test_features_of_edges_against_loops(x):
    """By kernels and by messages, values and all gradients; one kind of edge has no features."""
    conv = layer(edge_dim={WRITES: 3, READS: 2}, root_weight=False)
    features = {kind: rows.clone().requires_grad_() for kind, rows in FEATURES.items()}
    expected, leaves = looped(conv, x, features), [*features.values(), *conv.parameters()]
    direction = {kind: torch.randn_like(out) for kind, out in expected.items()}

    def grads(found):
        return torch.autograd.grad(sum((found[kind] * direction[kind]).sum() for kind in x), leaves)

    wanted = grads(expected)
    for by_messages in (False, True):
        if by_messages:
            conv.messages[CITES].register_message_forward_hook(lambda *_: None)
        out = {kind: rows.unflatten(1, (2, 4)) for kind, rows in conv(x, EDGES, edge_attr_dict=features).items()}
        for kind in x:
            torch.testing.assert_close(out[kind], expected[kind], atol=1e-12, rtol=0)
        torch.testing.assert_close(grads(out), wanted, atol=1e-12, rtol=0)
    assert repr(conv).endswith("edge_dim={" + f"{WRITES}: 3, {READS}: 2" + "}; 2 kinds of nodes, 3 kinds of edges)")


def test_a_hetero_data_holds_features(x):
    data, conv = HeteroData({kind: {"x": nodes} for kind, nodes in x.items()}), layer(edge_dim=2)
    for kind, index in EDGES.items():
        data[kind].edge_index, data[kind].edge_attr = index, torch.randn(index.shape[1], 2, dtype=F64)
    expected = conv(x, EDGES, edge_attr_dict=data.edge_attr_dict)
    with rg.record_attention(conv, weights=True) as record:
        out = conv(data)
    assert record[""][0].weights.shape == (8, 2)
    for kind in x:
        torch.testing.assert_close(out[kind], expected[kind])
    layer()(data)  # reads none
    with pytest.raises(TypeError, match="edge_attr_dict must be left out with a HeteroData"):
        conv(data, edge_attr_dict=data.edge_attr_dict)
    del data[CITES].edge_attr
    with pytest.raises(
        ValueError, match=r"edge_attr_dict\[.*cites.*\]: edge_attr must be given .* edge_dim=2, got None"
    ):
        conv(data)


def test_features_that_do_not_fit(x):
    conv = layer(edge_dim={WRITES: 3})
    with pytest.raises(
        ValueError, match=r"edge_attr_dict\[.*\]: edge_attr must have shape .* = \[4, 3\], got \[4, 2\]"
    ):
        conv(x, EDGES, edge_attr_dict={WRITES: torch.zeros(4, 2)})
    with pytest.raises(ValueError, match=r"edge_attr_dict\[.*\]: edge_attr must be left out without edge_dim"):
        conv(x, EDGES, edge_attr_dict=FEATURES)
    with pytest.raises(ValueError, match="edge_index_dict must hold the edges of all features given, got none of"):
        conv(x, {}, edge_attr_dict={WRITES: FEATURES[WRITES]})
    with pytest.raises(ValueError, match="edge_dim must hold kinds of the metadata"):
        layer(edge_dim={("paper", "likes", "paper"): 3})


@pytest.fixture
def hgt():
    """HGT's layer, with priors of the relations that are not all 1."""
    conv = HGTConv({"author": 5, "paper": 6}, 8, METADATA, heads=2).to(F64)
    for prior in conv.p_rel.values():
        nn.init.normal_(prior)
    return conv


def messages(hgt, x):
    """What HGTConv sums into each node, before it projects and mixes: the attention itself."""
    found = []
    with hgt.register_propagate_forward_hook(lambda _, __, out: found.append(out)):
        hgt(x, EDGES)
    return dict(zip(x, found[0].split([nodes.shape[0] for nodes in x.values()]), strict=True))


def from_hgt(hgt):
    """Our layer with its weights: W[r] of the scores is its k_rel by its prior, W[r] of the values its v_rel."""
    score = rg.score.Bilinear.learned(3, 2, 4)
    conv = layer(score=score, value_map=True, tables=(), root_weight=False)
    with torch.no_grad():
        for kind in METADATA[0]:
            theirs = hgt.kqv_lin.lins[kind]
            for part, lin in enumerate((conv.lin_key, conv.lin_query, conv.lin_value)):
                lin[kind].weight.copy_(theirs.weight[8 * part : 8 * part + 8])
                lin[kind].bias.copy_(theirs.bias[8 * part : 8 * part + 8])
        for number, triple in enumerate(METADATA[1]):
            prior = hgt.p_rel["__".join(triple)][0]
            for head in range(2):
                place = head * 3 + number
                score.weight[head, number] = hgt.k_rel.weight[place].T * prior[head]
                conv.value_map.maps[head, number] = hgt.v_rel.weight[place].T
    return conv


def test_bilinear_scores_and_maps_are_hgt(x, hgt):
    conv = from_hgt(hgt)
    nodes = {kind: part.clone().requires_grad_() for kind, part in x.items()}
    others = {kind: part.clone().requires_grad_() for kind, part in x.items()}
    expected, out = messages(hgt, nodes), conv(others, EDGES)
    for kind in METADATA[0]:
        torch.testing.assert_close(out[kind], expected[kind], atol=1e-10, rtol=0)
    sum(part.sin().sum() for part in expected.values()).backward()
    sum(part.sin().sum() for part in out.values()).backward()
    for kind in METADATA[0]:
        torch.testing.assert_close(others[kind].grad, nodes[kind].grad)
        theirs, mine = hgt.kqv_lin.lins[kind], [p[kind] for p in (conv.lin_key, conv.lin_query, conv.lin_value)]
        torch.testing.assert_close(torch.cat([lin.weight.grad for lin in mine]), theirs.weight.grad)
        torch.testing.assert_close(torch.cat([lin.bias.grad for lin in mine]), theirs.bias.grad)
    for number, triple in enumerate(METADATA[1]):
        prior = hgt.p_rel["__".join(triple)]
        for head in range(2):
            place, grad = head * 3 + number, conv.score.weight.grad[head, number]
            torch.testing.assert_close(grad.T * prior[0, head], hgt.k_rel.weight.grad[place])
            torch.testing.assert_close((grad.T * hgt.k_rel.weight[place]).sum(), prior.grad[0, head])
            torch.testing.assert_close(conv.value_map.maps.grad[head, number].T, hgt.v_rel.weight.grad[place])


def test_compiles_whole(x):
    torch._dynamo.reset()
    conv = layer()
    compiled = torch.compile(conv, backend="aot_eager", fullgraph=True)
    for kind, out in compiled(x, EDGES).items():
        torch.testing.assert_close(out, conv(x, EDGES)[kind])


def test_kinds_may_be_missing(x):
    conv = layer()
    out = conv({"paper": x["paper"]}, {CITES: EDGES[CITES]})
    assert set(out) == {"paper"}
    torch.testing.assert_close(out["paper"][2], conv(x, EDGES)["paper"][2])
    none = conv({"author": x["author"][:0], "paper": x["paper"]}, {})
    assert none["author"].shape == (0, 8)
    torch.testing.assert_close(none["paper"], conv.lin_skip(x)["paper"])


def test_lazy_reset_pickle_and_repr(x):
    conv = RelationHeteroConv(-1, 4, METADATA, heads=2).to(F64)
    out = conv(x, EDGES)["author"]
    torch.testing.assert_close(pickle.loads(pickle.dumps(conv))(x, EDGES)["author"], out)
    conv.reset_parameters()
    assert not torch.equal(conv(x, EDGES)["author"], out)
    assert repr(conv) == ("RelationHeteroConv(-1, 4, heads=2; 2 kinds of nodes, 3 kinds of edges)")
    assert conv.tables.key.names == tuple("__".join(triple) for triple in METADATA[1])


def test_lazy_with_a_kind_without_nodes_and_odd_names():
    metadata = (["a.b", "type"], [("a.b", "keys", "type")])
    conv = RelationHeteroConv(-1, 4, metadata)
    out = conv({"a.b": torch.randn(0, 5), "type": torch.randn(3, 6)}, {})
    assert {kind: list(nodes.shape) for kind, nodes in out.items()} == {"a.b": [0, 4], "type": [3, 4]}
    assert conv({"a.b": torch.randn(2, 5), "type": torch.randn(0, 6)}, {})["type"].shape == (0, 4)


def test_bad_input(x):
    for metadata in ([], []), (["a"], []), (["a", "a"], [("a", "r", "a")]):
        with pytest.raises(ValueError, match="metadata must name at least one kind"):
            RelationHeteroConv(5, 4, metadata)
    for triple in (("a", "r"), ("a", "r", "b")):
        with pytest.raises(ValueError, match="every kind of edge must be"):
            RelationHeteroConv(5, 4, (["a"], [triple]))
    with pytest.raises(ValueError, match="none for 'paper'"):
        RelationHeteroConv({"author": 5}, 4, METADATA)
    with pytest.raises(ValueError, match=r"score.weight must have shape .*\[2, 3, 4, 4\]"):
        layer(score=rg.score.Bilinear.learned(2, 2, 4))
    conv = layer()
    with pytest.raises(ValueError, match="x_dict must hold kinds of the metadata"):
        conv({"venue": x["paper"]}, {})
    with pytest.raises(ValueError, match="x_dict must hold at least one kind"):
        conv({}, {})
    with pytest.raises(ValueError, match="edge_index_dict must hold kinds of the metadata"):
        conv(x, {("paper", "likes", "paper"): EDGES[CITES]})
    with pytest.raises(ValueError, match="got no 'author'"):
        conv({"paper": x["paper"]}, EDGES)
    with pytest.raises(ValueError, match=r"\('paper', 'cites', 'paper'\)\]: .* every target must lie in \[0, 4\)"):
        conv(x, {CITES: torch.tensor([[0], [4]])})


class Net(nn.Module):
    """What PyG's to_hetero turns into a model of a heterogeneous graph."""

    def __init__(self):
        super().__init__()
        self.first = RelationConv((-1, -1), 4, heads=2, num_relations=2, edge_dim=2)
        self.second = RelationConv((-1, -1), 3)

    def forward(self, x, edge_index, edge_type, edge_attr):
        return self.second(self.first(x, edge_index, edge_type, edge_attr).relu(), edge_index)


def test_to_hetero(x):
    data = HeteroData({kind: {"x": nodes.float()} for kind, nodes in x.items()})
    for kind, index in EDGES.items():
        data[kind].edge_index = index
    types = {kind: torch.arange(index.shape[1]) % 2 for kind, index in EDGES.items()}
    attrs = {kind: torch.randn(index.shape[1], 2) for kind, index in EDGES.items()}
    net = to_hetero(Net(), data.metadata())
    out = net(data.x_dict, data.edge_index_dict, types, attrs)
    assert {kind: list(nodes.shape) for kind, nodes in out.items()} == {"author": [3, 3], "paper": [4, 3]}

    def step(layers, nodes, *more):
        """A layer for each kind of edge, and their sum."""
        total = {}
        for kind, index in EDGES.items():
            pair = nodes[kind[0]], nodes[kind[2]]
            total.setdefault(kind[2], []).append(layers["__".join(kind)](pair, index, *(part[kind] for part in more)))
        return {kind: sum(parts) for kind, parts in total.items()}

    hidden = {kind: nodes.relu() for kind, nodes in step(net.first, data.x_dict, types, attrs).items()}
    for kind, expected in step(net.second, hidden).items():
        torch.testing.assert_close(out[kind], expected)


def test_takes_a_hetero_data():
    data = HeteroData()
    data["a"].x, data["b"].x = torch.randn(2, 4), torch.randn(3, 4)
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1], [2, 2]])
    conv = rg.pyg.RelationHeteroConv(4, 4, data.metadata())
    for kind, out in conv(data).items():
        torch.testing.assert_close(out, conv(data.x_dict, data.edge_index_dict)[kind])
    with pytest.raises(TypeError, match="edge_index_dict must be left out with a HeteroData"):
        conv(data, data.edge_index_dict)
    del data["b"].x
    with pytest.raises(ValueError, match="x_dict must hold the nodes of every edge given, .* got no 'b'"):
        conv(data)
    del data["a", "to", "b"].edge_index
    assert list(conv(data)) == ["a"]


OPTIONS = {
    "tables": {"tables": ("key", "value", "query", "bias")},
    "shared rows": {"tables": lambda: tables(per_head=False, tied=True)},
    "additive": {"score": lambda: rg.score.Additive.learned(2, 4)},
    "maps": {"score": lambda: rg.score.Bilinear.learned(3, 2, 4), "value_map": 2, "tables": ()},
    "mean": {"concat": False, "root_weight": False},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_messages_are_the_same_attention(options, x):
    conv = layer(**{name: value() if callable(value) else value for name, value in options.items()})
    found, weights = conv(x, EDGES, return_attention_weights=True)
    seen = []
    conv.messages[CITES].register_message_forward_hook(lambda _, given, out: seen.append((given[0]["alpha"], out)))
    nodes = {kind: part.clone().requires_grad_() for kind, part in x.items()}
    by_messages, others = conv(nodes, EDGES, return_attention_weights=False)
    ((alpha, message),) = seen
    torch.testing.assert_close(alpha, weights[CITES][1])
    assert message.shape == (3, 2, 4)
    for kind in x:
        torch.testing.assert_close(by_messages[kind], found[kind])
    for kind in EDGES:
        assert weights[kind][0] is EDGES[kind]
        torch.testing.assert_close(others[kind][1], weights[kind][1])


def test_record_attention(x):
    conv = layer()
    plain, (found, weights) = conv(x, EDGES), conv(x, EDGES, return_attention_weights=True)
    with rg.record_attention(conv, weights=True) as record:
        out = conv(x, EDGES)
        _, asked = conv(x, EDGES, True)
    for kind in x:  # weights come from another implementation: the same up to rounding
        torch.testing.assert_close(out[kind], plain[kind])
        torch.testing.assert_close(found[kind], plain[kind])
    assert asked.keys() == weights.keys()
    for call in record[""]:
        torch.testing.assert_close(call.weights, torch.cat([weights[kind][1] for kind in METADATA[1]]).detach())
        assert call.label_mass.shape == (2, 7, 3)
        torch.testing.assert_close(call.label_mass[:, 3 + 2, 1], weights[CITES][1][1:].sum(0).detach())
        attending = torch.tensor([0, 1, 0, 1, 1, 1, 0], dtype=F64)  # author 1, papers 0 to 2
        torch.testing.assert_close(call.label_mass.sum(-1), attending.expand(2, -1))
    data = HeteroData({kind: {"x": nodes} for kind, nodes in x.items()})
    for kind, index in EDGES.items():
        data[kind].edge_index = index
    with rg.record_attention(conv) as whole:
        conv(data)
    assert torch.equal(whole[""][0].label_mass, record[""][0].label_mass)


class Papers(nn.Module):
    """Two layers, and scores of papers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = layer(), RelationHeteroConv(8, 3, METADATA).to(F64)

    def forward(self, x_dict, edge_index_dict):
        hidden = {kind: nodes.relu() for kind, nodes in self.first(x_dict, edge_index_dict).items()}
        return self.second(hidden, edge_index_dict)["paper"]


@pytest.mark.parametrize("algorithm", [AttentionExplainer(), GNNExplainer(epochs=3)])
def test_explainers_of_heterogeneous_graphs(algorithm, x):
    """They mask and read the messages of each kind of edge, and leave no trace."""
    net = Papers().eval()
    before, state = net(x, EDGES), copy.deepcopy(net.state_dict())
    data = HeteroData({kind: {"x": nodes} for kind, nodes in x.items()})
    for kind, index in EDGES.items():
        data[kind].edge_index = index
    explainer = Explainer(
        net, algorithm, explanation_type="model", edge_mask_type="object",
        node_mask_type="attributes" if isinstance(algorithm, GNNExplainer) else None,
        model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
    )  # fmt: skip
    found = explainer(data.x_dict, data.edge_index_dict)
    for kind, index in EDGES.items():
        assert found[kind].edge_mask.shape == (index.shape[1],) and bool((found[kind].edge_mask > 0).any())
    assert torch.equal(net(x, EDGES), before)
    assert net.state_dict().keys() == state.keys()
    assert all(torch.equal(state[name], value) for name, value in net.state_dict().items())


def test_a_masked_edge_sends_nothing(x):
    """An explainer's mask of zeros takes an edge's message away, and leaves the weights of the others as they are."""
    conv = layer(root_weight=False)
    _, weights = conv(x, EDGES, return_attention_weights=True)
    before = conv(x, EDGES)["paper"].view(4, 2, 4)
    messages = conv.messages[CITES]
    messages.explain, messages._edge_mask, messages._apply_sigmoid = True, torch.tensor([1.0, 1.0, 0.0]), False
    after = conv(x, EDGES)["paper"].view(4, 2, 4)
    messages.explain = None
    value = conv.lin_value(x)["paper"][2].view(2, 4) + conv.tables()["value_table"][:, 1]
    torch.testing.assert_close(before[2] - after[2], weights[CITES][1][2][:, None] * value)
    torch.testing.assert_close(before[:2], after[:2])
