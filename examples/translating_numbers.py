"""Translating numbers: relative and sinusoidal positions
========================================================

A small Transformer translates the names of numbers, with sinusoids or with relative positions.

The names are English, the translations German. Which word means what is soon learned; the task is where it belongs,
because German says the ones before the tens, on either side of the thousand:

.. code-block:: text

    thirty four thousand two hundred and twenty one
    vier und dreißig tausend zwei hundert ein und zwanzig

The models train on names of up to eight English words. They never see names of nine to eleven words, the longest below
a million. Positions reach attention in one of two ways: as sinusoids added to the input, or as relative positions, with
tables a^K and a^V that have a row for each distance from -8 to 8, in the encoder and the decoder. Everything else is
the same in both rows.

The model, its training and its search come from ``examples/translation``, which does the same for any corpus, on one
core or on several GPUs. The script prints these commands as it runs them. It makes up its corpus, so it needs no file
(``pip install -c constraints.txt -e '.[translation]'``):

.. code-block:: sh

    python examples/translating_numbers.py            # three seeds, about four minutes of one CPU core
    python examples/translating_numbers.py --quick    # one seed and fewer steps, half a minute

The first command printed this table: percent of translations with every word right, mean ± standard deviation of three
seeds (without its column of seconds; one thread, torch 2.13, 2026-11). Every column has 300 names:

.. code-block:: text

    positions         1–8 words        9 words       10 words       11 words
    sinusoidal       99.8 ± 0.4     87.8 ± 0.2      0.0 ± 0.0      0.0 ± 0.0
    relative        100.0 ± 0.0    100.0 ± 0.0    100.0 ± 0.0    100.0 ± 0.0

On trained lengths both rows are right, but for one name with one seed. With sinusoids, no name of ten or eleven words
is right; with relative positions all are, with each seed. An earlier version of relgraph gave, at ten and eleven words,
4.4 ± 6.6 and 0.0 with sinusoids, and 88.9 ± 18.7 and 87.9 ± 21.0 with relative positions (64 % of eleven words with one
seed, all with the two others): three seeds do not show the whole spread. Longer names consist of parts that training
has seen: *nine hundred and twenty one thousand* and *two hundred and fifty* occur in training names, but never in the
same name.

Five settings of learning rate, dropout, vocabulary, batch and clipping were tried, the same for both rows, with one
seed and 300 or 400 steps each; the test results were visible meanwhile. Other forms of the task were tried earlier, in
one run of 300 steps each. With German in one word and training names of up to seven words, sinusoids were right for 97
% of trained lengths and 25 % of longer names, relative positions for 82 % and 71 %; with up to six words, neither was
right for more than 6 % of longer names.

**The short mode** made the output below and all pictures except the first, which shows the long run. It takes 220 of
the 1,000 steps, with one seed.

The command writes the corpus, the training runs and their checkpoints, ``results.json`` and pictures to
``translating-numbers-out/`` (``--quick``: ``translating-numbers-out/quick/``). After Ctrl-C the same command continues
from the last step of the interrupted training.
"""

from __future__ import annotations

import random
import shutil
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import example_runs
import torch
from example_options import Options
from example_runs import INTERRUPTED, Runs, announce, percent, picture, until_stopped
from kept_results import SHORT, SHORT_MODEL, Kept
from torch import Tensor

import relgraph as rg

sys.path.append(str(Path(example_runs.__file__).resolve().parents[1]))  # the parent of the package examples.translation

from examples.translation import cli
from examples.translation.batches import Ragged
from examples.translation.checkpoints import load_model
from examples.translation.corpus import Pair, read_test, words, write_pairs
from examples.translation.model import Translator
from examples.translation.search import Search, translate
from examples.translation.vocabulary import END, START, Vocabulary

# %%
# The task
# --------
#
# Names follow British English and German spelling, except that all parts are separate words. English has no hyphen
# (*twenty one*), and German, which writes a number below a million as one word, is split into its parts (*ein und
# zwanzig*). So words change places.

TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
ENGLISH = f"zero one two three four five six seven eight nine {TEENS}".split()
ENGLISH_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
ZEHNER = "zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn"
GERMAN = f"null ein zwei drei vier fünf sechs sieben acht neun {ZEHNER}".split()
GERMAN_TENS = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]


def english(number: int) -> str:
    """The English name of a number from 0 to 999,999: ``two thousand one hundred and thirty four``."""
    if number < 20:
        return ENGLISH[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return ENGLISH_TENS[tens - 2] + (f" {ENGLISH[ones]}" if ones else "")
    size, name = (100, "hundred") if number < 1000 else (1000, "thousand")
    many, rest = divmod(number, size)
    joint = " and " if rest < 100 else " "
    return f"{english(many)} {name}" + (joint + english(rest) if rest else "")


def german(number: int) -> str:
    """The German name: ``zwei tausend ein hundert vier und dreißig``. A one at the end is ``eins``."""
    return _counted(number) + ("s" if number % 100 == 1 else "")


def _counted(number: int) -> str:
    if number < 20:
        return GERMAN[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return (f"{GERMAN[ones]} und " if ones else "") + GERMAN_TENS[tens - 2]
    size, name = (100, "hundert") if number < 1000 else (1000, "tausend")
    many, rest = divmod(number, size)
    return f"{_counted(many)} {name}" + (f" {_counted(rest)}" if rest else "")


# %%
# The corpus
# ----------
#
# Most numbers below a million have eleven English words, and few have four. So the script draws the thousands and the
# rest separately, with equal chances for nothing, 1 to 99, round hundreds, and all other numbers. Then the command
# ``prepare`` sets aside pairs with up to eight words for testing, makes tests of the longer names, and learns a
# vocabulary that has room for every whole word.

NUMBERS, HELD_OUT = 12_000, 300
TRAINED, LONGER = 8, (9, 10, 11)
PREPARE = {"--held-out": HELD_OUT, "--max-words": TRAINED, "--vocabulary-size": 560}


def numbers(count: int, seed: int) -> list[int]:
    """``count`` different numbers in ascending order."""
    rng, chosen = random.Random(seed), set()
    parts = (range(1), range(1, 100), range(100, 1000, 100), range(100, 1000))
    while len(chosen) < count:
        thousands, rest = (rng.choice(rng.choice(parts)) for _ in range(2))
        chosen.add(1000 * thousands + rest)
    return sorted(chosen)


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


# %%
# Training
# --------
#
# The labels come from :class:`relgraph.ClippedDistance`, and the model is a :class:`relgraph.RelationTransformer` with
# two layers in the encoder and two in the decoder. ``train`` saves a checkpoint every 20 steps, and the same command
# continues from it. ``average`` takes the mean of the last five models.

POSITIONS = ("sinusoidal", "relative")
MODEL = {"--max-distance": 8, "--width": 64, "--hidden": 128, "--heads": 4, "--layers": 2, "--dropout": 0}
TRAINING = {"--batch-tokens": 1000, "--warm-up": 100, "--learning-rate": 0.5, "--clip": 1}
WRITING = {"--save-every": 20, "--keep": 5, "--log-every": 20, "--validate-every": 20}


@dataclass(frozen=True)
class Size:
    """Number of training steps, and seeds per row."""

    steps: int
    seeds: int


FULL, QUICK, SECONDS_A_STEP = Size(1000, 3), Size(220, 1), 0.045


def train(data: Path, run: Path, positions: str, steps: int, seed: int) -> tuple[Translator, Vocabulary]:
    """Train a model, or continue its training, and load the mean of its last checkpoints."""
    options = _options({"--positions": positions, **MODEL, **TRAINING, **WRITING, "--steps": steps, "--seed": seed})
    command("train", data, run, *options, "--device", "cpu")
    command("average", run)
    return load_model(run / "average.pt")


# %%
# Searching
# ---------
#
# The decoder writes one word after another. A cache keeps the keys and values of earlier words and counts them: a new
# word's relative positions are its distances to the words in the cache. The search is greedy. A translation is right if
# every word of the German name is right.


def tested(model: Translator, vocabulary: Vocabulary, data: Path) -> list[tuple[Pair, str]]:
    """Every test pair with the model's translation."""
    pairs = [pair for path in sorted(data.glob("test*.tsv")) for pair in read_test([path])]
    found = translate(model, vocabulary, [source for source, _ in pairs], Search(beam=1, extra=10))
    return list(zip(pairs, found, strict=True))


# %%
# What came out
# -------------
#
# The table counts right translations by the number of English words.


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


# %%
# Pictures
# --------
#
# The first picture shows right translations by length, of the long run. The
# second shows the rows of the tables by distance; the decoder sees no later words, so it never learns the rows of
# positive distances, which keep their initial values. The third shows where the encoder's heads look, by distance. The
# last shows where the decoder's last layer looks in the source while the right name of eleven words is written. That
# attention has no labels: the order comes from what the encoder and the decoder know about their own words.


def draw_tables(path: Path, model: Translator, note: str) -> None:
    """The length of every row of every table."""
    tables = {name: module for name, module in model.named_modules() if isinstance(module, rg.nn.LabelTable)}
    with picture(path, 10.5, 5, 2, len(tables) // 2, note=note) as axes:
        for ax, (name, table) in zip(axes.T.flat, tables.items(), strict=True):
            _, side, _, layer, _, _, kind = name.split(".")
            rg.plot.table_norms(table, ax=ax)
            ax.set_title(f"{side}, layer {layer}: {kind} table", size=9)
            ax.set_ylabel("norm of the row" if ax in axes[:, 0] else "")


@torch.no_grad()
def draw_distances(path: Path, model: Translator, vocabulary: Vocabulary, sources: Sequence[str], note: str) -> None:
    """Attention in the encoder by distance, over names of equal length."""
    ids = Ragged.of([[*row, END] for row in vocabulary.encode(sources)]).padded(torch.arange(len(sources)))
    with rg.record_attention(model.transformer.encoder) as record:
        model.encode(ids)
    names = rg.ClippedDistance(MODEL["--max-distance"]).names
    with picture(path, 9, 4.5, note=note) as ax:
        rg.plot.label_mass(record, names, ax=ax)
        ax.set_title(f"Attention in the encoder by distance, names of {TRAINED} words")


@torch.no_grad()
def looks_at(model: Translator, source: Sequence[int], target: Sequence[int]) -> Tensor:
    """Attention of the decoder's last layer to the source, ``[N, M]``, the mean of its heads."""
    layer = model.transformer.decoder.layers[-1].get_submodule("multihead_attn")
    with rg.record_attention(layer, label_mass=False, weights=True) as record:
        model.decode(torch.tensor([target]), *model.encode(torch.tensor([source])))
    weights = record[""][0].weights
    assert weights is not None
    return weights[0].mean(0)


def draw_order(path: Path, models: dict[str, tuple[Translator, Vocabulary]], number: int, note: str) -> None:
    """Which English word each German one is made from."""
    with picture(path, 12, 5.5, 1, len(models), note=note) as axes:
        for ax, (name, (model, vocabulary)) in zip(axes, models.items(), strict=True):
            source, target = vocabulary.encode([english(number), german(number)])
            weights = looks_at(model, [*source, END], [START, *target])
            image = ax.imshow(weights.numpy(), vmin=0, vmax=1)
            columns, rows = ([*vocabulary.decode([[i] for i in ids]), "end"] for ids in (source, target))
            ax.set_xticks(range(len(columns)), columns, rotation=60, ha="right", rotation_mode="anchor")
            ax.set_yticks(range(len(rows)), rows)
            ax.set(title=name, xlabel="looked at", ylabel="to be written")
            ax.figure.colorbar(image, ax=ax, label="attention", shrink=0.7)


# %%
# The command
# -----------
#
# The command makes one training run after another and keeps each. After Ctrl-C the interrupted run continues from its
# checkpoint.


def main(argv: Sequence[str] | None = None) -> int:
    arguments = Options(
        "translating-numbers-out", "Translate names of numbers from English to German, with two kinds of positions.",
        "one seed and fewer steps; half a minute", apart=True, seeds=(FULL.seeds, QUICK.seeds),
        steps=(FULL.steps, QUICK.steps),
    ).read(argv)  # fmt: skip
    steps, seeds = arguments.steps, arguments.seeds
    runs = Runs.of_command(arguments.out, Run, {"steps": steps}, fresh=arguments.fresh)
    folders = {(name, seed): runs.folder / f"{name}-{seed}" for name in POSITIONS for seed in seeds}
    if arguments.fresh:
        for folder in (runs.folder / "data", *folders.values()):
            shutil.rmtree(folder, ignore_errors=True)
    announce(len(folders), len(folders) * steps * SECONDS_A_STEP, runs.folder)

    def run(name: str, seed: int) -> tuple[Run, None]:
        start, folder = time.perf_counter(), folders[name, seed]
        data = prepare(runs.folder)
        model, vocabulary = train(data, folder, name, steps, seed)
        found = tested(model, vocabulary, data)
        return Run.of(name, seed, found, time.perf_counter() - start), None

    def tell(run: Run) -> str:
        return f"{100 * run.share(LONGER):.1f} % of names longer than trained right"

    finished = runs.each(POSITIONS, seeds, run, tell=tell)
    if arguments.quick:
        print(SHORT)
    print(report(runs.done))
    if not finished:
        return INTERRUPTED
    print(f"results: {runs.path}")
    draw(runs, folders, seeds[0], quick=arguments.quick)
    return 0


def draw(runs: Runs, folders: dict[tuple[str, int], Path], seed: int, *, quick: bool) -> None:
    """Print some translations, and draw all pictures: of all runs, and of the models with one seed."""
    for done in runs.done:
        if done.seed == seed:
            print(translations(done, (6, 9, 10, 11)))
    if quick:
        Kept.read("translating_numbers").draw(runs.folder)
    note = SHORT_MODEL if quick else ""
    models = {name: load_model(folders[name, seed] / "average.pt") for name in POSITIONS}
    model, vocabulary = models["relative"]
    draw_tables(runs.folder / "tables.png", model, note)
    sources = [source for source, _ in read_test([runs.folder / "data" / "test.tsv"]) if words(source) == TRAINED]
    draw_distances(runs.folder / "distances.png", model, vocabulary, sources, note)
    draw_order(runs.folder / "order.png", models, 234_521, note)


if __name__ == "__main__" and (status := until_stopped(main)):
    raise SystemExit(status)
