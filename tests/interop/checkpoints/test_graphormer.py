"""Graphormer's encoder against its equations: one bias for all layers, of distances and of the edges on paths."""

from __future__ import annotations

import random

import pytest
import torch
from torch.nn.functional import gelu, layer_norm, linear

import relgraph as rg
from relgraph.interop.checkpoints import from_graphormer
from tests.interop.checkpoints.old import heads_of, joined, random_state, same_with_gradients

WIDTH, HEADS, INNER, FAR, TOKEN = 12, 3, 20, 510, 7
TYPES = {"single": (0, 1), "double": (1, 0), "ring": (3, 1)}
SIZES = {"edge_types": TYPES, "virtual_node": TOKEN, "multi_hop_max_dist": 3}


def state_of(depth, distances=512, **changes):
    shapes = {}
    for number in range(depth):
        layer = f"e.layers.{number}."
        maps = {f"self_attn.{name}_proj": (WIDTH, WIDTH) for name in "qkv"} | {"self_attn.out_proj": (WIDTH, WIDTH)}
        maps |= {"fc1": (INNER, WIDTH), "fc2": (WIDTH, INNER)}
        shapes |= {f"{layer}{name}.weight": size for name, size in maps.items()}
        shapes |= {f"{layer}{name}.bias": size[:1] for name, size in maps.items()}
        norms = ("self_attn_layer_norm", "final_layer_norm")
        shapes |= {f"{layer}{name}.{part}": (WIDTH,) for name in norms for part in ("weight", "bias")}
    biases = {"spatial_pos_encoder": (distances, HEADS), "graph_token_virtual_distance": (1, HEADS)}
    biases |= {"edge_encoder": (1537, HEADS), "edge_dis_encoder": (6 * HEADS * HEADS, 1)}
    shapes |= {f"e.graph_attn_bias.{name}.weight": size for name, size in biases.items()}
    state = random_state(shapes)
    state["e.graph_attn_bias.edge_encoder.weight"][0] = 0.0
    return state | changes


def forest(sizes, rng):
    """Trees with a token as node 0 and an edge of any type each way, so that every path is the only one."""
    edges, types, first = [], [], 1
    for size in sizes:
        for node in range(first + 1, first + size):
            other = rng.randrange(first, node)
            edges += [(node, other), (other, node)]
            types += [rng.randrange(3), rng.randrange(3)]
        first += size
    kinds = torch.tensor([TOKEN] + [0] * (first - 1))
    ends = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T
    return rg.Graph(ends, first, edge_type=torch.tensor(types, dtype=torch.int64), node_type=kinds)


def old_bias(state, graph, most, longest):
    """The bias ``[H, N, N]`` of query i and key j, pair by pair."""
    table = {name: state[f"e.graph_attn_bias.{name}.weight"] for name in ("spatial_pos_encoder", "edge_encoder")}
    maps = state["e.graph_attn_bias.edge_dis_encoder.weight"].reshape(-1, HEADS, HEADS)
    out = {}
    for (a, b), kind in zip(graph.edge_index.T.tolist(), graph.edge_type.tolist(), strict=True):
        out.setdefault(a, []).append((b, kind))
    bias = torch.zeros(HEADS, graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    for i in range(1, graph.num_nodes):
        paths, waiting = {i: []}, [i]
        for node in waiting:
            for other, kind in out.get(node, []):
                if other not in paths:
                    paths[other] = [*paths[node], kind]
                    waiting.append(other)
        for j in range(1, graph.num_nodes):
            away = len(paths[j]) if j in paths else FAR
            if away >= most:
                bias[:, i, j] = -torch.inf
                continue
            bias[:, i, j] = table["spatial_pos_encoder"][away + 1]
            edges = paths.get(j, [])[:longest]
            for hop, kind in enumerate(edges):
                rows = [table["edge_encoder"][3 + a + 512 * f] for f, a in enumerate([*TYPES.values()][kind])]
                bias[:, i, j] += torch.stack(rows).mean(0) @ maps[hop] / len(edges)
    token = state["e.graph_attn_bias.graph_token_virtual_distance.weight"][0]
    bias[:, 1:, 0] += token[:, None]
    bias[:, 0, :] += token[:, None]
    return bias


def old_encoder(state, x, bias, depth, *, first):
    def mapped(name, y):
        return linear(y, state[f"{name}.weight"], state[f"{name}.bias"])

    def norm(name, y):
        return layer_norm(y, [WIDTH], state[f"{name}.weight"], state[f"{name}.bias"])

    def attend(at, y):
        q, k, v = (heads_of(mapped(f"{at}self_attn.{name}_proj", y)[None], WIDTH // HEADS) for name in "qkv")
        alpha = (q * (WIDTH // HEADS) ** -0.5 @ k.mT + bias).softmax(-1)
        return mapped(f"{at}self_attn.out_proj", joined(alpha @ v)[0])

    for number in range(depth):
        at = f"e.layers.{number}."
        steps = [
            ("self_attn_layer_norm", attend),
            ("final_layer_norm", lambda at, y: mapped(f"{at}fc2", gelu(mapped(f"{at}fc1", y)))),
        ]
        for name, step in steps:
            x = x + step(at, norm(at + name, x)) if first else norm(at + name, x + step(at, x))
    return x


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("most", [3, 20, 1024])
def test_the_encoder(most, first):
    state, rng = state_of(2), random.Random(most)
    encoder, labeler = from_graphormer(state, prefix="e.", spatial_pos_max=most, pre_layernorm=first, **SIZES)
    assert encoder.layers[0].self_attn.tables is encoder.layers[1].self_attn.tables
    for sizes in ((1,), (7,), (5, 1, 4)):
        graph = forest(sizes, rng)
        x = torch.randn(graph.num_nodes, WIDTH, dtype=torch.float64)
        bias = old_bias(state, graph, most, 3)
        same_with_gradients(
            lambda x, g=graph: encoder(x, labels=labeler(g)),
            lambda x, b=bias: old_encoder(state, x, b, 2, first=first),
            x,
        )


def test_a_batch_gives_what_each_graph_gives():
    encoder, labeler = from_graphormer(state_of(1), prefix="e.", spatial_pos_max=1024, **SIZES)
    graphs = [forest((4,), random.Random(1)), forest((2, 3), random.Random(2))]
    xs = [torch.randn(graph.num_nodes, WIDTH, dtype=torch.float64) for graph in graphs]
    alone = [encoder(x, labels=labeler(graph)) for x, graph in zip(xs, graphs, strict=True)]
    torch.testing.assert_close(encoder(torch.cat(xs), labels=labeler(rg.Graph.batch(graphs))), torch.cat(alone))


def test_what_does_not_fit_is_refused():
    def read(state, **options):
        return from_graphormer(state, **{"prefix": "e.", "spatial_pos_max": 20, **SIZES, **options})

    state, at = state_of(1), "e.graph_attn_bias."
    with pytest.raises(NotImplementedError, match=r"zeros in row 0 of 'e\.graph_attn_bias\.edge_encoder\.weight'"):
        read(state | {f"{at}edge_encoder.weight": torch.ones(1537, HEADS, dtype=torch.float64)})
    with pytest.raises(NotImplementedError, match="edge_dis_encoder.weight': only edge_type='multi_hop'"):
        read({name: x for name, x in state.items() if "edge_dis" not in name})
    with pytest.raises(ValueError, match=r"no place for, got 'e?\.?final_layer_norm\.weight'"):
        read(state | {"e.final_layer_norm.weight": torch.ones(WIDTH, dtype=torch.float64)})
    with pytest.raises(ValueError, match="spatial_pos_max must be at most 29 .* which has 30 rows, got 1024"):
        read(state_of(1, 30), spatial_pos_max=1024)
    with pytest.raises(ValueError, match="multi_hop_max_dist must be at most 6, the maps of hops, got 7"):
        read(state, multi_hop_max_dist=7)
    with pytest.raises(ValueError, match="edge_types must have attributes with rows in .* got one with row 1539"):
        read(state, edge_types={"a": (0, 0, 0, 0)})
    with pytest.raises(ValueError, match="edge_types must have one number of attributes for all types"):
        read(state, edge_types={"a": (0,), "b": (0, 1)})
    with pytest.raises(ValueError, match=r"edge_types\['a'\] must have an attribute at least, got none"):
        read(state, edge_types={"a": ()})
    with pytest.raises(TypeError, match="edge_types must be a mapping of names to attributes, got int"):
        read(state, edge_types=3)
    with pytest.raises(
        ValueError, match="as many heads as columns in 'e.graph_attn_bias.spatial_pos_encoder.weight', 5"
    ):
        read(state | {f"{at}spatial_pos_encoder.weight": torch.ones(512, 5, dtype=torch.float64)})
