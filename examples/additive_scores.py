"""Additive scores: what can a query look for?
===========================================

Additive, bilinear and dot-product scores and PyG's GAT layers: what each can find, and what it costs.

GAT (Veličković et al. 2018) scores key j for query i by LeakyReLU(u_i + v_j), with one number for the query and one for
the key. In each head all queries therefore rank the keys in the same order: attention is *static*. GATv2 (Brody, Alon,
Yahav 2022) scores by w · LeakyReLU(q_i + k_j): it applies the activation before it sums over channels, so each query
can prefer a different key. This attention is *dynamic*, and so is the dot product's. The GATv2 paper tests this with a
look-up: each key has a name and a value, each query has a name, and one layer must return the value of the key with
that name. This example draws endless dictionaries from ten names and ten values. The second task is real: it classifies
the molecules of Mutagenicity, whose bonds have kinds, with the model and training of ``graph_classification.py``.

The PyG rows use the layers of the papers' authors. The other rows use one RelationConv with three scores: the dot
product, ``rg.score.Additive`` (GATv2's score) and ``rg.score.Bilinear`` (one matrix per kind of bond). In the molecule
task all rows have about the same number of parameters: RelationConv has projections for queries, keys, values and the
node itself, while GAT has one projection and GATv2 two, so the PyG rows get a wider feed-forward network instead.

.. code-block:: sh

    python examples/additive_scores.py            # three seeds, about six minutes on one CPU core
    python examples/additive_scores.py --seeds 5  # about eleven
    python examples/additive_scores.py --quick    # one seed, made-up molecules, no files

The second command printed this table: percent of look-ups answered and ROC-AUC, mean ± standard deviation of five
seeds, and milliseconds of processor time per training step, which for molecules include a share of validation (one
thread of a busy AMD EPYC, November 2026). The last column is the lead over the dot product with the same seeds and
splits, with its 95 % interval:

.. code-block:: text

    score               looked up    ms       ROC-AUC    ms  parameters   above the dot product
    PyG GATConv        45.9 ± 6.7   3.9    77.9 ± 2.1  41.9      74,521   -1.8 (-2.9 to -0.8)
    PyG GATv2Conv     100.0 ± 0.0   4.2    76.8 ± 1.8  43.7      74,449   -2.9 (-6.1 to +0.3)
    dot product       100.0 ± 0.0   8.9    79.7 ± 2.3  55.2      74,737
    additive          100.0 ± 0.0  10.6    78.3 ± 1.7  61.7      74,881   -1.4 (-2.9 to +0.1)
    bilinear          100.0 ± 0.0   9.4    79.3 ± 2.0  65.8      74,683   -0.5 (-2.2 to +1.3)

Look-up: GAT cannot solve it, because its four heads can rank the keys in only four ways. All other rows solve it with
every seed. The additive score repairs what GAT lacks; the dot product never lacked it. Molecules: GATConv is behind the
dot product, and the intervals of all other rows include zero. In these measurements additive scores bring no gain, and
they cost a tenth more of the model's time on molecules and a fifth more on the look-up; over all pairs they cost far
more (``docs/learn/scores.md``). Use them for a model that already has them, such as a trained GATv2.

No row was tuned. The look-up has one learning rate, which was tried with another seed and kept because all rows except
GAT's learned with it; molecules use the rate of ``graph_classification.py`` and half its epochs. More epochs, larger
graphs or other data may change the order. On molecules GAT and GATv2 add self-loops, which is their default;
RelationConv adds the node itself.

**The short mode** made the output below and all pictures except the first, which shows the long run. It trains the
look-up for fewer steps and uses small made-up molecules (``examples/made_up_molecules.py``) whose class is planted in
the kinds of two bonds. It says nothing about real molecules, and its single seed cannot rank the rows.

``--data`` names the folder with ``tudataset-cleaned/`` (else RELGRAPH_DATA, else ``data``); nothing is downloaded. The
command writes ``results.json``, models and pictures to ``additive-scores-out/``. After Ctrl-C the same command
continues.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import torch_geometric
from example_options import Options
from example_runs import INTERRUPTED, Runs, announce, by_row, lead, percent, picture, train, until_stopped
from graph_classification import BATCH, QUICK_LEARNING_RATE, WIDTH, Block, Classifier, Row, read_graphs, split
from graph_classification import LEARNING_RATE as GRAPH_RATE
from graph_classification import train as train_on_graphs
from kept_results import SHORT, SHORT_MODEL, Kept
from made_up_molecules import molecules
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GATConv, GATv2Conv

import relgraph as rg
from relgraph.pyg import AddRelationLabels, RelationConv

# %%
# The scores
# ----------
#
# Each row of the table makes a layer. PyG's layers are the authors' own; the others are
# :class:`relgraph.pyg.RelationConv` and differ only in ``score``, which compares query and key. In the molecule task
# ``relations`` is the number of kinds of bonds; PyG's layers get the kinds one-hot, as ``edge_dim``.

HEADS = 4


Widths = int | tuple[int, int]


@dataclass(frozen=True)
class Score:
    """A row of the table.

    Attributes:
        layer: makes a layer from its input's width, or a pair of widths, the width per head and the number of
            relations.
        hidden: width of the feed-forward network in molecules, so that all rows have about as many parameters.
    """

    layer: Callable[[Widths, int, int], nn.Module]
    hidden: int


def conv(width: Widths, head: int, relations: int, score: Any = None) -> RelationConv:
    return RelationConv(width, head, HEADS, num_relations=relations, score=score)


def gat(kind: type[GATConv | GATv2Conv], width: Widths, head: int, relations: int) -> nn.Module:
    loops = isinstance(width, int)  # needs queries and keys that are the same nodes
    return kind(width, head, HEADS, edge_dim=relations, add_self_loops=loops)


SCORES = {
    "PyG GATConv": Score(partial(gat, GATConv), 216),
    "PyG GATv2Conv": Score(partial(gat, GATv2Conv), 192),
    "dot product": Score(conv, 144),
    "additive": Score(lambda *sizes: conv(*sizes, rg.score.Additive.learned(HEADS, sizes[1])), 144),
    "bilinear": Score(lambda *sizes: conv(*sizes, rg.score.Bilinear.learned(sizes[2], HEADS, sizes[1])), 126),
}

# %%
# Looking up
# ----------
#
# Each dictionary has ten keys, each with a name and a value; the values come in random order. Each query has a name,
# sees all keys of its dictionary, and asks for the value. With one layer only, a query must find the key of its name.

NAMES, LOOKUP_WIDTH, DICTIONARIES, LOOKUP_RATE = 10, 32, 16, 1e-2


class Lookup(nn.Module):
    """One layer of attention from queries to the keys of their dictionary, then a score for each value."""

    edges: Tensor

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.name, self.value, self.query = (nn.Embedding(NAMES, LOOKUP_WIDTH) for _ in range(3))
        self.layer = score.layer((LOOKUP_WIDTH, LOOKUP_WIDTH), LOOKUP_WIDTH // HEADS, 1)
        self.answer = nn.Linear(LOOKUP_WIDTH, NAMES)
        key, query = torch.cartesian_prod(torch.arange(NAMES), torch.arange(NAMES)).T
        first = NAMES * torch.arange(DICTIONARIES)[:, None]
        self.register_buffer("edges", torch.stack([(first + key).flatten(), (first + query).flatten()]))

    def attend(self, values: Tensor, **options: Any) -> Any:
        """The layer's output for the queries, where the keys have the values ``[S, NAMES]``."""
        keys = (self.name.weight + self.value(values)).flatten(0, 1)
        queries = self.query.weight.repeat(len(values), 1)
        relations = [self.edges.new_zeros(self.edges.shape[1])] if isinstance(self.layer, RelationConv) else []
        return self.layer((keys, queries), self.edges, *relations, **options)

    def forward(self, values: Tensor) -> Tensor:
        """Scores ``[S, NAMES, NAMES]`` for each query's answer."""
        return self.answer(self.attend(values)).view(len(values), NAMES, NAMES)

    @torch.no_grad()
    def weights(self, values: Tensor) -> Tensor:
        """``[NAMES, NAMES]``: what each query of the first dictionary looks at, averaged over heads."""
        _, (_, weights) = self.attend(values, return_attention_weights=True)
        return weights[: NAMES**2].mean(1).view(NAMES, NAMES).T


def make_dictionaries(generator: torch.Generator) -> Tensor:
    """Random values for the keys of a batch, ``[DICTIONARIES, NAMES]``; each value occurs once per dictionary."""
    return torch.rand(DICTIONARIES, NAMES, generator=generator).argsort(1)


def losses(model: Lookup, seed: int) -> Iterator[Tensor]:
    """Yield the loss of each step, on new dictionaries each time, without end."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        values = make_dictionaries(generator)
        yield cross_entropy(model(values).flatten(0, 1), values.flatten())


@torch.no_grad()
def found(model: Lookup) -> float:
    """The share of queries answered correctly, in dictionaries that are the same for all rows and seeds."""
    generator = torch.Generator().manual_seed(10**6)
    tests = [make_dictionaries(generator) for _ in range(20)]
    return mean((model(values).argmax(-1) == values).double().mean().item() for values in tests)


# %%
# Molecules
# ---------
#
# The model, split, training and learning rates are those of :doc:`graph_classification`. Attention follows bonds, and
# the kinds of bonds are the relations.

QUICK_GRAPHS = 400


def molecule_row(score: Score, kinds: int) -> Row:
    """The row of ``graph_classification.py`` with this score."""
    labels = AddRelationLabels(rg.EdgeType(kinds), edge_type="edge_attr")
    return Row(lambda: Block(score.layer(WIDTH, WIDTH // HEADS, kinds), score.hidden), labels)


# %%
# What came out
# -------------
#
# A run trains one score on both tasks. Time is processor time, forward and backward, per training step.


@dataclass
class Run:
    """One score with one seed."""

    variant: str
    seed: int
    parameters: int
    lookup: float
    auc: float
    seconds: dict[str, float]
    losses: list[float] = field(repr=False)


def report(runs: Sequence[Run]) -> str:
    """The table that the command prints; its last column is the row's ROC-AUC minus the dot product's."""
    columns = f"{'looked up':>14}{'ms':>6}{'ROC-AUC':>14}{'ms':>6}{'parameters':>12}"
    lines = [f"{'score':<15}{columns}   above the dot product"]
    rows = by_row(runs, lambda run: run)
    aucs = {name: {run.seed: run.auc for run in mine} for name, mine in rows.items()}
    plain = aucs.get("dot product", {})
    for name, mine in rows.items():
        right, auc = (percent([getattr(run, column) for run in mine], "") for column in ("lookup", "auc"))
        first, second = (1000 * mean(run.seconds[task] for run in mine) for task in ("lookup", "molecules"))
        above = lead(aucs[name], plain) if name != "dot product" and aucs[name].keys() & plain.keys() else ""
        size = mine[0].parameters
        lines.append(f"{name:<15}{right:>14}{first:>6.1f}{auc:>14}{second:>6.1f}{size:>12,}   {above}".rstrip())
    return "\n".join(lines)


# %%
# Pictures
# --------
#
# The first picture shows the results of the long run. The second shows what the queries of
# one dictionary look at.


def draw_models(folder: Path, models: dict[str, Lookup], note: str = "") -> None:
    """The attention of one model a score."""
    values = make_dictionaries(torch.Generator().manual_seed(0))
    with picture(folder / "attention.png", 12, 3.2, 1, len(models), note=note) as axes:
        for ax, (name, model) in zip(axes, models.items(), strict=True):
            ax.imshow(model.weights(values).numpy(), vmin=0, vmax=1, cmap="Blues")
            ax.set(title=name, xlabel="key", ylabel="query", xticks=[], yticks=[])


# %%
# The command
# -----------
#
# The command saves each run when it ends. After Ctrl-C the same command continues from there.


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    options = Options(
        "additive-scores-out", "Compare additive, bilinear and dot-product scores with PyG's GAT layers.",
        "less than a minute; made-up molecules, no files", seeds=(3, 1), steps=(600, 400), epochs=(5, 5),
    )  # fmt: skip
    options.add_argument("--data", type=Path, help="folder with tudataset-cleaned (RELGRAPH_DATA, else data)")
    arguments = options.read(argv)
    arguments.data = arguments.data or Path(os.environ.get("RELGRAPH_DATA", "data"))
    if not arguments.quick and not (arguments.data / "tudataset-cleaned" / "Mutagenicity.zip").is_file():
        options.error(
            f"--data must name a folder with tudataset-cleaned/Mutagenicity.zip, got {arguments.data}; "
            "--quick needs no files"
        )
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    out, quick = arguments.out, arguments.quick
    graphs: list[Any] = (
        molecules(QUICK_GRAPHS, random.Random(0))
        if quick
        else list(read_graphs(arguments.data, "Mutagenicity", out / "tudataset"))
    )
    settings = {"torch_geometric": torch_geometric.__version__, "quick": quick, "graphs": len(graphs)}
    settings |= {"steps": arguments.steps, "epochs": arguments.epochs}
    runs = Runs.of_command(out, Run, settings, fresh=arguments.fresh)
    count = len(SCORES) * len(arguments.seeds)
    announce(count, count * (arguments.steps * 0.008 + arguments.epochs * len(graphs) * 0.0006), out)
    atoms, kinds = (graphs[0][name].shape[1] for name in ("x", "edge_attr"))
    labeled = [molecule_row(SCORES["dot product"], kinds).prepare(graph) for graph in graphs]

    def run(name: str, seed: int) -> tuple[Run, Lookup]:
        torch.manual_seed(seed)
        model, start = Lookup(SCORES[name]), time.process_time()
        taken = train(model, losses(model, seed), arguments.steps, LOOKUP_RATE, title=f"{name}, seed {seed}")
        seconds = {"lookup": (time.process_time() - start) / arguments.steps}
        parts = [[labeled[number] for number in part] for part in split(len(graphs), seed)]
        torch.manual_seed(seed)
        classifier = Classifier(molecule_row(SCORES[name], kinds), atoms)
        rate = QUICK_LEARNING_RATE if quick else GRAPH_RATE
        done = train_on_graphs(name, classifier, parts, arguments.epochs, seed, rate)
        seconds["molecules"] = done.seconds / arguments.epochs / -(-len(parts[0]) // BATCH)
        return Run(name, seed, done.parameters, found(model), done.auc, seconds, taken), model

    def tell(run: Run) -> str:
        return f"{100 * run.lookup:.1f} % looked up, {100 * run.auc:.1f} % ROC-AUC"

    finished = runs.each(list(SCORES), arguments.seeds, run, tell=tell)
    if quick:
        print(SHORT)
    print(report(runs.done))
    if not finished:
        return INTERRUPTED
    models = {name: Lookup(score) for name, score in SCORES.items()}
    for name, model in models.items():
        runs.load(model, name, 0)
    if quick:
        Kept.read("additive_scores").draw(out)
    draw_models(out, models, SHORT_MODEL if quick else "")
    return 0


if __name__ == "__main__" and (status := until_stopped(main)):
    raise SystemExit(status)
