"""Good calls of ``relgraph.interop``: BERT, networkx graphs, treebanks and Python source."""

from __future__ import annotations

import io

import networkx as nx
import pandas as pd
import torch

import relgraph as rg
from relgraph.interop import bert, conllu, networkx, pandas, python
from tests.good_calls.graphs import graph
from tests.judge import Good

TREE = "1\tGo\tgo\tVERB\t_\t_\t0\troot\t_\t_\n2\ton\ton\tADP\t_\t_\t1\tadvmod\t_\t_\n"
RELATIONS = {"relations": ["root", "advmod"], "tags": ["VERB", "ADP"]}
WORDS = ("first entry: text",)
ANY_NAME = ("object", "text", "a class", "complex", "number", "bytes", "true")
HASHABLE = tuple(f"first entry: {name}" for name in ANY_NAME)
"""What networkx takes for a node, and what may name a type."""


def _but(error: type[Exception], call, accepts: tuple[str, ...] = (), **arguments) -> Good:
    """A call that may also raise a built-in error of its own kind, as its docstring says."""

    def told(**given):
        try:
            return call(**given)
        except error as raised:
            raise ValueError(f"{', '.join(arguments)}: {raised}") from None

    return Good(told, arguments, accepts=dict.fromkeys(arguments, accepts))


def _theirs(kind=nx.DiGraph):
    made = kind()
    made.add_node("a", sort="x", size=1.5, home=0)
    made.add_node("b", sort="y", size=2, home=1)
    made.add_edge("a", "a", sort="up", weight=3)
    return made


def _holding(name: str, value, accepts: tuple[str, ...], **options) -> Good:
    """A graph that is good but for one attribute of an edge."""

    def call(**given):
        made = nx.DiGraph()
        made.add_edge("a", "b", **given)
        return networkx.from_networkx(made, **options)

    return Good(call, {name: value}, also={name: tuple(options)}, accepts={name: accepts})


def _bert() -> dict[str, torch.Tensor]:
    sizes = {f"attention.self.{name}": (4, 4) for name in ("query", "key", "value")}
    sizes |= {"attention.output.dense": (4, 4), "intermediate.dense": (6, 4), "output.dense": (4, 6)}
    sizes |= {"attention.output.LayerNorm": (4,), "output.LayerNorm": (4,)}
    found = {f"at.layer.0.{name}.weight": torch.randn(size) for name, size in sizes.items()}
    found |= {f"at.layer.0.{name}.bias": torch.randn(size[0]) for name, size in sizes.items()}
    return found | {"at.layer.0.attention.self.distance_embedding.weight": torch.randn(5, 2)}


def _tables() -> dict:
    days = pd.to_datetime(["2020-05-01", "2020-06-01"])
    return {
        "tables": {
            "races": pd.DataFrame({"race": [7, 8], "day": days}),
            "results": pd.DataFrame({"race": [7, 8], "points": [10.0, 6.0]}),
        },
        "primary_keys": {"races": "race"},
        "foreign_keys": {("results", "race"): "races"},
        "times": {"races": "day"},
        "most_categories": 5,
        "text_codes": 7,
    }


GOOD_CALLS = {
    "bert.from_state_dict": lambda: Good(
        bert.from_state_dict,
        {
            "state": _bert(),
            "position_embedding_type": "relative_key",
            "prefix": "at.",
            "activation": "gelu",
            "layer_norm_eps": 1e-12,
            "dropout": 0.1,
        },
    ),
    "networkx.from_networkx": lambda: Good(
        networkx.from_networkx,
        {
            "graph": _theirs(),
            "edge_type": "sort",
            "types": ["up", "down"],
            "node_type": "sort",
            "node_types": ["x", "y"],
            "node_features": "size",
            "edge_features": ["weight"],
        },
        also={"types": ("edge_type",), "node_types": ("node_type",)},
        accepts={"graph": ("list", "tuple"), "node_features": ("list",), "types": HASHABLE},
    ),
    "networkx.from_networkx (functions)": lambda: Good(
        networkx.from_networkx,
        {
            "graph": [_theirs(), _theirs(nx.MultiGraph)],
            "edge_type": lambda u, v, of: u == v,
            "node_type": lambda node, of: node,
            "node_features": lambda node, of: [of["size"], 1],
            "edge_features": lambda u, v, of: of["weight"],
        },
        also={"graph": ("graphs",), "edge_type": ("types",), "node_type": ("node_types",)},
    ),
    "networkx.from_networkx (types)": lambda: _holding(
        "sort", 1, (*ANY_NAME, "float", "word", "numpy float", "tensor of floats"), edge_type="sort"
    ),
    "networkx.from_networkx (weights)": lambda: _holding(
        "weight", 0.5, ("numpy array", "true", "list", "tensor"), edge_features="weight"
    ),
    "networkx.to_networkx": lambda: Good(
        networkx.to_networkx,
        {
            "graph": graph(),
            "nodes": ["a", "b", "c"],
            "types": ["up", "down"],
            "node_types": ["x", "y"],
            "x": torch.randn(3, 2),
            "edge_attr": torch.randn(2),
        },
        also={"graph": ("nodes", "types", "node_types", "x", "edge_attr")},
        accepts={"nodes": HASHABLE, "types": HASHABLE, "node_types": HASHABLE},
    ),
    "networkx.labels_to_networkx": lambda: Good(
        networkx.labels_to_networkx,
        {"labels": rg.ClippedDistance(1)(3), "names": ["left", "here", "right"]},
        also={"labels": ("names",)},
        accepts={"names": WORDS},
    ),
    "networkx.labels_to_networkx (edges)": lambda: Good(
        networkx.labels_to_networkx,
        {"labels": rg.EdgeLabels(torch.tensor([[0, 1], [1, 2]]), torch.tensor([0, 1]), 2, q_len=3)},
    ),
    "conllu.read": lambda: _but(FileNotFoundError, conllu.read, file=io.StringIO(TREE)),
    "conllu.parse": lambda: Good(
        conllu.parse,
        {"text": TREE, **RELATIONS},
        also={"text": ("sentence 1",), "relations": ("relation",), "tags": ("tag",)},
        accepts={"relations": WORDS},
    ),
    "pandas.Database": lambda: Good(
        pandas.Database,
        _tables(),
        also={"tables": ("primary_keys", "foreign_keys", "times"), "primary_keys": ("foreign_keys",)},
    ),
    "pandas.Database.around": lambda: Good(
        pandas.Database(**_tables()).around,
        {
            "table": "results",
            "row": 1,
            "until": "2020-07-01",
            "most_cells": 9,
            "width": 2,
            "newest": True,
            "hide": "points",
            "seed": 1,
        },
        also={"row": ("most_cells",), "table": ("hide", "row")},
    ),
    "python.read": lambda: _but(SyntaxError, python.read, source="x = 1\nprint(x)"),
    "python.SourceGraph.edges": lambda: Good(python.read("x = 1").edges, {"name": "LAST_WRITE"}),
    "python.SourceGraph.only": lambda: Good(python.read("x = 1").only, {"nodes": [0, 2]}),
}
