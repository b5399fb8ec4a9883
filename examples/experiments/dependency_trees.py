"""The form of hidden verbs: word order, the dependency tree, or both.

All rows see lemmas in place of verbs, and differ in what attention knows about two words of a sentence:

- ``no relations``: nothing; ``distance``: the clipped distance; ``rotary``: positions that turn queries and keys;
- ``heads``: which word is the parent, the child or the word itself; ``relations``: also the relation's name;
- ``heads + distance`` and ``relations + distance``: both, each with its own tables;
- ``key tables only``: ``relations + distance`` without its value tables.

The gold tree is part of the input: annotators saw the forms, so
their trees say more about the forms than a parser's would. Rate and dropout, the same for all rows, were chosen on dev
with one seed of two or three rows. So was the task: in short first tries ``relations`` was below ``distance`` for
hidden prepositions, and for the number of hidden verbs. Three rules do not learn; they name the form that was most
frequent with the same relations.

``--data`` names the folder that holds ``ud-ewt`` (else RELGRAPH_DATA, else ``data``); nothing is downloaded. The short
mode is another and easier task, the sentences of the page, unless ``--data`` is given. There a verb's own auxiliary
determines its form.
"""

from __future__ import annotations

import gzip
import random
from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from dependency_trees import LABELER, Inflector, hide_verbs, make_sentence
from example_options import Options
from example_runs import by_row, percent, train
from torch import Tensor
from torch.nn.functional import cross_entropy

import relgraph as rg
from experiments import Experiment, Work
from relgraph.interop import conllu

HELPERS, FAR = ("aux", "mark", "nsubj"), 3
Family = tuple[str, frozenset[str]]


@dataclass(frozen=True)
class Question:
    """A sentence whose verbs are hidden, word by word; the model does not see ``helpers`` and ``families``."""

    shown: list[str]  # lower case; a verb's lemma replaces the verb
    targets: list[int]  # the index of each hidden verb's form, -1 for all other words
    helpers: list[int]  # distance to the word's nearest auxiliary, marker or subject, 0 for none
    families: list[Family]  # its relation to its head, and those of its dependents to it, without subtypes
    graph: rg.Graph

    @classmethod
    def ask(cls, sentence: conllu.Sentence) -> Question:
        """Hide the verbs of a sentence; the treebank's tags say which words are verbs."""
        relations = [relation.split(":")[0] for relation in sentence.relations]
        dependents: list[list[int]] = [[] for _ in sentence.words]
        for head, word in sentence.graph.edge_index.T.tolist():
            dependents[head].append(word)
        ways = [[abs(d - n) for d in mine if relations[d] in HELPERS] for n, mine in enumerate(dependents)]
        families = [(relations[n], frozenset(relations[d] for d in mine)) for n, mine in enumerate(dependents)]
        return cls(*hide_verbs(sentence), [min(way, default=0) for way in ways], families, sentence.graph)


PARTS = ("train", "dev", "test")
QUICK_SENTENCES = {"train": 1500, "dev": 200, "test": 600}


def ask_all(text: str) -> list[Question]:
    """The questions of a text in CoNLL-U; leaves out sentences without a hidden verb."""
    questions = map(Question.ask, conllu.parse(text))
    return [question for question in questions if max(question.targets) >= 0]


def read(path: Path, most: int | None = None) -> list[Question]:
    """The questions of a gzipped CoNLL-U file, or of its first sentences."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return ask_all("\n\n".join(file.read().split("\n\n")[:most]))


def made_up() -> dict[str, list[Question]]:
    """The questions of the short mode, the same on every call."""
    rng = random.Random(0)
    return {part: [Question.ask(make_sentence(rng)) for _ in range(n)] for part, n in QUICK_SENTENCES.items()}


class Vocabulary(dict[str, int]):
    """Numbers of words; a word seen at most once in training gets the number of its last three letters, or else 0."""

    def __init__(self, questions: Sequence[Question]) -> None:
        count = Counter(word for question in questions for word in question.shown)
        names = dict.fromkeys(word if times > 1 else self.ending(word) for word, times in count.items())
        super().__init__({name: number for number, name in enumerate(names, 1)})

    def __missing__(self, word: str) -> int:
        return self.get(self.ending(word), 0)

    @staticmethod
    def ending(word: str) -> str:
        return "-<number>" if any(c.isdecimal() for c in word) else f"-{word[-3:]}"


BATCH_WORDS, QUICK_BATCH_WORDS = 1000, 400


@dataclass(frozen=True)
class Batch:
    """Sentences packed end to end, T words in all."""

    words: Tensor
    targets: Tensor
    helpers: Tensor
    graph: rg.Graph

    @classmethod
    def make(cls, questions: Sequence[Question], vocabulary: Vocabulary) -> Batch:
        return cls(
            torch.tensor([vocabulary[word] for question in questions for word in question.shown]),
            torch.tensor([target for question in questions for target in question.targets]),
            torch.tensor([way for question in questions for way in question.helpers]),
            rg.Graph.batch([question.graph for question in questions]),
        )


def make_batches(questions: Sequence[Question], vocabulary: Vocabulary, words: int = BATCH_WORDS) -> list[Batch]:
    """Batches of sentences of similar length, which one call of attention processes together."""
    ordered = sorted(random.Random(0).sample(questions, len(questions)), key=lambda question: len(question.shown))
    ends = accumulate(len(question.shown) for question in ordered)
    parts = groupby(zip(ends, ordered, strict=True), lambda pair: pair[0] // words)
    return [Batch.make([question for _, question in part], vocabulary) for _, part in parts]


@dataclass(frozen=True)
class Row:
    """A row of the table: the labels of a sentence's pairs, the kinds of their tables, and whether positions turn."""

    labeler: rg.Labeler
    tables: tuple[str, ...] = ("key", "value")
    rotary: bool = False

    def model(self, words: int) -> Inflector:
        if not self.rotary:
            return Inflector(words, labeler=self.labeler, tables=self.tables)
        # sizes and dropout are those of the page
        return Inflector(words, attention=rg.RelationAttention(64, 4, 0.2, rotary=rg.RotaryPositions(16)))

    def scores(self, model: Inflector, batch: Batch, labels: rg.Labels | None = None) -> Tensor:
        """``[T, 6]``; the labels of the batch, if they are not given, are made."""
        return model(batch.words, batch.targets >= 0, self.labeler(batch.graph) if labels is None else labels)


DISTANCE, HEADS = rg.ClippedDistance(8), rg.TreeRelation(("self", "parent", "child"), default="unlabeled")
PAIRS = rg.Window()  # all pairs of a sentence, without ids
ROWS = {
    "no relations": Row(PAIRS),
    "distance": Row(DISTANCE),
    "heads": Row(HEADS),
    "heads + distance": Row(HEADS + DISTANCE),
    "relations": Row(LABELER),
    "relations + distance": Row(LABELER + DISTANCE),
    "key tables only": Row(LABELER + DISTANCE, tables=("key",)),
    "rotary": Row(PAIRS, rotary=True),
}
NOT_SHORT = ("key tables only", "rotary")

LEARNING_RATE = 4e-3
STEPS, QUICK_STEPS, SECONDS_A_STEP = 800, 110, 0.04


def losses(row: Row, model: Inflector, batches: Sequence[Batch], seed: int) -> Iterator[Tensor]:
    """Yield the loss of each step, without end; each epoch uses every batch once."""
    rng = random.Random(seed)
    labels = [row.labeler(batch.graph) for batch in batches]  # made once and used in every epoch
    while True:
        for at in reversed(rng.sample(range(len(batches)), len(batches))):
            hidden = batches[at].targets >= 0
            yield cross_entropy(row.scores(model, batches[at], labels[at])[hidden], batches[at].targets[hidden])


COLUMNS = ("all", "near", "far")
GUESSES: dict[str, Callable[[Family], object]] = {
    "nothing": lambda _: None,
    "its relation to its head": lambda family: family[0],
    "that and its dependents' relations": lambda family: family,
}


@dataclass
class Run:
    """One row trained with one seed; accuracies by column of the table."""

    variant: str
    seed: int
    validation: dict[str, float]
    test: dict[str, float]
    seconds: float


@torch.no_grad()
def accuracy(row: Row, model: Inflector, batches: Sequence[Batch]) -> dict[str, float]:
    """The share of verbs answered correctly: of all verbs, and of those whose nearest helper is near or far."""
    model.eval()
    answers = torch.cat([row.scores(model, batch).argmax(-1) for batch in batches])
    targets, helpers = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("targets", "helpers"))
    right, hidden = (answers == targets).double(), targets >= 0
    chosen = (hidden, hidden & (helpers > 0) & (helpers < FAR), hidden & (helpers >= FAR))
    return {name: right[rows].mean().item() for name, rows in zip(COLUMNS, chosen, strict=True)}


def guess(train: Sequence[Question], test: Sequence[Question], clue: Callable[[Family], object]) -> float:
    """The accuracy of guessing the form that is most frequent for the same clue, or of all forms if the clue is new."""

    def verbs(questions: Sequence[Question]) -> list[tuple[object, int]]:
        pairs = (pair for q in questions for pair in zip(q.families, q.targets, strict=True))
        return [(clue(family), form) for family, form in pairs if form >= 0]

    seen: dict[object, Counter[int]] = defaultdict(Counter)
    for key, form in verbs(train):
        seen[key][form] += 1
    usual = sum(seen.values(), Counter())
    return mean(seen.get(key, usual).most_common(1)[0][0] == form for key, form in verbs(test))


def report(runs: Sequence[Run], rules: dict[str, float]) -> str:
    """The table that the command prints, and the rules that learn nothing."""
    lines = [f"{'variant':<22}" + "".join(f"{name:>15}" for name in COLUMNS) + f"{'seconds':>9}"]
    for name, mine in by_row(runs).items():
        cells = (percent([run.test[column] for run in mine]) for column in COLUMNS)
        lines.append(f"{name:<22}" + "".join(f"{c:>15}" for c in cells) + f"{mean(r.seconds for r in mine):>9.0f}")
    lines += [f"most frequent form, given {name}: {100 * share:.1f} %" for name, share in rules.items()]
    return "\n".join(lines)


def check(options: Options, arguments: Namespace) -> None:
    """Find the files of the treebank; none for made-up sentences."""
    arguments.files = {}
    for part in () if arguments.quick and arguments.data is None else PARTS:
        arguments.files[part] = options.find_data(arguments, f"ud-ewt/en_ewt-ud-{part}.conllu.gz")


def begin(arguments: Namespace) -> Work:
    most = QUICK_SENTENCES if arguments.quick else {}
    if arguments.files:
        questions = {part: read(path, most.get(part)) for part, path in arguments.files.items()}
    else:
        print("--quick reads no treebank: the sentences and trees are made up")
        questions = made_up()
    vocabulary, words = Vocabulary(questions["train"]), QUICK_BATCH_WORDS if arguments.quick else BATCH_WORDS
    batches = {part: make_batches(mine, vocabulary, words) for part, mine in questions.items()}

    def run(name: str, seed: int) -> tuple[Run, Inflector]:
        torch.manual_seed(seed)
        row = ROWS[name]
        model = row.model(len(vocabulary) + 1)
        taken = losses(row, model, batches["train"], seed)
        seconds = train(model, taken, arguments.steps, LEARNING_RATE, title=f"{name}, seed {seed}")
        validation, test = (accuracy(row, model, batches[part]) for part in ("dev", "test"))
        return Run(name, seed, validation, test, seconds), model

    def rules() -> dict[str, float]:
        return {name: guess(questions["train"], questions["test"], clue) for name, clue in GUESSES.items()}

    settings: dict[str, Any] = {"steps": arguments.steps, "data": "UD English EWT" if arguments.files else "made up"}
    settings["sentences"] = {part: len(mine) for part, mine in questions.items()}
    each = arguments.steps * SECONDS_A_STEP
    return Work(settings, len(arguments.rows) * len(arguments.seeds) * each, run, rules=rules)


EXPERIMENT = Experiment(
    Run, [*ROWS], "less than a minute, on made-up sentences if no --data",
    {"seeds": (3, 1), "steps": (STEPS, QUICK_STEPS)}, begin,
    tell=lambda run: f"{100 * run.test['all']:.1f} % right", report=report, check=check,
    short_rows=[name for name in ROWS if name not in NOT_SHORT],
    options=lambda options: options.add_data("ud-ewt"),
)  # fmt: skip
