"""Misused variables: where is the bug, and what belongs there?
============================================================

Small Transformers look for misused variables in Python functions, with and without a program's relations.

The task is joint localization and repair (Vasic et al. 2019) on the data of GREAT (Hellendoorn et al. 2020): in half of
the functions, another variable has replaced one use of a variable. The model points at the token with the bug, or at
the first token if there is no bug, and at the variable that belongs there. The rows differ only in the label of a pair
of tokens: none, the clipped distance, the relations of the program's graph (reads and writes, control flow, syntax;
:class:`relgraph.CodeRelations`), or the sum of the last two. Functions are packed, without padding. All rows with three
seeds take about ten minutes on one CPU core, the short mode about one. The example also reads any file or folder of
GREAT's JSON lines, and your own Python source, in which it plants misuses.

.. code-block:: sh

    python examples/variable_misuse.py
    python examples/variable_misuse.py --quick
    python examples/variable_misuse.py --data some.jsonl.gz
    python examples/variable_misuse.py --source */*.py

Percent right on test functions, three seeds, mean ± standard deviation, 400 steps per row, as the first of these
commands printed in November 2026 on 2,069 functions from GREAT's development set (of up to 250 tokens and with a free
licence; 1,561 from 603 projects for training, 323 from 154 others for testing, of which 170 have a bug):

.. code-block:: text

    variant              is there a bug?             place            repair  place and repair
    none                      47.4 ± 0.0         5.1 ± 0.3        49.6 ± 1.8         0.0 ± 0.0
    distance                  47.9 ± 0.6        22.4 ± 2.1        55.5 ± 2.7         1.0 ± 1.2
    code relations            51.5 ± 3.1        29.0 ± 5.1        57.3 ± 4.7         7.6 ± 3.9
    distance + code           55.4 ± 5.6        33.3 ± 7.9        57.1 ± 2.7         9.8 ± 5.1
    chance                          52.6              10.2              47.9                 –
    most often seen                    –                 –              41.2                 –
    last before                        –                 –              42.9                 –
    last place                         –              22.4                 –                 –

The last three columns cover only functions with a bug. ``place`` asks where the bug is, given that there is one;
``repair`` asks what belongs there, given the place; for the last column the model has to find both by itself.
``chance`` is a random answer, or for the first question the more frequent answer.

Results, column by column. ``place``, and with it ``place and repair``: relations did better than distances with each of
the three seeds, but three seeds that differ this much cannot promise it for others. The 95 % interval of the difference
in ``place`` is -4 to +18 points for ``code relations`` and -7 to +29 for ``distance + code`` (Welch's t from means and
deviations). The simplest baseline always names the last variable. It is as good as distances; relations are 7 and 11
points ahead of it, with the same uncertainty. ``repair``: the three rows with labels tie, some points above chance.
``is there a bug?``: no row has learned it, and all are close to a constant answer. ``distance + code`` and ``code
relations`` tie in every column. Without labels all places of a name get the same score, and the first of them, usually
a parameter, counts as the answer: so ``none`` is below chance. With 170 functions each figure has a standard error of
up to four points, in addition to the spread of the seeds. GREAT was trained on the whole data set, of which this is a
small part, so its published figures cannot be compared with these.

``--source`` with the modules in the root of Python's own library (4,842 training functions, 936 for testing, one seed)
gives the same picture. ``place``: 21.2 with distances, 23.3 for the last variable, 32.7 with relations. ``repair``:
68.8 with distances, 51.3 for the most frequent variable, 69.0 with relations.

Rate and schedule are those of the quickstart. The number of steps was limited by time, and set after one look at the
validation functions with the rows ``code relations`` and ``none``; nothing else was tuned for any row.

**The short mode** made the output below and all pictures except the first, which shows the long run. It plants its
misuses in the modules at the root of the standard library of the Python that runs it. It takes functions of up to 50
tokens and trains two rows for 150 short steps with one seed. That is enough to learn ``place`` only, where some 140
questions give each figure a standard error of about four points. In short functions chance itself is twice as good as
above, so the two tables cannot be compared.

``--data`` names a folder with ``great-varmisuse`` in it (else RELGRAPH_DATA, else ``data``); nothing is downloaded. The
split is by project. The command writes ``results.json``, models and pictures to ``variable-misuse-out/``. After Ctrl-C
the same command continues.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from example_options import Options
from example_runs import INTERRUPTED, Runs, announce, percent, picture, train, until_stopped
from great_data import PARTS, ROWS, Batch, Record, batches, great_files, read_great, read_source
from kept_results import SHORT, SHORT_MODEL, Kept
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot
from tqdm import tqdm

import relgraph as rg

# %%
# The task
# --------
#
# A question is a function as tokens with the graph of its program, the places of its local variables, the place of the
# bug (0 for none), and the variable that belongs there: see ``Record`` in ``examples/great_data.py``. The graph is that
# of the program *with* the bug: edges of the original program would reveal the answer.

LONGEST, BATCH_TOKENS = 250, 2000
QUICK_LONGEST, QUICK_BATCH_TOKENS, QUICK_FUNCTIONS, QUICK_FILES = 50, 500, 2000, 200


def read_parts(arguments: argparse.Namespace) -> dict[str, list[Record]]:
    """All questions, by part of the data; fewer of each for a quick run."""
    if arguments.source:
        files = arguments.source[:QUICK_FILES] if arguments.quick else arguments.source
        files = tqdm(files, desc="reading", disable=None, leave=False)
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


# %%
# The labels
# ----------
#
# Each type of edge has two labels in :class:`~relgraph.CodeRelations`, one per direction. Pairs without an edge attend
# without a label; where several edges join a pair, their terms add up. ``DISTANCE + RELATIONS`` has both, each with its
# own tables.

DISTANCE, RELATIONS = rg.ClippedDistance(8), rg.CodeRelations()
VARIANTS: dict[str, rg.Labeler | None] = {
    "none": None,
    "distance": DISTANCE,
    "code relations": RELATIONS,
    "distance + code": DISTANCE + RELATIONS,
}
QUICK_VARIANTS = ("distance", "code relations")

# %%
# The model
# ---------
#
# A token's vector is the sum of its words' vectors. After three layers of attention, each place gets a score, and each
# variable gets a score that is averaged over all its places.

WIDTH, HEADS, LAYERS, HIDDEN, DROPOUT = 64, 2, 3, 128, 0.1


class Detective(nn.Module):
    """A Transformer over the tokens of functions that points at a bug, and at the variable that belongs there."""

    def __init__(self, labeler: rg.Labeler | None) -> None:
        super().__init__()
        self.labeler = labeler
        self.words = nn.EmbeddingBag(ROWS, WIDTH, mode="sum", padding_idx=0)
        nn.init.normal_(self.words.weight, std=0.25)
        layer = rg.RelationEncoderLayer(WIDTH, HEADS, HIDDEN, DROPOUT, "gelu", norm_first=True, labeler=labeler)
        self.encoder = rg.RelationEncoder(layer, LAYERS, nn.LayerNorm(WIDTH))
        self.drop = nn.Dropout(DROPOUT)
        self.suspicion = nn.Linear(WIDTH, 1)
        self.asks = nn.Linear(WIDTH, WIDTH)
        self.answers = nn.Linear(WIDTH, WIDTH)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The places' vectors ``[B, P, WIDTH]``, and a score for the bug at each place, ``[B, P]``."""
        graph = batch.graph
        # Without a labeler, labels only say which tokens belong to the same function; they have no ids.
        bare = rg.DistanceLabels(graph.num_nodes, lookup=[-1], left=0, ptr=graph.ptr)
        labels = bare if self.labeler is None else self.labeler(graph)
        count = (batch.words > 0).sum(-1, keepdim=True).clamp(min=1)
        x = self.encoder(self.drop(self.words(batch.words) / count.sqrt()), labels=labels)[batch.places]
        return x, self.suspicion(x)[..., 0].masked_fill(batch.padding, float("-inf"))

    def repair(self, x: Tensor, batch: Batch, place: Tensor) -> Tensor:
        """``[B, V]``, a score for each variable as replacement at ``place``, averaged over the variable's places.

        The variable at ``place`` itself, and variables that a function does not have, get -inf.
        """
        rows = torch.arange(len(place))
        scores = torch.einsum("bd,bpd->bp", self.asks(x[rows, place]), self.answers(x)) / WIDTH**0.5
        occurs = one_hot(batch.owner + 1)[..., 1:].to(x.dtype)
        times = occurs.sum(1)
        total = torch.einsum("bp,bpv->bv", scores, occurs)
        return (total / times.clamp(min=1)).masked_fill((times == 0) | (occurs[rows, place] > 0), float("-inf"))


# %%
# Training
# --------
#
# ``train`` in ``example_runs.py`` trains on these losses with AdamW, warm-up and linear decay.

LEARNING_RATE = 2e-3
STEPS, QUICK_STEPS = 400, 150


def loss_of(model: Detective, batch: Batch) -> Tensor:
    """The loss for the bug's place, plus the loss for the repair, given the place."""
    x, places = model(batch)
    loss, bug = cross_entropy(places, batch.error), batch.error > 0
    if bug.any():
        loss = loss + cross_entropy(model.repair(x, batch, batch.error)[bug], batch.repair[bug])
    return loss


def losses(model: Detective, data: Sequence[Batch], seed: int) -> Iterator[Tensor]:
    """Yield the loss of each step, without end; each epoch takes the batches in a new order."""
    rng = random.Random(seed)
    while True:
        for batch in reversed(rng.sample(data, len(data))):
            yield loss_of(model, batch)


# %%
# What came out
# -------------
#
# There are four questions; the last three cover only functions with a bug. Below the rows come rules that learn
# nothing.

COLUMNS = {"bug": "is there a bug?", "place": "place", "repair": "repair", "both": "place and repair"}


@dataclass
class Run:
    """One row trained with one seed, and the share of right answers, by part of the data and question."""

    variant: str
    seed: int
    right: dict[str, dict[str, float]]
    seconds: float
    losses: list[float] = field(repr=False)


@torch.no_grad()
def accuracy(model: Detective, data: Sequence[Batch]) -> dict[str, float]:
    """The share of right answers to each question of :data:`COLUMNS`; all but the first ask about buggy functions."""
    model.eval()
    hits: dict[str, list[Tensor]] = {name: [] for name in COLUMNS}
    for batch in data:
        x, places = model(batch)
        bug, first = batch.error > 0, places.argmax(1)
        best = 1 + places[:, 1:].argmax(1)
        found = (first == batch.error) & (model.repair(x, batch, first).argmax(1) == batch.repair)
        hits["bug"].append((first > 0) == bug)
        hits["place"].append((best == batch.error)[bug])
        hits["repair"].append((model.repair(x, batch, batch.error).argmax(1) == batch.repair)[bug])
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


def report(runs: Sequence[Run], baselines: dict[str, dict[str, float]]) -> str:
    """The table that the command prints."""
    lines = [f"{'variant':<18}" + "".join(f"{title:>18}" for title in COLUMNS.values()) + f"{'seconds':>10}"]
    for name in dict.fromkeys(run.variant for run in runs):
        mine = [run for run in runs if run.variant == name]
        cells = [percent([run.right["test"][column] for run in mine], "") for column in COLUMNS]
        lines.append(f"{name:<18}" + "".join(f"{c:>18}" for c in cells) + f"{mean(r.seconds for r in mine):>10.0f}")
    for name, right in baselines.items():
        cells = [f"{100 * right[column]:.1f}" if column in right else "–" for column in COLUMNS]
        lines.append(f"{name:<18}" + "".join(f"{c:>18}" for c in cells) + f"{'–':>10}")
    return "\n".join(lines)


# %%
# Pictures
# --------
#
# The first picture shows the results of the long run. The others show one function with a
# bug, with its relations and with what the bug's token looks at in the last layer, and the attention that each relation
# gets from variables in test functions, by layer and head. A pair with several relations counts for each of them.
# :func:`~relgraph.record_attention` records what the layers attend to.

SHOWN_TOKENS = 26


def shown(records: Sequence[Record]) -> Record:
    """The function with a bug whose length fits a picture best."""
    return min((record for record in records if record.error), key=lambda r: abs(len(r.tokens) - SHOWN_TOKENS))


@torch.no_grad()
def label_mass(model: Detective, data: Sequence[Batch]) -> Tensor:
    """The attention that each label gets from places of variables, ``[L, H, R]``, by layer and head."""
    with rg.record_attention(model) as record:
        for batch in data:
            model(batch)
    variables = [batch.places[batch.owner >= 0] for batch in data]
    layers: list[list[Any]] = [*record.values()]
    masses = [[call.label_mass[:, at] for call, at in zip(calls, variables, strict=True)] for calls in layers]
    return torch.stack([torch.cat(mass, 1).mean(1) for mass in masses])


@torch.no_grad()
def draw_relations(folder: Path, model: Detective, record: Record, mass: Tensor, note: str = "") -> None:
    """``model`` is one of the row ``code relations``."""
    tokens, bug = [token.strip("#").lower() for token in record.tokens], record.tokens[record.error]
    with picture(folder / "labels.png", 10, 7.5) as ax:
        first = rg.CodeRelations(duplicates="first")  # a picture has one label per pair
        rg.plot.label_matrix(first(record.graph), first.names, tokens=tokens, ax=ax)
        ax.set_title(f"Relations of a function in which “{bug}” at token {record.error} is wrong")
    with rg.record_attention(model, weights=True) as attention:
        model(Batch.make([record]))
    *_, (last,) = attention.values()
    with picture(folder / "attention.png", 10, 3.5, note=note) as ax:
        rg.plot.attention_tokens(last.weights, tokens, query=record.error, ax=ax)
        ax.set_title(f"What the wrong “{bug}” looks at in the last layer, mean of heads")
    with picture(folder / "mass.png", 10, 5, note=note) as ax:
        rg.plot.label_mass(mass, RELATIONS.names, axes="LHR", ax=ax)
        ax.set_title("Attention of variables by relation, mean over test functions")


# %%
# The command
# -----------
#
# The command saves each run when it ends. After Ctrl-C the same command continues from there.


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    options = Options(
        "variable-misuse-out", "Find and repair misused variables, with distances and code relations.",
        "about a minute; plants misuses in Python's library", seeds=(3, 1), steps=(STEPS, QUICK_STEPS),
        longest=(LONGEST, QUICK_LONGEST), rows=("--variants", [*VARIANTS], [*VARIANTS], QUICK_VARIANTS),
    )  # fmt: skip
    where = options.add_mutually_exclusive_group()
    where.add_argument("--data", type=Path, help="GREAT's JSON lines, or a folder with them (RELGRAPH_DATA, else data)")
    where.add_argument(
        "--source", type=Path, nargs="+", help="Python files in which to plant misuses, in place of --data"
    )
    arguments = options.read(argv)
    if arguments.quick and not arguments.data and not arguments.source:
        library = Path(sysconfig.get_paths()["stdlib"])
        print(f"--quick reads no data: misuses are planted in the library of Python {platform.python_version()}")
        arguments.source = sorted(library.glob("*.py"))
    arguments.data = arguments.data or Path(os.environ.get("RELGRAPH_DATA", "data"))
    if not arguments.source and not great_files(arguments.data):
        options.error(
            f"--data must name GREAT's JSON lines or a folder with them, got {arguments.data}; --quick needs no files"
        )
    arguments.batch_tokens = QUICK_BATCH_TOKENS if arguments.quick else BATCH_TOKENS
    return arguments


def open_runs(arguments: argparse.Namespace, counts: dict[str, list[int]]) -> Runs:
    settings: dict[str, Any] = {"steps": arguments.steps, "quick": arguments.quick, "longest": arguments.longest}
    settings |= {"data": "planted" if arguments.source else "GREAT", "functions_and_bugs": counts}
    return Runs.of_command(arguments.out, Run, settings, fresh=arguments.fresh)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    parts = read_parts(arguments)
    data = {part: batches(records, arguments.batch_tokens, random.Random(0)) for part, records in parts.items()}
    counts = {part: [len(mine), sum(record.error > 0 for record in mine)] for part, mine in parts.items()}
    print("; ".join(f"{part}: {count} functions, {bugs} with a bug" for part, (count, bugs) in counts.items()))
    runs, number = open_runs(arguments, counts), len(arguments.variants) * len(arguments.seeds)
    announce(number, number * arguments.steps * (0.04 + 4e-5 * arguments.batch_tokens), arguments.out)  # as measured

    def run(name: str, seed: int) -> tuple[Run, Detective]:
        torch.manual_seed(seed)
        model, start = Detective(VARIANTS[name]), time.perf_counter()
        found = train(
            model, losses(model, data["train"], seed), arguments.steps, LEARNING_RATE, title=f"{name}, seed {seed}"
        )
        seconds = time.perf_counter() - start
        right = {part: accuracy(model, data[part]) for part in ("validation", "test")}
        return Run(name, seed, right, seconds, found), model

    def tell(run: Run) -> str:
        return ", ".join(f"{title} {100 * run.right['test'][name]:.1f} %" for name, title in COLUMNS.items())

    finished = runs.each(arguments.variants, arguments.seeds, run, tell=tell)
    baselines = guesses(parts["test"])
    if arguments.quick:
        print(SHORT)
    print(report(runs.done, baselines))
    if not finished:
        return INTERRUPTED
    runs.save(baselines=baselines)
    if arguments.quick:
        Kept.read("variable_misuse").draw(arguments.out)
    if "code relations" in arguments.variants:
        model = Detective(RELATIONS)
        runs.load(model, "code relations", 0)
        note = SHORT_MODEL if arguments.quick else ""
        draw_relations(arguments.out, model, shown(parts["test"]), label_mass(model, data["test"]), note)
    print(f"results: {runs.path}")
    return 0


if __name__ == "__main__" and (status := until_stopped(main)):
    raise SystemExit(status)
