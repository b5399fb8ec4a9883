"""Small Transformers fill in hidden variables in Python's standard library, with and without relations.

The task is variable misuse: one use of a local variable in a function is hidden, and the model points at the variable
that belongs there. The rows of the table differ only in what attention knows about how tokens stand to each other:

- nothing,
- sinusoids added to the input,
- relative: a learned key and value vector for each clipped distance (Shaw, Uszkoreit, Vaswani 2018),
- code relations: such vectors for each relation of syntax and data flow (Hellendoorn et al. 2020), and for the distance
  between tokens that have no other relation.

    python examples/quickstart.py              # a few minutes on two CPU cores
    python examples/quickstart.py --quick      # about a minute, too short to learn much
    python examples/quickstart.py --seeds 3    # mean and spread of three runs
    python examples/quickstart.py --validate   # how each row's settings were chosen, on functions held out of training

It prints a table, and writes ``results.json`` and pictures of the learned tables to ``quickstart-out/``.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import matplotlib as mpl
import torch
from code_relations import question_graph
from stdlib_functions import Batch, Question, Questions, Vocabulary, guesses, load
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot
from tqdm import tqdm

import relgraph as rg
from relgraph.interop.python_source import EDGE_TYPES

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.colors import LogNorm, Normalize
from matplotlib.ticker import MaxNLocator

WIDTH, HEADS, LAYERS, HIDDEN = 96, 2, 3, 192
BATCH_TOKENS, TEST_TOKENS = 1200, 6000
WARM_UP, WEIGHT_DECAY = 0.08, 0.01
STEPS, QUICK_STEPS, VALIDATION_STEPS = 800, 100, 250
LEARNING_RATES, EMBEDDING_STDS = (1e-3, 2e-3, 4e-3), (0.25, 1.0)  # what --validate tries for every row
DISTANCE = rg.ClippedDistance(8)
CODE = rg.EdgeType(EDGE_TYPES, inverse=True, default="unlabeled", duplicates="first") | DISTANCE


def distances(batch: Batch) -> rg.Labels:
    """The clipped distance between any two tokens."""
    return DISTANCE(batch.words.shape[1])


def code_relations(batch: Batch) -> rg.Labels:
    """The relation between two tokens in the function with its variable hidden, or where there is none the distance."""
    holes = batch.hole.tolist()
    graphs = [question_graph(function, hole) for function, hole in zip(batch.functions, holes, strict=True)]
    return rg.padded(CODE(rg.Graph.batch(graphs)), batch.words.shape[1])


@dataclass(frozen=True)
class Variant:
    """One row of the table: what the model is told about where tokens stand.

    Attributes:
        name: how the row is called.
        labeler: how many labels there are, and their names; None for attention without tables.
        make_labels: the labels of a batch.
        sinusoids: whether sinusoids are added to the input.
        learning_rate: its peak. This and the next were chosen for each row alone, on validation functions.
        embedding_std: the spread of a word's first vector.
    """

    name: str
    labeler: rg.Labeler | None = None
    make_labels: Callable[[Batch], rg.Labels | None] = lambda _: None
    sinusoids: bool = False
    learning_rate: float = 2e-3
    embedding_std: float = 0.25


VARIANTS = (
    Variant("none", learning_rate=1e-3, embedding_std=1.0),
    Variant("sinusoidal", sinusoids=True, learning_rate=1e-3, embedding_std=0.25),
    Variant("relative", DISTANCE, distances, learning_rate=2e-3, embedding_std=1.0),
    Variant("code relations", CODE, code_relations, learning_rate=4e-3, embedding_std=1.0),
)


class Pointer(nn.Module):
    """A Transformer over the tokens of a function that scores each of its variables for the hole.

    The score of a variable is the mean, over the places where it stands, of a product with the hole's vector.
    """

    def __init__(self, words: int, variant: Variant) -> None:
        super().__init__()
        labeler = variant.labeler
        labels = {} if labeler is None else {"num_labels": labeler.num_labels, "names": labeler.names}
        options: dict[str, Any] = {"dropout": 0.0, "activation": "gelu", "norm_first": True, **labels}
        self.variant = variant
        self.embedding = nn.EmbeddingBag(words, WIDTH, mode="sum", padding_idx=0)
        nn.init.normal_(self.embedding.weight, std=variant.embedding_std)
        self.positions = rg.SinusoidalPositions(WIDTH) if variant.sinusoids else nn.Identity()
        self.layers = nn.ModuleList(rg.RelationEncoderLayer(WIDTH, HEADS, HIDDEN, **options) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.asks = nn.Linear(WIDTH, WIDTH)
        self.answers = nn.Linear(WIDTH, WIDTH)

    def forward(self, batch: Batch) -> Tensor:
        """``[B, C]``, one score a variable; -inf where a function has fewer."""
        x = self.norm(self.states(batch)[-1])
        hole = x[torch.arange(x.shape[0]), batch.hole]
        scores = torch.einsum("bd,bnd->bn", self.asks(hole), self.answers(x)) / WIDTH**0.5
        stands = one_hot(batch.variables + 1)[..., 1:].to(x.dtype)
        times = stands.sum(1)
        total = torch.einsum("bn,bnc->bc", scores, stands)
        return (total / times.clamp(min=1)).masked_fill(times == 0, float("-inf"))

    def states(self, batch: Batch) -> list[Tensor]:
        """What goes into each layer, and what comes out of the last, each ``[B, N, WIDTH]``."""
        labels = self.variant.make_labels(batch)
        count = (batch.words > 0).sum(-1, keepdim=True).clamp(min=1)
        words = self.embedding(batch.words.flatten(0, 1)).unflatten(0, batch.words.shape[:2])
        states = [self.positions(words / count.sqrt())]
        for layer in self.layers:
            states.append(layer(states[-1], src_key_padding_mask=batch.padding, labels=labels))
        return states

    def label_mass(self, batch: Batch) -> Tensor:
        """The attention that each label receives, ``[LAYERS, HEADS, R]``, averaged over tokens."""
        labels = self.variant.make_labels(batch)
        masses = []
        for layer, x in zip(self.layers, self.states(batch), strict=False):
            x = layer.norm1(x)
            _, mass = layer.self_attn(x, labels=labels, key_padding_mask=batch.padding, need_label_mass=True)
            masses.append(_joined(mass, -1).transpose(1, 2)[~batch.padding].mean(0))
        return torch.stack(masses)


def _joined(parts: Any, dim: int) -> Tensor:
    """The parts of a sum of labels side by side; what is no sum as it is."""
    return torch.cat(tuple(parts), dim) if isinstance(parts, (tuple, list)) else parts


@dataclass(frozen=True)
class Data:
    """Training functions, and test or validation questions that are the same for every run."""

    train: Questions
    test: Questions
    asked: list[Question]

    @classmethod
    def read(cls, quick: bool = False, validation: bool = False) -> Data:
        """The standard library of this Python, with up to two questions a test function; far fewer for a quick run."""
        train, test = load(validation=validation)
        vocabulary = Vocabulary(train)
        tests = Questions(test, vocabulary)
        asked = tests.draw(random.Random(0), 1)[::4] if quick else tests.draw(random.Random(0), 2)
        return cls(Questions(train, vocabulary), tests, asked)

    def training(self, seed: int) -> Iterator[Batch]:
        """Batches without end; in every epoch each function comes once, with a hole drawn afresh."""
        rng = random.Random(seed)
        while True:
            for questions in self.train.split(self.train.draw(rng), BATCH_TOKENS, rng):
                yield self.train.batch(questions)

    def testing(self) -> Iterator[Batch]:
        """All test questions."""
        return map(self.test.batch, self.test.split(self.asked, TEST_TOKENS))

    def baselines(self) -> dict[str, float]:
        """The accuracy of guessing, and of rules that do not learn."""
        right: dict[str, list[float]] = {"chance": []}
        for number, hole in self.asked:
            function = self.test.functions[number]
            right["chance"].append(1 / len(function.names))
            for name, answer in guesses(function, hole).items():
                right.setdefault(name, []).append(answer == function.variables[hole])
        return {name: mean(map(float, hits)) for name, hits in right.items()}


@dataclass
class Run:
    """One variant trained with one seed."""

    variant: str
    seed: int
    parameters: int
    accuracy: float = 0.0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list, repr=False)


def build(variant: Variant, words: int, seed: int) -> Pointer:
    """A model whose weights, but for the tables and the embedding's scale, are every variant's with this seed."""
    torch.manual_seed(seed)
    plain = Pointer(words, replace(VARIANTS[0], embedding_std=variant.embedding_std))
    model = Pointer(words, variant)
    model.load_state_dict(plain.state_dict(), strict=False)
    return model


def train(model: Pointer, batches: Iterator[Batch], steps: int, title: str = "") -> list[float]:
    """Train for some steps, with warm-up and linear decay; the loss of every step."""
    optimizer = torch.optim.AdamW(
        model.parameters(), model.variant.learning_rate, (0.9, 0.98), weight_decay=WEIGHT_DECAY
    )
    warm_up = max(1.0, WARM_UP * steps)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / warm_up, 1 - s / steps))
    losses: list[float] = []
    progress = tqdm(islice(batches, steps), title, steps, unit="step", disable=not title)
    for batch in progress:
        loss = cross_entropy(model(batch), batch.target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        losses.append(loss.item())
        if len(losses) % 20 == 0:
            progress.set_postfix(loss=f"{mean(losses[-100:]):.3f}")
    return losses


@torch.no_grad()
def accuracy(model: Pointer, data: Data) -> float:
    """The share of test questions that the model answers right."""
    return sum((model(batch).argmax(-1) == batch.target).sum().item() for batch in data.testing()) / len(data.asked)


def run(variant: Variant, data: Data, steps: int, seed: int) -> tuple[Run, Pointer]:
    """Train and test one variant."""
    model = build(variant, len(data.train.vocabulary), seed)
    result = Run(variant.name, seed, sum(p.numel() for p in model.parameters() if p.requires_grad))
    start = time.perf_counter()
    result.losses = train(model, data.training(seed), steps, f"{variant.name}, seed {seed}")
    result.seconds = time.perf_counter() - start
    result.accuracy = accuracy(model, data)
    return result, model


def settings(variant: Variant) -> list[Variant]:
    """A row with every setting that is tried for it, which are the same for all rows."""
    return [
        replace(variant, name=f"{variant.name}, rate {rate:g}, std {std:g}", learning_rate=rate, embedding_std=std)
        for rate, std in product(LEARNING_RATES, EMBEDDING_STDS)
    ]


def steps_within(minutes: float, variants: Sequence[Variant], seeds: int, data: Data) -> int:
    """The number of steps that all runs together take about so many minutes for."""
    start = time.perf_counter()
    for variant in variants:
        train(build(variant, len(data.train.vocabulary), 0), data.training(0), 10)
    step = (time.perf_counter() - start) / 10
    return max(1, int(60 * minutes / (step * seeds)))


def report(runs: Sequence[Run], baselines: dict[str, float]) -> str:
    """The table that is printed."""
    lines = [f"{'variant':<36}{'parameters':>12}{'accuracy':>28}{'seconds':>10}"]
    for name in dict.fromkeys(r.variant for r in runs):
        mine = [r for r in runs if r.variant == name]
        hits = [100 * r.accuracy for r in mine]
        shown = f"{mean(hits):.1f} %"
        if len(hits) > 1:
            shown += f" ± {stdev(hits):.1f} ({min(hits):.1f}–{max(hits):.1f})"
        lines.append(f"{name:<36}{mine[0].parameters:>12,}{shown:>28}{mean(r.seconds for r in mine):>10.0f}")
    lines += [f"{name:<36}{'–':>12}{f'{100 * hits:.1f} %':>28}{'–':>10}" for name, hits in baselines.items()]
    return "\n".join(lines)


@torch.no_grad()
def draw(path: Path, model: Pointer, data: Data, batches: int = 20) -> None:
    """A picture of a model's tables, and of the attention that each label receives on test functions."""
    names = model.variant.labeler.names
    names = [str(n) for part in names for n in part] if isinstance(names[0], tuple) else list(names)
    asked = list(data.testing())
    mass = torch.stack([model.label_mass(batch) for batch in asked[:: max(1, len(asked) // batches)]]).mean(0)
    figure, axes = plt.subplots(4, LAYERS, figsize=(5 * LAYERS, 12), squeeze=False, sharex="col", layout="constrained")
    for column, layer in enumerate(model.layers):
        tables = {name: _joined(table, 0) for name, table in layer.self_attn.tables().items()}
        keys, values = (tables[name].numpy() for name in ("key_table", "value_table"))
        norms, *panels = axes[:, column]
        for table, name in ((keys, "key table"), (values, "value table")):
            norms.plot((table**2).sum(-1) ** 0.5, marker="o", label=name)
        norms.set(title=f"layer {column + 1}: length of each label's vector", ylim=(0, None))
        norms.legend()
        pictures = ((keys.T, "key table"), (values.T, "value table"), (mass[column].numpy(), "attention by label"))
        for axis, (picture, title) in zip(panels, pictures, strict=True):
            signed = title != "attention by label"
            top = abs(picture).max()
            norm = Normalize(-top, top) if signed else LogNorm(max(picture.min(), 1e-4), top, clip=True)
            image = axis.imshow(picture, aspect="auto", cmap="RdBu" if signed else "viridis", norm=norm)
            axis.set(title=f"layer {column + 1}: {title}", ylabel="dimension" if signed else "head")
            axis.yaxis.set_major_locator(MaxNLocator(integer=True))
            figure.colorbar(image, ax=axis)
        ticks = range(0, len(names), max(1, len(names) // 48))
        axes[-1, column].set_xticks(ticks, [names[t] for t in ticks], rotation=90, fontsize="x-small")
        axes[-1, column].set_xlabel("label")
    figure.suptitle(f"{model.variant.name}: what the labels learned, and where attention goes")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def write_results(path: Path, arguments: argparse.Namespace, data: Data, runs: Sequence[Run], steps: int) -> None:
    """Everything that was measured, as JSON."""
    record = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "relgraph": rg.__version__,
        "threads": torch.get_num_threads(),
        "steps": steps,
        "quick": arguments.quick,
        "validate": arguments.validate,
        "training_functions": len(data.train.functions),
        "test_functions": len(data.test.functions),
        "test_questions": len(data.asked),
        "baselines": data.baselines(),
        "runs": [asdict(r) for r in runs],
    }
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _positive(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
        return value

    parse.__name__ = kind.__name__  # what argparse calls a value that does not parse
    return parse


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    names = [variant.name for variant in VARIANTS]
    steps = f"{STEPS}, quick {QUICK_STEPS}, validate {VALIDATION_STEPS}"
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=_positive(int), help=f"training steps a row ({steps})")
    length.add_argument("--minutes", type=_positive(float), help="train for about so long in all")
    parser.add_argument("--quick", action="store_true", help="a short run that shows that all of it works")
    parser.add_argument(
        "--validate", action="store_true", help="try settings for every row on functions held out of training"
    )
    parser.add_argument("--seeds", type=_positive(int), default=1, help="runs of each row, with seeds 0, 1, ...")
    parser.add_argument("--variants", nargs="+", choices=names, default=names, help="the rows")
    parser.add_argument("--threads", type=_positive(int), default=1, help="of torch; more help on an idle machine only")
    parser.add_argument("--out", type=Path, default=Path("quickstart-out"), help="folder for what it writes")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Train every row, print the table and write the results."""
    arguments = parse_arguments(argv)
    torch.set_num_threads(arguments.threads)
    arguments.out.mkdir(parents=True, exist_ok=True)
    runs: list[Run] = []
    shown: dict[str, Pointer] = {}
    try:
        data = Data.read(arguments.quick, arguments.validate)
        variants = [variant for variant in VARIANTS if variant.name in arguments.variants]
        if arguments.validate:
            variants = [setting for variant in variants for setting in settings(variant)]
        usual = QUICK_STEPS if arguments.quick else VALIDATION_STEPS if arguments.validate else STEPS
        steps = arguments.steps or usual
        if arguments.minutes:
            steps = steps_within(arguments.minutes, variants, arguments.seeds, data)
        print(
            f"{len(data.train.functions)} training functions, {len(data.asked)} questions about "
            f"{len(data.test.functions)} functions of other files of Python {platform.python_version()}'s "
            f"standard library; {steps} steps a row"
        )
        for seed in range(arguments.seeds):
            for variant in variants:
                result, model = run(variant, data, steps, seed)
                runs.append(result)
                if variant.labeler is not None and not arguments.validate:
                    shown.setdefault(variant.name, model)
    except KeyboardInterrupt:
        print("stopped")
    if not runs:
        return 130
    print(report(runs, data.baselines()))
    results = arguments.out / "results.json"
    write_results(results, arguments, data, runs, steps)
    print(f"results: {results}")
    for name, model in shown.items():
        picture = arguments.out / f"tables-{name.replace(' ', '-')}.png"
        draw(picture, model, data)
        print(f"picture of tables and attention by label, {name}: {picture}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
