"""Names of functions of Python's own library: no relations, distances, or the relations of the program.

The name is hidden everywhere, also where the function calls itself. Docstrings, comments, decorators and the text of
strings are left out:

.. code-block:: text

    def <name>(self, /, *args, **kwargs):
        return self._bind(args, kwargs, partial=True)          →  bind partial

The rows differ only in the labels of the encoder: none, where all tokens of a function attend; clipped distances; or
relations, where only tokens with a relation attend. ``relations, else distance`` runs only if ``--rows`` names it. The
model writes a name in words of training names, which include 78 % of the words of validation names. The table has the
share of exact names and F1 of their words in any order, counted over all functions together (Allamanis et al. 2016;
Alon et al. 2019), with a beam of 4, and F1 with greedy search. Two guesses train no model: the most frequent name of
the training functions, and the name of the training function with the most similar words.

In exact names, ``relations`` leads ``no relations`` by 0.0 (-0.4 to 0.5) and ``distance`` by -0.3 (-0.8 to 0.0). Beam
and greedy search differ by less than the spread of the seeds. The guess is exact more often than any row, because it
repeats whole names from training. Much of a name cannot be known: 27 % of the words of test names occur in no training
name, and 73 % do not occur in the function. Published figures come from far more functions and cannot be compared.

Settings were chosen on functions from files held out of training (``--validate``), with relations and one seed. There,
400 steps on functions of up to 80 tokens gave an F1 of 15.8 if only tokens with a relation attend, and 14.5 if all
tokens attend, with their relation or else their distance as label. On functions of up to 50 tokens longer training gave
no more: 15.9 after 450 steps (all attend), 15.7 after 1,000. First tries without copying gave 5 and 11. A beam with a
length penalty of 2 scored 0.8 points more than with 0.6. Dropout was 0.3 in the first comparison; 0.2 was not compared.

The short mode reads functions of up to 30 tokens in the library's top modules.
"""

from __future__ import annotations

import math
import random
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import example_runs
import torch
from example_options import Options
from example_runs import Runs, by_row, percent, picture, train
from function_names import Batch, Question, Words, groups, read
from kept_results import SHORT_MODEL
from naming_functions import RELATIONS, Namer
from stdlib_functions import subtokens
from torch import Tensor
from torch.nn.functional import nll_loss, normalize

import relgraph as rg
from experiments import Experiment, Work

sys.path.append(str(Path(example_runs.__file__).resolve().parents[1]))  # where the package examples.translation is

from examples.translation.search import Search, search_memory
from examples.translation.vocabulary import PAD

DISTANCE = rg.ClippedDistance(8)
VARIANTS: dict[str, rg.Labeler] = {
    "no relations": rg.Window(),
    "distance": DISTANCE,
    "relations": RELATIONS,
    "relations, else distance": rg.CodeRelations(duplicates="first") | DISTANCE,
}
BATCH_TOKENS, LEARNING_RATE, STEPS, QUICK_STEPS, SECONDS_A_STEP = 1000, 4e-3, 400, 60, 0.1


def build(words: Words, labeler: rg.Labeler) -> Namer:
    return Namer(len(words), words.frequency, labeler)


def losses(model: Namer, batches: Sequence[Batch], seed: int) -> Iterator[Tensor]:
    """Yield the loss of each step, without end; each epoch uses every batch once."""
    rng = random.Random(seed)
    labels = [model.labeler(batch.graph) for batch in batches]  # made once and used in every epoch
    while True:
        for at in reversed(rng.sample(range(len(batches)), len(batches))):
            batch = batches[at]
            chances = model(batch.names, batch.words, batch.graph, labels[at])
            yield nll_loss(chances.flatten(0, 1), batch.names[:, 1:].flatten(), ignore_index=PAD)


WAYS = {"beam": Search(beam=4, length_penalty=2.0), "greedy": Search(beam=1)}
LONGEST_NAME = 8
Name = tuple[str, ...]


def write(model: Namer, questions: Sequence[Question], words: Words, how: Search) -> list[Name]:
    """The name of each function, in the order of ``questions``."""
    model.eval()
    found: dict[int, Name] = {}
    for group in groups(questions, 4 * BATCH_TOKENS):
        batch = Batch.make([questions[n] for n in group], words)
        written = search_memory(model, model.encode(batch.words, batch.graph), [LONGEST_NAME] * len(group), how)
        found |= {n: words.text(hypothesis.ids) for n, hypothesis in zip(group, written, strict=True)}
    model.train()
    return [found[n] for n in range(len(questions))]


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


def report(runs: Sequence[Run], rules: dict[str, dict[str, float]]) -> str:
    """The table that the command prints."""
    lines = [f"{'variant':<20}" + "".join(f"{name:>14}" for name in COLUMNS) + f"{'seconds':>9}"]
    for name, mine in by_row(runs).items():
        cells = [percent([run.test[way][column] for run in mine], "") for way, column in COLUMNS.values()]
        lines.append(f"{name:<20}" + "".join(f"{c:>14}" for c in cells) + f"{mean(r.seconds for r in mine):>9.0f}")
    for name, found in rules.items():
        cells = [f"{100 * found[column]:.1f}" for column in ("exact", "F1")]
        lines.append(f"{name:<20}" + "".join(f"{c:>14}" for c in cells))
    return "\n".join(lines)


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
        model(batch.names, batch.words, batch.graph)
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


def options(options: Options) -> None:
    options.add_argument("--validate", action="store_true", help="test on validation functions, held out of training")


def begin(arguments: Namespace) -> Work:
    steps, seeds, quick = arguments.steps, arguments.seeds, arguments.quick
    questions = read(quick=quick, validation=arguments.validate)
    settings: dict[str, Any] = {"steps": steps, "validate": arguments.validate}
    settings |= {"functions": {part: len(mine) for part, mine in questions.items()}}
    training, asked = questions["train"], questions["test"]
    words = Words(training)
    batches = [Batch.make([training[n] for n in group], words) for group in groups(training, BATCH_TOKENS)]

    def run(name: str, seed: int) -> tuple[Run, Namer]:
        torch.manual_seed(seed)
        model = build(words, VARIANTS[name])
        seconds = train(model, losses(model, batches, seed), steps, LEARNING_RATE, title=f"{name}, seed {seed}")
        answers = {way: write(model, asked, words, how) for way, how in WAYS.items()}
        test = {way: score(mine, asked) for way, mine in answers.items()}
        return Run(name, seed, test, seconds, [" ".join(answer) for answer in answers["beam"]]), model

    def draw(runs: Runs) -> None:
        for name, columns in ahead(runs.done, asked, "relations").items():
            for column, (by, low, high) in columns.items():
                print(f"relations ahead of {name}, {column}: {100 * by:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})")
        if "relations" in arguments.rows:
            model: Any = runs.load(build(words, RELATIONS), "relations", seeds[0])
            answers = next(run.answers for run in runs.done if (run.variant, run.seed) == ("relations", seeds[0]))
            draw_relations(runs.folder, model, shown(asked, answers), words, SHORT_MODEL if quick else "")

    def rules() -> dict[str, Any]:
        return {name: score(mine, asked) for name, mine in guesses(training, asked).items()}

    return Work(settings, len(arguments.rows) * len(seeds) * steps * SECONDS_A_STEP, run, rules=rules, draw=draw)


EXPERIMENT = Experiment(
    Run, [*VARIANTS], "small functions; less than a minute", {"seeds": (3, 1), "steps": (STEPS, QUICK_STEPS)}, begin,
    tell=lambda run: f"F1 {100 * run.test['beam']['F1']:.1f} %", report=report, long_rows=[*VARIANTS][:3],
    options=options,
)  # fmt: skip
