"""Messages say how to make a graph, labels or edges of what was passed instead."""

from __future__ import annotations

import re

import pytest
import torch

import relgraph as rg
from relgraph.arguments.hints import in_place_of_edges, in_place_of_graph, in_place_of_labels, in_place_of_types
from tests.layers import decoder_layer, encoder_layer

GRAPH = rg.Graph(torch.tensor([[0], [1]]), 3)
LABELER = rg.ClippedDistance(1)
LABELS = LABELER(3)
X = torch.randn(3, 8)
NETWORKX = "relgraph.interop.networkx.from_networkx(...).graph"


def networkx_graphs():
    nx = pytest.importorskip("networkx")
    from relgraph.interop.networkx import from_networkx

    return nx.path_graph(3, create_using=nx.DiGraph), from_networkx(nx.path_graph(3))


def pyg_data():
    data = pytest.importorskip("torch_geometric.data")
    return data.Data(edge_index=GRAPH.edge_index, num_nodes=3)


def test_in_place_of_a_graph():
    theirs, read = networkx_graphs()
    assert in_place_of_graph(3) == "int"
    assert in_place_of_graph(torch.zeros(1)) == "Tensor"
    assert in_place_of_graph(read) == "FromNetworkx: pass its .graph"
    assert in_place_of_graph(theirs) == f"DiGraph (networkx.classes.digraph.DiGraph): make it a Graph with {NETWORKX}"


def test_in_place_of_a_graph_of_pyg():
    data = pytest.importorskip("torch_geometric.data")
    assert in_place_of_graph(data.Batch.from_data_list([pyg_data()])).endswith(
        ": make it a Graph with relgraph.pyg.from_data(...)"
    )
    assert in_place_of_graph(data.HeteroData()).endswith(
        ": make it a Graph with relgraph.pyg.from_hetero_data(...).graph"
    )


def test_in_place_of_labels():
    theirs, read = networkx_graphs()
    assert in_place_of_labels("near") == "str"
    assert in_place_of_labels(GRAPH) == "Graph: pass labels=labeler(graph)"
    assert in_place_of_labels(read) == "FromNetworkx: pass labels=labeler(read.graph)"
    assert in_place_of_labels(LABELER) == ("ClippedDistance: call it with a length or a graph, labels=labeler(length)")
    assert in_place_of_labels([[0]]) == "list: make it a tensor with torch.tensor(...)"
    assert in_place_of_labels(torch.zeros(1)) == "Tensor: make labels of it with rg.DenseLabels(ids, num_labels)"
    assert in_place_of_labels(theirs) == (
        f"DiGraph (networkx.classes.digraph.DiGraph): make it a Graph with {NETWORKX}, and pass labels=labeler(graph)"
    )
    assert in_place_of_labels(rg.labelers.ShortestPathTypes(2, 1)(GRAPH)) == "PathLabels: pass its .labels"


def test_in_place_of_one_graph_several():
    theirs, _ = networkx_graphs()
    batch = "list of graphs: make them one Graph with rg.Graph.batch(graphs)"
    assert in_place_of_graph([GRAPH, GRAPH]) == batch
    assert in_place_of_labels([GRAPH], or_graph=True) == batch
    assert in_place_of_labels([GRAPH]) == f"{batch}, and pass labels=labeler(graph)"
    assert in_place_of_graph((theirs, theirs)) == (
        "tuple of graphs: make them one Graph with relgraph.interop.networkx.from_networkx(graphs).graph"
    )
    assert in_place_of_graph([GRAPH, theirs]) == "list" and in_place_of_graph([]) == "list"


def test_in_place_of_types():
    _, read = networkx_graphs()
    assert in_place_of_types(read, "edge") == "FromNetworkx: pass its .types"
    assert in_place_of_types(read, "node") == "FromNetworkx: pass its .node_types"
    assert in_place_of_types(3.5, "edge") == "3.5"
    hetero = pytest.importorskip("torch_geometric.data").HeteroData()
    hetero["a"].num_nodes, hetero["a", "to", "a"].edge_index = 2, torch.tensor([[0], [1]])
    assert in_place_of_types(rg.pyg.from_hetero_data(hetero), "edge") == "HeteroGraph: pass its .edge_types"
    for labeler, names in ((rg.EdgeType, "types"), (rg.NodeType, "node_types")):
        with pytest.raises(TypeError, match=f"types must be an int or .* got FromNetworkx: pass its .{names}$"):
            labeler(read)


def test_in_place_of_edges():
    theirs, read = networkx_graphs()
    assert in_place_of_edges(GRAPH) == "Graph: pass its .edge_index and .edge_type"
    assert in_place_of_edges(read) == "FromNetworkx: pass its .graph.edge_index and .graph.edge_type"
    assert in_place_of_edges(LABELER) == "ClippedDistance: call it with a graph for EdgeLabels, labeler(graph)"
    assert in_place_of_edges([[0], [1]]) == "list: make it a tensor with torch.tensor(...)"
    assert in_place_of_edges(theirs).endswith(f"{NETWORKX}, and pass graph.edge_index and graph.edge_type")
    assert in_place_of_edges(pyg_data()) == "Data (torch_geometric.data.data.Data): pass its .edge_index"


def attention(labels):
    q = X[None, None]
    return rg.relation_attention(q, q, q, labels, torch.randn(3, 8))


LAYERS = {
    "relation_attention": attention,
    "which_impl": lambda labels: rg.which_impl(*[X[None, None]] * 3, labels),
    "RelationAttention": lambda labels: rg.RelationAttention(8, 2, num_labels=3)(X, labels=labels),
    "RelationEncoderLayer": lambda labels: encoder_layer(8, 2, 8, num_labels=3)(X, labels=labels),
    "RelationEncoder": lambda labels: rg.RelationEncoder(encoder_layer(8, 2, 8, num_labels=3), 1)(X, labels=labels),
    "RelationDecoderLayer": lambda labels: decoder_layer(8, 2, 8, num_labels=3)(X, X, labels=labels),
    "padded": rg.labels.padded,
    "first_of": lambda labels: rg.labels.first_of(labels, LABELS),
    "SumLabels": lambda labels: rg.SumLabels(LABELS, labels),
}


@pytest.mark.parametrize("name", LAYERS)
def test_everything_that_takes_labels_says_what_to_do(name):
    theirs, read = networkx_graphs()
    for came in (GRAPH, [GRAPH, GRAPH], read, LABELER, [[0]], theirs, pyg_data()):
        wanted = re.escape(f"got {in_place_of_labels(came)}")
        with pytest.raises(TypeError, match=f"(labels|parts) must be Labels.* {wanted}"):
            LAYERS[name](came)


def test_a_layer_with_a_labeler_wants_the_graph_itself():
    theirs, read = networkx_graphs()
    layer = encoder_layer(8, 2, 8, labeler=rg.ShortestPath(1))
    stack = rg.RelationEncoder(layer, 1)
    assert layer(X, labels=GRAPH).shape == (3, 8)
    for came, hint in (
        (read, "FromNetworkx: pass its .graph"),
        (theirs, f"DiGraph (networkx.classes.digraph.DiGraph): make it a Graph with {NETWORKX}"),
        (LABELER, "ClippedDistance: call it with a length or a graph, labels=labeler(length)"),
        ([[0]], "list: make labels of it with rg.DenseLabels and torch.tensor(...)"),
        (torch.zeros(3, 3).long(), "Tensor: make labels of it with rg.DenseLabels(ids, num_labels)"),
    ):
        message = re.escape(f"labels must be Labels, or what {layer.labeler} reads, got {hint}")
        for called in (layer, stack):
            with pytest.raises(TypeError, match=f"{message}( \\(graph must be .*\\))?$"):
                called(X, labels=came)


def test_a_value_for_another_argument_says_which():
    x, layer = torch.randn(1, 4, 8), rg.RelationAttention(8, 2, num_labels=3)
    with pytest.raises(TypeError, match=r"^key must be a Tensor, got DistanceLabels: pass it as labels=$"):
        layer(x, LABELER(4))
    with pytest.raises(TypeError, match=r"^dropout must be a float, got ClippedDistance: pass it as labeler=$"):
        rg.RelationAttention(8, 2, LABELER)
    with pytest.raises(TypeError, match=r"got Tensor: make it a Graph with rg\.Graph\(edge_index, num_nodes\)$"):
        rg.ShortestPath(2)(torch.zeros(2, 3))


def test_a_labeler_of_several_inputs_is_called_by_the_user():
    grid = rg.labelers.GridRows(3) + rg.labelers.GridColumns(3)
    x, layer = torch.randn(1, 4, 8), rg.RelationAttention(8, 2, labeler=grid)
    call = r"call it, labels=labeler\(height, width\)"
    with pytest.raises(TypeError, match=rf"^labels must be Labels, as .* reads several inputs, got tuple: {call}$"):
        layer(x, labels=(2, 2))
    with pytest.raises(TypeError, match=rf"^labels must be given, as the labeler .* does not label lengths: {call} "):
        layer(x)
    assert layer(x, labels=grid(2, 2)).shape == x.shape


def test_parts_that_read_different_inputs():
    class Same(rg.Labeler):
        num_labels, names = 2, ("other", "same")

        def __call__(self, speakers):
            return rg.DenseLabels((speakers[:, :, None] == speakers[:, None]).long(), 2)

    speakers = torch.tensor([[0, 1, 0]])
    for labeler, join in (
        (rg.ShortestPath(2) + Same(), r"\+"),
        (rg.ShortestPath(2) * Same(), r"\*"),
        (Same() & rg.ShortestPath(2), "&"),
    ):
        match = rf"read different inputs: call each with its own, and join their labels with {join}$"
        with pytest.raises(TypeError, match=match):
            labeler(speakers)
    with pytest.raises(TypeError, match=r"make it a Graph with rg\.Graph\(edge_index, num_nodes\)$"):
        (rg.ShortestPath(2) + rg.ShortestPath(3))(speakers)


def test_a_graph_in_place_of_the_key():
    x, layer = torch.randn(3, 8), rg.RelationAttention(8, 2, labeler=rg.EdgeType(2))
    with pytest.raises(TypeError, match=r"^key must be a Tensor, got Graph: pass it as labels=$"):
        layer(x, GRAPH)
    with pytest.raises(
        ValueError, match=r"^key must have a floating dtype, got torch.int64: pass ids or a Graph as labels=$"
    ):
        layer(x, torch.tensor([[0, 1], [1, 2]]))


def test_what_is_no_labeler():
    start = "^labeler must be callable and have num_labels and names, got "
    for given, end in (
        (rg.ClippedDistance, "the class ClippedDistance: call it"),
        (LABELER(4), "DistanceLabels: pass num_labels= here, and the labels to forward"),
        (lambda i, j: i - j, "function: make it a labeler with rg.FromFunction"),
    ):
        with pytest.raises(TypeError, match=start + end):
            rg.RelationAttention(8, 2, labeler=given)


def test_a_mask_of_integers_says_how_it_may_be_meant():
    x, layer = torch.randn(1, 4, 8), rg.RelationAttention(8, 2, labeler=LABELER)
    with pytest.raises(ValueError, match=r"got torch.int64: if 1 marks what attends, pass mask == 0$"):
        layer(x, key_padding_mask=torch.ones(1, 4, dtype=torch.long))


def test_a_part_of_a_sum_has_what_is_asked_for():
    layer = rg.RelationAttention(8, 2, labeler=LABELER + LABELER)
    with pytest.raises(AttributeError, match="'TableParts' object has no attribute 'rows': index a part, 0 to 1"):
        _ = layer.tables.key.rows
    with pytest.raises(AttributeError, match="'TableParts' object has no attribute 'nothing'$"):
        _ = layer.tables.key.nothing


def test_hints_about_the_mistakes_of_newcomers():
    x, q = torch.randn(3, 16), torch.randn(2, 5, 2, 8)
    layer = rg.RelationAttention(16, 4, labeler=rg.ShortestPath(3))
    with pytest.raises(TypeError, match=r"does not label lengths: it reads a Graph, so pass labels=graph$"):
        layer(x)
    with pytest.raises(ValueError, match="^labels must cover the 3 rows of query, got a graph of 2 nodes$"):
        layer(x, labels=rg.Graph(torch.tensor([[0], [1]]), 2))
    ids, distances = torch.tensor([[0, 1, 3]] * 3), rg.ClippedDistance(2)(3)
    with pytest.raises(TypeError, match=r"got tuple: for several labels of a pair add them, as in rg\.DenseLabels"):
        rg.RelationAttention(16, 4, num_labels=5)(x, labels=(ids, distances))
    with pytest.raises(ValueError, match=r"got values from 0 to 3: ids count from 0, and num_labels is 3$"):
        rg.DenseLabels(ids, 3)
    with pytest.raises(ValueError, match=r"got \[5, 5\]: query must be \[B, H, N, D\], and seems to be \[B, N, H, D\]"):
        rg.relation_attention(q, q, q, rg.ClippedDistance(2)(5), torch.randn(5, 8))
    model = rg.RelationEncoder(rg.RelationEncoderLayer(16, 4, 32, labeler=rg.Segments(2)), 1)
    cache = model.new_cache()
    model(x, labels=torch.tensor([0, 0, 1]), is_causal=True, cache=cache)
    for old in (torch.tensor([1]), torch.tensor([0, 0, 1])):
        match = (
            rf"cover .* = \[1, 4\], got \[{len(old)}, {len(old)}\]: new tokens see all keys, so give the labels of all"
        )
        with pytest.raises(ValueError, match=match):
            model(x[:1], labels=old, is_causal=True, cache=cache)
    with rg.record_attention(model) as record:
        model(x, labels=torch.tensor([0, 0, 1]))
    with pytest.raises(KeyError, match=r"name must be one of 'layers.0.self_attn', got 'layers.1.self_attn'"):
        record["layers.1.self_attn"]
