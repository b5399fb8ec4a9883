"""Good calls of ``relgraph.plot``; all draw on the same Axes."""

from __future__ import annotations

from functools import cache

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


NAMES = ["left", "here", "right"]
OF_GRAPHS = {"weights": ("graph",), "graph": ("weights", "node_names", "labels", "query", "pos"), "labels": ("names",)}

GOOD_CALLS = {
    "label_matrix": lambda: _drawn(
        plot.label_matrix,
        {"labels": ("names", "tokens", "batch")},
        {"names": WORDS, "tokens": WORDS},
        labels=rg.ClippedDistance(1)(3),
        names=NAMES,
        batch=0,
        tokens=["a", "b", "c"],
    ),
    "table_norms": lambda: _drawn(
        plot.table_norms, {"table": ("names",)}, {"names": WORDS}, table=torch.randn(2, 3, 4), names=NAMES
    ),
    "label_mass": lambda: _drawn(
        plot.label_mass,
        {"mass": ("names", "axes", "part")},
        {"names": WORDS},
        mass=torch.rand(2, 3, 3),
        names=NAMES,
        axes="LHR",
    ),
    "label_mass (a sum)": lambda: _drawn(
        plot.label_mass,
        {"mass": ("names", "axes", "part"), "part": ("names",)},
        {"names": WORDS},
        mass=(torch.rand(2, 3), torch.rand(2, 2)),
        names=NAMES,
        part=0,
        axes="HR",
    ),
    "label_mass (a record)": lambda: _drawn(
        plot.label_mass,
        {"mass": ("names", "axes", "padding")},
        {"names": WORDS},
        mass=_record(),
        names=NAMES,
        padding=torch.tensor([[True, False, False], [False, False, True]]),
    ),
    "attention_tokens": lambda: _drawn(
        plot.attention_tokens,
        {"weights": ("tokens", "query")},
        {"tokens": WORDS},
        weights=_weights(),
        tokens=["a", "b", "c"],
        query=1,
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
        plot.attention_graph, OF_GRAPHS, weights=_weights(), graph=_theirs(), query=0, pos="tree"
    ),
}
