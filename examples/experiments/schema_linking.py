"""The column that a question asks for: distance, rotary positions, matching names, and RAT-SQL's relations.

All rows see the words, and which item is a word, a column or a table. They differ in what else is known:

- ``no relations``: nothing; ``distance``: the clipped distance of two items, which come table by table; ``rotary``:
  positions that turn queries and keys;
- ``distance, name match``: each column and table also knows whether its name occurs in the question, and each column
  whether its table's name does. That settles ``of``;
- ``schema relations``: labels of what two items are to each other; ``key tables only`` leaves out their value tables.

The last lines are rules: any column with the right name, and
all that names tell, which takes the column of that name in the named table, or for ``behind`` one of those in other
tables. Training and test questions are the same for all seeds, so ± covers only initial values and the order of
batches. Layers, rate and steps were tuned only for ``schema relations``, on other questions.

The short mode trains two rows on fewer questions for fewer steps.
"""

from __future__ import annotations

import random
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean
from typing import Any

import torch
from example_runs import by_row, by_seed, leads, percent, train
from schema_linking import LABELER, MARKS, NUMBER, Pointer, make_batches, pack
from torch import Tensor
from torch.nn.functional import cross_entropy

import relgraph as rg
from experiments import Experiment, Work

DISTANCE = rg.ClippedDistance(8)
LEARNING_RATE = 3e-3
OURS = "schema relations"


def match_names(schema: rg.labelers.Schema) -> list[tuple[bool, bool]]:
    """For each word, column and table: does its name occur in the question, and does its table's name?"""
    asked = set(schema.question)
    tables = [name in asked for (name,) in schema.tables]
    columns = [(name in asked, table is not None and tables[table]) for table, (name,) in schema.columns]
    return [*[(False, False)] * len(schema.question), *columns, *((match, match) for match in tables)]


@dataclass(frozen=True)
class Batch:
    """Questions packed end to end: items as on the page, labels by labeler, and one target per question."""

    items: tuple[Tensor, Tensor, list[int]]
    matches: Tensor  # [T, 2], 1 where the item's name occurs in the question, and where its table's name does
    labels: dict[rg.Labeler | None, rg.Labels]
    target: Tensor
    behind: Tensor

    @classmethod
    def make(cls, questions: Sequence[Any], number: Mapping[str, int] = NUMBER) -> Batch:
        items, relations, target = pack(questions, number)
        matches = torch.tensor([match for schema, _, _ in questions for match in match_names(schema)]).float()
        borders = rg.DistanceLabels(relations.q_len, lookup=[-1], left=0, ptr=relations.k_ptr)
        distance = DISTANCE(relations.q_len, ptr=relations.k_ptr)
        labels = {None: borders, DISTANCE: distance, LABELER: relations}
        return cls(items, matches, labels, target, torch.tensor([behind for _, _, behind in questions]))


@dataclass(frozen=True)
class Row:
    """A row of the table: what attention knows about a pair, and whether items know which names match.

    In all rows attention stays within a question of the packed batch.
    """

    labeler: rg.Labeler | None = None
    matches: bool = False
    tables: tuple[str, ...] = ("key", "value")
    rotary: bool = False

    def model(self) -> Pointer:
        rotary = rg.RotaryPositions(16) if self.rotary else None
        attention = rg.RelationAttention(64, 4, labeler=self.labeler, tables=self.tables, rotary=rotary)
        return Pointer(2 * self.matches, attention=attention)

    def scores(self, model: Pointer, batch: Batch) -> Tensor:
        """``[B, C]``, one score per column; -inf where a schema has fewer columns."""
        return model(*batch.items, batch.labels[self.labeler], batch.matches if self.matches else None)


ROWS = {
    "no relations": Row(tables=()),
    "distance": Row(DISTANCE),
    "rotary": Row(rotary=True),
    "distance, name match": Row(DISTANCE, matches=True),
    "key tables only": Row(LABELER, tables=("key",)),
    OURS: Row(LABELER),
}
QUICK_ROWS = ("distance, name match", OURS)


@dataclass(frozen=True)
class Size:
    """How much is trained and tested.

    Attributes:
        steps: training steps.
        questions: questions per batch.
        batches: number of training batches.
        tests: number of test batches.
    """

    steps: int
    questions: int
    batches: int
    tests: int


FULL, QUICK = Size(700, 24, 150, 20), Size(280, 12, 150, 30)
SECONDS_A_STEP = {True: 0.04, False: 0.048}  # in the short mode, and in the long one


def losses(row: Row, model: Pointer, batches: Sequence[Batch], seed: int) -> Iterator[Tensor]:
    """Yield the loss of each step, without end."""
    rng = random.Random(seed)
    while True:
        batch = rng.choice(batches)
        yield cross_entropy(row.scores(model, batch), batch.target)


@dataclass
class Run:
    """One row trained with one seed."""

    variant: str
    seed: int
    accuracy: float
    of: float
    behind: float
    seconds: float


@torch.no_grad()
def hits(row: Row, model: Pointer, batches: Sequence[Batch]) -> dict[str, float]:
    """The share of questions answered correctly: of all, and of each mark."""
    return by_mark(batches, torch.cat([row.scores(model, one).argmax(-1) == one.target for one in batches]).double())


def by_mark(batches: Sequence[Batch], shares: Tensor) -> dict[str, float]:
    """The mean over all questions, and over those of each mark."""
    behind = torch.cat([batch.behind for batch in batches])
    parts = {"accuracy": shares, "of": shares[~behind], "behind": shares[behind]}
    return {name: part.mean().item() for name, part in parts.items()}


def guesses(batches: Sequence[Batch]) -> dict[str, dict[str, float]]:
    """How often two rules are right, over all questions and for each mark."""
    chances: dict[str, list[float]] = {"a column of that name": [], "all that names tell": []}
    for batch in batches:
        _, kinds, sizes = batch.items
        for matches, kind, behind in zip(batch.matches.split(sizes), kinds.split(sizes), batch.behind, strict=True):
            named, home = matches[kind == 1].bool().T
            chances["a column of that name"].append(1 / int(named.sum()))
            chances["all that names tell"].append(1 / int((named & (home != behind)).sum()))
    return {name: by_mark(batches, torch.tensor(values).double()) for name, values in chances.items()}


def report(runs: Sequence[Run], rules: dict[str, dict[str, float]]) -> str:
    """The table that the command prints, how far relations are ahead of the other rows, and what rules give."""
    lines = [f"{'variant':<22}" + "".join(f"{name:>16}" for name in ("accuracy", *MARKS)) + f"{'seconds':>9}"]
    for name, mine in by_row(runs).items():
        cells = (percent([getattr(run, column) for run in mine]) for column in ("accuracy", *MARKS))
        lines.append(f"{name:<22}" + "".join(f"{c:>16}" for c in cells) + f"{mean(r.seconds for r in mine):>9.0f}")
    lines += leads(by_seed(runs, "accuracy"), [(OURS, name) for name in ROWS if name != OURS])
    for name, right in rules.items():
        lines.append(f"{name}: " + ", ".join(f"{column} {100 * share:.1f} %" for column, share in right.items()))
    return "\n".join(lines)


def begin(arguments: Namespace) -> Work:
    size = replace(QUICK if arguments.quick else FULL, steps=arguments.steps)
    training = make_batches(size.batches, size.questions, "train", Batch.make)
    tests = make_batches(size.tests, size.questions, "final", Batch.make)

    def run(name: str, seed: int) -> tuple[Run, Pointer]:
        torch.manual_seed(seed)
        row = ROWS[name]
        model = row.model()
        taken = losses(row, model, training, seed)
        seconds = train(model, taken, size.steps, LEARNING_RATE, title=f"{name}, seed {seed}")
        return Run(name, seed, **hits(row, model, tests), seconds=seconds), model

    each = size.steps * SECONDS_A_STEP[arguments.quick]
    return Work(asdict(size), len(arguments.rows) * len(arguments.seeds) * each, run, rules=lambda: guesses(tests))


EXPERIMENT = Experiment(
    Run, [*ROWS], "two rows, one seed, less training; half a minute",
    {"seeds": (3, 1), "steps": (FULL.steps, QUICK.steps)}, begin,
    tell=lambda run: f"{100 * run.accuracy:.1f} % right", report=report, short_rows=QUICK_ROWS,
)  # fmt: skip
