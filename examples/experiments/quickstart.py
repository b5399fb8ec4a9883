"""Hidden variables in Python's standard library: positions, distances and code relations.

The rows differ only in what attention knows about the relation between two tokens:

- ``none``: nothing;
- ``sinusoidal``: only the sinusoids that are added to the input;
- ``rotary``: queries and keys turned by their positions (Su et al. 2021);
- ``ALiBi``: a fixed penalty per head for each step of distance (Press et al. 2022);
- ``relative``: a learned key and value vector for each clipped distance (Shaw, Uszkoreit, Vaswani 2018);
- ``code relations``: the same for each relation of syntax and data flow (Hellendoorn et al. 2020), and for the distance
  between tokens that have no such relation.

The last, ``rotary`` and ``relative`` take three minutes on two CPU cores; the others run if ``--rows`` names them. The
functions are those of the Python that runs this; nothing is downloaded. Training and test functions come from different
files, and no function body occurs twice. In every epoch each function comes once, with a newly drawn hole. Rules that
learn nothing only know where variables occur. The short mode reads the top modules of the library, and trains 40 steps.

``--validate --steps 250`` tries the same settings for every row, on validation functions. This chose the settings.
"""

from __future__ import annotations

import platform
import random
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from code_relations import question_graph
from example_options import Options
from example_runs import Runs, by_row, cores, percent, picture, train
from kept_results import SHORT_MODEL
from quickstart import CODE, DISTANCE, HEADS, WIDTH, Pointer
from stdlib_functions import Batch, Question, Questions, Vocabulary, guesses, load
from torch import Tensor
from torch.nn.functional import cross_entropy

import relgraph as rg
from experiments import Experiment, Work

BATCH_TOKENS = 1200
FAR = rg.ClippedDistance(256)  # farther than any two tokens here


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


def distances(batch: Batch) -> rg.Labels:
    """The clipped distance between any two tokens."""
    return DISTANCE(batch.words.shape[1])


def code_relations(batch: Batch) -> rg.Labels:
    """The relation between two tokens in the function with its variable hidden, or else their distance."""
    holes = batch.hole.tolist()
    graphs = [question_graph(function, hole) for function, hole in zip(batch.functions, holes, strict=True)]
    return rg.labels.padded(CODE(rg.Graph.batch(graphs)), batch.words.shape[1])


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

    def pointer(self, words: int) -> Pointer:
        return Pointer(
            words, lambda: rg.RelationAttention(WIDTH, HEADS, 0.0, labeler=self.labeler, **self.options()),
            self.embedding_std, rg.SinusoidalPositions(WIDTH) if self.sinusoids else None,
        )  # fmt: skip

    def build(self, words: int, seed: int) -> Pointer:
        """A model; with the same seed all variants share weights, except tables and the embedding's scale."""
        torch.manual_seed(seed)
        plain = replace(VARIANTS[0], embedding_std=self.embedding_std).pointer(words)
        model = self.pointer(words)
        model.load_state_dict(plain.state_dict(), strict=False)
        return model

    def scores(self, model: Pointer, batch: Batch) -> Tensor:
        return model(batch.words, batch.variables, batch.hole, self.make_labels(batch))


VARIANTS = (
    Variant("none", options=lambda: {"tables": ()}, learning_rate=1e-3, embedding_std=1.0),
    Variant("sinusoidal", sinusoids=True, options=lambda: {"tables": ()}, learning_rate=1e-3, embedding_std=0.25),
    Variant("rotary", options=lambda: {"rotary": rg.RotaryPositions(WIDTH // HEADS)}, learning_rate=1e-3),
    Variant("ALiBi", FAR, options=lambda: {"tables": rg.nn.alibi_tables(FAR, WIDTH // HEADS, HEADS)}),
    Variant("relative", DISTANCE, distances, learning_rate=2e-3, embedding_std=1.0),
    Variant("code relations", CODE, code_relations, learning_rate=4e-3, embedding_std=1.0),
)
LEARNING_RATES, EMBEDDING_STDS = (1e-3, 2e-3, 4e-3), (0.25, 1.0)


def settings(variant: Variant) -> list[Variant]:
    """A row with every setting to try, the same settings for all rows."""
    return [
        replace(variant, name=f"{variant.name}, rate {rate:g}, std {std:g}", learning_rate=rate, embedding_std=std)
        for rate, std in product(LEARNING_RATES, EMBEDDING_STDS)
    ]


WARM_UP = 0.08
STEPS, QUICK_STEPS = 1300, 40
# means over rows, for a training step and for a batch of test questions
SECONDS_A_STEP, SECONDS_A_TEST = 0.075, 0.034


@dataclass
class Run:
    """One row trained with one seed."""

    variant: str
    seed: int
    parameters: int
    accuracy: float
    seconds: float


def run(variant: Variant, data: Data, steps: int, seed: int) -> tuple[Run, Pointer]:
    """Train and test one variant."""
    model = variant.build(len(data.train.vocabulary), seed)
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    losses = (cross_entropy(variant.scores(model, batch), batch.target) for batch in data.training(seed))
    title = f"{variant.name}, seed {seed}"
    seconds = train(model, losses, steps, variant.learning_rate, warm_up=WARM_UP, title=title)
    accuracy = data.accuracy(lambda batch: variant.scores(model, batch))
    return Run(variant.name, seed, parameters, accuracy, seconds), model


def report(runs: Sequence[Run], rules: dict[str, float]) -> str:
    """The table that the command prints."""
    lines = [f"{'variant':<36}{'parameters':>12}{'accuracy':>28}{'seconds':>10}"]
    for name, mine in by_row(runs).items():
        hits = [r.accuracy for r in mine]
        shown = percent(hits)
        if len(hits) > 1:
            shown += f" ({100 * min(hits):.1f}–{100 * max(hits):.1f})"
        lines.append(f"{name:<36}{mine[0].parameters:>12,}{shown:>28}{mean(r.seconds for r in mine):>10.0f}")
    lines += [f"{name:<36}{'–':>12}{f'{100 * hits:.1f} %':>28}{'–':>10}" for name, hits in rules.items()]
    return "\n".join(lines)


FARTHEST = {DISTANCE.names[0], DISTANCE.names[-1]}


def draw_labels(path: Path, data: Data) -> None:
    """The code relations of the shortest test function that is asked about."""
    number, hole = min(data.asked, key=lambda question: len(data.test.functions[question[0]].tokens))
    function = data.test.functions[number]
    tokens = [token if at != hole else "<hole>" for at, token in enumerate(function.tokens)]
    with picture(path, 9.5, 7.5) as ax:
        rg.plot.label_matrix(CODE(question_graph(function, hole)), CODE.names, tokens=tokens, ax=ax)
        ax.set_title(f"{function.name} in {function.path}: what the key (column) is to the query (row)")


@torch.no_grad()
def label_mass(variant: Variant, model: Pointer, batch: Batch) -> Tensor:
    """The attention that each label receives, averaged over tokens: ``[layers, HEADS, R]``."""
    with rg.record_attention(model) as record:
        variant.scores(model, batch)
    masses: list[Any] = [calls[0].label_mass for calls in record.values()]
    return torch.stack([mass.transpose(1, 2)[~batch.padding].mean(0) for mass in masses])


@torch.no_grad()
def draw_labels_of(folder: Path, variant: Variant, model: Any, data: Data, note: str) -> None:
    """A model's tables, and the attention that each label receives on test functions."""
    assert variant.labeler is not None
    names, row = variant.labeler.names, variant.name.replace(" ", "-")
    attention = [module for module in model.modules() if isinstance(module, rg.RelationAttention)]
    with picture(folder / f"tables-{row}.png", 13, 8, len(attention), 2, note=note) as axes:
        for number, (layer, panels) in enumerate(zip(attention, axes, strict=True)):
            assert layer.tables is not None
            for ax, (name, table) in zip(panels, layer.tables().items(), strict=True):
                rg.plot.table_norms(table, names, ax=ax)
                ax.set_title(f"{variant.name}, layer {number}: {name}")
                ax.set_ylim(0, 1.1 * ax.get_ylim()[1])
                if number < len(attention) - 1:
                    ax.set_xlabel("")
                    ax.tick_params(labelbottom=False)
    asked = list(data.testing())
    mass = torch.stack([label_mass(variant, model, batch) for batch in asked[:: max(1, len(asked) // 20)]]).mean(0)
    near = [label for label, name in enumerate(names) if name not in FARTHEST]
    with picture(folder / f"attention-{row}.png", 11, 4.5, note=note) as ax:
        rg.plot.label_mass(mass[..., near], [names[label] for label in near], axes="LHR", ax=ax)
        ax.set_title(f"{variant.name}: attention by label, but for the clipped distances, which get the rest")


def options(options: Options) -> None:
    options.add_argument(
        "--validate", action="store_true", help="try settings for every row on functions held out of training"
    )


def begin(arguments: Namespace) -> Work:
    quick, steps = arguments.quick, arguments.steps
    print(f"reading the functions of the standard library, about {5 if quick else 12} s on an idle core", flush=True)
    data = Data.read(quick, arguments.validate)
    chosen = [variant for variant in VARIANTS if variant.name in arguments.rows]
    if arguments.validate:
        chosen = [setting for variant in chosen for setting in settings(variant)]
    # the longest first, so that two processes end at about the same time
    variants = {one.name: one for one in sorted(chosen, key=lambda one: one.labeler is not CODE)}
    arguments.rows, count = [*variants], len(variants) * len(arguments.seeds)
    print(
        f"{len(data.train.functions)} training functions, {len(data.asked)} questions about "
        f"{len(data.test.functions)} functions from other files of Python {platform.python_version()}'s "
        f"standard library; {steps} steps per row"
    )

    def one(name: str, seed: int) -> tuple[Run, Pointer | None]:
        result, model = run(variants[name], data, steps, seed)
        return result, None if arguments.validate else model

    def draw(runs: Runs) -> None:
        for variant in chosen:
            if variant.labeler in (DISTANCE, CODE):
                model = runs.load(variant.build(len(data.train.vocabulary), 0), variant.name, 0)
                draw_labels_of(runs.folder, variant, model, data, note=SHORT_MODEL if quick else "")
        if "code relations" in variants:
            draw_labels(runs.folder / "labels.png", data)

    common = {"steps": steps, "validate": arguments.validate, "training_functions": len(data.train.functions)}
    common |= {"test_functions": len(data.test.functions), "test_questions": len(data.asked)}
    tests = sum(1 for _ in data.test.split(data.asked, BATCH_TOKENS)) * SECONDS_A_TEST
    return Work(
        common, count * (steps * SECONDS_A_STEP + tests), one, rules=data.baselines,
        draw=None if arguments.validate else draw, processes=1 if quick else min(cores(), count),
    )  # fmt: skip


EXPERIMENT = Experiment(
    Run, [variant.name for variant in VARIANTS], "a short run that shows that everything works",
    {"seeds": (1, 1), "steps": (STEPS, QUICK_STEPS)}, begin, tell=lambda run: percent([run.accuracy]), report=report,
    long_rows=("rotary", "relative", "code relations"), options=options,
)  # fmt: skip
