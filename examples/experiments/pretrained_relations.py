"""Hidden variables by a pretrained BERT, with and without relations.

The task is that of ``quickstart.py``. The rows:

- ``not pretrained``: random weights, no relations;
- ``pretrained``: as BERT's authors do it, by guessing hidden tokens of the training functions;
- ``pretrained, distances``: the same model with labels for clipped distances;
- ``pretrained, code relations``: the same model with labels for syntax and data flow, else distances.

Each token is one word of BERT. Each seed has its own pretraining, twice as many steps as a row. All rows of a seed see
the same functions in the same order. ``--validate`` tests on functions held out of training.
"""

from __future__ import annotations

import random
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from example_options import Options
from example_runs import Runs, by_row, by_seed, cores, leads, percent, picture, side_by_side, train
from kept_results import SHORT_MODEL
from pretrained_relations import HIDDEN, PAD, SIZES, Pointer, masked
from stdlib_functions import Batch, Function
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import BertConfig, BertForMaskedLM, BertModel
from transformers.utils import logging

import relgraph as rg
from experiments import Experiment, Work
from experiments.quickstart import CODE, DISTANCE, Data, code_relations, distances, draw_labels
from relgraph.interop.transformers import add_relations

logging.disable_progress_bar()
logging.set_verbosity_error()  # it would list the head of pretraining, which is not read again

SPARE = 512


class Words(dict[str, int]):
    """Numbers of tokens; those seen less than five times share ``SPARE`` numbers."""

    def __init__(self, functions: Sequence[Function]) -> None:
        count = Counter(token for function in functions for token in function.tokens)
        known = sorted(token for token, times in count.items() if times >= 5)
        super().__init__({token: number for number, token in enumerate(known, 2 + SPARE)})

    def __missing__(self, token: str) -> int:
        return 2 + random.Random(token).randrange(SPARE)

    def batch(self, functions: Sequence[Function]) -> Tensor:
        """``[B, N]``, padded on the right."""
        rows = [torch.tensor([self[token] for token in function.tokens]) for function in functions]
        return pad_sequence(rows, batch_first=True, padding_value=PAD)


def pretrain(words: Words, data: Data, folder: Path, steps: int, seed: int) -> None:
    """Train a BERT on whole functions, and save it."""
    torch.manual_seed(seed)
    model = BertForMaskedLM(BertConfig(vocab_size=2 + SPARE + len(words), **SIZES))
    losses = (masked(model, words.batch(batch.functions)) for batch in data.training(seed))
    train(model, losses, steps, RATE, title=f"pretraining, seed {seed}")
    model.save_pretrained(folder)


@dataclass(frozen=True)
class Row:
    """A row of the table: whether to begin with the pretrained model, and which labels it gets."""

    pretrained: bool = True
    labeler: rg.Labeler | None = None
    make_labels: Callable[[Batch], rg.Labels | None] = lambda _: None

    def model(self, folder: Path) -> Pointer:
        bert: Any = BertModel.from_pretrained(folder, add_pooling_layer=False)
        bert = bert if self.pretrained else BertModel(bert.config, add_pooling_layer=False)
        if self.labeler is not None:
            add_relations(bert, self.labeler)
        return Pointer(bert)

    def scores(self, model: Pointer, batch: Batch, words: Words) -> Tensor:
        tokens = words.batch(batch.functions)
        tokens[torch.arange(len(tokens)), batch.hole] = HIDDEN
        return model(tokens, batch.variables, self.make_labels(batch))


ROWS = {
    "not pretrained": Row(pretrained=False),
    "pretrained": Row(),
    "pretrained, distances": Row(labeler=DISTANCE, make_labels=distances),
    "pretrained, code relations": Row(labeler=CODE, make_labels=code_relations),
}
RATE, STEPS, QUICK_STEPS, PRETRAINING = 1e-3, 2400, 20, 2  # the last: times as many steps
SECONDS_A_STEP = 0.06


@dataclass
class Run:
    """One row trained with one seed."""

    variant: str
    seed: int
    accuracy: float
    parameters: int
    seconds: float


def report(runs: Sequence[Run], rules: dict[str, float]) -> str:
    """The table that the command prints, and the leads that the page speaks of."""
    lines = [f"{'row':<30}{'right':>14}{'parameters':>12}{'CPU seconds':>13}"]
    for name, mine in by_row(runs).items():
        right, seconds = percent([run.accuracy for run in mine]), mean(run.seconds for run in mine)
        lines.append(f"{name:<30}{right:>14}{mine[0].parameters:>12,}{seconds:>13.0f}")
    lines += [f"{name:<30}{100 * share:>12.1f} %" for name, share in rules.items()]
    *others, best = ROWS
    return "\n".join([*lines, *leads(by_seed(runs, "accuracy"), [(best, other) for other in others])])


def draw_tables(folder: Path, model: Any, note: str) -> None:
    """How long the rows of the tables have become: they began at zero."""
    layers = model.bert.encoder.layer
    with picture(folder / "tables.png", 13, 8, len(layers), 2, note=note) as axes:
        for number, (layer, panels) in enumerate(zip(layers, axes, strict=True)):
            tables = layer.attention.self.relation.tables
            for ax, (name, table) in zip(panels, tables().items(), strict=True):
                rg.plot.table_norms(table, tables.names, ax=ax)
                ax.set_title(f"layer {number}: {name}")
                if number < len(layers) - 1:
                    ax.set_xlabel("")
                    ax.tick_params(labelbottom=False)


def options(options: Options) -> None:
    options.add_argument("--validate", action="store_true", help="test on functions held out of training")


def begin(arguments: Namespace) -> Work:
    steps, seeds, quick = arguments.steps, arguments.seeds, arguments.quick
    data = Data.read(quick, arguments.validate)
    words = Words(data.train.functions)
    settings = {"steps": steps, "rate": RATE, "validate": arguments.validate, "questions": len(data.asked)}
    processes = 1 if quick else cores()

    def folder_of(seed: int) -> Path:
        return arguments.out / f"bert-{seed}"

    def prepare() -> None:
        def make(seed: int) -> None:
            pretrain(words, data, folder_of(seed), PRETRAINING * steps, seed)

        missing = [seed for seed in seeds if arguments.fresh or not (folder_of(seed) / "config.json").exists()]
        for _ in side_by_side(make, missing, processes):
            pass

    def run(name: str, seed: int) -> tuple[Run, Pointer]:
        start, row = time.process_time(), ROWS[name]
        torch.manual_seed(seed)
        model = row.model(folder_of(seed))
        losses = (cross_entropy(row.scores(model, batch, words), batch.target) for batch in data.training(seed))
        train(model, losses, steps, RATE, title=f"{name}, seed {seed}")
        parameters = sum(weight.numel() for weight in model.parameters())
        accuracy = data.accuracy(lambda batch: row.scores(model, batch, words))
        return Run(name, seed, accuracy, parameters, time.process_time() - start), model

    def draw(runs: Runs) -> None:
        name = [*ROWS][-1]
        if name in arguments.rows and not arguments.validate:
            model = runs.load(ROWS[name].model(folder_of(0)), name, 0)
            draw_tables(runs.folder, model, SHORT_MODEL if quick else "")
            draw_labels(runs.folder / "labels.png", data)

    seconds = len(seeds) * (len(arguments.rows) + PRETRAINING) * steps * SECONDS_A_STEP
    return Work(settings, seconds, run, prepare=prepare, rules=data.baselines, draw=draw, processes=processes)


EXPERIMENT = Experiment(
    Run, [*ROWS], "short training of all rows, one seed", {"seeds": (3, 1), "steps": (STEPS, QUICK_STEPS)}, begin,
    tell=lambda run: percent([run.accuracy]), report=report, options=options,
)  # fmt: skip
