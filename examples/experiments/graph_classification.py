"""Molecules: PyG's layers and relgraph's, along bonds and over all pairs, on one budget.

All rows share the atoms, the mean over atoms, width, depth, optimiser, batches, splits (60/20/20, by seed) and seeds,
and have about the same number of parameters. The epoch with the best validation score is tested, once. ``bonds``
attends along bonds, with the kinds of bonds as labels. ``bonds | paths`` attends over all pairs of a molecule; a pair's
label is the kind of its bond, or else the length of its shortest path. ``walks`` adds PyG's random-walk features to the
atoms. ``GINE & relgraph pairs, walks`` is GPSConv's layer with labels (``bonds | paths``) on its pairs. It differs from
``PyG GPSConv, walks`` only in these labels and in initial values. No row was tuned (three times the rate, tried for two
rows on another split, was worse).

``--data`` names the folder with ``tudataset-cleaned/`` (else RELGRAPH_DATA, else ``data``); nothing is downloaded. The
short mode is a different task, the made-up molecules of the page, unless ``--data`` is given: rows that do not see the
kinds of bonds can only guess there. It has one seed and three times the rate, and leaves out the rows with walks.
"""

from __future__ import annotations

import random
import time
import zipfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import graph_classification as page
import torch
import torch_geometric
from example_options import Options
from example_runs import by_row, by_seed, leads, percent
from graph_classification import HEADS, WIDTH, molecule, roc_auc
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch_geometric.data import Data
from torch_geometric.datasets import TUDataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINEConv, GPSConv, TransformerConv
from torch_geometric.transforms import AddRandomWalkPE

import relgraph as rg
from experiments import Experiment, Work
from relgraph.pyg import AddRelationLabels, RelationConv, RelationGlobalAttention

QUICK_GRAPHS = 600
BONDS = ("single", "double")


def molecules(count: int) -> list[Data]:
    """Made-up molecules, every other one of class 1."""
    rng = random.Random(0)
    return [molecule(number % 2, rng) for number in range(count)]


NAME = "Mutagenicity"
FILE = f"tudataset-cleaned/{NAME}.zip"


def read_graphs(data: Path, cache: Path) -> TUDataset:
    """The dataset, unpacked where PyG looks for it, so that nothing is downloaded."""
    raw = cache / NAME / "raw_cleaned"
    raw.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(data / FILE) as archive:
        for member in archive.namelist():
            if member.endswith(".txt"):
                (raw / Path(member).name).write_bytes(archive.read(member))
    return TUDataset(str(cache), NAME, cleaned=True)


def split(count: int, seed: int) -> tuple[list[int], list[int], list[int]]:
    """Draw by seed which graphs are for training (six tenths), validation and test (two tenths each)."""
    order = random.Random(f"split {seed}").sample(range(count), count)
    fifth = count // 5
    return order[2 * fifth :], order[:fifth], order[fifth : 2 * fifth]


DROPOUT = 0.1


class Block(page.Block):
    """The page's block, with any attention."""

    def forward(self, x: Tensor, batch: Data, labels: rg.Labels | None) -> Tensor:
        x = x + self.drop(self.attend(self.norms[0](x), batch, labels))
        return x + self.drop(self.feed_forward(self.norms[1](x)))

    def attend(self, x: Tensor, batch: Data, labels: rg.Labels | None) -> Tensor:
        """The attention, which differs from row to row."""
        match self.attention:
            case RelationConv():
                return self.attention(x, labels)
            case RelationGlobalAttention():
                return self.attention(x, labels, batch.batch if labels is None else None)
            case _:  # PyG's layers
                return self.attention(x, batch.edge_index, batch.edge_attr)


class Both(nn.Module):
    """GPSConv's layer with labels on its pairs: the sum of a layer along bonds and a layer over all pairs."""

    def __init__(self, along_bonds: nn.Module, all_pairs: RelationGlobalAttention, hidden: int) -> None:
        super().__init__()
        self.along_bonds, self.all_pairs = along_bonds, all_pairs
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(3))  # as in GPSConv
        self.feed_forward = nn.Sequential(
            nn.Linear(WIDTH, hidden), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(hidden, WIDTH), nn.Dropout(DROPOUT)
        )
        self.drop = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor, batch: Data, labels: rg.Labels | None) -> Tensor:
        near = self.norms[0](x + self.drop(self.along_bonds(x, batch.edge_index, batch.edge_attr)))
        x = near + self.norms[1](x + self.drop(self.all_pairs(x, labels)))
        return self.norms[2](x + self.feed_forward(x))


class Whole(nn.Module):
    """GPSConv, which has its own norms and feed-forward network."""

    def __init__(self, layer: GPSConv) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, batch: Data, _: rg.Labels | None) -> Tensor:
        return self.layer(x, batch.edge_index, batch.batch, edge_attr=batch.edge_attr)


FARTHEST, WALK = 8, 16


@dataclass(frozen=True)
class Row:
    """A row of the table: how to make a layer, and what to add to each graph once: labels, or walks of its atoms."""

    layer: Callable[[], nn.Module]
    labels: AddRelationLabels | None = None
    walks: AddRandomWalkPE | None = None

    def prepare(self, graph: Data) -> Data:
        for transform in (self.labels, self.walks):
            graph = graph if transform is None else transform(graph)
        return graph


def make_rows(bonds: int, names: Sequence[str] | None = None) -> dict[str, Row]:
    """All rows, for molecules with that many kinds of bonds, whose names may be given."""
    kinds = names or [f"bond {number}" for number in range(bonds)]

    def gine() -> nn.Module:
        inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        return GINEConv(inner, edge_dim=bonds)

    def gps() -> nn.Module:
        return Whole(GPSConv(WIDTH, gine(), heads=HEADS, dropout=DROPOUT))

    def along_bonds(labeler: rg.Labeler) -> nn.Module:
        tables = rg.RelationTables(labeler.num_labels, WIDTH // HEADS, HEADS, per_head=True, names=labeler.names)
        return Block(RelationConv(WIDTH, WIDTH // HEADS, HEADS, tables=tables))

    def all_pairs(labeler: rg.Labeler | None = None) -> nn.Module:
        known = {"tables": ()} if labeler is None else {"labeler": labeler}
        return Block(RelationGlobalAttention(WIDTH, HEADS, **known))

    def gine_and_pairs(labeler: rg.Labeler) -> nn.Module:
        return Both(gine(), RelationGlobalAttention(WIDTH, HEADS, labeler=labeler), 2 * WIDTH)

    def labeled(layer: Callable[..., nn.Module], labeler: rg.Labeler) -> Row:
        return Row(lambda: layer(labeler), AddRelationLabels(labeler, edge_type="edge_attr"))

    paths, walks = rg.ShortestPath(FARTHEST), AddRandomWalkPE(WALK, attr_name="walks")
    bonds_or_paths = rg.EdgeType(kinds, attend="all") | paths
    rows = {
        "PyG TransformerConv": Row(lambda: Block(TransformerConv(WIDTH, WIDTH // HEADS, HEADS, edge_dim=bonds))),
        "PyG GPSConv": Row(gps),
        "relgraph bonds": labeled(along_bonds, rg.EdgeType(kinds)),
        "relgraph bonds | paths": labeled(all_pairs, bonds_or_paths),
        "relgraph paths": labeled(all_pairs, paths),
        "relgraph no labels": Row(all_pairs),
    }
    strongest = {
        "PyG TransformerConv": rows["PyG TransformerConv"],
        "PyG GPSConv": rows["PyG GPSConv"],
        "relgraph bonds": rows["relgraph bonds"],
        "GINE & relgraph pairs": labeled(gine_and_pairs, bonds_or_paths),
    }
    return rows | {f"{name}, walks": replace(row, walks=walks) for name, row in strongest.items()}


def classifier(row: Row, atoms: int) -> page.Classifier:
    return page.Classifier(row.layer, row.labels, atoms, 0 if row.walks is None else WALK)


LEARNING_RATE, QUICK_LEARNING_RATE, WEIGHT_DECAY, BATCH = 1e-3, 3e-3, 0.01, 32
EPOCHS, SECONDS_A_GRAPH = 10, 0.0008


@dataclass
class Run:
    """One row trained with one seed; accuracy and ROC-AUC are those of the epoch with the best validation score."""

    variant: str
    seed: int
    parameters: int
    epoch: int
    validation_auc: float
    auc: float
    accuracy: float
    seconds: float


@torch.no_grad()
def predict(model: page.Classifier, graphs: Sequence[Data]) -> tuple[Tensor, Tensor]:
    """Scores and classes."""
    model.eval()
    scores = [(model(batch), batch.y) for batch in DataLoader(graphs, 128)]
    model.train()
    return torch.cat([score for score, _ in scores]), torch.cat([truth for _, truth in scores])


def train(
    name: str,
    model: page.Classifier,
    parts: Sequence[Sequence[Data]],
    epochs: int,
    seed: int,
    learning_rate: float = LEARNING_RATE,
) -> Run:
    """Train, keep the weights of the epoch with the best validation ROC-AUC, and test them once."""
    start, (training, validation, test) = time.process_time(), parts
    loader = DataLoader(training, BATCH, shuffle=True, generator=torch.Generator().manual_seed(seed))
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, weight_decay=WEIGHT_DECAY)
    best, kept, found = 0, {}, -1.0
    for epoch in range(1, epochs + 1):
        for batch in loader:
            loss = binary_cross_entropy_with_logits(model(batch), batch.y.float())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        auc = roc_auc(*predict(model, validation))
        if auc > found:
            best, found, kept = epoch, auc, {key: value.clone() for key, value in model.state_dict().items()}
    model.load_state_dict(kept)
    scores, truth = predict(model, test)
    right, size = ((scores > 0) == truth).double().mean().item(), sum(p.numel() for p in model.parameters())
    return Run(name, seed, size, best, found, roc_auc(scores, truth), right, time.process_time() - start)


# ROC-AUC is the probability that a molecule of class 1 scores above one of class 0. Rows are compared seed by seed,
# since all rows share a seed's split. Which rows to compare was decided before any run.


def report(runs: Sequence[Run]) -> str:
    """The table that the command prints."""
    lines = [f"{'row':<27}{'test ROC-AUC':>14}{'test accuracy':>15}{'parameters':>12}{'CPU seconds':>13}"]
    for name, mine in by_row(runs).items():
        auc, right = (percent([getattr(run, column) for run in mine], "") for column in ("auc", "accuracy"))
        lines.append(f"{name:<27}{auc:>14}{right:>15}{mine[0].parameters:>12,}{mean(r.seconds for r in mine):>13.0f}")
    return "\n".join(lines)


COMPARED = (
    ("relgraph bonds", "PyG TransformerConv"),
    ("relgraph bonds, walks", "PyG TransformerConv, walks"),
    ("relgraph bonds, walks", "PyG GPSConv, walks"),
    ("GINE & relgraph pairs, walks", "PyG GPSConv, walks"),
    ("relgraph bonds | paths", "relgraph no labels"),
    ("relgraph bonds | paths", "relgraph paths"),
)


def comparisons(runs: Sequence[Run]) -> str:
    """How far one row is ahead of another in ROC-AUC, with the interval over the seeds that both rows have."""
    return "\n".join(leads(by_seed(runs, "auc"), COMPARED))


def check(options: Options, arguments: Namespace) -> None:
    arguments.made_up = arguments.quick and arguments.data is None
    if not arguments.made_up:
        options.find_data(arguments, FILE)


def find_graphs(arguments: Namespace) -> tuple[list[Any], str]:
    """The molecules, and a name for them."""
    if arguments.made_up:
        print("--quick reads no data: the molecules are made up")
        return molecules(QUICK_GRAPHS), "made up"
    dataset = read_graphs(arguments.data, arguments.out / "tudataset")
    return list(dataset)[: QUICK_GRAPHS if arguments.quick else None], NAME


def begin(arguments: Namespace) -> Work:
    graphs, name = find_graphs(arguments)
    print(f"{name}: {len(graphs):,} graphs, {mean(100 * int(g['y']) for g in graphs):.1f} % of class 1")
    settings = {"torch_geometric": torch_geometric.__version__, "dataset": name, "graphs": len(graphs)}
    rows = make_rows(graphs[0].edge_attr.shape[1], BONDS if arguments.made_up else None)
    ready = {row: [rows[row].prepare(graph) for graph in graphs] for row in arguments.rows}

    def run(row: str, seed: int) -> tuple[Run, page.Classifier]:
        parts = [[ready[row][number] for number in part] for part in split(len(graphs), seed)]
        torch.manual_seed(seed)
        model = classifier(rows[row], graphs[0].x.shape[1])
        rate = QUICK_LEARNING_RATE if arguments.quick else LEARNING_RATE
        return train(row, model, parts, arguments.epochs, seed, rate), model

    seconds = len(arguments.rows) * len(arguments.seeds) * arguments.epochs * len(graphs) * SECONDS_A_GRAPH
    return Work(settings | {"epochs": arguments.epochs}, seconds, run)


ROWS = [*make_rows(1)]
EXPERIMENT = Experiment(
    Run, ROWS, "less than a minute; made-up molecules if no --data",
    {"seeds": (3, 1), "epochs": (EPOCHS, EPOCHS)}, begin,
    tell=lambda run: f"{100 * run.auc:.1f} % ROC-AUC", report=lambda runs: f"{report(runs)}\n{comparisons(runs)}",
    short_rows=[row for row in ROWS if "walks" not in row], check=check,
    options=lambda options: options.add_data("tudataset-cleaned"),
)  # fmt: skip
