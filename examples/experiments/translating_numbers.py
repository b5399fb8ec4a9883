"""Translating names of numbers: sinusoids added to the input, or relative positions in the encoder and the decoder.

The model, its training and its search come from ``examples/translation``, whose commands are printed as they run. Of
the made-up pairs, those of up to eight English words are for training, except some for tests; longer names make tests
of their own. The vocabulary has room for every whole word. ``average`` takes the mean of the last five models. The
search is greedy, and a translation is right if every word is.

Five settings of learning rate, dropout, vocabulary, batch and clipping were tried, the same for both rows, with one
seed and 300 or 400 steps each; the test results were visible meanwhile. Other forms of the task were tried earlier, in
one run of 300 steps each. With German in one word and training names of up to seven words, sinusoids were right for
97 % of trained lengths and 25 % of longer names, relative positions for 82 % and 71 %; with up to six words, neither
was right for more than 6 % of longer names. An earlier version of relgraph gave, at ten and eleven words, 4.4 ± 6.6 and
0.0 with sinusoids, and 88.9 ± 18.7 and 87.9 ± 21.0 with relative positions (64 % of eleven words with one seed).

It needs no file, but the extra ``translation``. After Ctrl-C the same command continues from the last checkpoint.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from example_runs import INTERRUPTED, Runs, percent
from translating_numbers import english, german, numbers

from experiments import Experiment, Work

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the parent of the package examples.translation

from examples.translation import cli
from examples.translation.checkpoints import load_model
from examples.translation.corpus import Pair, read_test, words, write_pairs
from examples.translation.model import Translator
from examples.translation.search import Search, translate
from examples.translation.vocabulary import Vocabulary

NUMBERS, HELD_OUT = 12_000, 300
TRAINED, LONGER = 8, (9, 10, 11)
PREPARE = {"--held-out": HELD_OUT, "--max-words": TRAINED, "--vocabulary-size": 560}

POSITIONS = ("sinusoidal", "relative")
MODEL = {"--max-distance": 8, "--width": 64, "--hidden": 128, "--heads": 4, "--layers": 2, "--dropout": 0}
TRAINING = {"--batch-tokens": 1000, "--warm-up": 100, "--learning-rate": 0.5, "--clip": 1}
WRITING = {"--save-every": 20, "--keep": 5, "--log-every": 20, "--validate-every": 20}
SECONDS_A_STEP = 0.045


def prepare(folder: Path) -> Path:
    """The folder of the prepared corpus; makes the corpus if it does not exist yet."""
    data, corpus = folder / "data", folder / "corpus.tsv"
    if not (data / "sizes.json").exists():  # the last file that the command writes
        write_pairs(corpus, [(english(number), german(number)) for number in numbers(NUMBERS, 0)])
        unseen = [f"{count}-{count}" for count in LONGER]
        command("prepare", data, "--train", corpus, *_options(PREPARE), "--unseen", *unseen)
    return data


def command(*parts: object) -> None:
    """Run a command of ``examples.translation``; exit if it fails, since it has printed why."""
    line = " ".join(map(str, ("$ python -m examples.translation", *parts)))
    print(" \\\n    ".join(textwrap.wrap(line, 84, break_long_words=False, break_on_hyphens=False)))
    status = cli.main([str(part) for part in parts])
    if status == INTERRUPTED:
        raise KeyboardInterrupt
    if status:
        raise SystemExit(status)


def _options(values: Mapping[str, object]) -> list[object]:
    return [part for option in values.items() for part in option]


def train(data: Path, run: Path, positions: str, steps: int, seed: int) -> tuple[Translator, Vocabulary]:
    """Train a model, or continue its training, and load the mean of its last checkpoints."""
    options = _options({"--positions": positions, **MODEL, **TRAINING, **WRITING, "--steps": steps, "--seed": seed})
    command("train", data, run, *options, "--device", "cpu")
    command("average", run)
    return load_model(run / "average.pt")


def tested(model: Translator, vocabulary: Vocabulary, data: Path) -> list[tuple[Pair, str]]:
    """Every test pair with the model's translation."""
    pairs = [pair for path in sorted(data.glob("test*.tsv")) for pair in read_test([path])]
    found = translate(model, vocabulary, [source for source, _ in pairs], Search(beam=1, extra=10))
    return list(zip(pairs, found, strict=True))


@dataclass
class Run:
    """One training run: tests and right translations by the number of English words."""

    variant: str
    seed: int
    asked: dict[int, int]
    right: dict[int, int]
    shown: dict[int, list[str]]
    seconds: float

    def __post_init__(self) -> None:
        """JSON turns numbers of words into strings; turn them back."""
        for name in ("asked", "right", "shown"):
            setattr(self, name, {int(key): value for key, value in getattr(self, name).items()})

    def share(self, lengths: Sequence[int]) -> float:
        """The share of right translations of names with these numbers of words."""
        return sum(self.right.get(count, 0) for count in lengths) / sum(self.asked.get(count, 0) for count in lengths)

    @classmethod
    def of(cls, positions: str, seed: int, found: Sequence[tuple[Pair, str]], seconds: float) -> Run:
        """The run with these translations; it shows the first translation of each length."""
        lengths = [words(source) for (source, _), _ in found]
        right = [count for count, ((_, target), text) in zip(lengths, found, strict=True) if text == target]
        shown = {count: [*pair, text] for count, (pair, text) in zip(lengths[::-1], found[::-1], strict=True)}
        return cls(positions, seed, counts(lengths), counts(right), shown, seconds)


def counts(lengths: Sequence[int]) -> dict[int, int]:
    """How often each length occurs, in ascending order."""
    return dict(sorted(Counter(lengths).items()))


def report(runs: Sequence[Run]) -> str:
    """The table that the command prints: percent of right translations by the number of English words."""
    groups = {f"1–{TRAINED} words": range(TRAINED + 1), **{f"{count} words": (count,) for count in LONGER}}
    lines = [f"{'positions':<12}" + "".join(f"{name:>15}" for name in groups) + f"{'seconds':>9}"]
    for name in dict.fromkeys(run.variant for run in runs):
        mine = [run for run in runs if run.variant == name]
        cells = (percent([run.share(group) for run in mine], "") for group in groups.values())
        lines.append(f"{name:<12}" + "".join(f"{c:>15}" for c in cells) + f"{mean(r.seconds for r in mine):>9.0f}")
    return "\n".join(lines)


def translations(run: Run, lengths: Sequence[int]) -> str:
    """One test of each length: the source, the right name, and the model's output where it differs."""
    lines = [f"{run.variant}, seed {run.seed}:"]
    for count in lengths:
        source, target, found = run.shown[count]
        lines += [f"  {source}", f"      {target}", f"    ≠ {found}" if found != target else "    = found"]
    return "\n".join(lines)


def begin(arguments: Namespace) -> Work:
    steps, out = arguments.steps, arguments.out
    folders = {(name, seed): out / f"{name}-{seed}" for name in arguments.rows for seed in arguments.seeds}
    if arguments.fresh:
        for folder in (out / "data", *folders.values()):
            shutil.rmtree(folder, ignore_errors=True)

    def run(name: str, seed: int) -> tuple[Run, None]:
        start, data = time.perf_counter(), prepare(out)
        model, vocabulary = train(data, folders[name, seed], name, steps, seed)
        found = tested(model, vocabulary, data)
        return Run.of(name, seed, found, time.perf_counter() - start), None

    def show(runs: Runs) -> None:
        for done in runs.done:
            if done.seed == arguments.seeds[0]:
                print(translations(done, (6, 9, 10, 11)))

    return Work({"steps": steps}, len(folders) * steps * SECONDS_A_STEP, run, draw=show)


EXPERIMENT = Experiment(
    Run, POSITIONS, "one seed and fewer steps; half a minute", {"seeds": (3, 1), "steps": (1000, 220)}, begin,
    tell=lambda run: f"{100 * run.share(LONGER):.1f} % of names longer than trained right", report=report,
)  # fmt: skip
