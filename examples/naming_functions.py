"""Names of functions: a program's graph in, words out
===================================================

A Transformer reads functions as graphs, of syntax and data flow, and writes their names, word by word.

The functions come from Python's own standard library. The name is hidden everywhere, also where the function calls
itself. Docstrings, comments, decorators and the text of strings are left out:

.. code-block:: text

    def <name>(self, /, *args, **kwargs):
        return self._bind(args, kwargs, partial=True)          →  bind partial

Encoder and decoder form one :class:`relgraph.RelationTransformer`, whose source is a packed batch of graphs; beam
search finds the names. The rows differ only in the encoder's labels: none, clipped distances, or the relations of the
program, where only tokens with a relation attend. All rows with three seeds take about six minutes of one CPU core, the
short mode less than one.

.. code-block:: sh

    python examples/naming_functions.py
    python examples/naming_functions.py --quick
    python examples/naming_functions.py --validate --variants relations "relations, else distance"

The first command printed this table: percent on 1,671 test functions from 81 files that training never saw (4,616
training functions, of 15 to 80 tokens). The columns are exact names and F1 of their words with beam search (beam of 4),
and F1 with greedy search; mean ± standard deviation of three seeds (AMD EPYC, one thread of a busy machine, Python
3.11.7, torch 2.13, November 2026):

.. code-block:: text

    variant                      exact            F1     greedy F1
    no relations             2.3 ± 0.1     9.7 ± 0.3     9.5 ± 0.2
    distance                 2.7 ± 0.6    10.3 ± 0.5    10.3 ± 0.6
    relations                2.3 ± 0.1    10.5 ± 0.1    10.6 ± 0.7
    most frequent name           1.7           1.4
    nearest function             6.6          10.6

**A tie.** In F1, ``relations`` leads ``no relations`` by 0.8 points (95 % interval -0.1 to 1.5, by a bootstrap over
files) and ``distance`` by 0.2 (-0.5 to 0.8); in exact names by 0.0 (-0.4 to 0.5) and -0.3 (-0.8 to 0.0). Beam and
greedy search differ by less than the spread of the seeds. No row beats a guess that trains no model: the name of the
training function with the most similar words. That guess is exact more often, because it repeats whole names from
training. Much of a name cannot be known here: 27 % of the words of test names occur in no training name, and 73 % do
not occur in the function. Published figures of this task come from far more functions and cannot be compared.

Settings were chosen on functions from files held out of training, with relations and one seed. There, 400 steps on
functions of up to 80 tokens gave an F1 of 15.8 if only tokens with a relation attend, and 14.5 if all tokens attend,
with their relation or else their distance as label. On functions of up to 50 tokens longer training gave no more: 15.9
after 450 steps (all attend), 15.7 after 1,000. First tries without copying gave 5 and 11. A beam with a length penalty
of 2 scored 0.8 points more than with 0.6. Dropout was 0.3 in the first comparison; 0.2 was not compared.

**The short mode** made the output below and all pictures except the first, which shows the long run. It reads functions
of up to 30 tokens in the library's top modules, and takes 60 steps with one seed. The order of its rows means nothing.

The command writes ``results.json``, models and pictures to ``naming-functions-out/``. After Ctrl-C the same command
continues.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import example_runs
import torch
from example_options import Options
from example_runs import INTERRUPTED, Runs, announce, percent, picture, train, until_stopped
from function_names import Batch, Question, Words, groups, read
from kept_results import SHORT, SHORT_MODEL, Kept
from stdlib_functions import subtokens
from torch import Tensor, nn
from torch.nn.functional import embedding, nll_loss, normalize
from torch.nn.utils.rnn import pad_sequence

import relgraph as rg
from relgraph.interop import python

sys.path.append(str(Path(example_runs.__file__).resolve().parents[1]))  # where the package examples.translation is

from examples.translation.search import Search, search_memory
from examples.translation.vocabulary import PAD, SPECIAL

# %%
# The task
# --------
#
# ``examples/function_names.py`` makes the questions. The tokens of a function are the nodes of its graph:
# :func:`relgraph.interop.python.read` places them in the syntax tree and adds control flow and data flow. Identifiers
# and names consist of words: ``maxLine_2`` is ``max``, ``line``, ``2``. The model writes a name only in words of
# training names, which include 78 % of the words of validation names.

BATCH_TOKENS = 1000

# %%
# The labels
# ----------
#
# The rows differ only in the labels of the encoder. :class:`~relgraph.Window` lets every pair of a function attend,
# without labels. :class:`~relgraph.CodeRelations` has two labels for each type of edge, one per direction; with
# ``attend="edges"`` only pairs with an edge attend. The last row runs only if ``--variants`` names it: every pair
# attends, with its relation as label, or else its distance.

DISTANCE, RELATIONS = rg.ClippedDistance(8), rg.CodeRelations(attend="edges")
VARIANTS: dict[str, rg.Labeler] = {
    "no relations": rg.Window(),
    "distance": DISTANCE,
    "relations": RELATIONS,
    "relations, else distance": rg.CodeRelations(duplicates="first") | DISTANCE,
}
ROWS = ("no relations", "distance", "relations")

# %%
# The model
# ---------
#
# The encoder of a :class:`~relgraph.RelationTransformer` reads graphs packed end to end; the decoder's labels are
# clipped distances between the words written so far. The model either generates the next word or copies it: it scores
# all words, and all places of the function, and adds the probabilities of a word's places to the word's own (copying
# for this task: Allamanis et al. 2016).

WIDTH, HEADS, LAYERS, HIDDEN, DROPOUT = 64, 4, (2, 1), 128, 0.2


class Namer(nn.Module):
    """Reads functions as graphs and writes names from known words or words of the function."""

    def __init__(self, words: Words, labeler: rg.Labeler) -> None:
        super().__init__()
        self.labeler, self.written = labeler, words.written
        self.words = nn.EmbeddingBag(len(words), WIDTH, mode="sum", padding_idx=PAD)
        self.kinds = nn.Embedding(len(python.TOKEN_KINDS), WIDTH)
        self.transformer = rg.RelationTransformer(
            WIDTH, HEADS, *LAYERS, HIDDEN, 0.0, "gelu", norm_first=True, labeler=labeler,
            target_labeler=rg.ClippedDistance(4),
        )  # fmt: skip
        self.points = nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(words.frequency.log())
        self.drop = nn.Dropout(DROPOUT)
        for table in (self.words, self.kinds):
            nn.init.normal_(table.weight, std=WIDTH**-0.5)
        with torch.no_grad():
            self.words.weight[PAD].zero_()

    def forward(self, batch: Batch, labels: rg.Labels | None = None) -> Tensor:
        """Log-probabilities of each next word, ``[B, N - 1, V]``."""
        return self.decode(batch.names[:, :-1], *self.encode(batch, labels))

    def encode(self, batch: Batch, labels: rg.Labels | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Encode packed graphs: the memory ``[B, M, E]``, its padding ``[B, M]``, and its words ``[B, M, W]``."""
        count = (batch.words != PAD).sum(-1, keepdim=True)
        nodes = self.words(batch.words) / count.sqrt() + self.kinds(batch.graph.node_type)
        labels = self.labeler(batch.graph) if labels is None else labels
        memory = self.transformer.encode(self.drop(WIDTH**0.5 * nodes), src_labels=labels)
        sizes = batch.graph.borders().diff()
        padded, words = (pad_sequence([*x.split(sizes.tolist())], batch_first=True) for x in (memory, batch.words))
        return padded, torch.arange(padded.shape[1]) >= sizes[:, None], words

    def decode(
        self, names: Tensor, memory: Tensor, padding: Tensor, words: Tensor, cache: rg.nn.StackCache | None = None
    ) -> Tensor:
        """Log-probabilities ``[B, N, V]`` of the word after each of ``names``, ``[B, N]``."""
        given = self.drop(WIDTH**0.5 * embedding(names, self.words.weight))
        y = self.drop(self.transformer.decode(given, memory, memory_key_padding_mask=padding, cache=cache))
        known = y @ self.words.weight[: self.written].T + self.bias
        words = words.flatten(1)[:, None]
        copied = (self.points(y) @ memory.transpose(1, 2) / WIDTH**0.5).repeat_interleave(Words.WIDTH, -1)
        copied = copied.masked_fill((words < SPECIAL) | (words >= self.written), float("-inf"))
        chances = torch.cat([known, copied], -1).softmax(-1)
        places = words.where(words < self.written, PAD).expand_as(copied)
        return chances[..., : self.written].scatter_add(-1, places, chances[..., self.written :]).clamp(min=1e-9).log()


# %%
# Training
# --------
#
# ``train`` in ``example_runs.py`` trains on these losses with AdamW, warm-up and linear decay.

LEARNING_RATE = 4e-3
STEPS, QUICK_STEPS = 400, 60
SECONDS_A_STEP = 0.1


def loss_of(chances: Tensor, names: Tensor) -> Tensor:
    """The mean over the words and ends of names; ``names`` are ``[B, N]``, log-probabilities ``[B, N - 1, V]``."""
    return nll_loss(chances.flatten(0, 1), names[:, 1:].flatten(), ignore_index=PAD)


def losses(model: Namer, batches: Sequence[Batch], seed: int) -> Iterator[Tensor]:
    """Yield the loss of each step, without end; each epoch uses every batch once."""
    rng = random.Random(seed)
    labels = [model.labeler(batch.graph) for batch in batches]  # made once and used in every epoch
    while True:
        for at in reversed(rng.sample(range(len(batches)), len(batches))):
            yield loss_of(model(batches[at], labels[at]), batches[at].names)


# %%
# Writing names
# -------------
#
# The beam search comes from ``examples/translation``. It calls ``decode`` for the scores of next words, with the output
# of ``encode`` and a cache. A beam of one is greedy search.

WAYS = {"beam": Search(beam=4, length_penalty=2.0), "greedy": Search(beam=1)}
LONGEST_NAME = 8
Name = tuple[str, ...]


def write(model: Namer, questions: Sequence[Question], words: Words, how: Search) -> list[Name]:
    """The name of each function, in the order of ``questions``."""
    model.eval()
    found: dict[int, Name] = {}
    for group in groups(questions, 4 * BATCH_TOKENS):
        given = model.encode(Batch.make([questions[n] for n in group], words))
        written = search_memory(model, given, [LONGEST_NAME] * len(group), how)
        found |= {n: words.text(hypothesis.ids) for n, hypothesis in zip(group, written, strict=True)}
    model.train()
    return [found[n] for n in range(len(questions))]


# %%
# What came out
# -------------
#
# The table has the usual figures of this task: the share of names that are exactly right, and F1 of their words in any
# order, counted over all functions together (Allamanis et al. 2016; Alon et al. 2019). Two guesses train no model: the
# most frequent name of the training functions, and the name of the training function with the most similar words.


def count(answer: Sequence[str], name: Sequence[str]) -> tuple[int, int, int, int, int]:
    """Whether the name is right, the number one, and how many words are right, were written, and were wanted."""
    right = (Counter(answer) & Counter(name)).total()
    return int(tuple(answer) == tuple(name)), 1, right, len(answer), len(name)


def scores(counts: Tensor) -> dict[str, Tensor]:
    """The share of exact matches and the F1, from sums of :func:`count`, ``[..., 5]``."""
    exact, functions, right, written, wanted = counts.double().unbind(-1)
    return {"exact": exact / functions, "F1": 2 * right / (written + wanted)}


def score(answers: Sequence[Name], questions: Sequence[Question]) -> dict[str, float]:
    """The scores of the answers, one per question."""
    counted = [count(answer, question.name) for answer, question in zip(answers, questions, strict=True)]
    return {column: value.item() for column, value in scores(torch.tensor(counted).sum(0)).items()}


def guesses(train: Sequence[Question], test: Sequence[Question]) -> dict[str, list[Name]]:
    """The most frequent name, and the name of the nearest function by cosines of its words' tf-idf vectors."""
    ((usual, _),) = Counter(question.name for question in train).most_common(1)
    bags = [Counter(word for token in q.tokens for word in subtokens(token)) for q in (*train, *test)]
    spread = Counter(word for bag in bags[: len(train)] for word in bag)
    numbers = {word: number for number, word in enumerate(spread)}
    rows = torch.zeros(len(bags), len(numbers))
    for row, bag in zip(rows, bags, strict=True):
        for word in bag.keys() & numbers.keys():
            row[numbers[word]] = (1 + math.log(bag[word])) * math.log(len(train) / spread[word])
    rows = normalize(rows)
    nearest = (rows[len(train) :] @ rows[: len(train)].T).argmax(1)
    return {"most frequent name": [usual] * len(test), "nearest function": [train[n].name for n in nearest.tolist()]}


@dataclass
class Run:
    """One row trained with one seed: its scores for each way of searching, and the names that the beam found."""

    variant: str
    seed: int
    test: dict[str, dict[str, float]]
    seconds: float
    answers: list[str] = field(repr=False)
    losses: list[float] = field(repr=False)


def ahead(runs: Sequence[Run], questions: Sequence[Question], row: str) -> dict[str, dict[str, list[float]]]:
    """For each other row and column: the lead of ``row``, and its 95 % interval.

    The interval is a bootstrap over files with 2,000 draws, since functions of one file are alike; a row's seeds count
    as further answers.
    """
    files = {path: number for number, path in enumerate(dict.fromkeys(question.path for question in questions))}
    owner = torch.tensor([files[question.path] for question in questions])
    totals: dict[str, Tensor] = {}
    for run in runs:
        counted = torch.tensor([count(a.split(), q.name) for a, q in zip(run.answers, questions, strict=True)])
        mine = torch.zeros(len(files), counted.shape[1], dtype=torch.long).index_add(0, owner, counted)
        totals[run.variant] = totals.get(run.variant, 0) + mine
    drawn = torch.randint(len(files), (2000, len(files)), generator=torch.Generator().manual_seed(0))
    whole = {name: scores(total.sum(0)) for name, total in totals.items()}
    again = {name: scores(total[drawn].sum(1)) for name, total in totals.items()}
    ends = torch.tensor([0.025, 0.975], dtype=torch.double)
    found: dict[str, dict[str, list[float]]] = {}
    for name in [name for name in whole if name != row and row in whole]:
        for column, value in whole[row].items():
            spread = (again[row][column] - again[name][column]).quantile(ends)
            found.setdefault(name, {})[column] = [float(value - whole[name][column]), *spread.tolist()]
    return found


COLUMNS = {"exact": ("beam", "exact"), "F1": ("beam", "F1"), "greedy F1": ("greedy", "F1")}


def report(runs: Sequence[Run], guessed: dict[str, dict[str, float]]) -> str:
    """The table that the command prints."""
    lines = [f"{'variant':<20}" + "".join(f"{name:>14}" for name in COLUMNS) + f"{'seconds':>9}"]
    for name in dict.fromkeys(run.variant for run in runs):
        mine = [run for run in runs if run.variant == name]
        cells = [percent([run.test[way][column] for run in mine], "") for way, column in COLUMNS.values()]
        lines.append(f"{name:<20}" + "".join(f"{c:>14}" for c in cells) + f"{mean(r.seconds for r in mine):>9.0f}")
    for name, found in guessed.items():
        cells = [f"{100 * found[column]:.1f}" for column in ("exact", "F1")]
        lines.append(f"{name:<20}" + "".join(f"{c:>14}" for c in cells))
    return "\n".join(lines)


# %%
# Pictures
# --------
#
# The first picture shows the results of the long run. The others show one function that was
# named right, with its labels and with what each word of its name looks at, and the length of each relation's rows in
# the tables.

SHOWN_TOKENS = 25


def shown(questions: Sequence[Question], answers: Sequence[str]) -> Question:
    """A function whose size fits a picture, named by several words, and right if there is one."""
    pairs = zip(questions, answers, strict=True)
    several = [(q, answer.split() == [*q.name]) for q, answer in pairs if len(q.name) > 1] or [(questions[0], False)]
    return min(several, key=lambda pair: (not pair[1], abs(len(pair[0].tokens) - SHOWN_TOKENS)))[0]


@torch.no_grad()
def draw_relations(folder: Path, model: Namer, question: Question, words: Words, note: str = "") -> None:
    """Of a model with relations: what they are in one function, what its name looks at, and the tables' norms."""
    name, tokens = " ".join(question.name), list(question.tokens)
    with picture(folder / "labels.png", 10, 7.5) as ax:
        first = rg.CodeRelations(duplicates="first")  # a picture has one label per pair
        rg.plot.label_matrix(first(question.graph), first.names, tokens=tokens, ax=ax)
        ax.set_title(f"Relations in a function of {Path(question.path).name}: “{name}”")
    batch = Batch.make([question], words)
    with rg.record_attention(model.eval(), label_mass=False, weights=True) as record:
        model(batch, model.labeler(batch.graph))
    *_, (last,) = (calls for name, calls in record.items() if name.endswith("multihead_attn"))
    weights: Any = last.weights
    with picture(folder / "attention.png", 10, 3, note=note) as ax:
        ax.imshow(weights[0].mean(0).numpy(), cmap="Blues", vmin=0, aspect="auto")
        ax.set_xticks(range(len(tokens)), tokens, rotation=90)
        ax.set_yticks(range(len(question.name) + 1), [*question.name, "<end>"])
        ax.set_title("What each word of the name looks at (last layer, mean of heads)")
    with picture(folder / "norms.png", 10, 4, note=note) as ax:
        layer: Any = model.transformer.encoder.layers[0]
        rg.plot.table_norms(layer.self_attn.tables.value, ax=ax)
        ax.set_title("What relations add to values in the first layer")


# %%
# The command
# -----------
#
# The command saves each run when it ends. After Ctrl-C the same command continues from there.


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    options = Options(
        "naming-functions-out", "Write the names of functions from their graphs.",
        "small functions; less than a minute", seeds=(3, 1), steps=(STEPS, QUICK_STEPS),
        rows=("--variants", [*VARIANTS], ROWS, ROWS),
    )  # fmt: skip
    options.add_argument("--validate", action="store_true", help="test on validation functions, held out of training")
    return options.read(argv)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    steps, seeds = arguments.steps, arguments.seeds
    questions = read(quick=arguments.quick, validation=arguments.validate)
    functions = {part: len(mine) for part, mine in questions.items()}
    settings: dict[str, Any] = {"steps": steps, "quick": arguments.quick, "validate": arguments.validate}
    runs = Runs.of_command(arguments.out, Run, settings | {"functions": functions}, fresh=arguments.fresh)
    number = len(arguments.variants) * len(seeds)
    announce(number, number * steps * SECONDS_A_STEP, arguments.out)
    words = Words(questions["train"])
    batches = [
        Batch.make([questions["train"][n] for n in group], words) for group in groups(questions["train"], BATCH_TOKENS)
    ]

    def run(name: str, seed: int) -> tuple[Run, Namer]:
        torch.manual_seed(seed)
        model, start = Namer(words, VARIANTS[name]), time.perf_counter()
        found = train(model, losses(model, batches, seed), steps, LEARNING_RATE, title=f"{name}, seed {seed}")
        seconds = time.perf_counter() - start
        answers = {way: write(model, questions["test"], words, how) for way, how in WAYS.items()}
        test = {way: score(mine, questions["test"]) for way, mine in answers.items()}
        return Run(name, seed, test, seconds, [" ".join(answer) for answer in answers["beam"]], found), model

    finished = runs.each(arguments.variants, seeds, run, tell=lambda run: f"F1 {100 * run.test['beam']['F1']:.1f} %")
    guessed = {name: score(mine, questions["test"]) for name, mine in guesses(**questions).items()}
    if arguments.quick:
        print(SHORT)
    print(report(runs.done, guessed))
    if not finished:
        return INTERRUPTED
    for name, columns in ahead(runs.done, questions["test"], "relations").items():
        for column, (by, low, high) in columns.items():
            print(f"relations ahead of {name}, {column}: {100 * by:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})")
    runs.save(guesses=guessed)
    if arguments.quick:
        Kept.read("naming_functions").draw(arguments.out)
    if "relations" in arguments.variants:
        model = Namer(words, VARIANTS["relations"])
        runs.load(model, "relations", seeds[0])
        answers = next(run.answers for run in runs.done if (run.variant, run.seed) == ("relations", seeds[0]))
        note = SHORT_MODEL if arguments.quick else ""
        draw_relations(arguments.out, model, shown(questions["test"], answers), words, note)
    return 0


if __name__ == "__main__" and (status := until_stopped(main)):
    raise SystemExit(status)
