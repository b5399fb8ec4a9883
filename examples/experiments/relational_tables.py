"""What contracts need: labels of relations and times, and foreign keys as vectors.

Every cell knows its column and its value. The rows of the table differ in what else is known:

- ``no labels``: nothing, so nothing says which cells make up a row;
- ``keys as vectors``: a random vector for each row of the sample. A cell gets that of its row, and another part of its
  input is the sum of those of the rows that its foreign keys refer to; ``longer`` trains three times as long;
- ``relations``: labels of pairs of cells: same row, parent row, child row, same column, other;
- ``relations, time``: all of these labels but the first are split by which row is earlier.
"""

from __future__ import annotations

import random
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import mean
from typing import Any

import pandas as pd
import torch
from example_runs import Runs, by_row, by_seed, leads, percent, train
from relational_tables import LABELER, Reader, make_batches, make_tables, pack
from torch import Tensor
from torch.nn.functional import cross_entropy

import relgraph as rg
from experiments import Experiment, Work

PAIRS = rg.Window()  # all cells of a sample, without ids
RELATIONS = rg.labelers.CellRelations(time=False, attend="all")
NAME = 32  # numbers in the random vector of a row
LEARNING_RATE = 4e-3
OURS = "relations, time"


@dataclass(frozen=True)
class Variant:
    """One row: the labels of pairs, whether cells know keys as vectors, and how many times as long it trains."""

    labeler: rg.Labeler = PAIRS
    keys: bool = False
    longer: int = 1


VARIANTS = {
    "no labels": Variant(),
    "keys as vectors": Variant(keys=True),
    "keys as vectors, longer": Variant(keys=True, longer=3),
    "relations": Variant(RELATIONS),
    OURS: Variant(LABELER),
}


@dataclass(frozen=True)
class Batch:
    """Samples packed end to end: cells as on the page, vectors of keys, labels by labeler, and the answers."""

    cells: list[Tensor]
    keys: Tensor  # [T, 2 * NAME]: the vector of the own row, and the sum of those that its foreign keys refer to
    labels: dict[rg.Labeler, rg.Labels]
    answers: Tensor

    @classmethod
    def make(cls, numbers: Iterator[int], samples: Sequence[Any], answers: Sequence[int]) -> Batch:
        """The next of ``numbers`` seeds the vectors."""
        draw, keys = torch.Generator().manual_seed(next(numbers)), []
        for sample in samples:
            own = torch.randn(len(sample.rows), NAME, generator=draw)
            child, parent = sample.cells.parents
            up = torch.zeros_like(own).index_add_(0, child, own[parent])
            keys.append(torch.cat([own, up], 1)[sample.cells.rows])
        cells, with_time, right = pack(samples, answers)
        relations = RELATIONS([sample.cells for sample in samples])
        borders = rg.DistanceLabels(relations.q_len, lookup=[-1], left=0, ptr=relations.k_ptr)
        return cls(cells, torch.cat(keys), {PAIRS: borders, RELATIONS: relations, LABELER: with_time}, right)

    def scores(self, model: Reader, variant: Variant) -> Tensor:
        return model([*self.cells, *[self.keys] * variant.keys], self.labels[variant.labeler])


@dataclass(frozen=True)
class Size:
    """How much is trained and tested.

    Attributes:
        steps: training steps.
        contracts: contracts per batch.
        batches: number of training batches.
        tests: number of test batches.
    """

    steps: int
    contracts: int
    batches: int
    tests: int


FULL, QUICK = Size(500, 24, 250, 20), Size(250, 16, 100, 10)
SECONDS_A_STEP = 0.03


def losses(model: Reader, variant: Variant, batches: Sequence[Batch], seed: int) -> Iterator[Tensor]:
    """Yield the loss of each step, without end."""
    rng = random.Random(seed)
    while True:
        batch = rng.choice(batches)
        yield cross_entropy(batch.scores(model, variant), batch.answers)


@dataclass
class Run:
    """One row trained with one seed."""

    variant: str
    seed: int
    accuracy: float
    seconds: float


@torch.no_grad()
def accuracy(model: Reader, variant: Variant, batches: Sequence[Batch]) -> float:
    """The share of contracts whose need is named correctly."""
    right = [batch.scores(model, variant).argmax(-1) == batch.answers for batch in batches]
    return torch.cat(right).double().mean().item()


def without_times(tables: dict[str, pd.DataFrame]) -> float:
    """How often the most frequent skill in all visits of a contract is right, a tie counting in part."""
    skills = tables["visits"].groupby("contract").skill.agg(list)
    shares = []
    for contract, need in enumerate(tables["contracts"].need):
        counts = Counter(skills[contract])
        best = [skill for skill in counts if counts[skill] == max(counts.values())]
        shares.append((need in best) / len(best))
    return mean(shares)


def report(runs: Sequence[Run]) -> str:
    """The table that the command prints, and how far the row with times is ahead of the others."""
    lines = [f"{'row':<25}{'right':>16}{'seconds':>9}"]
    for name, mine in by_row(runs).items():
        right = percent([run.accuracy for run in mine])
        lines.append(f"{name:<25}{right:>16}{mean(run.seconds for run in mine):>9.0f}")
    others = [(OURS, name) for name in VARIANTS if name != OURS]
    return "\n".join([*lines, *leads(by_seed(runs, "accuracy"), others)])


def begin(arguments: Namespace) -> Work:
    size = replace(QUICK if arguments.quick else FULL, steps=arguments.steps)
    steps = {name: size.steps * VARIANTS[name].longer for name in arguments.rows}
    firsts = [iter(range(0, 10**9, size.contracts)) for _ in range(2)]  # batches are seeded by their first contract
    _, training = make_batches(size.batches, size.contracts, "train", partial(Batch.make, firsts[0]))
    database, tests = make_batches(size.tests, size.contracts, "test", partial(Batch.make, firsts[1]))

    def run(name: str, seed: int) -> tuple[Run, Reader]:
        torch.manual_seed(seed)
        row = VARIANTS[name]
        model = Reader(database, row.labeler, 2 * NAME * row.keys)
        taken = losses(model, row, training, seed)
        seconds = train(model, taken, steps[name], LEARNING_RATE, title=f"{name}, seed {seed}")
        return Run(name, seed, accuracy(model, row, tests), seconds), model

    def draw(runs: Runs) -> None:
        rule = without_times(make_tables(size.tests * size.contracts, "test"))
        print(f"all visits, their most frequent skill: {100 * rule:.1f} %")
        runs.save(rule={"right": rule})

    return Work(asdict(size), sum(steps.values()) * len(arguments.seeds) * SECONDS_A_STEP, run, draw=draw)


EXPERIMENT = Experiment(
    Run, [*VARIANTS], "two rows, one seed, less training; half a minute",
    {"seeds": (3, 1), "steps": (FULL.steps, QUICK.steps)}, begin,
    tell=lambda run: f"{100 * run.accuracy:.1f} % right", report=report, short_rows=("keys as vectors", OURS),
)  # fmt: skip
