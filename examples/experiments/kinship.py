"""Kin classes along a chain of relatives, with several layers: at equal steps, and trained longer.

In all rows one layer is applied repeatedly: attention, then a feed-forward network, each with a residual sum and a
norm. The feed-forward network is as wide as makes all models about equally large. A model never trains twice on a
family. All rows of a seed see the same families, and all rows and seeds are tested in the same.

- ``RGATConv`` and ``RGCNConv`` are PyG's layers with a linear map for each relation;
- ``maps, tables`` is relgraph's layer with a map of the values for each label (``value_map=True``); in ``4 bases,
  tables`` the labels share four maps; ``both tables`` is the default layer; ``a^V alone``, ``a^K alone`` and ``none``
  leave tables out;
- in ``pairs: maps, tables`` every pair of a family attends. A bias table starts at -4 for pairs without a fact, so that
  the few facts stand out;
- rows that end in ``longer`` train 600 steps, ``RGCNConv`` and ``both tables``, which learn more slowly, 1,200.

Persons far from ego wait longer for the news than any in training. So the model runs up to eight steps, fewer at the
start of training, without gradients, before it marks ego.

No setting was tuned: sizes, waiting steps and the rate are those of an earlier version of the game, which chose them in
other families, the rate with RGATConv. Two seeds in other families said how long the rows ``longer`` train.
"""

from __future__ import annotations

import random
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from statistics import mean
from typing import Any

import kinship as page
import torch
from example_runs import by_row, leads, percent, train
from kinship import EDGES, HEADS, TRAINED, WIDTH, Kin, families
from torch import Tensor, nn
from torch.nn.functional import gelu
from torch_geometric.nn import RGATConv, RGCNConv

import relgraph as rg
from experiments import Experiment, Work

PAIRS = rg.EdgeType(EDGES.types, inverse=True, self_loop=True, attend="all", default="none")
NO_FACT = -4.0


class PyGLayer(nn.Module):
    """A layer of PyG in place of the attention of :class:`relgraph.RelationEncoderLayer`."""

    def __init__(self, attend: nn.Module, hidden: int) -> None:
        super().__init__()
        self.attend = attend
        self.linear1, self.linear2 = nn.Linear(WIDTH, hidden), nn.Linear(hidden, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, labels: rg.EdgeLabels) -> Tensor:
        seen = self.attend(x.flatten(0, 1), labels.edge_index, labels.ids.long())
        x = self.norm1(x + seen.view(x.shape))
        return self.norm2(x + self.linear2(gelu(self.linear1(x))))


def rgat(hidden: int) -> nn.Module:
    return PyGLayer(RGATConv(WIDTH, WIDTH // HEADS, EDGES.num_labels, heads=HEADS), hidden)


def rgcn(hidden: int) -> nn.Module:
    return PyGLayer(RGCNConv(WIDTH, WIDTH, EDGES.num_labels, root_weight=False), hidden)  # a label is the self-loop


def ours(hidden: int, **options: Any) -> nn.Module:
    attention = rg.RelationAttention(WIDTH, HEADS, impl="dense", **options)  # families are small
    return rg.RelationEncoderLayer(WIDTH, HEADS, hidden, 0.0, "gelu", attention=attention)


def pairs(hidden: int) -> nn.Module:
    layer = ours(hidden, labeler=PAIRS, tables=("key", "value", "bias"), value_map=True)
    with torch.no_grad():
        layer.self_attn.tables.bias.rows[PAIRS.names.index("none")] = NO_FACT
    return layer


def edges(graph: rg.Graph) -> rg.Labels:
    return rg.labels.padded(EDGES(graph))


def without_ids(graph: rg.Graph) -> rg.Labels:
    """The same edges without label ids, for a layer without tables."""
    packed = EDGES(graph)
    ids = torch.full_like(packed.ids, -1)
    return rg.labels.padded(rg.EdgeLabels(packed.edge_index, ids, 0, q_len=packed.q_len, ptr=packed.k_ptr))


@dataclass(frozen=True)
class Row:
    """A row: its layer for a width of the feed-forward network, what its labels are, and how long it trains."""

    layer: Callable[[int], nn.Module]
    labels: Callable[[rg.Graph], rg.Labels] = edges
    longer: float = 1.0


ROWS = {
    "RGATConv": Row(rgat, EDGES),
    "RGCNConv": Row(rgcn, EDGES),
    "maps, tables": Row(page.with_maps),
    "4 bases, tables": Row(lambda hidden: ours(hidden, labeler=EDGES, value_map=4)),
    "both tables": Row(lambda hidden: ours(hidden, labeler=EDGES)),
    "a^V alone": Row(lambda hidden: ours(hidden, labeler=EDGES, tables=("value",))),
    "a^K alone": Row(lambda hidden: ours(hidden, labeler=EDGES, tables=("key",))),
    "none": Row(lambda hidden: ours(hidden, tables=()), without_ids),
    "pairs: maps, tables": Row(pairs, lambda graph: rg.labels.padded(PAIRS(graph))),
}
LONGER = {"RGATConv": 3.0, "RGCNConv": 6.0, "maps, tables": 3.0, "both tables": 6.0}
ROWS |= {f"{name}, longer": replace(ROWS[name], longer=times) for name, times in LONGER.items()}
SHORT_ROWS = ("RGATConv", "maps, tables", "both tables", "a^K alone")


def model_of(row: Row) -> Kin:
    """The model of a row, as large as that of ``RGATConv`` with a hidden width of 96, as nearly as that goes."""
    size, base = (sum(p.numel() for p in Kin(layer(96)).parameters()) for layer in (rgat, row.layer))
    return Kin(row.layer(96 + round((size - base) / (2 * WIDTH + 1))))


LONGEST = 10
LONG = tuple(range(TRAINED + 1, LONGEST + 1))
LEARNING_RATE = 8e-3


@dataclass(frozen=True)
class Size:
    """How much is trained and tested.

    Attributes:
        steps: training steps.
        families: families per batch.
        tested: test families for each length.
        quiet: at most this many steps of the layer before ego is marked.
    """

    steps: int
    families: int
    tested: int
    quiet: int


FULL, QUICK = Size(200, 12, 60, 8), Size(100, 8, 40, 2)
SECONDS_A_STEP = 0.05


@lru_cache(maxsize=2)
def training(size: Size, seed: int) -> list[tuple[Any, ...]]:
    """One batch for each step."""
    rng = random.Random(f"train {seed}")
    return [families(TRAINED, size.families, rng) for _ in range(size.steps)]


def losses(model: Kin, batches: Sequence[tuple[Any, ...]], quiet: int, seed: int) -> Iterator[Tensor]:
    """Yield the loss of each step."""
    rng = random.Random(f"steps {seed}")
    for step, batch in enumerate(batches):
        yield page.loss(model, *batch, rng, round(quiet * step / len(batches)))


@lru_cache(maxsize=1)
def tested(count: int) -> dict[int, tuple[Any, ...]]:
    """Separate families for each length."""
    rng = random.Random("test")
    return {links: families(links, count, rng) for links in range(2, LONGEST + 1)}


@torch.no_grad()
def accuracy(model: Kin, row: Row, count: int) -> dict[int, float]:
    """For each length, the share of right answers about persons that many links away."""
    right = {}
    for links, (graph, names, kin, away) in tested(count).items():
        answer = model(names, row.labels(graph), links + 2)[-1].argmax(-1)
        right[links] = (answer == kin)[away == links].double().mean().item()
    return right


@dataclass
class Run:
    """One row trained with one seed; the share of right answers by the number of links."""

    variant: str
    seed: int
    right: dict[int, float]
    parameters: int
    seconds: float

    def __post_init__(self) -> None:
        """JSON turns the numbers of links into strings; turn them back."""
        self.right = {int(links): share for links, share in self.right.items()}

    def mean(self, group: Sequence[int] = LONG) -> float:
        """The mean share over several lengths."""
        return mean(self.right[links] for links in group)


COMPARED = [
    (f"{ours}{time}", f"{other}{time}")
    for time in ("", ", longer")
    for ours in ("maps, tables", "pairs: maps, tables", "both tables")
    for other in ("RGATConv", "RGCNConv", "maps, tables")
    if ours != other and f"{ours}{time}" in ROWS
]


def report(runs: Sequence[Run]) -> str:
    """Percent right by the number of links, and differences between rows."""
    groups = {"2–4": range(2, TRAINED + 1), "5–6": (5, 6), "7–8": (7, 8), "9–10": (9, 10), "5–10": LONG}
    lines = [f"{'row':<22}" + "".join(f"{name:>13}" for name in groups) + f"{'parameters':>12}{'CPU seconds':>13}"]
    done = by_row(runs)
    for name in [name for name in ROWS if name in done]:
        mine = done[name]
        cells = "".join(f"{percent([run.mean(group) for run in mine], ''):>13}" for group in groups.values())
        lines.append(f"{name:<22}{cells}{mine[0].parameters:>12,}{mean(run.seconds for run in mine):>13.0f}")
    shares = {name: {run.seed: run.mean() for run in mine} for name, mine in done.items()}
    return "\n".join([*lines, *(f"5–10 links, {line}" for line in leads(shares, COMPARED))])


def begin(arguments: Namespace) -> Work:
    usual = QUICK if arguments.quick else FULL

    def run(name: str, seed: int) -> tuple[Run, Kin]:
        row = ROWS[name]
        size = replace(usual, steps=round(arguments.steps * row.longer))
        batches = [(names, row.labels(graph), *rest) for graph, names, *rest in training(size, seed)]
        torch.manual_seed(seed)
        model = model_of(row)
        steps = losses(model, batches, size.quiet, seed)
        seconds = train(model, steps, size.steps, LEARNING_RATE, title=f"{name}, seed {seed}")
        parameters = sum(parameter.numel() for parameter in model.parameters())
        return Run(name, seed, accuracy(model, row, size.tested), parameters, seconds), model

    all_steps = len(arguments.seeds) * arguments.steps * sum(ROWS[name].longer for name in arguments.rows)
    return Work(asdict(usual) | {"steps": arguments.steps}, all_steps * SECONDS_A_STEP, run)


EXPERIMENT = Experiment(
    Run, [*ROWS], "four rows, one seed, less training; half a minute",
    {"seeds": (5, 1), "steps": (FULL.steps, QUICK.steps)}, begin,
    tell=lambda run: f"{100 * run.mean():.1f} % right at 5 to 10 links", report=report, short_rows=SHORT_ROWS,
)  # fmt: skip
