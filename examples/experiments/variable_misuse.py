"""Misused variables in GREAT's data, or in your own Python source: distances, relations, both, and rotary positions.

The rows differ only in the label of a pair of tokens: none, the clipped distance, the relations of the program's graph,
or the sum of the last two, each with tables of its own. Pairs without an edge attend without a label; where several
edges join a pair, their terms add up. ``key tables only`` is the sum without tables of values, and ``rotary`` has
rotary positions in place of labels. Below the rows come rules that learn nothing.

The last three columns cover only functions with a bug. ``place`` asks where the bug is, given that there is one;
``repair`` asks what belongs there, given the place; for the last column the model has to find both by itself.
``chance`` is a random answer, or for the first question the more frequent answer. Functions have up to 250 tokens and a
free licence. The split is by project. Without labels all places of a name get the same score, and the first of them,
usually a parameter, counts as the answer: so ``none`` is below chance. With 170 functions each figure has a standard
error of up to four points, in addition to the spread of the seeds. GREAT was trained on the whole data set, of which
this is a small part, so its published figures cannot be compared with these.

``--data`` names GREAT's JSON lines or a folder with ``great-varmisuse`` in it (else RELGRAPH_DATA, else ``data``);
nothing is downloaded. ``--source`` plants misuses in Python files. With the modules in the root of Python's own library
(4,842 training functions, 936 for testing, one seed), ``place`` is 21.2 with distances, 23.3 for the last variable and
32.7 with relations; ``repair`` is 68.8, 51.3 for the most frequent variable, and 69.0. The short mode does this with
functions of up to 50 tokens, 150 short steps, two rows and one seed, which is enough to learn ``place`` only; chance is
twice as good there.

Rate and schedule are those of ``quickstart.py``. The number of steps was limited by time, and set after one look at the
validation functions with the rows ``code relations`` and ``none``; nothing else was tuned for any row.
"""

from __future__ import annotations

import os
import platform
import random
import sysconfig
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from example_options import Options
from example_runs import Runs, by_row, percent, picture, train
from great_data import PARTS, Batch, Record, batches, great_files, read_great, read_source
from great_data import ROWS as WORDS
from kept_results import SHORT_MODEL
from torch import Tensor
from variable_misuse import RELATIONS, WIDTH, Detective, loss_of

import relgraph as rg
from experiments import Experiment, Work

LONGEST, BATCH_TOKENS = 250, 2000
QUICK_LONGEST, QUICK_BATCH_TOKENS, QUICK_FUNCTIONS, QUICK_FILES = 50, 500, 2000, 200
LEARNING_RATE, STEPS, QUICK_STEPS = 2e-3, 400, 150


def read_parts(arguments: Namespace) -> dict[str, list[Record]]:
    """All questions, by part of the data; fewer of each for a quick run."""
    if arguments.source:
        files = arguments.source[:QUICK_FILES] if arguments.quick else arguments.source
        records = list(read_source(files, arguments.longest, random.Random(0)))
    else:
        records = list(read_great(great_files(arguments.data), arguments.longest))
    parts = {part: [record for record in records if record.part == part] for part in PARTS}
    if arguments.quick:
        parts = {part: mine[:QUICK_FUNCTIONS] for part, mine in parts.items()}
    for part, mine in parts.items():
        if not any(record.error for record in mine):
            raise SystemExit(f"too few projects: no function with a bug is left for {part}, of {len(records)} in all")
    return parts


@dataclass(frozen=True)
class Variant:
    """One row: its labels, and options of attention."""

    labeler: rg.Labeler | None = None
    options: Callable[[], dict[str, Any]] = dict

    def build(self) -> Detective:
        return Detective(WORDS, self.labeler, **self.options())

    def given(self, batch: Batch) -> tuple[Tensor, rg.Labels, Tensor]:
        """What the model reads: words, labels and places."""
        graph = batch.graph
        # Without a labeler, labels only say which tokens belong to the same function; they have no ids.
        bare = rg.DistanceLabels(graph.num_nodes, lookup=[-1], left=0, ptr=graph.ptr)
        return batch.words, bare if self.labeler is None else self.labeler(graph), batch.places


DISTANCE = rg.ClippedDistance(8)
VARIANTS = {
    "none": Variant(options=lambda: {"tables": ()}),
    "distance": Variant(DISTANCE),
    "code relations": Variant(RELATIONS),
    "distance + code": Variant(DISTANCE + RELATIONS),
    "key tables only": Variant(DISTANCE + RELATIONS, lambda: {"tables": ("key",)}),
    "rotary": Variant(options=lambda: {"rotary": rg.RotaryPositions(WIDTH // 2)}),
}


def losses(model: Detective, variant: Variant, data: Sequence[Batch], seed: int) -> Iterator[Tensor]:
    """Yield the loss of each step, without end; each epoch takes the batches in a new order."""
    rng = random.Random(seed)
    while True:
        for batch in reversed(rng.sample(data, len(data))):
            yield loss_of(model, *variant.given(batch), batch.owner, batch.error, batch.repair)


COLUMNS = {"bug": "is there a bug?", "place": "place", "repair": "repair", "both": "place and repair"}


@dataclass
class Run:
    """One row trained with one seed, and the share of right answers, by part of the data and question."""

    variant: str
    seed: int
    right: dict[str, dict[str, float]]
    seconds: float


@torch.no_grad()
def accuracy(model: Detective, variant: Variant, data: Sequence[Batch]) -> dict[str, float]:
    """The share of right answers to each question of :data:`COLUMNS`; all but the first ask about buggy functions."""
    model.eval()
    hits: dict[str, list[Tensor]] = {name: [] for name in COLUMNS}
    for batch in data:
        x, places = model(*variant.given(batch))
        bug, first = batch.error > 0, places.argmax(1)
        best = 1 + places[:, 1:].argmax(1)
        found = (first == batch.error) & (model.repair(x, batch.owner, first).argmax(1) == batch.repair)
        hits["bug"].append((first > 0) == bug)
        hits["place"].append((best == batch.error)[bug])
        hits["repair"].append((model.repair(x, batch.owner, batch.error).argmax(1) == batch.repair)[bug])
        hits["both"].append(found[bug])
    model.train()
    return {name: torch.cat(found).double().mean().item() for name, found in hits.items()}


def guesses(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    """How often rules are right: a random or the usual answer, and the variable seen most often or last before."""
    bugs = [record for record in records if record.error]
    rules: dict[str, list[float]] = {"chance": [], "most often seen": [], "last before": []}
    places, ends = [], []
    for record in bugs:
        here = [(at, number) for at, number in enumerate(record.variables) if number >= 0]
        others = [number for _, number in here if number != record.variables[record.error]]
        before = [n for at, n in here if at < record.error and n != record.variables[record.error]] or others
        places.append(1 / len(here))
        ends.append(float(here[-1][0] == record.error))
        rules["chance"].append(1 / len(set(others)))
        rules["most often seen"].append(float(max(others, key=others.count) == record.repair))
        rules["last before"].append(float(before[-1] == record.repair))
    clean = 1 - len(bugs) / len(records)
    found = {name: {"repair": mean(hits)} for name, hits in rules.items()}
    found["chance"] |= {"bug": max(clean, 1 - clean), "place": mean(places)}
    return found | {"last place": {"place": mean(ends)}}


def report(runs: Sequence[Run], rules: dict[str, dict[str, float]]) -> str:
    """The table that the command prints."""
    lines = [f"{'variant':<18}" + "".join(f"{title:>18}" for title in COLUMNS.values()) + f"{'seconds':>10}"]
    for name, mine in by_row(runs).items():
        cells = [percent([run.right["test"][column] for run in mine], "") for column in COLUMNS]
        lines.append(f"{name:<18}" + "".join(f"{c:>18}" for c in cells) + f"{mean(r.seconds for r in mine):>10.0f}")
    for name, right in rules.items():
        cells = [f"{100 * right[column]:.1f}" if column in right else "–" for column in COLUMNS]
        lines.append(f"{name:<18}" + "".join(f"{c:>18}" for c in cells) + f"{'–':>10}")
    return "\n".join(lines)


def tell(run: Run) -> str:
    return ", ".join(f"{title} {100 * run.right['test'][name]:.1f} %" for name, title in COLUMNS.items())


SHOWN_TOKENS = 26


def shown(records: Sequence[Record]) -> Record:
    """The function with a bug whose length fits a picture best."""
    return min((record for record in records if record.error), key=lambda r: abs(len(r.tokens) - SHOWN_TOKENS))


@torch.no_grad()
def label_mass(model: Detective, variant: Variant, data: Sequence[Batch]) -> Tensor:
    """The attention that each label gets from places of variables, ``[L, H, R]``, by layer and head."""
    with rg.record_attention(model) as record:
        for batch in data:
            model(*variant.given(batch))
    variables = [batch.places[batch.owner >= 0] for batch in data]
    layers: list[list[Any]] = [*record.values()]
    masses = [[call.label_mass[:, at] for call, at in zip(calls, variables, strict=True)] for calls in layers]
    return torch.stack([torch.cat(mass, 1).mean(1) for mass in masses])


@torch.no_grad()
def draw_relations(
    folder: Path, model: Any, variant: Variant, record: Record, data: Sequence[Batch], note: str
) -> None:
    """The relations of one function, what its bug looks at, and the attention of variables by relation."""
    tokens, bug = [token.strip("#").lower() for token in record.tokens], record.tokens[record.error]
    with picture(folder / "labels.png", 10, 7.5) as ax:
        first = rg.CodeRelations(duplicates="first")  # a picture has one label per pair
        rg.plot.label_matrix(first(record.graph), first.names, tokens=tokens, ax=ax)
        ax.set_title(f"Relations of a function in which “{bug}” at token {record.error} is wrong")
    with rg.record_attention(model, weights=True) as attention:
        model(*variant.given(Batch.make([record])))
    *_, (last,) = attention.values()
    with picture(folder / "attention.png", 10, 3.5, note=note) as ax:
        rg.plot.attention_tokens(last.weights, tokens, query=record.error, ax=ax)
        ax.set_title(f"What the wrong “{bug}” looks at in the last layer, mean of heads")
    mass = label_mass(model, variant, data)
    with picture(folder / "mass.png", 10, 5, note=note) as ax:
        rg.plot.label_mass(mass, RELATIONS.names, axes="LHR", ax=ax)
        ax.set_title("Attention of variables by relation, mean over test functions")


def options(options: Options) -> None:
    where = options.add_mutually_exclusive_group()
    where.add_argument("--data", type=Path, help="GREAT's JSON lines, or a folder with them (RELGRAPH_DATA, else data)")
    where.add_argument(
        "--source", type=Path, nargs="+", help="Python files in which to plant misuses, in place of --data"
    )


def check(options: Options, arguments: Namespace) -> None:
    if arguments.quick and not arguments.data and not arguments.source:
        library = Path(sysconfig.get_paths()["stdlib"])
        print(f"--quick reads no data: misuses are planted in the library of Python {platform.python_version()}")
        arguments.source = sorted(library.glob("*.py"))
    arguments.data = arguments.data or Path(os.environ.get("RELGRAPH_DATA", "data"))
    if not arguments.source and not great_files(arguments.data):
        options.error(
            f"--data must name GREAT's JSON lines or a folder with them, got {arguments.data}; --quick needs no files"
        )


def begin(arguments: Namespace) -> Work:
    parts, steps = read_parts(arguments), arguments.steps
    tokens = QUICK_BATCH_TOKENS if arguments.quick else BATCH_TOKENS
    data = {part: batches(records, tokens, random.Random(0)) for part, records in parts.items()}
    counts = {part: [len(mine), sum(record.error > 0 for record in mine)] for part, mine in parts.items()}
    print("; ".join(f"{part}: {count} functions, {bugs} with a bug" for part, (count, bugs) in counts.items()))
    settings: dict[str, Any] = {"steps": steps, "longest": arguments.longest}
    settings |= {"data": "planted" if arguments.source else "GREAT", "functions_and_bugs": counts}

    def run(name: str, seed: int) -> tuple[Run, Detective]:
        torch.manual_seed(seed)
        variant = VARIANTS[name]
        model = variant.build()
        taken = losses(model, variant, data["train"], seed)
        seconds = train(model, taken, steps, LEARNING_RATE, title=f"{name}, seed {seed}")
        right = {part: accuracy(model, variant, data[part]) for part in ("validation", "test")}
        return Run(name, seed, right, seconds), model

    def draw(runs: Runs) -> None:
        if "code relations" in arguments.rows:
            variant, note = VARIANTS["code relations"], SHORT_MODEL if arguments.quick else ""
            model = runs.load(variant.build(), "code relations", 0)
            draw_relations(runs.folder, model, variant, shown(parts["test"]), data["test"], note)

    seconds = len(arguments.rows) * len(arguments.seeds) * steps * (0.04 + 4e-5 * tokens)  # as measured
    return Work(settings, seconds, run, rules=lambda: guesses(parts["test"]), draw=draw)


EXPERIMENT = Experiment(
    Run, [*VARIANTS], "about a minute; plants misuses in Python's library",
    {"seeds": (3, 1), "steps": (STEPS, QUICK_STEPS), "longest": (LONGEST, QUICK_LONGEST)}, begin, tell, report,
    long_rows=[*VARIANTS][:4], short_rows=("distance", "code relations"), options=options, check=check,
)  # fmt: skip
