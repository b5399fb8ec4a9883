"""Schema linking: the column that a question asks for
===================================================

A small model finds the column that a question asks for, with and without RAT-SQL's relations.

Databases and questions are made up. Every table has a key, and often a foreign key to another table; some column names
stand in several tables. A question names a column and a table, between words without meaning, and says by a word
whether the column is in that table (``of``) or in the one that this table's foreign key refers to (``behind``):

.. code-block:: text

    dofi dobi reke behind lula   →  the column reke in the table that dobi refers to

Each table with a foreign key has the column asked for, and so does the table it refers to; so names alone do not
settle the answer. Every word has a random vector that is never trained, and words of test questions occur in none of
training. Columns stand table by table, so distances tell a little of which table a column belongs to. The strongest
baseline without relations knows which names match: each column and table knows whether its name occurs in the
question, and each column whether its table's name does. That settles ``of``. What a key refers to is known by the
relations alone.

.. code-block:: sh

    python examples/schema_linking.py            # three seeds, about seven minutes on one CPU core
    python examples/schema_linking.py --seeds 5  # about eleven
    python examples/schema_linking.py --quick    # two rows, one seed, half a minute

Percent right, five seeds, mean ± standard deviation, as the second command printed (one thread of a busy AMD EPYC,
November 2026):

.. code-block:: text

    variant                       accuracy                of            behind
    no relations              21.2 % ± 0.6      21.8 % ± 0.9      20.7 % ± 0.7
    distance                  21.1 % ± 2.0      21.0 % ± 3.4      21.1 % ± 1.4
    distance, name match      60.4 % ± 1.5      99.2 % ± 1.0      29.4 % ± 2.5
    schema relations         100.0 % ± 0.0     100.0 % ± 0.0     100.0 % ± 0.0
    all that names tell             60.9 %           100.0 %            29.7 %

The last line is no model but a bound, worked out from the test questions: for ``behind``, every other table has a
column of that name, and nothing but the key says which is meant. The row with matches comes close to that bound:
relations are 39.6 points ahead of it (+37.7 to +41.5 by the seeds), and 39 ahead of the bound. Nearly all of that is in
``behind``, and follows from the share of such questions, here 267 of 480. It says that relations carry what names
cannot, and not how much they gain on questions of real users: the more of those are settled by names, the less. Nor
does it cover names that match in part, or relations that are wrong.

Training and test questions are the same for all seeds, so that ± covers initial values and the order of batches only.
All 480 questions right leave up to 0.6 % of wrong answers open at 95 %. A random column of the name asked for is right
in 22.8 %: the first two rows tie, and know no more than that. Layers, rate and steps were settled with the row ``schema
relations`` alone, on other questions: at half the steps its seeds differed widely in questions with ``behind`` (26 to
100 %). The row with matches was not tuned; no tuning could lift it above the bound.

**The short mode** made the output below and all pictures but the first, which shows the long run. It trains ``distance,
name match`` and ``schema relations``, on fewer questions for fewer steps. That is enough to learn ``of``, for which a
column must find its table, but not ``behind``, which needs a foreign key as well.

It writes ``results.json``, models and pictures to ``schema-linking-out/`` (``--quick``: ``schema-linking-out/quick/``);
after Ctrl-C the same command goes on.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean

import torch
from example_runs import (
    INTERRUPTED,
    Runs,
    announce,
    bars,
    by_row,
    lead,
    percent,
    picture,
    positive,
    train,
    until_stopped,
)
from kept_results import SHORT, SHORT_MODEL, Kept
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import relgraph as rg

# %%
# The task
# --------
#
# A database is a chain of four or five tables, each of which refers to the next one by a foreign key. Two column names
# stand in all of them. :class:`relgraph.labelers.Schema` holds a question with the columns, tables and keys.

WORDS, MARKS = 2000, ("of", "behind")


@dataclass(frozen=True)
class Question:
    """A schema with its question, and the number of the column that is asked for."""

    schema: rg.labelers.Schema
    target: int
    behind: bool


def make_question(rng: random.Random, words: Sequence[str]) -> Question:
    """A random database and a question about it, from words of which each has one use."""
    fresh = iter(rng.sample(words, 40))
    names = [next(fresh) for _ in range(rng.randint(4, 5))]
    shared = [next(fresh) for _ in range(2)]
    order = rng.sample(range(len(names)), len(names))
    refers = dict(pairwise(order))  # a chain: the last table refers to none
    columns: list[tuple[int, list[str]]] = []
    keys, foreign = {}, {}
    for table in range(len(names)):
        keys[table] = len(columns)
        columns.append((table, [next(fresh)]))
        others = [*shared, next(fresh), *[next(fresh)] * (table in refers)]
        columns += [(table, [name]) for name in rng.sample(others, len(others))]
        foreign[table] = columns.index((table, [others[-1]]))
    asked, behind, name = rng.choice(list(refers)), rng.random() < 0.5, rng.choice(shared)
    home = refers[asked] if behind else asked
    text = [next(fresh), name, MARKS[behind], next(fresh), names[asked]]
    schema = rg.labelers.Schema(
        rng.sample(text, len(text)),
        columns,
        [[name] for name in names],
        primary_keys=keys.values(),
        foreign_keys=[(foreign[table], keys[other]) for table, other in refers.items()],
    )
    return Question(schema, columns.index((home, [name])), behind)


# %%
# Words are four letters that say nothing. Those of training and those of the test have nothing in common.


def spell(number: int) -> str:
    """A word of its own for each number below :data:`WORDS`."""
    letters = []
    for choice in ("bdfgklmnprst", "aeiou", "bdfgklmnprst", "aeiou"):
        number, at = divmod(number, len(choice))
        letters.append(choice[at])
    return "".join(letters)


def words_of(part: str) -> list[str]:
    """The words of ``"train"``, or of the other parts."""
    return [spell(number) for number in range(WORDS) if (number % 2 == 0) == (part == "train")]


NUMBER = {word: number for number, word in enumerate((*MARKS, *map(spell, range(WORDS))))}

# %%
# The labels
# ----------
#
# :class:`relgraph.labelers.SchemaRelations` names what two items are to each other, as RAT-SQL does: a column of a
# table, a foreign key, a word that matches a name. The other rows have the distance, or no labels at all. Questions are
# packed end to end, and no pair crosses from one to another.
#
# What a match of names is worth by itself is seen in a row that gets it as a feature of items, not of pairs: a column
# or table knows whether its name occurs in the question, and a column also whether its table's name does.

RELATIONS, DISTANCE = rg.labelers.SchemaRelations(), rg.ClippedDistance(8)


def match_names(schema: rg.labelers.Schema) -> list[tuple[bool, bool]]:
    """For each word, column and table: whether its name occurs in the question, and whether its table's name does."""
    asked = set(schema.question)
    tables = [name in asked for (name,) in schema.tables]
    columns = [(name in asked, table is not None and tables[table]) for table, (name,) in schema.columns]
    return [*[(False, False)] * len(schema.question), *columns, *((match, match) for match in tables)]


@dataclass(frozen=True)
class Batch:
    """Questions packed end to end: words, kinds and labels of all T positions, and what is asked for, one each."""

    words: Tensor  # the marks are 0 and 1
    kinds: Tensor  # 0 for a word of the question, 1 for a column, 2 for a table
    matches: Tensor  # [T, 2], 1 where the item's name occurs in the question, and where its table's name does
    relations: rg.BlockLabels
    distance: rg.DistanceLabels
    target: Tensor
    behind: Tensor

    @property
    def borders(self) -> rg.DistanceLabels:
        """Which positions belong to one question, and no ids: for a layer without tables."""
        return rg.DistanceLabels(self.relations.q_len, lookup=[-1], left=0, ptr=self.relations.k_ptr)

    def parts(self, values: Tensor) -> list[tuple[Tensor, Tensor]]:
        """For each question, the values and the kinds of its positions."""
        sizes = self.relations.k_ptr.diff().tolist()
        return list(zip(values.split(sizes), self.kinds.split(sizes), strict=True))

    @classmethod
    def make(cls, questions: Sequence[Question], number: dict[str, int]) -> Batch:
        schemas = [question.schema for question in questions]
        words, kinds = [], []
        for schema in schemas:
            names = [*schema.question, *(name for _, (name,) in schema.columns), *(name for (name,) in schema.tables)]
            words += [number[name] for name in names]
            kinds += [0] * len(schema.question) + [1] * len(schema.columns) + [2] * len(schema.tables)
        relations = RELATIONS(schemas)
        assert isinstance(relations, rg.BlockLabels)
        return cls(
            torch.tensor(words),
            torch.tensor(kinds),
            torch.tensor([match for schema in schemas for match in match_names(schema)]).float(),
            relations,
            DISTANCE(len(words), ptr=relations.k_ptr),
            torch.tensor([question.target for question in questions]),
            torch.tensor([question.behind for question in questions]),
        )


def make_batches(count: int, size: int, seed: int, part: str) -> list[Batch]:
    """Batches of so many questions; the words of the parts ``"train"`` and ``"test"`` have nothing in common."""
    rng, words = random.Random(f"{part} {seed}"), words_of(part)
    return [Batch.make([make_question(rng, words) for _ in range(size)], NUMBER) for _ in range(count)]


@dataclass(frozen=True)
class Variant:
    """One row: what attention knows of a pair, and whether items know which names match.

    All rows have the packed batch's borders.
    """

    name: str
    labeler: rg.Labeler | None
    labels: Callable[[Batch], rg.Labels]
    matches: bool = False


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("no relations", None, lambda batch: batch.borders),
        Variant("distance", DISTANCE, lambda batch: batch.distance),
        Variant("distance, name match", DISTANCE, lambda batch: batch.distance, matches=True),
        Variant("schema relations", RELATIONS, lambda batch: batch.relations),
    )
}

# %%
# The model
# ---------
#
# An encoder over words, columns and tables. Word vectors are random and stay as they are.

WIDTH, HEADS, LAYERS, HIDDEN = 64, 4, 4, 128


class Pointer(nn.Module):
    """A Transformer over words, columns and tables that gives each column a score."""

    vectors: Tensor

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        labeler = variant.labeler
        layer = rg.RelationEncoderLayer(WIDTH, HEADS, HIDDEN, 0.0, "gelu", norm_first=True, labeler=labeler)
        self.variant = variant
        # Not trained, and the same for every seed: a word is known by its vector, and its vector says nothing else.
        vectors = torch.randn(WORDS + len(MARKS), WIDTH, generator=torch.Generator().manual_seed(0))
        self.register_buffer("vectors", vectors)
        self.kinds = nn.Embedding(3, WIDTH)
        self.matches = nn.Linear(2, WIDTH, bias=False) if variant.matches else None
        self.encoder = rg.RelationEncoder(layer, LAYERS, nn.LayerNorm(WIDTH))
        self.score = nn.Linear(WIDTH, 1)
        self.encoder.reset_parameters()  # copies of a layer start alike

    def forward(self, batch: Batch) -> Tensor:
        """``[B, C]``, one score a column; -inf where a schema has fewer."""
        x = self.vectors[batch.words] + self.kinds(batch.kinds)
        if self.matches is not None:
            x = x + self.matches(batch.matches)
        scores = self.score(self.encoder(x, labels=self.variant.labels(batch)))[:, 0]
        columns = [values[kinds == 1] for values, kinds in batch.parts(scores)]
        return nn.utils.rnn.pad_sequence(columns, batch_first=True, padding_value=float("-inf"))


# %%
# Training
# --------
#
# A question's columns compete in one softmax. Batches are drawn again and again from those that were made at the start.
# ``train`` in ``example_runs.py`` takes the losses one by one: AdamW with warm-up and linear decay.

LEARNING_RATE = 3e-3


@dataclass(frozen=True)
class Size:
    """How much is trained and tested.

    Attributes:
        steps: of training.
        questions: in a batch.
        batches: of training.
        tests: batches of the test.
    """

    steps: int
    questions: int
    batches: int
    tests: int


FULL, QUICK = Size(700, 24, 150, 20), Size(280, 12, 150, 30)
QUICK_ROWS = ("distance, name match", "schema relations")
SECONDS_A_STEP = {FULL: 0.048, QUICK: 0.04}


def losses(model: Pointer, batches: Sequence[Batch], seed: int) -> Iterator[Tensor]:
    """The loss of every step, without end."""
    rng = random.Random(seed)
    while True:
        batch = rng.choice(batches)
        yield cross_entropy(model(batch), batch.target)


# %%
# What came out
# -------------
#
# Besides the rows there are two rules: any column with the name asked for, and all that names can tell. The second
# takes the column of that name in the table that is named, or for ``behind`` one of those in other tables.


@dataclass
class Run:
    """One variant trained with one seed."""

    variant: str
    seed: int
    accuracy: float
    of: float
    behind: float
    seconds: float
    losses: list[float] = field(repr=False)


@torch.no_grad()
def hits(model: Pointer, batches: Sequence[Batch]) -> dict[str, float]:
    """The share of questions answered right: of all, and of either mark."""
    return by_mark(batches, torch.cat([model(batch).argmax(-1) == batch.target for batch in batches]).double())


def by_mark(batches: Sequence[Batch], shares: Tensor) -> dict[str, float]:
    """The mean over all questions, and over those of either mark."""
    behind = torch.cat([batch.behind for batch in batches])
    parts = {"accuracy": shares, "of": shares[~behind], "behind": shares[behind]}
    return {name: part.mean().item() for name, part in parts.items()}


def guesses(batches: Sequence[Batch]) -> dict[str, dict[str, float]]:
    """How often two rules are right, of all questions and of either mark."""
    chances: dict[str, list[float]] = {"a column of that name": [], "all that names tell": []}
    for batch in batches:
        for (matches, kinds), behind in zip(batch.parts(batch.matches), batch.behind.tolist(), strict=True):
            named, home = matches[kinds == 1].bool().T
            chances["a column of that name"].append(1 / int(named.sum()))
            chances["all that names tell"].append(1 / int((named & (home != behind)).sum()))
    return {name: by_mark(batches, torch.tensor(values).double()) for name, values in chances.items()}


def report(runs: Sequence[Run]) -> str:
    """The table that is printed, and how far relations are ahead of the other rows."""
    lines = [f"{'variant':<22}" + "".join(f"{name:>16}" for name in ("accuracy", *MARKS)) + f"{'seconds':>9}"]
    rows = by_row(runs, lambda run: run)
    for name, mine in rows.items():
        cells = (percent([getattr(run, column) for run in mine]) for column in ("accuracy", *MARKS))
        lines.append(f"{name:<22}" + "".join(f"{c:>16}" for c in cells) + f"{mean(r.seconds for r in mine):>9.0f}")
    shares = {name: {run.seed: run.accuracy for run in mine} for name, mine in rows.items()}
    ours = shares.pop("schema relations", {})
    lines += [
        f"schema relations against {name}: {lead(ours, theirs)}"
        for name, theirs in shares.items()
        if ours.keys() & theirs.keys()
    ]
    return "\n".join(lines)


# %%
# Pictures
# --------
#
# Results (in the short mode, of the long run); then, of one test question, the labels, and what the column that it asks
# for looks at; and the labels that get most attention in all test questions, by layer and head.


def items(schema: rg.labelers.Schema) -> list[str]:
    """What stands at every position: words, columns with their tables, tables."""
    tables = [name for (name,) in schema.tables]
    columns = [f"{tables[table]}.{name}" for table, (name,) in schema.columns if table is not None]  # here all have one
    return [*schema.question, *columns, *tables]


@torch.no_grad()
def label_mass(model: Pointer, batches: Sequence[Batch]) -> Tensor:
    """``[L, H, R]``, the attention that each label gets, averaged over all positions."""
    with rg.record_attention(model) as record:
        for batch in batches:
            model(batch)
    layers = [[call.label_mass for call in calls if isinstance(call.label_mass, Tensor)] for calls in record.values()]
    return torch.stack([torch.cat(masses, 1).mean(1) for masses in layers])


def draw_results(folder: Path, runs: Sequence[Run], baselines: dict[str, dict[str, float]]) -> None:
    """A bar for each mark and row, and what names can tell of ``behind``."""
    guess = baselines["all that names tell"]["behind"]
    with picture(folder / "results.png", 9, 4) as ax:
        columns = {mark: by_row(runs, lambda run, mark=mark: getattr(run, mark)) for mark in MARKS}
        ax.axvline(100 * guess, color="0.4", linestyle=":", label="behind, by all that names tell")
        bars(ax, columns, "Right columns, by the question's mark")
        ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


@torch.no_grad()
def draw_model(folder: Path, model: Pointer, tests: Sequence[Batch], note: str = "") -> None:
    """One question, and what ``model`` has learned; it must be one with relations."""
    question = make_question(random.Random(4), words_of("test"))
    tokens, batch = items(question.schema), Batch.make([question], NUMBER)
    asked, answer = " ".join(question.schema.question), len(question.schema.question) + question.target
    with picture(folder / "labels.png", 11, 8) as ax:
        rg.plot.label_matrix(batch.relations, RELATIONS.names, tokens=tokens, ax=ax)
        ax.set_title(f"“{asked}” asks for {tokens[answer]}: what every two items are to each other")
    with rg.record_attention(model, weights=True) as record:
        model(batch)
    with picture(folder / "attention.png", 9, 7, LAYERS, 1, note=note) as axes:
        for number, (ax, (call,)) in enumerate(zip(axes, record.values(), strict=True)):
            rg.plot.attention_tokens(call.weights, tokens, query=answer, ax=ax)
            ax.set(title=f"What {tokens[answer]} looks at in layer {number}", xlabel="", ylabel="attention")
            ax.tick_params(labelbottom=number == LAYERS - 1)
    mass = label_mass(model, tests)
    most = mass.amax((0, 1)).topk(14).indices.sort().values
    with picture(folder / "mass.png", 9, 6, note=note) as ax:
        rg.plot.label_mass(mass[..., most], [RELATIONS.names[label] for label in most], axes="LHR", ax=ax)
        ax.set_title("Attention by label: the fourteen labels that get most in any head")


# %%
# The command
# -----------
#
# Runs are kept one by one, so that the same command goes on after Ctrl-C.


def parse_arguments(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    parser.add_argument("--quick", action="store_true", help="two rows, one seed, less training: half a minute")
    parser.add_argument("--rows", nargs="+", choices=VARIANTS, metavar="ROW", help="some rows (all, quick two)")
    parser.add_argument("--seeds", type=positive(int), help="runs of each row (3, quick 1)")
    parser.add_argument("--steps", type=positive(int), help=f"training steps a run ({FULL.steps}, quick {QUICK.steps})")
    parser.add_argument("--out", type=Path, help="where all is written (schema-linking-out, quick its folder quick)")
    parser.add_argument("--fresh", action="store_true", help="begin anew, whatever stands in --out")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The column that a question asks for, with and without relations.")
    arguments = parse_arguments(parser, argv)
    torch.set_num_threads(1)
    usual, out = (QUICK, "schema-linking-out/quick") if arguments.quick else (FULL, "schema-linking-out")
    size = replace(usual, steps=arguments.steps or usual.steps)
    rows = list(arguments.rows or (QUICK_ROWS if arguments.quick else VARIANTS))
    seeds = range(arguments.seeds or (1 if arguments.quick else 3))
    try:
        runs = Runs(arguments.out or Path(out), Run, {"quick": arguments.quick, **asdict(size)}, fresh=arguments.fresh)
    except ValueError as error:
        parser.error(str(error))
    count = len(rows) * len(seeds)
    announce(count, count * size.steps * SECONDS_A_STEP[usual], runs.folder)
    training = make_batches(size.batches, size.questions, 0, "train")
    tests = make_batches(size.tests, size.questions, 0, "final")

    def run(name: str, seed: int) -> tuple[Run, Pointer]:
        torch.manual_seed(seed)
        model, start = Pointer(VARIANTS[name]), time.process_time()
        found = train(model, losses(model, training, seed), size.steps, LEARNING_RATE, title=f"{name}, seed {seed}")
        seconds = time.process_time() - start
        return Run(name, seed, **hits(model, tests), seconds=seconds, losses=found), model

    finished = runs.each(rows, seeds, run, tell=lambda run: f"{100 * run.accuracy:.1f} % right")
    if arguments.quick:
        print(SHORT)
    print(report(runs.done))
    if not finished:
        return INTERRUPTED
    baselines = guesses(tests)
    for name, shares in baselines.items():
        print(f"{name}: " + ", ".join(f"{column} {100 * share:.1f} %" for column, share in shares.items()))
    runs.save(baselines=baselines)
    print(f"results: {runs.path}")
    if arguments.quick:
        Kept.read("schema_linking").draw(runs.folder)
    else:
        draw_results(runs.folder, runs.done, baselines)
    if "schema relations" in rows:
        model = Pointer(VARIANTS["schema relations"])
        runs.load(model, "schema relations", seeds[0])
        draw_model(runs.folder, model, tests, SHORT_MODEL if arguments.quick else "")
    return 0


if __name__ == "__main__" and (status := until_stopped(main)):
    raise SystemExit(status)
