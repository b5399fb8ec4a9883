"""Small Transformers look for misused variables in Python functions, with and without a program's relations.

The task is joint localization and repair (Vasic et al. 2019) on the data of GREAT (Hellendoorn et al. 2020): in half
of the functions one use of a variable has been replaced by another variable. The model points at the token where the
bug is, or at the first token if there is none, and at the variable that belongs there. The rows differ only in the
label that a pair of tokens has: none, the clipped distance, the relations of the program's graph (reads and writes,
control flow, syntax; :class:`relgraph.CodeRelations`), or both as a sum. Functions are packed, and nothing is padded.

    python examples/variable_misuse.py                       # three seeds, about ten minutes on one CPU core
    python examples/variable_misuse.py --quick               # seconds, too short to learn anything
    python examples/variable_misuse.py --data some.jsonl.gz  # any file of GREAT's JSON lines, or a folder of them
    python examples/variable_misuse.py --source */*.py       # misuses planted in Python source of your own instead

Percent right on test functions, three seeds, mean ± standard deviation, 400 steps a row, as the first of these
commands printed on 2,069 functions from GREAT's development set (of up to 250 tokens and with a free licence; 1,561
from 603 projects for training, 323 from 154 others for testing, of which 170 have a bug):

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

What this shows, and what not. ``place``, and with it ``place and repair``: relations do better than distances with
every seed; distances do no better than always naming the last variable. ``repair``: the three rows with labels tie,
some points above chance. ``is there a bug?``: no row has learned it, and all are near a constant answer. ``distance +
code`` and ``code relations`` tie in every column. Without labels all places of a name get one score, and the first of
them, mostly a parameter, counts as the answer: that is why ``none`` is below chance. 170 functions leave each figure a
standard error of up to four points, beside the spread of the seeds. GREAT was trained on the whole data set, of which
this is a small part: the figures published there cannot be compared with these.

With ``--source`` and the modules in the root of Python's own library (4,842 training functions, 936 for testing, one
seed) the picture is the same: ``place`` 21.2 with distances, 23.3 for the last variable, 32.7 with relations, and
``repair`` 68.8, 51.3 for the most frequent variable, and 69.0.

Rate and schedule are the quickstart's. The number of steps was set by time, after one look at the validation functions
with the rows ``code relations`` and ``none``; nothing else was tuned for any row.

It prints a table and writes ``results.json`` to ``variable-misuse-out/``. Nothing is downloaded: ``--data`` (or the
variable RELGRAPH_DATA) names a folder with ``great-varmisuse`` in it. The data are split by project.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, stdev

import torch
from great_data import PARTS, ROWS, Batch, Record, batches, great_files, read_great, read_source
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

import relgraph as rg

WIDTH, HEADS, LAYERS, HIDDEN, DROPOUT = 64, 2, 3, 128, 0.1
LEARNING_RATE, WARM_UP, WEIGHT_DECAY = 2e-3, 0.1, 0.01
LONGEST, BATCH_TOKENS = 250, 2000
STEPS, QUICK_STEPS, QUICK_FUNCTIONS, QUICK_FILES = 400, 6, 24, 60
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"

DISTANCE, RELATIONS = rg.ClippedDistance(8), rg.CodeRelations()
VARIANTS: dict[str, rg.Labeler | None] = {
    "none": None,
    "distance": DISTANCE,
    "code relations": RELATIONS,
    "distance + code": DISTANCE + RELATIONS,
}
COLUMNS = {"bug": "is there a bug?", "place": "place", "repair": "repair", "both": "place and repair"}


class Detective(nn.Module):
    """A Transformer over the tokens of functions that points at a bug, and at the variable that belongs there."""

    def __init__(self, labeler: rg.Labeler | None) -> None:
        super().__init__()
        known = {} if labeler is None else {"num_labels": labeler.num_labels, "names": labeler.names}
        self.labeler = labeler
        self.words = nn.EmbeddingBag(ROWS, WIDTH, mode="sum", padding_idx=0)
        nn.init.normal_(self.words.weight, std=0.25)
        layer = rg.RelationEncoderLayer(WIDTH, HEADS, HIDDEN, DROPOUT, "gelu", norm_first=True, **known)
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
        # Without a labeler any labels do: they say which tokens are in one function, and no table reads more.
        labels = (self.labeler or DISTANCE)(batch.graph)
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


@dataclass
class Run:
    """One variant trained with one seed, and the share of answers that are right, by part of the data and question."""

    variant: str
    seed: int
    right: dict[str, dict[str, float]]
    seconds: float
    losses: list[float] = field(repr=False)


def loss_of(model: Detective, batch: Batch) -> Tensor:
    """For where the bug is, and for the repair, given its place."""
    x, places = model(batch)
    loss, bug = cross_entropy(places, batch.error), batch.error > 0
    if bug.any():
        loss = loss + cross_entropy(model.repair(x, batch, batch.error)[bug], batch.repair[bug])
    return loss


def train(model: Detective, data: Sequence[Batch], steps: int, seed: int) -> list[float]:
    """The loss of every step; each epoch takes the batches in another order."""
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, (0.9, 0.98), weight_decay=WEIGHT_DECAY)
    warm_up = max(1.0, WARM_UP * steps)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / warm_up, 1 - s / steps))
    rng, losses, waiting = random.Random(seed), [], []
    for _ in range(steps):
        waiting = waiting or rng.sample(data, len(data))
        loss = loss_of(model, waiting.pop())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        losses.append(loss.item())
    return losses


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
        cells = []
        for column in COLUMNS:
            values = [100 * run.right["test"][column] for run in mine]
            cells.append(f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else ""))
        lines.append(f"{name:<18}" + "".join(f"{c:>18}" for c in cells) + f"{mean(r.seconds for r in mine):>10.0f}")
    for name, right in baselines.items():
        cells = [f"{100 * right[column]:.1f}" if column in right else "–" for column in COLUMNS]
        lines.append(f"{name:<18}" + "".join(f"{c:>18}" for c in cells) + f"{'–':>10}")
    return "\n".join(lines)


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    where = parser.add_mutually_exclusive_group()
    known = Path(os.environ.get("RELGRAPH_DATA", DATA))
    where.add_argument("--data", type=Path, default=known, help="GREAT's JSON lines, or a folder that holds them")
    where.add_argument("--source", type=Path, nargs="+", help="Python files in which to plant misuses, instead")
    parser.add_argument("--quick", action="store_true", help="a short run that shows that all of it works")
    parser.add_argument("--seeds", type=int, help="runs of each row (3, quick 1)")
    parser.add_argument("--steps", type=int, help=f"training steps a run ({STEPS}, quick {QUICK_STEPS})")
    parser.add_argument("--longest", type=int, default=LONGEST, help=f"most tokens of a function ({LONGEST})")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="the rows")
    parser.add_argument("--out", type=Path, default=Path("variable-misuse-out"), help="folder for results.json")
    arguments = parser.parse_args(argv)
    if not arguments.source and not great_files(arguments.data):
        parser.error(f"--data must name GREAT's JSON lines or a folder that holds them, got {arguments.data}")
    return arguments


def read_parts(arguments: argparse.Namespace) -> dict[str, list[Record]]:
    """All questions, by part of the data; few of each for a quick run."""
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


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    steps = arguments.steps or (QUICK_STEPS if arguments.quick else STEPS)
    parts = read_parts(arguments)
    data = {part: batches(records, BATCH_TOKENS, random.Random(0)) for part, records in parts.items()}
    counts = {part: [len(mine), sum(record.error > 0 for record in mine)] for part, mine in parts.items()}
    print("; ".join(f"{part}: {count} functions, {bugs} with a bug" for part, (count, bugs) in counts.items()))
    runs: list[Run] = []
    for seed in range(arguments.seeds or (1 if arguments.quick else 3)):
        for name in arguments.variants:
            torch.manual_seed(seed)
            model, start = Detective(VARIANTS[name]), time.perf_counter()
            losses = train(model, data["train"], steps, seed)
            seconds = time.perf_counter() - start
            right = {part: accuracy(model, data[part]) for part in ("validation", "test")}
            runs.append(Run(name, seed, right, seconds, losses))
    baselines = guesses(parts["test"])
    print(report(runs, baselines))
    record = {"python": platform.python_version(), "torch": torch.__version__, "relgraph": rg.__version__}
    record |= {"steps": steps, "quick": arguments.quick, "functions_and_bugs": counts, "baselines": baselines}
    record |= {"runs": [asdict(run) for run in runs]}
    results = arguments.out / "results.json"
    results.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"results: {results}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
