"""AqSol: how well molecules dissolve in water, by attention along bonds with edge states and over all pairs.

It needs files that are not in the repository, so it is no page of the gallery; docs/results.md has its figures.

AqSol is a benchmark of Dwivedi et al. (2023, "Benchmarking Graph Neural Networks"): the logarithm of the solubility of
9,823 molecules (AqSolDB, Sorkun et al. 2019), split by scaffold into 7,831 for training, 996 for validation and 996 for
the test. The figure is the mean absolute error of the test, at about 100,000 parameters.

All rows share atoms, bonds, random-walk features of atoms and bonds, frame, optimiser, batches and the budget of
parameters, from which each row takes its width:

- ``relgraph``: RelationConv along bonds, whose edge states pass from layer to layer (``edge_update="relational"``), and
  RelationGlobalAttention over all pairs, with the kind of the bond or else the length of the shortest path as label;
- ``relgraph, no states``, ``no labels``, ``no walks``, ``bonds only``: the same without one of these;
- ``PyG GPSConv``: GINE along bonds and attention over all pairs without labels;
- ``PyG TransformerConv``: along bonds.

``pip install lightgbm`` adds a line: trees over counts of atoms, bonds and degrees.

.. code-block:: sh

    python examples/run.py aqsol --data DATA            # all rows, three seeds, about three hours of two CPU cores
    python examples/run.py aqsol --data DATA --quick    # two rows, one seed, few molecules

``--data`` names the folder with ``aqsol/`` (else RELGRAPH_DATA, else ``data``): ``train.npz``, ``val.npz`` and
``test.npz``, each with the arrays ``num_nodes``, ``num_edges``, ``kept`` and ``y`` by molecule, ``atom`` by atom, and
``src``, ``dst`` and ``bond`` by edge. Nothing is downloaded. The command writes ``results.json`` and models to
``aqsol-out/``. After Ctrl-C the same command continues within a run.

Settings come from a few runs on validation with one seed, stopped after 5 to 20 epochs: layer norms against batch
norms, relational edge states against those of EGT (which relgraph no longer has), dropout 0.1 against 0.2. The weights
at the end of training are tested.
"""

from __future__ import annotations

import random
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from example_runs import Runs, by_row, by_seed, cores, leads, train_on
from torch import Tensor, nn
from torch.nn.functional import l1_loss, one_hot
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINEConv, GPSConv, TransformerConv, global_add_pool, global_mean_pool
from torch_geometric.utils import degree

import relgraph as rg
from experiments import Experiment, Work
from relgraph.pyg import AddRelationLabels, RelationConv, RelationGlobalAttention, relation_labels

try:
    import lightgbm
except ImportError:
    lightgbm = None

# A walk goes from an atom to one of its neighbours, each equally likely. Atoms get the probabilities that 1 to 16 steps
# lead back, bonds those that the steps lead along them.

PARTS, ATOMS, BONDS = ("train", "val", "test"), 65, ("single", "double", "aromatic", "triple")
WALK, FARTHEST = 16, 8


def walks_of(edge_index: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Probabilities that 1 to WALK steps lead back to an atom, ``[N, WALK]``, or along an edge, ``[E, WALK]``."""
    source, target = edge_index
    step = torch.zeros(nodes, nodes)
    step[source, target] = 1.0
    step /= step.sum(1, keepdim=True).clamp(min=1)
    back, along, walk = [], [], torch.eye(nodes)
    for _ in range(WALK):
        walk = walk @ step
        back.append(walk.diagonal())
        along.append(walk[source, target])
    return torch.stack(back, 1), torch.stack(along, 1)


def read(path: Path, most: int | None = None) -> list[Data]:
    """The molecules of a file that the benchmark keeps, with labels, or the first of them."""
    arrays = np.load(path)

    def split(name: str, size: str) -> list[Tensor]:
        return [torch.from_numpy(x.astype(np.int64)) for x in np.split(arrays[name], arrays[size].cumsum()[:-1])]

    atoms, edges = split("atom", "num_nodes"), (split(name, "num_edges") for name in ("src", "dst", "bond"))
    graphs = []
    for atom, source, target, bond, y, kept in zip(atoms, *edges, arrays["y"], arrays["kept"], strict=True):
        if not kept:  # no bonds, or a last atom without one
            continue
        edge_index, kinds = torch.stack([source, target]), bond - 1
        back, along = walks_of(edge_index, len(atom))
        edge_attr, truth = torch.cat([one_hot(kinds, len(BONDS)), along], 1), torch.tensor([y], dtype=torch.float32)
        graphs.append(LABELS(Data(atom, edge_index, edge_attr, truth, edge_type=kinds, walks=back)))
        if len(graphs) == most:
            break
    return graphs


# A layer is that of GPSConv: attention along bonds, attention over all pairs, and a feed-forward network on their sum.

HEADS, LAYERS, DROPOUT, PARAMETERS = 4, 3, 0.1, 102_000
BONDS_OR_PATHS = rg.EdgeType(BONDS, attend="all") | rg.ShortestPath(FARTHEST)
LABELS = AddRelationLabels(BONDS_OR_PATHS)


class Block(nn.Module):
    """A layer; one of its two kinds of attention may be missing."""

    def __init__(self, width: int, along_bonds: nn.Module, all_pairs: RelationGlobalAttention | None) -> None:
        super().__init__()
        self.along_bonds, self.all_pairs = along_bonds, all_pairs
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(2 * width, width),
            nn.Dropout(DROPOUT),
        )  # fmt: skip
        self.drop = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor, edges: Tensor, batch: Data, labels: rg.Labels | None) -> tuple[Tensor, Tensor]:
        """The next vectors of atoms and edges."""
        if getattr(self.along_bonds, "edge_states", None) is not None:
            near, edges = self.along_bonds(x, batch.edge_index, edge_attr=edges)
        elif isinstance(self.along_bonds, RelationConv):
            near = self.along_bonds(x, batch.edge_index, batch.edge_type, edges)
        else:
            near = self.along_bonds(x, batch.edge_index, edges)
        both = self.norms[0](x + self.drop(near))
        if self.all_pairs is not None:
            graphs = batch.batch if labels is None else None
            both = both + self.norms[1](x + self.drop(self.all_pairs(x, labels, graphs)))
        return self.norms[2](both + self.feed_forward(both)), edges


def block(width: int, *, states: bool = True, labels: bool = True, pairs: bool = True) -> Block:
    """A layer of relgraph, with or without edge states, labels of pairs, and attention over all pairs."""
    options = {"edge_update": "relational"} if states else {"num_relations": len(BONDS)}
    along = RelationConv(width, width // HEADS, HEADS, edge_dim=width // 2, **options)
    known = {"labeler": BONDS_OR_PATHS} if labels else {"tables": ()}
    attention = RelationGlobalAttention(width, HEADS, **known)
    return Block(width, along, attention if pairs else None)


def gps(width: int) -> GPSConv:
    inner = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
    return GPSConv(width, GINEConv(inner, edge_dim=width // 2), heads=HEADS, dropout=DROPOUT)


def transformer_conv(width: int) -> Block:
    return Block(width, TransformerConv(width, width // HEADS, HEADS, edge_dim=width // 2), None)


@dataclass(frozen=True)
class Row:
    """A row of the table: its layer by width, and what it reads besides atoms and bonds."""

    layer: Callable[[int], nn.Module]
    labels: bool = False
    walks: bool = True


ROWS = {
    "relgraph": Row(block, labels=True),
    "PyG GPSConv": Row(gps),
    "relgraph, no states": Row(lambda width: block(width, states=False), labels=True),
    "relgraph, no labels": Row(lambda width: block(width, labels=False)),
    "relgraph, bonds only": Row(lambda width: block(width, pairs=False)),
    "relgraph, no walks": Row(block, labels=True, walks=False),
    "PyG TransformerConv": Row(transformer_conv),
}


class Model(nn.Module):
    """The solubility of molecules from their atoms and edges."""

    def __init__(self, row: Row, width: int) -> None:
        super().__init__()
        self.row = row
        self.atoms, self.walks = nn.Embedding(ATOMS, width), nn.Linear(WALK, width)
        self.edges = nn.Linear(len(BONDS) + WALK, width // 2)
        self.layers = nn.ModuleList(row.layer(width) for _ in range(LAYERS))
        self.answer = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    @classmethod
    def of(cls, row: Row) -> Model:
        """The widest model within the budget of parameters."""
        width = HEADS
        while sum(x.numel() for x in cls(row, width + HEADS).parameters()) <= PARAMETERS:
            width += HEADS
        return cls(row, width)

    def forward(self, batch: Any) -> Tensor:
        """``[G]``, in units of the training data's spread."""
        labels = relation_labels(batch, LABELS) if self.row.labels else None
        x, edges = self.atoms(batch.x), batch.edge_attr
        if self.row.walks:
            x = x + self.walks(batch.walks)
        else:
            edges = torch.cat([edges[:, : len(BONDS)], torch.zeros_like(edges[:, len(BONDS) :])], 1)
        edges = self.edges(edges)
        for layer in self.layers:
            if isinstance(layer, GPSConv):
                x = layer(x, batch.edge_index, batch.batch, edge_attr=edges)
            else:
                x, edges = layer(x, edges, batch, labels)
        pooled = [pool(x, batch.batch, batch.num_graphs) for pool in (global_mean_pool, global_add_pool)]
        return self.answer(torch.cat([pooled[0], pooled[1] / 16], 1))[:, 0]


BATCH, RATE = 64, 1e-3
EPOCHS, QUICK_EPOCHS, SECONDS_AN_EPOCH = 80, 2, 10.0


@dataclass
class Run:
    """One row trained with one seed: mean absolute errors at the end."""

    variant: str
    seed: int
    validation: float
    test: float
    parameters: int
    seconds: float


@dataclass(frozen=True)
class Molecules:
    """The three parts, and the mean and spread of the training part's values."""

    train: Sequence[Data]
    val: Sequence[Data]
    test: Sequence[Data]
    middle: float
    spread: float

    @classmethod
    def of(cls, folder: Path, most: int | None = None) -> Molecules:
        parts = [read(folder / f"{part}.npz", most) for part in PARTS]
        values = torch.cat([graph.y for graph in parts[0]])  # pyright: ignore[reportArgumentType]
        return cls(*parts, values.mean().item(), values.std().item())

    def loss_of(self, model: Model, seed: int) -> Callable[[int], Tensor]:
        """The loss of a step by its number; each epoch uses every molecule at most once."""
        steps = len(self.train) // BATCH

        def loss(step: int) -> Tensor:
            order = random.Random(f"{seed}-{step // steps}").sample(range(len(self.train)), len(self.train))
            batch: Any = Batch.from_data_list([self.train[n] for n in order[step % steps * BATCH :][:BATCH]])
            return l1_loss(model(batch), (batch.y - self.middle) / self.spread)

        return loss

    @torch.inference_mode()
    def error(self, model: Model, graphs: Sequence[Any]) -> float:
        """The mean absolute error."""
        model.eval()
        batches: list[Any] = [
            Batch.from_data_list(list(graphs[first : first + 128])) for first in range(0, len(graphs), 128)
        ]
        found = torch.cat([model(batch) for batch in batches]) * self.spread + self.middle
        return l1_loss(found, torch.cat([graph.y for graph in graphs])).item()


def run(name: str, seed: int, molecules: Molecules, epochs: int, folder: Path) -> tuple[Run, Model]:
    """Train a row with a seed, or continue its training, and test it."""
    torch.manual_seed(seed)
    model = Model.of(ROWS[name])
    steps = epochs * (len(molecules.train) // BATCH)
    loss, parameters = molecules.loss_of(model, seed), sum(x.numel() for x in model.parameters())
    seconds = train_on(folder, name, seed, model, loss, steps, RATE)
    validation, test = (molecules.error(model, part) for part in (molecules.val, molecules.test))
    return Run(name, seed, validation, test, parameters, seconds), model


def counts(graphs: Sequence[Any]) -> np.ndarray:
    """How many atoms and bonds of each kind a molecule has, and atoms with 0 to 7 bonds."""

    def row(graph: Any) -> Tensor:
        bonds = degree(graph.edge_index[0], graph.num_nodes).long().clamp(max=7)
        kinds = ((graph.x, ATOMS), (graph.edge_type, len(BONDS)), (bonds, 8))
        return torch.cat([torch.bincount(ids, minlength=number) for ids, number in kinds])

    return torch.stack([row(graph) for graph in graphs]).numpy()


def error_of_counts(molecules: Molecules) -> float:
    """The mean absolute error of LightGBM, which reads nothing but counts; validation says when to stop."""
    assert lightgbm is not None
    train, val, test = (
        (counts(part), torch.cat([graph.y for graph in part]).numpy())  # pyright: ignore[reportArgumentType]
        for part in (molecules.train, molecules.val, molecules.test)
    )
    options = {"objective": "l1", "learning_rate": 0.05, "num_threads": 1, "verbosity": -1}
    data = lightgbm.Dataset(*train)
    stop = lightgbm.early_stopping(100, verbose=False)
    trees = lightgbm.train(options, data, 3000, valid_sets=[data.create_valid(*val)], callbacks=[stop])
    return float(np.abs(np.asarray(trees.predict(test[0])) - test[1]).mean())


def report(runs: Sequence[Run]) -> str:
    """The table that the command prints, and how much more each row errs than the first."""

    def figures(values: Sequence[float]) -> str:
        return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")

    lines = [f"{'row':<24}{'test MAE':>16}{'validation':>16}{'parameters':>12}{'CPU seconds':>13}"]
    for name, mine in by_row(runs).items():
        test, validation = (figures([getattr(one, column) for one in mine]) for column in ("test", "validation"))
        seconds = mean(one.seconds for one in mine)
        lines.append(f"{name:<24}{test:>16}{validation:>16}{mine[0].parameters:>12,}{seconds:>13.0f}")
    first, *others = ROWS
    return "\n".join([*lines, *leads(by_seed(runs, "test"), [(name, first) for name in others], 1, 3)])


def begin(arguments: Namespace) -> Work:
    print("reading the molecules, about a minute on an idle CPU core", flush=True)
    molecules = Molecules.of(arguments.data / "aqsol", 200 if arguments.quick else None)

    def one(name: str, seed: int) -> tuple[Run, Model]:
        return run(name, seed, molecules, arguments.epochs, arguments.out)

    def of_counts(_: Runs) -> None:
        if lightgbm is not None:
            print(f"{'LightGBM, counts':<24}{error_of_counts(molecules):>16.3f}")

    count, processes = len(arguments.rows) * len(arguments.seeds), 1 if arguments.quick else cores()
    seconds = count * arguments.epochs * SECONDS_AN_EPOCH
    return Work(
        {"epochs": arguments.epochs, "batch": BATCH, "rate": RATE}, seconds, one, draw=of_counts, processes=processes
    )


EXPERIMENT = Experiment(
    Run, [*ROWS], "two rows, one seed, few molecules", {"seeds": (3, 1), "epochs": (EPOCHS, QUICK_EPOCHS)}, begin,
    tell=lambda run: f"test MAE {run.test:.3f}", report=report, short_rows=[*ROWS][:2],
    options=lambda options: options.add_data("aqsol"),
    check=lambda options, arguments: options.find_data(arguments, "aqsol/train.npz"),
)  # fmt: skip
