"""Parallel text: read, split into training, validation and tests, and written with its vocabulary and ids."""

from __future__ import annotations

import argparse
import gzip
import random
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

from examples.translation.batches import Pairs
from examples.translation.files import save_text
from examples.translation.vocabulary import Vocabulary

Pair = tuple[str, str]


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, plain or packed by gzip, without line ends and byte order mark."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig", newline="\n") as file:
        try:
            return [line.rstrip("\r\n") for line in file]
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} must be UTF-8: {error}") from None


def read_corpus(paths: Sequence[Path]) -> list[Pair]:
    """The pairs of one tab-separated file (source, target, anything), or of a source file and a target file.

    Pairs with an empty side are left out.

    Raises:
        ValueError: there are more than two files, a line has no tab, or two files differ in length.
    """
    if len(paths) > 2:
        raise ValueError(f"a corpus must be one tab-separated file or two files, got {len(paths)} files")
    columns = [read_lines(path) for path in paths]
    if len(paths) == 1:
        rows = [line.split("\t", 2)[:2] for line in columns[0]]
        if (number := next((number for number, row in enumerate(rows, 1) if len(row) < 2), 0)) > 0:
            raise ValueError(f"{paths[0]}, line {number}: must be source, tab, target; got {rows[number - 1][0]!r:.60}")
    elif len(columns[0]) != len(columns[1]):
        raise ValueError(f"{paths[1]} must have the {len(columns[0]):,} lines of {paths[0]}, got {len(columns[1]):,}")
    else:
        rows = zip(*columns, strict=True)
    return [(source.strip(), target.strip()) for source, target in rows if source.strip() and target.strip()]


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """Write a tab-separated file; tabs within lines become spaces."""
    cells = ((source.replace("\t", " "), target.replace("\t", " ")) for source, target in pairs)
    save_text(path, "".join(f"{source}\t{target}\n" for source, target in cells))


def words(pair: Pair) -> int:
    """How many words a source has, split at white space."""
    return len(pair[0].split())


def sentence_key(line: str) -> str:
    """A sentence without case and punctuation; sentences with the same key count as the same in a split."""
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFC", line.casefold()))) or line


def hold_out(pairs: Sequence[Pair], sizes: Sequence[int]) -> tuple[list[Pair], list[list[Pair]]]:
    """Split pairs into test parts of ``sizes`` pairs, and the rest for training; no source sentence is in two of them.

    For each drawn sentence only the first pair is kept, so that no sentence counts twice.

    Raises:
        ValueError: there are too few different sentences.
    """
    by_source: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_source.setdefault(sentence_key(pair[0]), []).append(pair)
    if sum(sizes) > len(by_source):
        raise ValueError(f"{sum(sizes)} sentences cannot be held out of {len(by_source)} different ones")
    drawn = iter(random.Random(0).sample(list(by_source), sum(sizes)))
    held = [[by_source.pop(next(drawn))[0] for _ in range(size)] for size in sizes]
    return [pair for group in by_source.values() for pair in group], held


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``prepare``."""
    files = {"type": Path, "nargs": "+", "metavar": "FILE"}
    parser.add_argument("out", type=Path, help="a new folder to write to")
    parser.add_argument(
        "--train", required=True, help="a tab-separated file, or a source file and a target file", **files
    )
    parser.add_argument("--valid", help="files as for --train (default: held out of the training pairs)", **files)
    parser.add_argument("--test", help="files as for --train (default: held out of the training pairs)", **files)
    parser.add_argument("--held-out", type=int, default=2000, help="pairs in each held-out part (default: 2000)")
    parser.add_argument("--max-words", type=int, help="most words of a source from --train (default: any number)")
    parser.add_argument(
        "--unseen", nargs="*", default=[], metavar="LOW-HIGH", help="tests of longer sources, in words (default: none)"
    )
    parser.add_argument(
        "--vocabulary-size", type=int, default=8000, help="subwords, shared by both languages (default: 8000)"
    )


def prepare(args: argparse.Namespace) -> None:
    """Write ``train.pt``, ``valid.pt``, ``valid.tsv``, ``test.tsv``, ``test-LOW-HIGH.tsv`` and ``vocabulary.json``."""
    if args.out.exists() and any(args.out.iterdir()):
        raise ValueError(f"{args.out} must be a new folder, got one with files")
    ranges = [_range(text) for text in args.unseen]
    if ranges and (args.max_words is None or min(low for low, _ in ranges) <= args.max_words):
        raise ValueError(f"--unseen must begin above --max-words, got {args.unseen} and {args.max_words}")
    pairs = read_corpus(args.train)
    parts = {name: read_corpus(files) for name in ("valid", "test") if (files := getattr(args, name))}
    short = [pair for pair in pairs if args.max_words is None or words(pair) <= args.max_words]
    missing = [name for name in ("valid", "test") if name not in parts]
    train, held = hold_out(short, [args.held_out] * len(missing))
    parts |= zip(missing, held, strict=True)
    # a dash between spaces counts as a word but makes no different sentence: training may have its shorter form
    seen = {sentence_key(source) for source, _ in short} if ranges else set()
    for low, high in ranges:
        inside = [pair for pair in pairs if low <= words(pair) <= high and sentence_key(pair[0]) not in seen]
        different = len({sentence_key(source) for source, _ in inside})
        parts[f"test-{low}-{high}"] = part = hold_out(inside, [min(args.held_out, different)])[1][0]
        seen |= {sentence_key(source) for source, _ in part}
    for name, part in {"train": train, **parts}.items():
        if not part:
            raise ValueError(f"{name} must have at least one pair, got none")
    vocabulary = Vocabulary.train((line for pair in train for line in pair), args.vocabulary_size)
    for name, part in (("train", train), ("valid", parts["valid"])):
        Pairs.encode(part, vocabulary).save(args.out / f"{name}.pt")
    for name, part in parts.items():
        write_pairs(args.out / f"{name}.tsv", part)
    save_text(args.out / "vocabulary.json", vocabulary.text)  # the last file: training needs it
    sizes = ", ".join(f"{name} {len(part):,}" for name, part in {"train": train, **parts}.items())
    print(f"{args.out}: {sizes} pairs, {len(vocabulary):,} ids")


def _range(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)-(\d+)", text)
    if not match or int(match[1]) > int(match[2]):
        raise ValueError(f"--unseen must hold ranges such as 11-13, got {text!r}")
    return int(match[1]), int(match[2])
