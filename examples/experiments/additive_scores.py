"""Scores on a look-up and on molecules: additive, bilinear, dot product, and PyG's GAT layers.

The PyG rows use the layers of the papers' authors. The other rows use one RelationConv with three scores. Molecules
have the model, split, training and rates of ``graph_classification.py`` and half its epochs. There all rows have about
the same number of parameters: RelationConv has projections for queries, keys, values and the node itself, while GAT has
one and GATv2 two, so the PyG rows get a wider feed-forward network instead. GAT and GATv2 add self-loops, their
default. The rate of look-ups was tried with another seed, and kept because all rows except GAT's learned with it.

``--data`` names the folder with ``tudataset-cleaned/`` (else RELGRAPH_DATA, else ``data``); nothing is downloaded. The
short mode uses made-up molecules whose class is planted in the kinds of two bonds, and says nothing about real ones.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import Any

import torch
import torch_geometric
from additive_scores import HEADS, Lookup, additive, conv, gat, loss_of, make_dictionaries
from example_options import Options
from example_runs import by_row, by_seed, lead, percent, train
from graph_classification import WIDTH
from torch import Tensor, nn
from torch_geometric.nn import GATv2Conv

import relgraph as rg
from experiments import Experiment, Work
from experiments.graph_classification import (
    BATCH,
    QUICK_LEARNING_RATE,
    Block,
    Row,
    classifier,
    molecules,
    read_graphs,
    split,
)
from experiments.graph_classification import LEARNING_RATE as GRAPH_RATE
from experiments.graph_classification import train as train_on_graphs
from relgraph.pyg import AddRelationLabels

LOOKUP_RATE, QUICK_GRAPHS = 1e-2, 400


@dataclass(frozen=True)
class Score:
    """A row of the table.

    Attributes:
        layer: makes a layer from its input's width, or a pair of widths, the width per head and the number of
            relations.
        hidden: width of the feed-forward network in molecules, so that all rows have about as many parameters.
    """

    layer: Callable[[Any, int, int], nn.Module]
    hidden: int


SCORES = {
    "PyG GATConv": Score(gat, 216),
    "PyG GATv2Conv": Score(partial(gat, kind=GATv2Conv), 192),
    "dot product": Score(conv, 144),
    "additive": Score(additive, 144),
    "bilinear": Score(lambda *sizes: conv(*sizes, rg.score.Bilinear.learned(sizes[2], HEADS, sizes[1])), 126),
}


def losses(model: Lookup, seed: int) -> Iterator[Tensor]:
    """Yield the loss of each step, on new dictionaries each time, without end."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield loss_of(model, generator)


@torch.no_grad()
def found(model: Lookup) -> float:
    """The share of queries answered correctly, in dictionaries that are the same for all rows and seeds."""
    generator = torch.Generator().manual_seed(10**6)
    tests = [make_dictionaries(generator) for _ in range(20)]
    return mean((model(values).argmax(-1) == values).double().mean().item() for values in tests)


def molecule_row(score: Score, kinds: int) -> Row:
    """The row of ``graph_classification.py`` with this score."""
    labels = AddRelationLabels(rg.EdgeType(kinds), edge_type="edge_attr")
    return Row(lambda: Block(score.layer(WIDTH, WIDTH // HEADS, kinds), score.hidden), labels)


@dataclass
class Run:
    """One score with one seed, trained on both tasks; time is processor time per training step."""

    variant: str
    seed: int
    parameters: int
    lookup: float
    auc: float
    seconds: dict[str, float]


def report(runs: Sequence[Run]) -> str:
    """The table that the command prints; its last column is the row's ROC-AUC minus the dot product's."""
    columns = f"{'looked up':>14}{'ms':>6}{'ROC-AUC':>14}{'ms':>6}{'parameters':>12}"
    lines = [f"{'score':<15}{columns}   above the dot product"]
    aucs = by_seed(runs, "auc")
    plain = aucs.get("dot product", {})
    for name, mine in by_row(runs).items():
        right, auc = (percent([getattr(run, column) for run in mine], "") for column in ("lookup", "auc"))
        first, second = (1000 * mean(run.seconds[task] for run in mine) for task in ("lookup", "molecules"))
        above = lead(aucs[name], plain) if name != "dot product" and aucs[name].keys() & plain.keys() else ""
        size = mine[0].parameters
        lines.append(f"{name:<15}{right:>14}{first:>6.1f}{auc:>14}{second:>6.1f}{size:>12,}   {above}".rstrip())
    return "\n".join(lines)


def check(options: Options, arguments: Namespace) -> None:
    if not arguments.quick:
        options.find_data(arguments, "tudataset-cleaned/Mutagenicity.zip")


def begin(arguments: Namespace) -> Work:
    quick, out = arguments.quick, arguments.out
    graphs: list[Any] = molecules(QUICK_GRAPHS) if quick else list(read_graphs(arguments.data, out / "tudataset"))
    settings = {"torch_geometric": torch_geometric.__version__, "graphs": len(graphs)}
    settings |= {"steps": arguments.steps, "epochs": arguments.epochs}
    atoms, kinds = (graphs[0][name].shape[1] for name in ("x", "edge_attr"))
    labeled = [molecule_row(SCORES["dot product"], kinds).prepare(graph) for graph in graphs]

    def run(name: str, seed: int) -> tuple[Run, Lookup]:
        torch.manual_seed(seed)
        model = Lookup(SCORES[name].layer)
        lookup = train(model, losses(model, seed), arguments.steps, LOOKUP_RATE, title=f"{name}, seed {seed}")
        seconds = {"lookup": lookup / arguments.steps}
        parts = [[labeled[number] for number in part] for part in split(len(graphs), seed)]
        torch.manual_seed(seed)
        judge = classifier(molecule_row(SCORES[name], kinds), atoms)
        rate = QUICK_LEARNING_RATE if quick else GRAPH_RATE
        done = train_on_graphs(name, judge, parts, arguments.epochs, seed, rate)
        seconds["molecules"] = done.seconds / arguments.epochs / -(-len(parts[0]) // BATCH)
        return Run(name, seed, done.parameters, found(model), done.auc, seconds), model

    each = arguments.steps * 0.008 + arguments.epochs * len(graphs) * 0.0006
    return Work(settings, each * len(arguments.rows) * len(arguments.seeds), run)


EXPERIMENT = Experiment(
    Run, [*SCORES], "less than a minute; made-up molecules, no files",
    {"seeds": (3, 1), "steps": (600, 400), "epochs": (5, 5)}, begin,
    tell=lambda run: f"{100 * run.lookup:.1f} % looked up, {100 * run.auc:.1f} % ROC-AUC",
    report=report, options=lambda options: options.add_data("tudataset-cleaned"), check=check,
)  # fmt: skip
