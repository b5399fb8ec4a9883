"""Give a pretrained model a graph
===============================

A small BERT, pretrained here on Python code, gets distances or relations of code by one call.

The task is that of ``quickstart.py``: a variable in a function of Python's standard library is hidden, and the
model points at the one that belongs there. :func:`relgraph.interop.transformers.add_relations` gives the pretrained
model tables of zeros, so that it begins with the outputs that it had.

- not pretrained: random weights, no relations;
- pretrained: as BERT's authors do it, by guessing hidden tokens of the training functions;
- pretrained, distances: the same model with labels for clipped distances;
- pretrained, code relations: the same model with labels for syntax and data flow, and distances where there are none.

.. code-block:: sh

    python examples/pretrained_relations.py            # four rows, three seeds, about 25 minutes on two CPU cores
    python examples/pretrained_relations.py --quick    # half a minute, too short to learn much

Right answers to 2,571 questions (mean ± standard deviation of three seeds; each seed has its own pretraining; one
thread of a busy AMD EPYC, Python 3.11.7's standard library, November 2026):

.. code-block:: text

    row                                    right  parameters  CPU seconds
    not pretrained                  58.8 % ± 0.6     550,080          115
    pretrained                      65.3 % ± 2.3     550,080          118
    pretrained, distances           70.7 % ± 2.6     554,976          142
    pretrained, code relations      70.8 % ± 1.0     561,888          209
    least often seen                58.8 %

The last line is the best rule that learns nothing. Distances add 5.4 points to the pretrained model (95 % interval of
three pairs: 4.3 to 6.4). Code relations add as much on average, but seeds differ more (-1.8 to +12.7), so nothing ranks
the two (-8.2 to +8.3). Both say which tokens are near, where BERT has vectors for absolute positions only. The settings
come from one run on validation functions.

**The short mode** made the output below and all pictures except the first, which shows the long run.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from example_options import Options
from example_runs import INTERRUPTED, Runs, announce, cores, lead, percent, picture, side_by_side, train, until_stopped
from kept_results import SHORT, SHORT_MODEL, Kept
from quickstart import CODE, DISTANCE, Data, code_relations, distances, draw_labels, point
from stdlib_functions import Batch, Function
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import BertConfig, BertForMaskedLM, BertModel
from transformers.utils import logging

import relgraph as rg
from relgraph.interop.transformers import add_relations

logging.disable_progress_bar()
logging.set_verbosity_error()  # it would list the head of pretraining, which is not read again

# %%
# The pretrained model
# --------------------
#
# Each token is one word of BERT. The model has three layers. Pretraining hides a seventh of the tokens of whole
# functions, and guesses them. ``save_pretrained`` writes what a user would download.

PAD, HIDDEN_TOKEN, SPARE = 0, 1, 512
WIDTH, HEADS, LAYERS, INNER, SHARE = 96, 2, 3, 192, 1 / 7


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
    config = BertConfig(
        vocab_size=2 + SPARE + len(words), hidden_size=WIDTH, num_attention_heads=HEADS, num_hidden_layers=LAYERS,
        intermediate_size=INNER, max_position_embeddings=192, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BertForMaskedLM(config)

    def losses() -> Iterator[Tensor]:
        for batch in data.training(seed):
            tokens = words.batch(batch.functions)
            hidden = (torch.rand(tokens.shape) < SHARE) & (tokens != PAD)
            shown = tokens.masked_fill(hidden, HIDDEN_TOKEN)
            scores = model(shown, attention_mask=(tokens != PAD).long()).logits
            yield cross_entropy(scores[hidden], tokens[hidden])

    train(model, losses(), steps, RATE, title=f"pretraining, seed {seed}")
    model.save_pretrained(folder)


# %%
# The rows
# --------
#
# ``relation_labels`` reach every layer. The tables are of keys and values, with a row per label.


@dataclass(frozen=True)
class Row:
    """A row of the table: whether to begin with the pretrained model, and which labels it gets."""

    pretrained: bool = True
    labeler: rg.Labeler | None = None
    make_labels: Callable[[Batch], rg.Labels | None] = lambda _: None


ROWS = {
    "not pretrained": Row(pretrained=False),
    "pretrained": Row(),
    "pretrained, distances": Row(labeler=DISTANCE, make_labels=distances),
    "pretrained, code relations": Row(labeler=CODE, make_labels=code_relations),
}


class Pointer(nn.Module):
    """BERT, and a score for each variable of a function, as in the quickstart."""

    def __init__(self, folder: Path, row: Row, words: Words) -> None:
        super().__init__()
        self.row, self.vocabulary = row, words
        load = BertModel.from_pretrained(folder, add_pooling_layer=False)
        self.bert: Any = load if row.pretrained else BertModel(load.config, add_pooling_layer=False)
        if row.labeler is not None:
            add_relations(self.bert, row.labeler)
        self.asks, self.answers = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, batch: Batch) -> Tensor:
        """``[B, C]``, one score per variable; -inf where a function has fewer variables."""
        tokens = self.vocabulary.batch(batch.functions)
        tokens[torch.arange(len(tokens)), batch.hole] = HIDDEN_TOKEN
        labels = self.row.make_labels(batch)
        given = {} if labels is None else {"relation_labels": labels}
        x = self.bert(tokens, attention_mask=(tokens != PAD).long(), **given).last_hidden_state
        return point(self.asks(x), self.answers(x), batch)


# %%
# Training
# --------
#
# All rows of a seed begin with the same pretrained model, and see the same functions in the same order.

RATE = 1e-3
STEPS, QUICK_STEPS, PRETRAINING = 2400, 20, 2  # times as many steps
SECONDS_A_STEP = 0.06


@dataclass
class Run:
    """One row trained with one seed."""

    variant: str
    seed: int
    accuracy: float
    parameters: int
    seconds: float
    losses: list[float] = field(default_factory=list, repr=False)


@torch.no_grad()
def accuracy(model: Pointer, data: Data) -> float:
    """The share of test questions that the model answers correctly."""
    return sum((model(batch).argmax(-1) == batch.target).sum().item() for batch in data.testing()) / len(data.asked)


def report(runs: Sequence[Run], baselines: dict[str, float]) -> str:
    """The table that the command prints, and the leads that the page speaks of."""
    hits = {name: {run.seed: run.accuracy for run in runs if run.variant == name} for name in ROWS}
    hits = {name: mine for name, mine in hits.items() if mine}
    lines = [f"{'row':<30}{'right':>14}{'parameters':>12}{'CPU seconds':>13}"]
    for name, mine in hits.items():
        several = [run for run in runs if run.variant == name]
        seconds = mean(run.seconds for run in several)
        lines.append(f"{name:<30}{percent([*mine.values()]):>14}{several[0].parameters:>12,}{seconds:>13.0f}")
    lines += [f"{name:<30}{100 * share:>12.1f} %" for name, share in baselines.items()]
    *others, best = hits
    lines += [f"{best}, lead over {other}: {lead(hits[best], hits[other])}" for other in others]
    return "\n".join(lines)


def draw(folder: Path, model: Pointer, note: str) -> None:
    """How long the rows of the tables have become: they began at zero."""
    with picture(folder / "tables.png", 13, 8, LAYERS, 2, note=note) as axes:
        for number, (layer, panels) in enumerate(zip(model.bert.encoder.layer, axes, strict=True)):
            tables = layer.attention.self.relation.tables
            for ax, (name, table) in zip(panels, tables().items(), strict=True):
                rg.plot.table_norms(table, tables.names, ax=ax)
                ax.set_title(f"layer {number}: {name}")
                if number < LAYERS - 1:
                    ax.set_xlabel("")
                    ax.tick_params(labelbottom=False)


# %%
# The command
# -----------


def main(argv: Sequence[str] | None = None) -> int:
    options = Options(
        "pretrained-relations-out", "Fill in hidden variables by a pretrained BERT, with and without relations.",
        "short training of all rows, one seed", apart=True, seeds=(3, 1), steps=(STEPS, QUICK_STEPS),
        rows=("--rows", tuple(ROWS), tuple(ROWS), tuple(ROWS)),
    )  # fmt: skip
    options.add_argument("--validate", action="store_true", help="test on functions held out of training")
    arguments = options.read(argv)
    steps, seeds = arguments.steps, arguments.seeds
    data = Data.read(arguments.quick, arguments.validate)
    words = Words(data.train.functions)
    settings = {"steps": steps, "rate": RATE, "validate": arguments.validate, "questions": len(data.asked)}
    runs = Runs.of_command(arguments.out, Run, settings, fresh=arguments.fresh)
    processes = 1 if arguments.quick else cores()
    count = len(seeds) * (len(arguments.rows) + PRETRAINING)
    announce(len(seeds) * len(arguments.rows), count * steps * SECONDS_A_STEP, runs.folder, processes)

    def folder_of(seed: int) -> Path:
        return runs.folder / f"bert-{seed}"

    def prepare(seed: int) -> None:
        pretrain(words, data, folder_of(seed), PRETRAINING * steps, seed)

    def run(name: str, seed: int) -> tuple[Run, Pointer]:
        start = time.process_time()
        torch.manual_seed(seed)
        model = Pointer(folder_of(seed), ROWS[name], words)
        losses = (cross_entropy(model(batch), batch.target) for batch in data.training(seed))
        taken = train(model, losses, steps, RATE, title=f"{name}, seed {seed}")
        parameters = sum(weight.numel() for weight in model.parameters())
        return Run(name, seed, accuracy(model, data), parameters, time.process_time() - start, taken), model

    missing = [seed for seed in seeds if arguments.fresh or not (folder_of(seed) / "config.json").exists()]
    for _ in side_by_side(prepare, missing, processes) if processes > 1 else map(prepare, missing):
        pass
    finished = runs.each(arguments.rows, seeds, run, processes, lambda run: percent([run.accuracy]))
    if arguments.quick:
        print(SHORT)
    print(report(runs.done, data.baselines()))
    if not finished:
        return INTERRUPTED
    print(f"results: {runs.path}")
    name = [*ROWS][-1]
    if name in arguments.rows and not arguments.validate:
        model: Any = runs.load(Pointer(folder_of(0), ROWS[name], words), name, 0)
        if arguments.quick:
            Kept.read("pretrained_relations").draw(runs.folder)
        draw(runs.folder, model, SHORT_MODEL if arguments.quick else "")
        draw_labels(runs.folder / "labels.png", data)
    return 0


if __name__ == "__main__" and (status := until_stopped(main)):
    raise SystemExit(status)
