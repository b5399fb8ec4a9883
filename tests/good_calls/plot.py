"""Good calls of ``relgraph.plot``; all draw on the same Axes."""

from __future__ import annotations

from functools import cache
from unittest.mock import Mock

import matplotlib as mpl
import networkx as nx
import torch

import relgraph as rg
from relgraph import plot
from tests.good_calls.graphs import graph
from tests.judge import Good

mpl.use("Agg")  # before pyplot is loaded: pictures are drawn without a screen
from matplotlib import pyplot as plt

WORDS = tuple(
    f"first entry: {name}" for name in ("object", "text", "a class", "complex", "number", "bytes", "true", "list")
)
"""A token and a name of a node is whatever ``str`` makes a word of."""


@cache
def _axes():
    return mpl.figure.Figure((3, 2)).add_subplot()


def _on_axes(call):
    """What is refused is refused before anything is drawn; what is drawn is wiped out again."""

    def drawn(**given):
        result = call(**given)
        _axes().clear()
        plt.close("all")  # the new figure of a call without ax
        return result

    return drawn


def _drawn(call, also=None, accepts=None, **arguments) -> Good:
    return Good(_on_axes(call), {**arguments, "ax": _axes()}, also or {}, accepts or {})


def _weights(count: int = 3) -> torch.Tensor:
    return torch.rand(2, count, count).softmax(-1)


def _theirs(*edges: tuple[str, str]) -> nx.DiGraph:
    return nx.DiGraph(edges or [("a", "b"), ("a", "c")])


def _edges() -> rg.EdgeLabels:
    return rg.EdgeLabels(torch.tensor([[0, 0], [1, 2]]), torch.tensor([0, 1]), 2, q_len=3)


@cache
def _record() -> dict:
    layer = rg.RelationAttention(8, 2, num_labels=3)
    with rg.record_attention(layer) as record:
        layer(torch.randn(2, 3, 8), labels=rg.ClippedDistance(1)(3))
    return record


OF_FIRST = tuple(f"first entry: {word}" for word in WORDS)
NAMES = ["left", "here", "right"]
OF_GRAPHS = {"weights": ("graph", "tree"), "graph": ("weights", "node_names", "labels", "query"), "labels": ("names",)}

GOOD_CALLS = {
    "label_matrix": lambda: _drawn(
        plot.label_matrix,
        {"labels": ("names", "tokens", "batch", "part")},
        {"names": WORDS, "tokens": WORDS},
        labels=rg.ClippedDistance(1)(3),
        names=NAMES,
        batch=0,
        part=0,
        tokens=["a", "b", "c"],
    ),
    "label_matrix (a sum)": lambda: _drawn(
        plot.label_matrix,
        {"labels": ("names", "tokens", "batch", "part"), "part": ("names",)},
        {"names": OF_FIRST, "tokens": OF_FIRST},
        labels=rg.SumLabels(rg.ClippedDistance(1)(3), _edges()),
        names=(NAMES, ["up", "down"]),
        part=0,
        tokens=(["a", "b", "c"], ["d", "e", "f"]),
    ),
    "table_norms": lambda: _drawn(
        plot.table_norms, {"table": ("names",)}, {"names": WORDS}, table=torch.randn(2, 3, 4), names=NAMES
    ),
    "table_similarity": lambda: _drawn(
        plot.table_similarity,
        {"table": ("names", "head")},
        {"names": WORDS},
        table=torch.randn(2, 3, 4),
        names=NAMES,
        head=1,
    ),
    "label_mass": lambda: _drawn(
        plot.label_mass,
        {"mass": ("names", "axes", "part", "layer", "head")},
        {"names": WORDS},
        mass=torch.rand(2, 3, 3),
        names=NAMES,
        axes="LHR",
        layer=1,
        head=2,
    ),
    "label_mass (a sum)": lambda: _drawn(
        plot.label_mass,
        {"mass": ("names", "axes", "part"), "part": ("names",)},
        {"names": OF_FIRST},
        mass=(torch.rand(2, 3), torch.rand(2, 2)),
        names=(NAMES, ["up", "down"]),
        part=0,
        axes="HR",
    ),
    "label_mass (a record)": lambda: _drawn(
        plot.label_mass,
        {"mass": ("names", "axes", "padding", "layer")},
        {"names": WORDS},
        mass=_record(),
        names=NAMES,
        layer="",
        padding=torch.tensor([[True, False, False], [False, False, True]]),
    ),
    "label_mass_overview": lambda: _drawn(
        plot.label_mass_overview,
        {"mass": ("names", "axes", "padding", "part")},
        {"names": WORDS},
        mass=torch.rand(2, 2, 1, 3, 3),
        names=NAMES,
        axes="BLHNR",
        padding=torch.tensor([[True, False, False], [False, False, True]]),
    ),
    "label_mass_overview (a sum)": lambda: _drawn(
        plot.label_mass_overview,
        {"mass": ("axes", "part", "names"), "part": ("names",)},
        {"names": OF_FIRST},
        mass=(torch.rand(2, 3), torch.rand(2, 2)),
        names=(NAMES, ["up", "down"]),
        part=0,
        axes="HR",
    ),
    "label_mass_difference": lambda: _drawn(
        plot.label_mass_difference,
        {"mass": ("names", "axes", "base", "part"), "base": ("axes",)},
        {"names": WORDS},
        mass=torch.rand(2, 3, 3),
        base=torch.rand(2, 3, 3),
        names=NAMES,
        axes="LHR",
    ),
    "label_mass_difference (records)": lambda: _drawn(
        plot.label_mass_difference,
        {"mass": ("names", "padding", "base")},
        mass=_record(),
        base=_record(),
        padding=torch.tensor([[True, False, False], [False, False, True]]),
    ),
    "label_mass_difference (a sum)": lambda: _drawn(
        plot.label_mass_difference,
        {"mass": ("axes", "base", "part", "names"), "base": ("axes", "part"), "part": ("names",)},
        {"names": OF_FIRST},
        mass=(torch.rand(2, 3), torch.rand(2, 2)),
        base=(torch.rand(2, 3), torch.rand(2, 2)),
        names=(NAMES, ["up", "down"]),
        part=0,
        axes="HR",
    ),
    "log_label_mass": lambda: Good(
        plot.log_label_mass,
        {
            "writer": Mock(spec_set=["add_scalar", "add_figure"]),
            "record": _record(),
            "step": 3,
            "names": NAMES,
            "tag": "mass",
            "labels": NAMES[:1],
            "padding": torch.tensor([[True, False, False], [False, False, True]]),
            "figure": False,
        },
        {"record": ("names", "padding")},
        {"names": WORDS, "tag": ("text",)},
    ),
    "attention_tokens": lambda: _drawn(
        plot.attention_tokens,
        {"weights": ("tokens", "query")},
        {"tokens": WORDS},
        weights=_weights(),
        tokens=["a", "b", "c"],
        query=1,
    ),
    "attention_tree": lambda: _drawn(
        plot.attention_tree,
        {**OF_GRAPHS, "tree": ("weights", "node_names", "query", "graph")},
        {"node_names": WORDS},
        weights=_weights(),
        tree=graph(),
        query=1,
        node_names=["a", "b", "c"],
    ),
    "attention_tree (networkx)": lambda: _drawn(
        plot.attention_tree, OF_GRAPHS, weights=_weights(), tree=_theirs(), query="b"
    ),
    "attention_graph": lambda: _drawn(
        plot.attention_graph,
        OF_GRAPHS,
        {"node_names": WORDS, "names": WORDS},
        weights=_weights(),
        graph=graph(),
        query=1,
        pos=torch.randn(3, 2),
        node_names=["a", "b", "c"],
        labels=_edges(),
        names=["up", "down"],
    ),
    "attention_graph (networkx)": lambda: _drawn(
        plot.attention_graph,
        OF_GRAPHS,
        weights=_weights(1),
        graph=_theirs(("a", "a")),
        query="a",
        pos={"a": (0.0, 0.0)},
    ),
}
