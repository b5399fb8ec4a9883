"""Hidden variables: positions, distances and code relations
=========================================================

Small Transformers fill in hidden variables in Python's standard library, with and without relations.

The task is variable misuse: one use of a local variable in a function is hidden, and the model points at the variable
that belongs there. The rows of the table differ only in what attention knows about the relation between two tokens:

- none: nothing;
- sinusoidal: only the sinusoids that are added to the input;
- rotary: queries and keys turned by their positions (Su et al. 2021);
- ALiBi: a fixed penalty per head for each step of distance (Press et al. 2022);
- relative: a learned key and value vector for each clipped distance (Shaw, Uszkoreit, Vaswani 2018);
- code relations: a learned key and value vector for each relation of syntax and data flow (Hellendoorn et al. 2020),
  and for the distance between tokens that have no such relation.

.. code-block:: sh

    python examples/quickstart.py              # the last, rotary and relative: three minutes on two CPU cores
    python examples/quickstart.py --quick      # half a minute, too short to learn much
    python examples/quickstart.py --seeds 3    # mean and spread of three runs

Right answers to 2,571 questions about functions in files outside the training set, as ``--seeds 5 --variants none
sinusoidal rotary ALiBi relative "code relations"`` printed (mean ± standard deviation, range; one thread of an AMD
EPYC, Python 3.11.7's standard library, November 2026):

.. code-block:: text

    none              35.3 % ± 0.5 (34.7–35.9)
    sinusoidal        61.3 % ± 0.8 (60.4–62.1)
    rotary            69.7 % ± 2.3 (66.9–72.3)
    ALiBi             64.3 % ± 1.3 (62.8–66.0)
    relative          64.9 % ± 1.4 (63.1–66.4)
    code relations    72.6 % ± 0.9 (71.8–74.1)
    least often seen  58.8 %

The last line is the best rule that learns nothing; guessing gives 34.3 %. The 95 % interval of pairs of seeds has code
relations 5.1 to 10.4 points ahead of distances, and -0.3 to +6.1 of rotary positions, which is a tie. Distances lead
sinusoids by 1.5 to 5.7. All seeds share one library, one split and one size of model. docs/results.md says how settings
were chosen.

**The short mode** made the output below and all pictures except the first, which shows the long run. It reads only the
top modules of the library and trains 40 steps. No row reaches the best rule yet, and their order means
nothing.

The command writes ``results.json``, models and pictures to ``quickstart-out/``, with ``--quick`` to its folder
``quick``. After Ctrl-C the same command continues.
"""

from __future__ import annotations

import argparse
import platform
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from code_relations import question_graph
from example_options import Options
from example_runs import INTERRUPTED, Runs, announce, cores, percent, picture, train, until_stopped
from kept_results import SHORT, SHORT_MODEL, Kept
from stdlib_functions import Batch, Question, Questions, Vocabulary, guesses, load
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

import relgraph as rg
from relgraph.interop.python import EDGE_TYPES

# %%
# The task
# --------
#
# The functions come from the standard library of the Python that runs this script (``stdlib_functions.py``): nothing is
# downloaded. A function is a list of tokens, one of which is hidden. Training and test functions come from different
# files, and no function body occurs twice.

BATCH_TOKENS = 1200


@dataclass(frozen=True)
class Data:
    """Training functions, and test or validation questions, the same for every run."""

    train: Questions
    test: Questions
    asked: list[Question]

    @classmethod
    def read(cls, quick: bool = False, validation: bool = False) -> Data:
        """Two questions a test function of this Python's standard library; for a quick run one, of its top modules."""
        train, test = load(validation=validation, top=quick)
        vocabulary = Vocabulary(train)
        tests = Questions(test, vocabulary)
        return cls(Questions(train, vocabulary), tests, tests.draw(random.Random(0), 1 if quick else 2))

    def training(self, seed: int) -> Iterator[Batch]:
        """Yield batches without end; each epoch has every function once, with a newly drawn hole."""
        rng = random.Random(seed)
        while True:
            for questions in self.train.split(self.train.draw(rng), BATCH_TOKENS, rng):
                yield self.train.batch(questions)

    def testing(self) -> Iterator[Batch]:
        """All test questions."""
        return map(self.test.batch, self.test.split(self.asked, BATCH_TOKENS))

    def baselines(self) -> dict[str, float]:
        """The accuracy of guessing, and of rules that do not learn."""
        right: dict[str, list[float]] = {"chance": []}
        for number, hole in self.asked:
            function = self.test.functions[number]
            right["chance"].append(1 / len(function.names))
            for name, answer in guesses(function, hole).items():
                right.setdefault(name, []).append(answer == function.variables[hole])
        return {name: mean(map(float, hits)) for name, hits in right.items()}

    @torch.no_grad()
    def accuracy(self, scores: Callable[[Batch], Tensor]) -> float:
        """The share of test questions for which the scores of a batch are highest at the right variable."""
        right = sum((scores(batch).argmax(-1) == batch.target).sum().item() for batch in self.testing())
        return right / len(self.asked)


# %%
# The labels
# ----------
#
# The relative row uses :class:`relgraph.ClippedDistance`, which labels two tokens by their distance. Code relations are
# edges of a graph over the tokens, read from the function **with its variable hidden** (``code_relations.py``): edges
# of the original function would reveal the answer. Where two tokens have no relation, ``|`` falls back to the distance.

DISTANCE = rg.ClippedDistance(8)
FAR = rg.ClippedDistance(256)  # farther than any two tokens here
CODE = rg.EdgeType(EDGE_TYPES, inverse=True, attend="all", duplicates="first") | DISTANCE


def distances(batch: Batch) -> rg.Labels:
    """The clipped distance between any two tokens."""
    return DISTANCE(batch.words.shape[1])


def code_relations(batch: Batch) -> rg.Labels:
    """The relation between two tokens in the function with its variable hidden, or else their distance."""
    holes = batch.hole.tolist()
    graphs = [question_graph(function, hole) for function, hole in zip(batch.functions, holes, strict=True)]
    return rg.labels.padded(CODE(rg.Graph.batch(graphs)), batch.words.shape[1])


# %%
# Each row of the table is one choice of labels, with its own learning rate and spread of the initial word vectors.


@dataclass(frozen=True)
class Variant:
    """One row of the table: what the model knows about the positions of tokens.

    Attributes:
        name: the name of the row.
        labeler: the number of labels, and their names; None for attention without tables.
        make_labels: makes the labels of a batch.
        sinusoids: whether sinusoids are added to the input.
        options: makes further options of the attention of a layer.
        learning_rate: the peak rate. This and the next were chosen for each row on validation functions.
        embedding_std: the spread of the initial word vectors.
    """

    name: str
    labeler: rg.Labeler | None = None
    make_labels: Callable[[Batch], rg.Labels | None] = lambda _: None
    sinusoids: bool = False
    options: Callable[[], dict[str, Any]] = dict
    learning_rate: float = 2e-3
    embedding_std: float = 0.25


VARIANTS = (
    Variant("none", learning_rate=1e-3, embedding_std=1.0),
    Variant("sinusoidal", sinusoids=True, learning_rate=1e-3, embedding_std=0.25),
    Variant("rotary", options=lambda: {"rotary": rg.RotaryPositions(WIDTH // HEADS)}, learning_rate=1e-3),
    Variant("ALiBi", FAR, options=lambda: {"tables": rg.nn.alibi_tables(FAR, WIDTH // HEADS, HEADS)}),
    Variant("relative", DISTANCE, distances, learning_rate=2e-3, embedding_std=1.0),
    Variant("code relations", CODE, code_relations, learning_rate=4e-3, embedding_std=1.0),
)

MORE = ("none", "sinusoidal", "ALiBi")  # rows that run on request, so that the command takes three minutes

# %%
# The model
# ---------
#
# The model has three layers of :class:`relgraph.RelationEncoderLayer`. A token's vector is the sum of its words'
# vectors. The model scores each variable of the function for the hole.

WIDTH, HEADS, LAYERS, HIDDEN = 96, 2, 3, 192


def point(asks: Tensor, answers: Tensor, batch: Batch) -> Tensor:
    """Scores of each variable for the hole, ``[B, C]``; -inf where a function has fewer variables.

    A variable's score is the mean, over its places, of the product of the place's vector in ``answers`` with the hole's
    vector in ``asks``, both ``[B, N, D]``.
    """
    hole = asks[torch.arange(asks.shape[0]), batch.hole]
    scores = torch.einsum("bd,bnd->bn", hole, answers) / asks.shape[-1] ** 0.5
    occurs = one_hot(batch.variables + 1)[..., 1:].to(asks.dtype)
    times = occurs.sum(1)
    total = torch.einsum("bn,bnc->bc", scores, occurs)
    return (total / times.clamp(min=1)).masked_fill(times == 0, float("-inf"))


class Pointer(nn.Module):
    """A Transformer over the tokens of a function that scores each of its variables for the hole."""

    def __init__(self, words: int, variant: Variant) -> None:
        super().__init__()
        self.variant = variant
        self.embedding = nn.EmbeddingBag(words, WIDTH, mode="sum", padding_idx=0)
        nn.init.normal_(self.embedding.weight, std=variant.embedding_std)
        self.positions = rg.SinusoidalPositions(WIDTH) if variant.sinusoids else nn.Identity()
        self.layers = nn.ModuleList(self._layer(variant) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.asks = nn.Linear(WIDTH, WIDTH)
        self.answers = nn.Linear(WIDTH, WIDTH)

    @staticmethod
    def _layer(variant: Variant) -> rg.RelationEncoderLayer:
        attention = rg.RelationAttention(WIDTH, HEADS, 0.0, labeler=variant.labeler, **variant.options())
        return rg.RelationEncoderLayer(WIDTH, HEADS, HIDDEN, 0.0, "gelu", norm_first=True, attention=attention)

    def forward(self, batch: Batch) -> Tensor:
        """``[B, C]``, one score per variable; -inf where a function has fewer variables."""
        x = self.norm(self.states(batch))
        return point(self.asks(x), self.answers(x), batch)

    def states(self, batch: Batch) -> Tensor:
        """The output of the last layer, ``[B, N, WIDTH]``."""
        labels = self.variant.make_labels(batch)
        count = (batch.words > 0).sum(-1, keepdim=True).clamp(min=1)
        words = self.embedding(batch.words.flatten(0, 1)).unflatten(0, batch.words.shape[:2])
        x = self.positions(words / count.sqrt())
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=batch.padding, labels=labels)
        return x


# %%
# Training
# --------
#
# In every epoch each function comes once, with a newly drawn hole. ``train`` in ``example_runs.py`` trains on these
# losses with AdamW, warm-up and linear decay.

WARM_UP = 0.08
STEPS, QUICK_STEPS = 1300, 40
# means over rows, for a training step and for a batch of test questions
SECONDS_A_STEP, SECONDS_A_TEST = 0.075, 0.034


def fit(model: Pointer, batches: Iterator[Batch], steps: int, title: str = "") -> list[float]:
    """Train for some steps; return the loss of each step."""
    losses = (cross_entropy(model(batch), batch.target) for batch in batches)
    return train(model, losses, steps, model.variant.learning_rate, warm_up=WARM_UP, title=title)


@dataclass
class Run:
    """One row trained with one seed."""

    variant: str
    seed: int
    parameters: int
    accuracy: float = 0.0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list, repr=False)


def build(variant: Variant, words: int, seed: int) -> Pointer:
    """A model; with the same seed all variants share weights, except tables and the embedding's scale."""
    torch.manual_seed(seed)
    plain = Pointer(words, replace(VARIANTS[0], embedding_std=variant.embedding_std))
    model = Pointer(words, variant)
    model.load_state_dict(plain.state_dict(), strict=False)
    return model


def run(variant: Variant, data: Data, steps: int, seed: int) -> tuple[Run, Pointer]:
    """Train and test one variant."""
    model = build(variant, len(data.train.vocabulary), seed)
    result = Run(variant.name, seed, sum(p.numel() for p in model.parameters() if p.requires_grad))
    start = time.perf_counter()
    result.losses = fit(model, data.training(seed), steps, f"{variant.name}, seed {seed}")
    result.seconds = time.perf_counter() - start
    result.accuracy = data.accuracy(model)
    return result, model


# %%
# ``--validate --steps 250 --out quickstart-out/validate`` tries the same settings for every row, on validation
# functions. This chose the settings above.

LEARNING_RATES, EMBEDDING_STDS = (1e-3, 2e-3, 4e-3), (0.25, 1.0)


def settings(variant: Variant) -> list[Variant]:
    """A row with every setting to try, the same settings for all rows."""
    return [
        replace(variant, name=f"{variant.name}, rate {rate:g}, std {std:g}", learning_rate=rate, embedding_std=std)
        for rate, std in product(LEARNING_RATES, EMBEDDING_STDS)
    ]


# %%
# What came out
# -------------
#
# All rows and seeds answer the same test questions. The table also has rules that learn nothing and only know where
# variables occur.


def report(runs: Sequence[Run], baselines: dict[str, float]) -> str:
    """The table that the command prints."""
    lines = [f"{'variant':<36}{'parameters':>12}{'accuracy':>28}{'seconds':>10}"]
    for name in dict.fromkeys(r.variant for r in runs):
        mine = [r for r in runs if r.variant == name]
        hits = [r.accuracy for r in mine]
        shown = percent(hits)
        if len(hits) > 1:
            shown += f" ({100 * min(hits):.1f}–{100 * max(hits):.1f})"
        lines.append(f"{name:<36}{mine[0].parameters:>12,}{shown:>28}{mean(r.seconds for r in mine):>10.0f}")
    lines += [f"{name:<36}{'–':>12}{f'{100 * hits:.1f} %':>28}{'–':>10}" for name, hits in baselines.items()]
    return "\n".join(lines)


# %%
# Pictures
# --------
#
# The first picture shows the results of the long run. The others
# show, for every row with labels, the length of each label's vectors and the attention that each label gets on test
# functions, and the labels of one short function. At the start of training all vectors have a length of about 1.

FARTHEST = {DISTANCE.names[0], DISTANCE.names[-1]}


def draw_labels(path: Path, data: Data) -> None:
    """The code relations of the shortest test function that is asked about."""
    number, hole = min(data.asked, key=lambda question: len(data.test.functions[question[0]].tokens))
    function = data.test.functions[number]
    tokens = [token if at != hole else "<hole>" for at, token in enumerate(function.tokens)]
    with picture(path, 9.5, 7.5) as ax:
        rg.plot.label_matrix(CODE(question_graph(function, hole)), CODE.names, tokens=tokens, ax=ax)
        ax.set_title(f"{function.name} in {function.path}: what the key (column) is to the query (row)")


def _joined(parts: Any, dim: int) -> Tensor:
    """The parts of a sum of labels, concatenated; a single part stays unchanged."""
    return torch.cat(tuple(parts), dim) if isinstance(parts, (tuple, list)) else parts


@torch.no_grad()
def label_mass(model: Pointer, batch: Batch) -> Tensor:
    """The attention that each label receives, averaged over tokens: ``[LAYERS, HEADS, R]``."""
    with rg.record_attention(model) as record:
        model(batch)
    masses = [_joined(calls[0].label_mass, -1) for calls in record.values()]
    return torch.stack([mass.transpose(1, 2)[~batch.padding].mean(0) for mass in masses])


@torch.no_grad()
def draw(folder: Path, model: Pointer, data: Data, batches: int = 20, note: str = "") -> None:
    """A model's tables, and the attention that each label receives on test functions."""
    assert model.variant.labeler is not None
    names, row = model.variant.labeler.names, model.variant.name.replace(" ", "-")
    names = [str(n) for part in names for n in part] if isinstance(names[0], tuple) else list(names)
    with picture(folder / f"tables-{row}.png", 13, 8, LAYERS, 2, note=note) as axes:
        attention = [module for module in model.modules() if isinstance(module, rg.RelationAttention)]
        for number, (layer, panels) in enumerate(zip(attention, axes, strict=True)):
            assert layer.tables is not None
            for ax, (name, table) in zip(panels, layer.tables().items(), strict=True):
                rg.plot.table_norms(_joined(table, 0), names, ax=ax)
                ax.set_title(f"{model.variant.name}, layer {number}: {name}")
                ax.set_ylim(0, 1.1 * ax.get_ylim()[1])
                if number < LAYERS - 1:
                    ax.set_xlabel("")
                    ax.tick_params(labelbottom=False)
    asked = list(data.testing())
    mass = torch.stack([label_mass(model, batch) for batch in asked[:: max(1, len(asked) // batches)]]).mean(0)
    near = [label for label, name in enumerate(names) if name not in FARTHEST]
    with picture(folder / f"attention-{row}.png", 11, 4.5, note=note) as ax:
        rg.plot.label_mass(mass[..., near], [names[label] for label in near], axes="LHR", ax=ax)
        ax.set_title(f"{model.variant.name}: attention by label, but for the clipped distances, which get the rest")


# %%
# The command
# -----------
#
# The command saves each run when it ends. After Ctrl-C the same command continues from there.


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    names = [variant.name for variant in VARIANTS]
    usual = [name for name in names if name not in MORE]
    options = Options(
        "quickstart-out", "Fill in hidden variables in Python's standard library, with and without labels.",
        "a short run that shows that everything works", apart=True, seeds=(1, 1), steps=(STEPS, QUICK_STEPS),
        rows=("--variants", names, usual, usual),
    )  # fmt: skip
    options.add_argument(
        "--validate", action="store_true", help="try settings for every row on functions held out of training"
    )
    return options.read(argv)


def open_runs(arguments: argparse.Namespace, data: Data) -> Runs:
    """The runs already in the folder, if the same command made them."""
    settings = {
        "steps": arguments.steps,
        "quick": arguments.quick,
        "validate": arguments.validate,
        "training_functions": len(data.train.functions),
        "test_functions": len(data.test.functions),
        "test_questions": len(data.asked),
    }
    return Runs.of_command(arguments.out, Run, settings, fresh=arguments.fresh)


def train_rows(arguments: argparse.Namespace, data: Data, runs: Runs) -> bool:
    """Train every row with every seed; return whether all are done."""
    variants = [variant for variant in VARIANTS if variant.name in arguments.variants]
    if arguments.validate:
        variants = [setting for variant in variants for setting in settings(variant)]
    steps, count = arguments.steps, len(variants) * len(arguments.seeds)
    print(
        f"{len(data.train.functions)} training functions, {len(data.asked)} questions about "
        f"{len(data.test.functions)} functions from other files of Python {platform.python_version()}'s "
        f"standard library; {steps} steps per row"
    )
    tests = sum(1 for _ in data.test.split(data.asked, BATCH_TOKENS)) * SECONDS_A_TEST
    processes = 1 if arguments.quick else min(cores(), count)
    announce(count, count * (steps * SECONDS_A_STEP + tests), runs.folder, processes)
    # the longest first, so that two processes end at about the same time
    rows = {one.name: one for one in sorted(variants, key=lambda one: one.labeler is not CODE)}

    def one(name: str, seed: int) -> tuple[Run, Pointer | None]:
        result, model = run(rows[name], data, steps, seed)
        return result, None if arguments.validate else model

    return runs.each(list(rows), arguments.seeds, one, processes, lambda run: percent([run.accuracy]))


def show(arguments: argparse.Namespace, data: Data, runs: Runs) -> None:
    """Pictures of the results, and of what the first seed of every row with labels has learned."""
    if arguments.quick:
        Kept.read("quickstart").draw(runs.folder)
    for variant in VARIANTS:
        if variant.name in arguments.variants and variant.labeler in (DISTANCE, CODE):
            model = build(variant, len(data.train.vocabulary), 0)
            runs.load(model, variant.name, 0)
            draw(runs.folder, model, data, note=SHORT_MODEL if arguments.quick else "")
    if CODE in [variant.labeler for variant in VARIANTS if variant.name in arguments.variants]:
        draw_labels(runs.folder / "labels.png", data)


def main(argv: Sequence[str] | None = None) -> int:
    """Train every row, print the table, write the results and draw the pictures."""
    arguments = parse_arguments(argv)
    seconds = 5 if arguments.quick else 12
    print(f"reading the functions of the standard library, about {seconds} s on an idle CPU core", flush=True)
    try:
        data = Data.read(arguments.quick, arguments.validate)
        runs = open_runs(arguments, data)
        finished = train_rows(arguments, data, runs)
        if runs.done:
            baselines = data.baselines()
            if arguments.quick:
                print(SHORT)
            print(report(runs.done, baselines))
            runs.save(baselines=baselines)
            print(f"results: {runs.path}")
        if not finished:
            return INTERRUPTED
        if not arguments.validate:
            show(arguments, data, runs)
    except KeyboardInterrupt:
        print("\nstopped")
        return INTERRUPTED
    return 0


if __name__ == "__main__" and (status := until_stopped(main)):
    raise SystemExit(status)
