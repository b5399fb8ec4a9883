"""Molecules: attention along bonds and over all pairs
===================================================

PyG's TransformerConv and GPSConv and relgraph's layers tell mutagenic molecules from others, on one budget.

All rows share the atoms, the mean over atoms, width, depth, optimiser, batches, splits (60/20/20, by seed) and seeds,
and have about the same number of parameters. The epoch with the best validation score is tested, once. ``bonds``
attends along bonds, with the kinds of bonds as labels (RelationConv). ``bonds | paths`` attends over all pairs of a
molecule (RelationGlobalAttention); a pair's label is the kind of its bond, or else the length of its shortest path.
AddRelationLabels makes these labels once. ``walks`` adds PyG's random-walk features to the atoms. Nine of the rows
below with three seeds take 12 minutes on one CPU core, the short mode less than one.

.. code-block:: sh

    python examples/graph_classification.py
    python examples/graph_classification.py --quick    # made-up molecules, no files
    python examples/graph_classification.py --rows "PyG GPSConv, walks" "GINE & relgraph pairs, walks" --seeds 5
    python examples/graph_classification.py --rows "relgraph bonds, walks" --seeds 5

Mutagenicity, percent, mean ± standard deviation over three seeds; over five seeds for the last three rows, on which the
claims below rest (2026-11, one thread of a busy AMD EPYC, busier for those three; each seed has its own split):

.. code-block:: text

    row                          test ROC-AUC  test accuracy  parameters  CPU seconds
    PyG TransformerConv            83.1 ± 1.1     75.6 ± 0.9      74,305           13
    PyG GPSConv                    83.3 ± 3.2     75.4 ± 3.5      74,881           38
    relgraph bonds                 83.2 ± 3.1     76.4 ± 4.5      74,737           19
    relgraph bonds | paths         78.3 ± 2.1     69.5 ± 2.1      74,809           43
    relgraph paths                 78.3 ± 1.4     70.5 ± 1.2      74,593           41
    relgraph no labels             74.1 ± 0.7     68.9 ± 2.0      73,873           30
    PyG TransformerConv, walks     85.4 ± 1.8     77.5 ± 2.0      75,121           11
    PyG GPSConv, walks             86.2 ± 1.9     79.2 ± 2.7      75,697           64
    relgraph bonds, walks          83.9 ± 1.8     76.3 ± 0.9      75,553           35
    GINE & relgraph pairs, walks   85.4 ± 2.2     77.2 ± 3.3      76,633           86

Where both libraries get the same input, they tie: ``bonds`` is +0.0 ROC-AUC against TransformerConv and -0.1 against
GPSConv. The strongest baseline, GPSConv with walks, is the best row: it is 2.3 above ``bonds, walks``, with a 95 %
interval of +1.3 to +3.2 over five seeds. Attention over all pairs gains from labels (74 to 78), but not from the kinds
of bonds among them, and stays behind attention along bonds. No row was tuned (three times the rate, tried for two rows
on another split, was worse). Ten epochs are few: most rows were still improving, and more epochs may change their
order. This is one data set, one size and one budget; it does not rank layers in general.

``GINE & relgraph pairs, walks`` is GPSConv's layer with labels (``bonds | paths``) on its pairs. It differs from ``PyG
GPSConv, walks`` only in these labels and in initial values. It ties: -0.7 (-2.5 to +1.0). So labels on pairs show no
measurable gain on top of walks and GINE. Two rows of the command have no figures yet: ``bonds | paths, walks`` attends
over all pairs with walks, and ``bonds & pairs, walks`` replaces GINE by RelationConv.

**The short mode** made the output below and all pictures except the first, which shows the long run. It is a different
task: small made-up molecules (``examples/made_up_molecules.py``) whose class is planted in the kinds of two bonds, so
that rows that do not see the kinds of bonds can only guess. It shows which rows see what; it says nothing about
chemistry. It has one seed and three times the rate, and leaves out the rows with walks. In its ten epochs attention
over all pairs learns only part of the task.

``--data`` names the folder with ``tudataset-cleaned/`` (else RELGRAPH_DATA, else ``data``); nothing is downloaded. The
command writes ``results.json``, models and pictures to ``graph-classification-out/``. After Ctrl-C the same command
continues.
"""

from __future__ import annotations

import argparse
import os
import random
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import torch_geometric
from example_options import Options
from example_runs import INTERRUPTED, Runs, announce, by_row, lead, percent, picture, until_stopped
from kept_results import SHORT, SHORT_MODEL, Kept
from made_up_molecules import ATOMS, BONDS, molecules
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch_geometric.data import Batch, Data
from torch_geometric.datasets import TUDataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINEConv, GPSConv, TransformerConv, global_mean_pool
from torch_geometric.transforms import AddRandomWalkPE
from tqdm import tqdm

import relgraph as rg
from relgraph.pyg import AddRelationLabels, RelationConv, RelationGlobalAttention, relation_labels

# %%
# The task
# --------
#
# A molecule is a graph: atoms are nodes, one-hot by element; bonds are edges in both directions, one-hot by kind. Real
# molecules come as PyG's :class:`~torch_geometric.datasets.TUDataset`, without the graphs that occur twice. The made-up
# molecules have the same form. The seed decides the split.

DATASETS = ("Mutagenicity", "Tox21_AHR", "AIDS", "PTC_MR", "MUTAG")
QUICK_GRAPHS = 600


def read_graphs(data: Path, name: str, cache: Path) -> TUDataset:
    """The dataset, unpacked where PyG looks for it, so that nothing is downloaded."""
    raw = cache / name / "raw_cleaned"
    raw.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(data / "tudataset-cleaned" / f"{name}.zip") as archive:
        for member in archive.namelist():
            if member.endswith(".txt"):
                (raw / Path(member).name).write_bytes(archive.read(member))
    return TUDataset(str(cache), name, cleaned=True)


def split(count: int, seed: int) -> tuple[list[int], list[int], list[int]]:
    """Draw by seed which graphs are for training (six tenths), validation and test (two tenths each)."""
    order = random.Random(f"split {seed}").sample(range(count), count)
    fifth = count // 5
    return order[2 * fifth :], order[:fifth], order[fifth : 2 * fifth]


# %%
# The layers
# ----------
#
# All rows share one frame and differ in how atoms attend. :class:`relgraph.pyg.RelationConv` attends along edges, like
# PyG's TransformerConv, and learns vectors for the kinds of edges. :class:`relgraph.pyg.RelationGlobalAttention`
# attends over all pairs of each graph, without padding.

WIDTH, HEADS, LAYERS, HIDDEN, DROPOUT = 48, 4, 3, 144, 0.1


class Block(nn.Module):
    """A row's attention, then a feed-forward network, each with a norm before it and a residual sum."""

    def __init__(self, attention: nn.Module, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.attention = attention
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, hidden), nn.ReLU(), nn.Linear(hidden, WIDTH))
        self.drop = nn.Dropout(DROPOUT)

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
        kinds = batch.edge_attr.argmax(1) if isinstance(self.along_bonds, RelationConv) else batch.edge_attr
        near = self.norms[0](x + self.drop(self.along_bonds(x, batch.edge_index, kinds)))
        x = near + self.norms[1](x + self.drop(self.all_pairs(x, labels)))
        return self.norms[2](x + self.feed_forward(x))


# %%
# The labels
# ----------
#
# :class:`~relgraph.EdgeType` labels bonded pairs by the kind of their bond. :class:`~relgraph.ShortestPath` labels all
# pairs by the number of bonds between them. ``a | b`` takes b's label where a has none. The transform
# :class:`relgraph.pyg.AddRelationLabels` makes the labels once per molecule, and PyG's loaders batch them.

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
        return GPSConv(WIDTH, gine(), heads=HEADS, dropout=DROPOUT)

    def relation_conv(relations: int, names: Sequence[str] | None) -> RelationConv:
        tables = rg.RelationTables(relations, WIDTH // HEADS, HEADS, per_head=True, names=names)
        return RelationConv(WIDTH, WIDTH // HEADS, HEADS, tables=tables)

    def along_bonds(labeler: rg.Labeler) -> nn.Module:
        return Block(relation_conv(labeler.num_labels, labeler.names))

    def all_pairs(labeler: rg.Labeler | None = None) -> nn.Module:
        return Block(RelationGlobalAttention(WIDTH, HEADS, labeler=labeler))

    def gine_and_pairs(labeler: rg.Labeler) -> nn.Module:
        return Both(gine(), RelationGlobalAttention(WIDTH, HEADS, labeler=labeler), 2 * WIDTH)

    def bonds_and_pairs(labeler: rg.Labeler) -> nn.Module:
        return Both(relation_conv(bonds, kinds), RelationGlobalAttention(WIDTH, HEADS, labeler=labeler), WIDTH)

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
        "relgraph bonds | paths": rows["relgraph bonds | paths"],
        "relgraph bonds & pairs": labeled(bonds_and_pairs, bonds_or_paths),
        "GINE & relgraph pairs": labeled(gine_and_pairs, bonds_or_paths),
    }
    return rows | {f"{name}, walks": replace(row, walks=walks) for name, row in strongest.items()}


# %%
# The model
# ---------


class Classifier(nn.Module):
    """Embeds atoms, applies layers of one kind, averages over atoms and returns one number: above 0 for class 1."""

    def __init__(self, row: Row, atoms: int) -> None:
        super().__init__()
        self.labels = row.labels
        self.atom = nn.Linear(atoms, WIDTH)
        self.walks = None if row.walks is None else nn.Linear(WALK, WIDTH)
        self.layers = nn.ModuleList(row.layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.answer = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def forward(self, batch: Data) -> Tensor:
        """``[G]``, one score per graph."""
        labels = None if self.labels is None else relation_labels(batch, self.labels)
        x = self.atom(batch.x)
        if self.walks is not None:
            x = x + self.walks(batch.walks)
        for layer in self.layers:
            if isinstance(layer, GPSConv):  # has its own norms and feed-forward network
                x = layer(x, batch.edge_index, batch.batch, edge_attr=batch.edge_attr)
            else:
                x = layer(x, batch, labels)
        return self.answer(global_mean_pool(self.norm(x), batch.batch, batch.num_graphs))[:, 0]


# %%
# Training
# --------
#
# Training takes ten epochs. The weights of the epoch that is best on validation are tested, once.

LEARNING_RATE, QUICK_LEARNING_RATE, WEIGHT_DECAY, BATCH = 1e-3, 3e-3, 0.01, 32
EPOCHS, SECONDS_A_GRAPH = 10, 0.0008


def roc_auc(scores: Tensor, truth: Tensor) -> float:
    """The probability that a graph of class 1 scores above one of class 0; a tie counts half."""
    high, low = scores[truth == 1], scores[truth == 0].sort().values
    below, not_above = (torch.searchsorted(low, high, right=right) for right in (False, True))
    return ((below + not_above).double().mean() / (2 * len(low))).item()


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
def predict(model: Classifier, graphs: Sequence[Data]) -> tuple[Tensor, Tensor]:
    """Scores and classes."""
    model.eval()
    scores = [(model(batch), batch.y) for batch in DataLoader(graphs, 128)]
    model.train()
    return torch.cat([score for score, _ in scores]), torch.cat([truth for _, truth in scores])


def train(
    name: str,
    model: Classifier,
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
    for epoch in tqdm(range(1, epochs + 1), desc=f"{name}, seed {seed}", disable=None, leave=False):
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


# %%
# What came out
# -------------
#
# ROC-AUC is the probability that a molecule of class 1 scores above one of class 0. Rows are compared seed by seed,
# since all rows share a seed's split. Which rows to compare was decided before any run.


def report(runs: Sequence[Run]) -> str:
    """The table that the command prints."""
    lines = [f"{'row':<27}{'test ROC-AUC':>14}{'test accuracy':>15}{'parameters':>12}{'CPU seconds':>13}"]
    for name in dict.fromkeys(run.variant for run in runs):
        mine = [run for run in runs if run.variant == name]
        auc, right = (percent([getattr(run, column) for run in mine], "") for column in ("auc", "accuracy"))
        lines.append(f"{name:<27}{auc:>14}{right:>15}{mine[0].parameters:>12,}{mean(r.seconds for r in mine):>13.0f}")
    return "\n".join(lines)


COMPARED = (
    ("relgraph bonds", "PyG TransformerConv"),
    ("relgraph bonds, walks", "PyG TransformerConv, walks"),
    ("relgraph bonds, walks", "PyG GPSConv, walks"),
    ("relgraph bonds & pairs, walks", "PyG GPSConv, walks"),
    ("GINE & relgraph pairs, walks", "PyG GPSConv, walks"),
    ("relgraph bonds | paths, walks", "relgraph bonds, walks"),
    ("relgraph bonds | paths", "relgraph no labels"),
    ("relgraph bonds | paths", "relgraph paths"),
)


def comparisons(runs: Sequence[Run]) -> str:
    """How far one row is ahead of another in ROC-AUC, with the interval over the seeds that both rows have."""
    rows = {name: {run.seed: run.auc for run in mine} for name, mine in by_row(runs, lambda run: run).items()}
    lines = [
        f"{ours} against {theirs}: {lead(rows[ours], rows[theirs])}"
        for ours, theirs in COMPARED
        if ours in rows and theirs in rows and rows[ours].keys() & rows[theirs].keys()
    ]
    return "\n".join(lines)


# %%
# Pictures
# --------
#
# The first picture shows the results of the long run. The others show one molecule, with its
# labels and with attention along its bonds, and how much attention over all pairs each label gets in test molecules.
# :func:`~relgraph.record_attention` records what the layers attend to.


def atoms_of(graph: Any, symbols: Sequence[str]) -> list[str]:
    """The atoms' names, by element and number."""
    return [f"{symbols[int(element)]}{number}" for number, element in enumerate(graph.x.argmax(1))]


@torch.no_grad()
def along_bonds(model: Classifier, graph: Any) -> Tensor:
    """``[H, N, N]``, the weights of the last layer's attention along the bonds of a molecule; 0 where there is none."""
    assert model.labels is not None
    labels: Any = relation_labels(graph, model.labels)
    with rg.record_attention(model, weights=True) as record:
        model(Batch.from_data_list([graph]))
    last: Any = [*record.values()][-1][0]
    source, target = labels.edge_index
    weights = torch.zeros(HEADS, labels.q_len, labels.q_len)
    weights[:, target, source] = last.weights.T
    return weights


@torch.no_grad()
def label_mass(model: Classifier, graphs: Sequence[Data]) -> Tensor:
    """``[L, H, R]``, the attention that each label gets, by layer and head."""
    batch = Batch.from_data_list(list(graphs))
    with rg.record_attention(model) as record:
        model(batch)
    layers: list[list[Any]] = [*record.values()]
    return torch.stack([call.label_mass.mean(1) for (call,) in layers])


BONDED, PAIRS = "relgraph bonds", "relgraph bonds | paths"


def draw_bonds(folder: Path, model: Classifier, graphs: Sequence[Any], symbols: Sequence[str], note: str = "") -> None:
    """Attention along the bonds of the first of some molecules."""
    graph = graphs[0]
    plain, atoms = rg.pyg.from_data(graph, edge_type="edge_attr"), atoms_of(graph, symbols)
    assert model.labels is not None
    labeler = model.labels.labeler
    with picture(folder / "bonds.png", 8, 5.5, note=note) as ax:
        weights = along_bonds(model, graph)
        rg.plot.attention_graph(weights, plain, node_names=atoms, labels=labeler(plain), names=labeler.names, ax=ax)
        ax.set_title("Attention along bonds, last layer, mean of heads")


def draw_pairs(folder: Path, model: Classifier, graphs: Sequence[Data], symbols: Sequence[str], note: str = "") -> None:
    """Labels of all pairs of the first of some molecules, and the attention that labels get in all of them."""
    assert model.labels is not None
    names = model.labels.labeler.names
    with picture(folder / "labels.png", 9, 6) as ax:
        atoms = atoms_of(graphs[0], symbols)
        rg.plot.label_matrix(relation_labels(graphs[0], model.labels), names, tokens=atoms, ax=ax)
        ax.set_title("The label of every pair: the kind of bond, else the length of the shortest path")
    with picture(folder / "mass.png", 9, 5.5, note=note) as ax:
        rg.plot.label_mass(label_mass(model, graphs), names, axes="LHR", ax=ax)
        ax.set_title("Attention over all pairs, by label")


# %%
# The command
# -----------
#
# The command saves each run when it ends. After Ctrl-C the same command continues from there.


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    rows = [*make_rows(1)]
    options = Options(
        "graph-classification-out", "Classify molecules with PyG's and relgraph's layers on the same budget.",
        "less than a minute; made-up molecules if no --data", seeds=(3, 1), epochs=(EPOCHS, EPOCHS),
        rows=("--rows", rows, rows, [row for row in rows if "walks" not in row]),
    )  # fmt: skip
    options.add_argument("--data", type=Path, help="folder with tudataset-cleaned (RELGRAPH_DATA, else data)")
    options.add_argument("--dataset", choices=DATASETS, default="Mutagenicity", help="which molecules (Mutagenicity)")
    arguments = options.read(argv)
    arguments.made_up = arguments.quick and arguments.data is None
    arguments.data = arguments.data or Path(os.environ.get("RELGRAPH_DATA", "data"))
    archive = arguments.data / "tudataset-cleaned" / f"{arguments.dataset}.zip"
    if not arguments.made_up and not archive.is_file():
        options.error(
            f"--data must name a folder with tudataset-cleaned/{arguments.dataset}.zip, got {arguments.data}; "
            "--quick needs no files"
        )
    return arguments


def find_graphs(arguments: argparse.Namespace) -> tuple[list[Any], str]:
    """The molecules, and a name for them."""
    if arguments.made_up:
        print("--quick reads no data: the molecules are made up (examples/made_up_molecules.py)")
        return list(molecules(QUICK_GRAPHS, random.Random(0))), "made up"
    dataset = read_graphs(arguments.data, arguments.dataset, arguments.out / "tudataset")
    return list(dataset)[: QUICK_GRAPHS if arguments.quick else None], arguments.dataset


def open_runs(arguments: argparse.Namespace, name: str, graphs: int) -> Runs:
    settings = {"torch_geometric": torch_geometric.__version__, "dataset": name, "graphs": graphs}
    settings |= {"epochs": arguments.epochs, "quick": arguments.quick}
    return Runs.of_command(arguments.out, Run, settings, fresh=arguments.fresh)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    graphs, name = find_graphs(arguments)
    print(f"{name}: {len(graphs):,} graphs, {mean(100 * int(g['y']) for g in graphs):.1f} % of class 1")
    runs, count = open_runs(arguments, name, len(graphs)), len(arguments.rows) * len(arguments.seeds)
    announce(count, count * arguments.epochs * len(graphs) * SECONDS_A_GRAPH, arguments.out)
    rows = make_rows(graphs[0].edge_attr.shape[1], BONDS if arguments.made_up else None)
    ready = {row: [rows[row].prepare(graph) for graph in graphs] for row in arguments.rows}

    def run(row: str, seed: int) -> tuple[Run, Classifier]:
        parts = [[ready[row][number] for number in part] for part in split(len(graphs), seed)]
        torch.manual_seed(seed)
        model = Classifier(rows[row], graphs[0].x.shape[1])
        rate = QUICK_LEARNING_RATE if arguments.quick else LEARNING_RATE
        return train(row, model, parts, arguments.epochs, seed, rate), model

    finished = runs.each(arguments.rows, arguments.seeds, run, tell=lambda run: f"{100 * run.auc:.1f} % ROC-AUC")
    if arguments.quick:
        print(SHORT)
    print(report(runs.done), comparisons(runs.done), sep="\n")
    if not finished:
        return INTERRUPTED
    if arguments.quick:
        Kept.read("graph_classification").draw(arguments.out)
    symbols = ATOMS if arguments.made_up else [f"{number}:" for number in range(graphs[0].x.shape[1])]
    tested = [number for number in split(len(graphs), 0)[2] if graphs[number]["y"]]
    tested.sort(key=lambda number: abs(graphs[number].num_nodes - 12))  # the first is neither small nor large
    for row, draw in ((BONDED, draw_bonds), (PAIRS, draw_pairs)):
        if row in arguments.rows:
            model = Classifier(rows[row], graphs[0].x.shape[1])
            runs.load(model, row, 0)
            note = SHORT_MODEL if arguments.quick else ""
            draw(arguments.out, model, [ready[row][number] for number in tested], symbols, note)
    return 0


if __name__ == "__main__" and (status := until_stopped(main)):
    raise SystemExit(status)
