"""Schema linking: the column that a question asks for
===================================================

A small model finds the column that a question asks for, with and without RAT-SQL's relations.

Databases and questions are made up. Every table has a key, and often a foreign key to another table. Some column names
occur in several tables. A question names a column and a table, among words without meaning. One word says whether the
column is in that table (``of``) or in the table that its foreign key refers to (``behind``):

.. code-block:: text

    dofi dobi reke behind lula   →  the column reke in the table that dobi refers to

Each table with a foreign key has a column with the name in the question, and so does the table that it refers to, so
names cannot settle the answer. Every word has a random vector that is never trained, and no word of a test question
occurs in training. Columns come table by table, so distances say a little about which table a column belongs to. The
strongest baseline without relations knows which names match: each column and table knows whether its name occurs in the
question, and each column knows whether its table's name does. That settles ``of``. Only the relations say what a key
refers to.

.. code-block:: sh

    python examples/schema_linking.py            # three seeds, about seven minutes on one CPU core
    python examples/schema_linking.py --seeds 5  # about eleven
    python examples/schema_linking.py --quick    # two rows, one seed, half a minute

The second command printed this table: percent right, five seeds, mean ± standard deviation (one thread of a busy AMD
EPYC, November 2026):

.. code-block:: text

    variant                       accuracy                of            behind
    no relations              21.2 % ± 0.6      21.8 % ± 0.9      20.7 % ± 0.7
    distance                  21.1 % ± 2.0      21.0 % ± 3.4      21.1 % ± 1.4
    distance, name match      60.4 % ± 1.5      99.2 % ± 1.0      29.4 % ± 2.5
    schema relations         100.0 % ± 0.0     100.0 % ± 0.0     100.0 % ± 0.0
    all that names tell             60.9 %           100.0 %            29.7 %

The last line is not a model but a bound, worked out from the test questions: for ``behind``, every other table has a
column of that name, and only the key says which one is meant. The row with name matches comes close to that bound.
Relations are 39.6 points ahead of that row (+37.7 to +41.5 over the seeds), and 39 points ahead of the bound. Nearly
all of the lead comes from ``behind`` and depends on the share of such questions, here 267 of 480. So relations carry
what names cannot. The figures do not say how much relations gain on questions of real users: the more questions names
can settle, the smaller the gain. They also do not cover names that match in part, or wrong relations.

Training and test questions are the same for all seeds, so ± covers only initial values and the order of batches. With
all 480 questions right, an error rate of up to 0.6 % remains possible at 95 % confidence. A random column of the right
name is correct in 22.8 %: the first two rows tie with this and know no more. Layers, rate and steps were tuned only for
the row ``schema relations``, on other questions: with half the steps its seeds differed widely on questions with
``behind`` (26 to 100 %). The row with matches was not tuned; no tuning could lift it above the bound.

**The short mode** made the output below and all pictures except the first, which shows the long run. It trains
``distance, name match`` and ``schema relations``, on fewer questions for fewer steps. That is enough to learn ``of``,
for which a column must find its table, but not ``behind``, which also needs a foreign key.

The command writes ``results.json``, models and pictures to ``schema-linking-out/`` (``--quick``:
``schema-linking-out/quick/``). After Ctrl-C the same command continues.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean

import torch
from example_options import Options
from example_runs import INTERRUPTED, Runs, announce, by_row, lead, percent, picture, train, until_stopped
from kept_results import SHORT, SHORT_MODEL, Kept
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import relgraph as rg

# %%
# The task
# --------
#
# A database is a chain of four or five tables. Each refers to the next by a foreign key. All tables share two column
# names. :class:`relgraph.labelers.Schema` holds a question with the columns, tables and keys.

WORDS, MARKS = 2000, ("of", "behind")


@dataclass(frozen=True)
class Question:
    """A schema with its question, and the index of the right column."""

    schema: rg.labelers.Schema
    target: int
    behind: bool


def make_question(rng: random.Random, words: Sequence[str]) -> Question:
    """A random database and a question about it; every word has one use only."""
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
# Words are four letters without meaning. Training and test share no words.


def spell(number: int) -> str:
    """A different word for each number below :data:`WORDS`."""
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
# Like RAT-SQL, :class:`relgraph.labelers.SchemaRelations` labels what two items are to each other: a column of a table,
# a foreign key, a word that matches a name. The other rows have the distance, or no labels at all. Questions are packed
# end to end, and no pair crosses from one question to another.
#
# One row shows what name matches are worth without relations. It gets them as features of items, not of pairs: a column
# or table knows whether its name occurs in the question, and a column also knows whether its table's name does.

RELATIONS, DISTANCE = rg.labelers.SchemaRelations(), rg.ClippedDistance(8)


def match_names(schema: rg.labelers.Schema) -> list[tuple[bool, bool]]:
    """For each word, column and table: does its name occur in the question, and does its table's name?"""
    asked = set(schema.question)
    tables = [name in asked for (name,) in schema.tables]
    columns = [(name in asked, table is not None and tables[table]) for table, (name,) in schema.columns]
    return [*[(False, False)] * len(schema.question), *columns, *((match, match) for match in tables)]


@dataclass(frozen=True)
class Batch:
    """Questions packed end to end: words, kinds and labels of all T positions, and one target per question."""

    words: Tensor  # the marks are 0 and 1
    kinds: Tensor  # 0 for a word of the question, 1 for a column, 2 for a table
    matches: Tensor  # [T, 2], 1 where the item's name occurs in the question, and where its table's name does
    relations: rg.BlockLabels
    distance: rg.DistanceLabels
    target: Tensor
    behind: Tensor

    @property
    def borders(self) -> rg.DistanceLabels:
        """Labels without ids that say which positions belong to one question, for a layer without tables."""
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
    """Batches of ``size`` questions; the parts ``"train"`` and ``"test"`` share no words."""
    rng, words = random.Random(f"{part} {seed}"), words_of(part)
    return [Batch.make([make_question(rng, words) for _ in range(size)], NUMBER) for _ in range(count)]


@dataclass(frozen=True)
class Variant:
    """One row: what attention knows about a pair, and whether items know which names match.

    In all rows attention stays within a question of the packed batch.
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
# The model is an encoder over words, columns and tables. Word vectors are random and stay fixed.

WIDTH, HEADS, LAYERS, HIDDEN = 64, 4, 4, 128


class Pointer(nn.Module):
    """A Transformer over words, columns and tables that gives each column a score."""

    vectors: Tensor

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        labeler = variant.labeler
        layer = rg.RelationEncoderLayer(WIDTH, HEADS, HIDDEN, 0.0, "gelu", norm_first=True, labeler=labeler)
        self.variant = variant
        # Fixed and the same for every seed: a vector identifies its word and says nothing else.
        vectors = torch.randn(WORDS + len(MARKS), WIDTH, generator=torch.Generator().manual_seed(0))
        self.register_buffer("vectors", vectors)
        self.kinds = nn.Embedding(3, WIDTH)
        self.matches = nn.Linear(2, WIDTH, bias=False) if variant.matches else None
        self.encoder = rg.RelationEncoder(layer, LAYERS, nn.LayerNorm(WIDTH))
        self.score = nn.Linear(WIDTH, 1)

    def forward(self, batch: Batch) -> Tensor:
        """``[B, C]``, one score per column; -inf where a schema has fewer columns."""
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
# A question's columns compete in one softmax. Training draws batches again and again from those made at the start.
# ``train`` in ``example_runs.py`` trains on these losses with AdamW, warm-up and linear decay.

LEARNING_RATE = 3e-3


@dataclass(frozen=True)
class Size:
    """How much is trained and tested.

    Attributes:
        steps: training steps.
        questions: questions per batch.
        batches: number of training batches.
        tests: number of test batches.
    """

    steps: int
    questions: int
    batches: int
    tests: int


FULL, QUICK = Size(700, 24, 150, 20), Size(280, 12, 150, 30)
QUICK_ROWS = ("distance, name match", "schema relations")
SECONDS_A_STEP = {FULL: 0.048, QUICK: 0.04}


def losses(model: Pointer, batches: Sequence[Batch], seed: int) -> Iterator[Tensor]:
    """Yield the loss of each step, without end."""
    rng = random.Random(seed)
    while True:
        batch = rng.choice(batches)
        yield cross_entropy(model(batch), batch.target)


# %%
# What came out
# -------------
#
# The table adds two rules: any column with the right name, and everything that names can say. The second rule takes the
# column of that name in the named table, or for ``behind`` one of those in other tables.


@dataclass
class Run:
    """One row trained with one seed."""

    variant: str
    seed: int
    accuracy: float
    of: float
    behind: float
    seconds: float
    losses: list[float] = field(repr=False)


@torch.no_grad()
def hits(model: Pointer, batches: Sequence[Batch]) -> dict[str, float]:
    """The share of questions answered correctly: of all, and of each mark."""
    return by_mark(batches, torch.cat([model(batch).argmax(-1) == batch.target for batch in batches]).double())


def by_mark(batches: Sequence[Batch], shares: Tensor) -> dict[str, float]:
    """The mean over all questions, and over those of each mark."""
    behind = torch.cat([batch.behind for batch in batches])
    parts = {"accuracy": shares, "of": shares[~behind], "behind": shares[behind]}
    return {name: part.mean().item() for name, part in parts.items()}


def guesses(batches: Sequence[Batch]) -> dict[str, dict[str, float]]:
    """How often two rules are right, over all questions and for each mark."""
    chances: dict[str, list[float]] = {"a column of that name": [], "all that names tell": []}
    for batch in batches:
        for (matches, kinds), behind in zip(batch.parts(batch.matches), batch.behind.tolist(), strict=True):
            named, home = matches[kinds == 1].bool().T
            chances["a column of that name"].append(1 / int(named.sum()))
            chances["all that names tell"].append(1 / int((named & (home != behind)).sum()))
    return {name: by_mark(batches, torch.tensor(values).double()) for name, values in chances.items()}


def report(runs: Sequence[Run]) -> str:
    """The table that the command prints, and how far relations are ahead of the other rows."""
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
# The first picture shows the results of the long run. The others show one test question,
# with its labels and with what the column that it asks for looks at, and the labels that get most attention in all test
# questions, by layer and head.


def items(schema: rg.labelers.Schema) -> list[str]:
    """The item at every position: words, columns with their tables, tables."""
    tables = [name for (name,) in schema.tables]
    columns = [f"{tables[table]}.{name}" for table, (name,) in schema.columns if table is not None]  # here all have one
    return [*schema.question, *columns, *tables]


@torch.no_grad()
def label_mass(model: Pointer, batches: Sequence[Batch]) -> Tensor:
    """The attention that each label gets, ``[L, H, R]``, averaged over all positions."""
    with rg.record_attention(model) as record:
        for batch in batches:
            model(batch)
    layers = [[call.label_mass for call in calls if isinstance(call.label_mass, Tensor)] for calls in record.values()]
    return torch.stack([torch.cat(masses, 1).mean(1) for masses in layers])


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
# The command saves each run when it ends. After Ctrl-C the same command continues from there.


def main(argv: Sequence[str] | None = None) -> int:
    arguments = Options(
        "schema-linking-out", "Find the column that a question asks for, with and without relations.",
        "two rows, one seed, less training; half a minute", apart=True, seeds=(3, 1), steps=(FULL.steps, QUICK.steps),
        rows=("--rows", [*VARIANTS], [*VARIANTS], QUICK_ROWS),
    ).read(argv)  # fmt: skip
    usual, seeds, rows = QUICK if arguments.quick else FULL, arguments.seeds, arguments.rows
    size = replace(usual, steps=arguments.steps)
    settings = {"quick": arguments.quick, **asdict(size)}
    runs = Runs.of_command(arguments.out, Run, settings, fresh=arguments.fresh)
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
    if "schema relations" in rows:
        model = Pointer(VARIANTS["schema relations"])
        runs.load(model, "schema relations", seeds[0])
        draw_model(runs.folder, model, tests, SHORT_MODEL if arguments.quick else "")
    return 0


if __name__ == "__main__" and (status := until_stopped(main)):
    raise SystemExit(status)
