"""Good calls of ``relgraph.pyg``: layers, data objects and the transform."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import GATv2Conv, GPSConv, RGATConv, RGCNConv, TransformerConv

import relgraph as rg
from tests.good_calls.graphs import graph
from tests.judge import Good

WORD = ("first entry: text", "text", "upper")

TRIPLE = ("author", "writes", "paper")
METADATA = (["author", "paper"], [TRIPLE])
ATTENTION = {"heads": 2, "dropout": 0.1, "bias": True}


def _index() -> torch.Tensor:
    return torch.tensor([[0, 1, 2], [1, 2, 2]])


def _data() -> Data:
    types = {"edge_type": torch.tensor([0, 1, 0]), "node_type": torch.tensor([0, 1, 0])}
    return Data(x=torch.eye(3), edge_index=_index(), edge_attr=torch.eye(3), **types)


def _hetero() -> HeteroData:
    data = HeteroData()
    data["author"].x, data["paper"].x = torch.randn(2, 8), torch.randn(3, 8)
    data[TRIPLE].edge_index = torch.tensor([[0, 1], [0, 2]])
    return data


def _tables(**options) -> rg.RelationTables:
    return rg.RelationTables(3, 4, 2, per_head=True, **options)


@cache
def _layers() -> dict[str, nn.Module]:
    """Layers that several calls share; none of these changes them."""
    torch.manual_seed(0)
    return {
        "conv": rg.pyg.RelationConv((8, 6), 4, 2, num_relations=2, edge_dim=3, beta=True).eval(),
        "looped": rg.pyg.RelationConv(8, 4, num_relations=2, edge_dim=3, add_self_loops=True, value_map=1).eval(),
        "mean": rg.pyg.RelationConv(8, 4, num_relations=2, aggr="mean").eval(),
        "hetero": rg.pyg.RelationHeteroConv(8, 4, METADATA, 2).eval(),
        "global": rg.pyg.RelationGlobalAttention(8, 2, num_labels=3).eval(),
        "labeler": rg.pyg.RelationGlobalAttention(3, labeler=rg.ShortestPath(2)).eval(),
    }


SIZES = {"out_channels": ("score.weight",), "heads": ("score.weight",)}
EDGES = ("edge_index", "edge_type", "edge_attr")
ALSO = {"x": ("edge_index", "labels", "batch"), "edge_index": EDGES, "edge_type": EDGES, "edge_attr": EDGES}


def _read(data, **options) -> Good:
    return Good(rg.pyg.from_data, {"data": data, "edge_type": "edge_type", "node_type": "node_type", **options})


def _holding(name: str, value, *left_out: str) -> Good:
    """The data object is good but for one attribute."""

    def call(**given):
        good = {
            "edge_index": torch.tensor([[0, 1], [1, 0]]),
            "edge_type": torch.tensor([0, 1]),
            "node_type": torch.tensor([0, 1, 0]),
            "batch": torch.tensor([0, 0, 1]),
            "ptr": torch.tensor([0, 2, 3]),
        }
        kept = {key: held for key, held in (good | given).items() if key not in left_out}
        return rg.pyg.from_data(Data(**{"num_nodes": 3, **kept}))

    others = ("data", "num_nodes", "edge_index", "edge_type", "node_type", "ptr", "batch")
    return Good(call, {name: value}, also={name: others})


def _hetero_holding(name: str, value) -> Good:
    """The heterogeneous data object is good but for one attribute of one kind of node or edge."""

    def call(**given):
        data = HeteroData()
        data["author"].num_nodes, data["paper"].num_nodes = 2, given.get("num_nodes", 3)
        data["author"].batch, data["paper"].batch = torch.tensor([0, 1]), given.get("batch", torch.tensor([0, 0, 1]))
        data["author"].ptr = data["paper"].ptr = given.get("ptr", torch.tensor([0, 1, 2]))
        data[TRIPLE].edge_index = given.get("edge_index", torch.tensor([[0, 1], [0, 2]]))
        return rg.pyg.from_hetero_data(data)

    return Good(call, {name: value}, also={name: ("data", "num_nodes", "batch", "ptr", "edge_index")})


def _stored(name: str, value, labeler: rg.Labeler = rg.EdgeType(2)) -> Good:  # noqa: B008
    """Labels that are stored as they should be, but for one entry."""

    def call(**given):
        by = rg.pyg.AddRelationLabels(labeler)
        data = by(_data())
        if "rel_node" in given:
            data.rel_node = given["rel_node"]
        else:
            data.rel = {**data.rel, **given}
        return rg.pyg.relation_labels(data, by)

    return Good(call, {name: value}, also={name: ("data", "rel")}, accepts={name: ("list", "numpy words")})


def _transform() -> rg.pyg.AddRelationLabels:
    return rg.pyg.AddRelationLabels(rg.ShortestPath(2))


GOOD_CALLS = {
    "RelationConv": lambda: Good(
        rg.pyg.RelationConv,
        {
            "in_channels": (8, 6),
            "out_channels": 4,
            **ATTENTION,
            "concat": True,
            "beta": False,
            "edge_dim": 3,
            "root_weight": True,
            "num_relations": 2,
            "tables": ("key", "value"),
            "impl": "edges",
        },
        also={"heads": ("out_channels",)},
    ),
    "RelationConv (score and maps)": lambda: Good(
        rg.pyg.RelationConv,
        {
            "in_channels": 8,
            "out_channels": 4,
            "heads": 2,
            "edge_dim": 3,
            "root_weight": False,
            "num_relations": 3,
            "tables": ("key", "bias"),
            "score": rg.score.Additive.learned(2, 4),
            "value_map": 2,
            "tie_projections": ("value", "query"),
            "edge_terms": ("key", "value"),
            "out_bias": True,
            "add_self_loops": True,
        },
        also={"num_relations": ("value_map",), "heads": ("score", "score.weight"), **SIZES},
        accepts={"value_map": ("true",)},
    ),
    "RelationConv (edge states)": lambda: Good(
        rg.pyg.RelationConv,
        {"in_channels": 8, "out_channels": 4, "heads": 2, "edge_dim": 3, "edge_update": "relational"},
    ),
    "RelationConv.forward (edge states)": lambda: Good(
        rg.pyg.RelationConv(8, 4, edge_dim=3, edge_update="relational"),
        {"x": torch.randn(3, 8), "edge_index": _index(), "edge_attr": torch.eye(3)},
        also={**ALSO, "x": ("edge_index",)},
    ),
    "RelationConv (full maps)": lambda: Good(
        rg.pyg.RelationConv,
        {
            "in_channels": 8,
            "out_channels": 4,
            "heads": 2,
            "num_relations": 3,
            "tables": ("value",),
            "score": rg.pyg.LinearScore(2, 4),
            "value_map": "full",
            "key_map": "full",
            "query_map": "full",
            "num_bases": 2,
            "normalize": "softmax",
        },
        also={"heads": ("score",), "out_channels": ("score",)},
        accepts={"value_map": ("true", "number")},
    ),
    "RelationConv (means)": lambda: Good(
        rg.pyg.RelationConv,
        {
            "in_channels": 8,
            "out_channels": 4,
            "num_relations": 3,
            "tables": (),
            "value_map": "full",
            "num_blocks": 2,
            "normalize": "relation",
        },
        also={"out_channels": ("num_blocks",), "in_channels": ("num_blocks",)},
    ),
    "LinearScore": lambda: Good(
        rg.pyg.LinearScore, {"heads": 2, "out_channels": 4, "negative_slope": 0.2, "edge": True}
    ),
    "RelationConv.from_rgat_conv": lambda: Good(
        rg.pyg.RelationConv.from_rgat_conv, {"conv": RGATConv(4, 8, num_relations=3)}
    ),
    "RelationConv.from_rgcn_conv": lambda: Good(
        rg.pyg.RelationConv.from_rgcn_conv, {"conv": RGCNConv(4, 8, num_relations=3)}
    ),
    "SelfLoops": lambda: Good(
        rg.pyg.SelfLoops, {"fill_value": "mean", "relation": 1}, accepts={"fill_value": ("number", "tensor")}
    ),
    "SelfLoops (features)": lambda: Good(
        lambda **given: rg.pyg.RelationConv(8, 4, edge_dim=2, add_self_loops=rg.pyg.SelfLoops(**given)),
        {"fill_value": torch.ones(2)},
    ),
    "RelationConv (tables)": lambda: Good(
        rg.pyg.RelationConv,
        {"in_channels": 8, "out_channels": 4, "heads": 2, "num_relations": 3, "tables": _tables(tied=True)},
        also={"out_channels": ("tables",), "heads": ("tables",)},
    ),
    "RelationConv (one width)": lambda: Good(
        rg.pyg.RelationConv,
        {"in_channels": 8, "out_channels": 4, "decomposed_layers": 1, "aggr": "mean", "flow": "source_to_target"},
        accepts={"aggr": ("list",)},
    ),
    "RelationConv.forward": lambda: Good(
        _layers()["conv"],
        {
            "x": (torch.randn(3, 8), torch.randn(3, 6)),
            "edge_index": _index(),
            "edge_type": torch.tensor([0, 1, -1]),
            "edge_attr": torch.randn(3, 3),
            "return_attention_weights": True,
        },
        ALSO,
        accepts={"edge_index": ("sparse", "sparse rows")},
    ),
    "RelationConv.forward (self-loops)": lambda: Good(
        _layers()["looped"],
        {
            "x": torch.randn(3, 8),
            "edge_index": _index(),
            "edge_type": torch.tensor([0, 1, -1]),
            "edge_attr": torch.randn(3, 3),
        },
        ALSO,
        accepts={"edge_index": ("sparse", "sparse rows")},
    ),
    "RelationConv.forward (edge by edge)": lambda: Good(
        _layers()["mean"], {"x": torch.randn(3, 8), "edge_index": _index(), "edge_type": torch.tensor([0, 1, -1])}, ALSO
    ),
    "RelationConv.forward (labels)": lambda: Good(
        _layers()["mean"],
        {"x": torch.randn(3, 8), "edge_index": rg.EdgeLabels(_index(), torch.tensor([0, 1, 0]), 2, q_len=3)},
        ALSO,
    ),
    "RelationHeteroConv": lambda: Good(
        rg.pyg.RelationHeteroConv,
        {
            "in_channels": {"author": 8, "paper": 6},
            "out_channels": 4,
            "metadata": METADATA,
            **ATTENTION,
            "concat": True,
            "root_weight": True,
            "tables": ("key", "value"),
            "edge_dim": 3,
        },
        also={"metadata": ("in_channels",)},
        accepts={"in_channels": ("number",)},
    ),
    "RelationHeteroConv (score and maps)": lambda: Good(
        rg.pyg.RelationHeteroConv,
        {
            "in_channels": {"author": 8, "paper": 6},
            "out_channels": 4,
            "metadata": METADATA,
            "heads": 2,
            "tables": (),
            "score": rg.score.Bilinear.learned(1, 2, 4),
            "value_map": 2,
        },
        also={"metadata": ("in_channels", "score.weight"), "score": ("tables",), **SIZES},
        accepts={"in_channels": ("number",), "value_map": ("true",)},
    ),
    "RelationHeteroConv.forward": lambda: Good(
        _layers()["hetero"],
        {
            "x_dict": {"author": torch.randn(2, 8), "paper": torch.randn(3, 8)},
            "edge_index_dict": {TRIPLE: torch.tensor([[0, 1], [0, 2]])},
            "return_attention_weights": True,
        },
        also={"x_dict": ("edge_index_dict",), "edge_index_dict": ("x_dict",)},
    ),
    "RelationHeteroConv.forward (features of edges)": lambda: Good(
        rg.pyg.RelationHeteroConv(8, 4, METADATA, 2, edge_dim={TRIPLE: 3}),
        {
            "x_dict": {"author": torch.randn(2, 8), "paper": torch.randn(3, 8)},
            "edge_index_dict": {TRIPLE: torch.tensor([[0, 1], [0, 2]])},
            "edge_attr_dict": {TRIPLE: torch.randn(2, 3)},
        },
        also={
            "x_dict": ("edge_index_dict",),
            "edge_index_dict": ("x_dict", "edge_attr_dict"),
            "edge_attr_dict": ("edge_attr",),
        },
    ),
    "RelationHeteroConv.forward (data)": lambda: Good(_layers()["hetero"], {"x_dict": _hetero()}),
    "RelationGlobalAttention": lambda: Good(
        rg.pyg.RelationGlobalAttention,
        {"channels": 8, **ATTENTION, "num_labels": 2, "tables": ("key", "value"), "impl": "dense", "edge_dim": 3},
        also={"channels": ("heads",), "heads": ("channels",)},
        accepts={"num_labels": ("list",)},
    ),
    "RelationGlobalAttention (a labeler)": lambda: Good(
        rg.pyg.RelationGlobalAttention, {"channels": 8, "labeler": rg.ShortestPath(2)}
    ),
    "RelationGlobalAttention (score and maps)": lambda: Good(
        rg.pyg.RelationGlobalAttention,
        {"channels": 8, "heads": 2, "num_labels": 2, "score": rg.score.Additive.learned(2, 4), "value_map": 2},
        also={
            "num_labels": ("value_map",),
            "channels": ("heads", "score.weight"),
            "heads": ("channels", "score.weight"),
        },
        accepts={"value_map": ("true",)},
    ),
    "RelationGlobalAttention.forward": lambda: Good(
        _layers()["global"],
        {
            "x": torch.randn(3, 8),
            "labels": rg.ClippedDistance(1)(3),
            "batch": torch.tensor([0, 0, 0]),
            "bank_features": None,
        },
        {"x": ("labels", "batch"), "batch": ("labels",)},
    ),
    "RelationGlobalAttention.forward (features of edges)": lambda: Good(
        lambda x, edge_attr: rg.pyg.RelationGlobalAttention(8, 2, num_labels=3, edge_dim=2)(
            x, rg.EdgeLabels(_index(), torch.tensor([0, 1, 0]), 3, q_len=3, default=2), edge_attr=edge_attr
        ),
        {"x": torch.randn(3, 8), "edge_attr": torch.randn(3, 2)},
        {"x": ("labels",)},
    ),
    "RelationConv.forward (data)": lambda: Good(rg.pyg.RelationConv(3, 4, num_relations=2, edge_dim=3), {"x": _data()}),
    "RelationGlobalAttention.forward (data)": lambda: Good(
        _layers()["labeler"], {"x": _data(), "labels": _data()}, {"x": ("labels", "data")}
    ),
    "from_transformer_conv": lambda: Good(
        rg.pyg.from_transformer_conv,
        {"conv": TransformerConv(4, 8, heads=2, edge_dim=3), "edge_types": True, "names": ["a", "b", "c"]},
        also={"conv": ("names",), "edge_types": ("names",)},
        accepts={"names": WORD},
    ),
    "from_gatv2_conv": lambda: Good(
        rg.pyg.from_gatv2_conv, {"conv": GATv2Conv(4, 8, heads=2, edge_dim=3, fill_value=0.0), "edge_types": True}
    ),
    "from_gps_conv": lambda: Good(
        rg.pyg.from_gps_conv, {"conv": GPSConv(4, None, heads=2), "new_tables": "zero", "tables": ()}
    ),
    "from_data": lambda: _read(_data()),
    "from_data (one-hot rows)": lambda: _read(_data(), edge_type="edge_attr", node_type="x"),
    "from_data (edge_index)": lambda: _holding("edge_index", torch.tensor([[0, 1], [1, 0]])),
    "from_data (edge_type)": lambda: _holding("edge_type", torch.tensor([0, 1])),
    "from_data (node_type)": lambda: _holding("node_type", torch.tensor([0, 1, 0])),
    "from_data (batch)": lambda: _holding("batch", torch.tensor([0, 0, 1])),
    "from_data (batch alone)": lambda: _holding("batch", torch.tensor([0, 0, 1]), "ptr"),
    "from_data (ptr alone)": lambda: _holding("ptr", torch.tensor([0, 2, 3]), "batch"),
    "to_data": lambda: Good(rg.pyg.to_data, {"graph": graph()}),
    "from_hetero_data": lambda: Good(rg.pyg.from_hetero_data, {"data": _hetero()}),
    "from_data (num_nodes)": lambda: _holding("num_nodes", 3),
    "from_hetero_data (edge_index)": lambda: _hetero_holding("edge_index", torch.tensor([[0, 1], [0, 2]])),
    "from_hetero_data (batch)": lambda: _hetero_holding("batch", torch.tensor([0, 0, 1])),
    "from_hetero_data (ptr)": lambda: _hetero_holding("ptr", torch.tensor([0, 1, 2])),
    "from_hetero_data (num_nodes)": lambda: _hetero_holding("num_nodes", 3),
    "AddRelationLabels": lambda: Good(
        rg.pyg.AddRelationLabels,
        {"labeler": rg.ShortestPath(2), "edge_type": "edge_type", "node_type": "node_type"},
        accepts={"edge_type": WORD, "node_type": WORD},
    ),
    "AddRelationLabels.forward": lambda: Good(_transform(), {"data": _data()}),
    "relation_labels": lambda: Good(
        rg.pyg.relation_labels,
        {"data": Batch.from_data_list([_transform()(_data()), _transform()(_data())]), "by": _transform()},
    ),
    "relation_labels (pair)": lambda: _stored("pair", torch.tensor([[0, 1], [1, 2], [2, 2]])),
    "relation_labels (label)": lambda: _stored("label", torch.tensor([0, 1, 0])),
    "relation_labels (all pairs)": lambda: _stored("label", torch.arange(9) % 3, rg.ShortestPath(1)),
    "relation_labels (count)": lambda: _stored("count", 3),
    "relation_labels (nodes)": lambda: _stored("nodes", 3),
    "relation_labels (by)": lambda: _stored("by", "EdgeType(2)"),
    "relation_labels (rel_node)": lambda: _stored("rel_node", torch.tensor([0, 1, 2])),
}
