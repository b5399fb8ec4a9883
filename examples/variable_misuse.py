"""Misused variables: where is the bug, and what belongs there?
============================================================

Small Transformers look for misused variables in Python functions, with and without a program's relations.

The task is joint localization and repair (Vasic et al. 2019) on the data of GREAT (Hellendoorn et al. 2020): in half
of the functions one use of a variable has been replaced by another variable. The model points at the token where the
bug is, or at the first token if there is none, and at the variable that belongs there. The rows differ only in the
label that a pair of tokens has: none, the clipped distance, the relations of the program's graph (reads and writes,
control flow, syntax; :class:`relgraph.CodeRelations`), or both as a sum. Functions are packed, and nothing is padded.
All rows with three seeds take about ten minutes on one CPU core, the short mode about one. Any file of GREAT's JSON
lines will do, or a folder of them; so will Python source of your own, in which misuses are planted.

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

The last three columns are about buggy functions alone: ``place`` is asked knowing that there is a bug, ``repair``
knowing where it is, and for the last column the model has to find out both. ``chance`` is a random answer, and the
more frequent one to the first question.

What this shows, and what not. ``place``, and with it ``place and repair``: relations did better than distances with
each of the three seeds, but these are too few and too far apart to promise it for others. The 95 % interval of the
difference in ``place`` is -4 to +18 points for ``code relations`` and -7 to +29 for ``distance + code`` (Welch's t from
means and deviations). The simplest baseline, always naming the last variable, is as good as distances; relations are
ahead of it by 7 and 11 points, with the same doubt. ``repair``: the three rows with labels tie, some points above
chance. ``is there a bug?``: no row has learned it, and all are near a constant answer. ``distance + code`` and ``code
relations`` tie in every column. Without labels all places of a name get one score, and the first of them, mostly a
parameter, counts as the answer: that is why ``none`` is below chance. 170 functions leave each figure a standard error
of up to four points, besides the spread of the seeds. GREAT was trained on the whole data set, of which this is a small
part: the figures published there cannot be compared with these.

With ``--source`` and the modules in the root of Python's own library (4,842 training functions, 936 for testing, one
seed) the picture is the same: ``place`` 21.2 with distances, 23.3 for the last variable, 32.7 with relations, and
``repair`` 68.8, 51.3 for the most frequent variable, and 69.0.

Rate and schedule are the quickstart's. The number of steps was set by time, after one look at the validation functions
with the rows ``code relations`` and ``none``; nothing else was tuned for any row.

**The short mode** made the output below and all pictures but the first, which shows the long run. It plants its misuses
in the modules at the root of the standard library of the Python that runs it, in functions of up to 50 tokens, and
trains two rows for 150 short steps with one seed. That is too little to learn more than ``place``, where some 140
questions leave each figure a standard error of about four points. In short functions chance alone is twice as good as
above: the two tables cannot be compared.

``--data`` names a folder with ``great-varmisuse`` in it (else RELGRAPH_DATA, else ``data``); nothing is downloaded. The
data are split by project. It writes ``results.json``, models and pictures to ``variable-misuse-out/``; after Ctrl-C the
same command goes on.
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
from example_runs import INTERRUPTED, Runs, announce, bars, by_row, percent, picture, positive, train, until_stopped
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
# A question is a function as tokens, with the graph of its program, the places where its local variables stand, the
# place of the bug, 0 for none, and the variable that belongs there: ``Record`` in ``examples/great_data.py``. The graph
# is that of the program *with* the bug: edges of the program as it was before would tell the answer.

LONGEST, BATCH_TOKENS = 250, 2000
QUICK_LONGEST, QUICK_BATCH_TOKENS, QUICK_FUNCTIONS, QUICK_FILES = 50, 500, 2000, 200


def read_parts(arguments: argparse.Namespace) -> dict[str, list[Record]]:
    """All questions, by part of the data; not too many of each for a quick run."""
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
# :class:`~relgraph.CodeRelations` has two labels for each type of edge, one a direction; pairs without an edge attend
# without a label, and where several edges join a pair their terms add up. ``DISTANCE + RELATIONS`` has both, with
# tables of their own.

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
# Tokens are sums of their words. Three layers of attention; then one score a place, and one a variable, which looks at
# all places where the variable stands.

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
        for module in self.encoder.modules():  # copies of a layer start alike
            if isinstance(module, (rg.RelationAttention, nn.Linear)):
                module.reset_parameters()
        self.drop = nn.Dropout(DROPOUT)
        self.suspicion = nn.Linear(WIDTH, 1)
        self.asks = nn.Linear(WIDTH, WIDTH)
        self.answers = nn.Linear(WIDTH, WIDTH)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The places' vectors ``[B, P, WIDTH]``, and how likely the bug is at each, ``[B, P]``."""
        graph = batch.graph
        # Without a labeler the labels say which tokens are in one function, and carry no ids.
        bare = rg.DistanceLabels(graph.num_nodes, lookup=[-1], left=0, ptr=graph.ptr)
        labels = bare if self.labeler is None else self.labeler(graph)
        count = (batch.words > 0).sum(-1, keepdim=True).clamp(min=1)
        x = self.encoder(self.drop(self.words(batch.words) / count.sqrt()), labels=labels)[batch.places]
        return x, self.suspicion(x)[..., 0].masked_fill(batch.padding, float("-inf"))

    def repair(self, x: Tensor, batch: Batch, place: Tensor) -> Tensor:
        """``[B, V]``, a score for each variable in the place of the one at ``place``, from all places where it stands.

        Variables that there are not, and the one at ``place`` itself, have -inf.
        """
        rows = torch.arange(len(place))
        scores = torch.einsum("bd,bpd->bp", self.asks(x[rows, place]), self.answers(x)) / WIDTH**0.5
        stands = one_hot(batch.owner + 1)[..., 1:].to(x.dtype)
        times = stands.sum(1)
        total = torch.einsum("bp,bpv->bv", scores, stands)
        return (total / times.clamp(min=1)).masked_fill((times == 0) | (stands[rows, place] > 0), float("-inf"))


# %%
# Training
# --------
#
# ``train`` in ``example_runs.py`` takes the losses one by one: AdamW with warm-up and linear decay.

LEARNING_RATE = 2e-3
STEPS, QUICK_STEPS = 400, 150


def loss_of(model: Detective, batch: Batch) -> Tensor:
    """For where the bug is, and for the repair, given its place."""
    x, places = model(batch)
    loss, bug = cross_entropy(places, batch.error), batch.error > 0
    if bug.any():
        loss = loss + cross_entropy(model.repair(x, batch, batch.error)[bug], batch.repair[bug])
    return loss


def losses(model: Detective, data: Sequence[Batch], seed: int) -> Iterator[Tensor]:
    """The loss of every step, without end; each epoch takes the batches in another order."""
    rng = random.Random(seed)
    while True:
        for batch in reversed(rng.sample(data, len(data))):
            yield loss_of(model, batch)


# %%
# What came out
# -------------
#
# Four questions; the last three are asked about buggy functions alone. Rules that learn nothing stand below the rows.

COLUMNS = {"bug": "is there a bug?", "place": "place", "repair": "repair", "both": "place and repair"}


@dataclass
class Run:
    """One variant trained with one seed, and the share of answers that are right, by part of the data and question."""

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
    """What rules get right: the more frequent answer or a random one, and the variable seen most or last before."""
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
    """The table that is printed."""
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
# Results (in the short mode, of the long run); the relations of one function with a bug, and what the bug's token looks
# at in the last layer; and the attention that each relation gets from variables in test functions, by layer and head. A
# pair with several relations counts under each of them. :func:`~relgraph.record_attention` tells what the layers attend
# to.

SHOWN_TOKENS = 26


def shown(records: Sequence[Record]) -> Record:
    """The function with a bug that comes closest to a length that fits a picture."""
    return min((record for record in records if record.error), key=lambda r: abs(len(r.tokens) - SHOWN_TOKENS))


@torch.no_grad()
def label_mass(model: Detective, data: Sequence[Batch]) -> Tensor:
    """``[L, H, R]``, the attention that each label gets from places of variables, by layer and head."""
    with rg.record_attention(model) as record:
        for batch in data:
            model(batch)
    variables = [batch.places[batch.owner >= 0] for batch in data]
    layers: list[list[Any]] = [*record.values()]
    masses = [[call.label_mass[:, at] for call, at in zip(calls, variables, strict=True)] for calls in layers]
    return torch.stack([torch.cat(mass, 1).mean(1) for mass in masses])


def draw_results(folder: Path, runs: Sequence[Run], baselines: dict[str, dict[str, float]]) -> None:
    asked = {"place": "where is the bug?", "repair": "what belongs there?"}
    with picture(folder / "results.png", 8, 4) as ax:
        columns = {title: by_row(runs, lambda run, name=name: run.right["test"][name]) for name, title in asked.items()}
        for name, title in asked.items():
            columns[title]["chance"] = [baselines["chance"][name]]
        bars(ax, columns, "Right answers about functions with a bug")


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
# Runs are kept one by one, so that the same command goes on after Ctrl-C.


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Misused variables, found and mended, by distance and code relations.")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--data", type=Path, help="GREAT's JSON lines, or a folder of them (RELGRAPH_DATA, else data)")
    where.add_argument("--source", type=Path, nargs="+", help="Python files in which to plant misuses, instead")
    parser.add_argument("--quick", action="store_true", help="a minute; plants misuses in Python's library")
    parser.add_argument("--seeds", type=positive(int), help="runs of each row (3, quick 1)")
    parser.add_argument("--steps", type=positive(int), help=f"training steps a run ({STEPS}, quick {QUICK_STEPS})")
    parser.add_argument("--longest", type=positive(int), help=f"most tokens ({LONGEST}, quick {QUICK_LONGEST})")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, help="the rows (all, quick two)")
    parser.add_argument("--out", type=Path, default=Path("variable-misuse-out"), help="where everything is written")
    parser.add_argument("--fresh", action="store_true", help="begin anew, whatever stands in --out")
    arguments = parser.parse_args(argv)
    if arguments.quick and not arguments.data and not arguments.source:
        library = Path(sysconfig.get_paths()["stdlib"])
        print(f"misuses are planted in the library of Python {platform.python_version()}: --quick reads no data")
        arguments.source = sorted(library.glob("*.py"))
    arguments.data = arguments.data or Path(os.environ.get("RELGRAPH_DATA", "data"))
    if not arguments.source and not great_files(arguments.data):
        parser.error(
            f"--data must name GREAT's JSON lines or a folder that holds them, got {arguments.data}; "
            "--quick needs no files"
        )
    return with_usual_sizes(arguments)


def with_usual_sizes(arguments: argparse.Namespace) -> argparse.Namespace:
    """What was not given, by whether the run is quick."""
    usual = {"seeds": (3, 1), "steps": (STEPS, QUICK_STEPS), "longest": (LONGEST, QUICK_LONGEST)}
    usual |= {"variants": (list(VARIANTS), list(QUICK_VARIANTS))}
    for name, values in usual.items():
        setattr(arguments, name, getattr(arguments, name) or values[arguments.quick])
    arguments.batch_tokens = QUICK_BATCH_TOKENS if arguments.quick else BATCH_TOKENS
    return arguments


def open_runs(arguments: argparse.Namespace, counts: dict[str, list[int]]) -> Runs:
    settings: dict[str, Any] = {"steps": arguments.steps, "quick": arguments.quick, "longest": arguments.longest}
    settings |= {"data": "planted" if arguments.source else "GREAT", "functions_and_bugs": counts}
    try:
        return Runs(arguments.out, Run, settings, fresh=arguments.fresh)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    torch.set_num_threads(1)
    parts = read_parts(arguments)
    data = {part: batches(records, arguments.batch_tokens, random.Random(0)) for part, records in parts.items()}
    counts = {part: [len(mine), sum(record.error > 0 for record in mine)] for part, mine in parts.items()}
    print("; ".join(f"{part}: {count} functions, {bugs} with a bug" for part, (count, bugs) in counts.items()))
    runs, number = open_runs(arguments, counts), len(arguments.variants) * arguments.seeds
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

    finished = runs.each(arguments.variants, range(arguments.seeds), run, tell=tell)
    baselines = guesses(parts["test"])
    if arguments.quick:
        print(SHORT)
    print(report(runs.done, baselines))
    if not finished:
        return INTERRUPTED
    runs.save(baselines=baselines)
    if arguments.quick:
        Kept.read("variable_misuse").draw(arguments.out)
    else:
        draw_results(arguments.out, runs.done, baselines)
    if "code relations" in arguments.variants:
        model = Detective(RELATIONS)
        runs.load(model, "code relations", 0)
        note = SHORT_MODEL if arguments.quick else ""
        draw_relations(arguments.out, model, shown(parts["test"]), label_mass(model, data["test"]), note)
    print(f"results: {runs.path}")
    return 0


if __name__ == "__main__" and (status := until_stopped(main)):
    raise SystemExit(status)
