"""Parallel text: pairs of a source line and a target line, from one tab-separated file or two files of equal length."""

from __future__ import annotations

import gzip
import random
import re
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from examples.translation.files import save_text

Pair = tuple[str, str]


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, plain or packed by gzip, without line ends and byte order mark.

    Raises:
        ValueError: a line is not UTF-8; the message gives its number. Or a packed file is broken.
    """
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            yield from decode_lines(file, str(path))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} must be a complete gzip file: {error}") from None


def decode_lines(raws: Iterable[bytes], name: str) -> Iterator[str]:
    """The same for an open file; error messages call it ``name``."""
    for number, raw in enumerate(raws, 1):
        try:
            line = raw.rstrip(b"\r\n").decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{name}, line {number}: must be UTF-8, {error.reason} at byte {error.start}") from None
        yield line.removeprefix("\ufeff") if number == 1 else line


def read_corpus(paths: Sequence[Path]) -> list[Pair]:
    """The pairs of one tab-separated file (source, target, anything), or of a source file and a target file.

    Raises:
        ValueError: there are more than two files, a line has no tab, or two files differ in length; the message
            names the line.
    """
    if len(paths) not in (1, 2):
        raise ValueError(f"a corpus must be one tab-separated file or two files, got {len(paths)} files")
    return list(_tab_separated(paths[0]) if len(paths) == 1 else _in_step(*paths))


def read_test(paths: Sequence[Path]) -> list[Pair]:
    """The pairs of a test corpus, all of which count.

    Raises:
        ValueError: as for :func:`read_corpus`; or there is no pair, or a side is empty; the message names the line.
    """
    pairs = read_corpus(paths)
    if not pairs:
        raise ValueError(f"{paths[0]} must hold at least one pair, found none")
    for number, (source, target) in enumerate(pairs, 1):
        if not source or not target:
            raise ValueError(f"{paths[0]}, line {number}: must have a source and a target to be measured on")
    return pairs


def with_both_sides(pairs: Iterable[Pair]) -> list[Pair]:
    """The pairs without an empty side, which training can use."""
    return [(source, target) for source, target in pairs if source and target]


def _tab_separated(path: Path) -> Iterator[Pair]:
    for number, line in enumerate(read_lines(path), 1):
        source, tab, rest = line.partition("\t")
        if not tab:
            raise ValueError(f"{path}, line {number}: must be source, tab, target; got {_shortened(line)}")
        yield source.strip(), rest.split("\t", 1)[0].strip()


def _in_step(source: Path, target: Path) -> Iterator[Pair]:
    lines, others = read_lines(source), read_lines(target)
    number = 0
    for number, line in enumerate(lines, 1):
        other = next(others, None)
        if other is None:
            raise ValueError(f"{target} must have as many lines as {source}, but ends before line {number}")
        yield line.strip(), other.strip()
    if next(others, None) is not None:
        raise ValueError(f"{source} must have as many lines as {target}, but ends before line {number + 1}")


def _shortened(line: str) -> str:
    return repr(line if len(line) <= 60 else line[:57] + "...")


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """Write a tab-separated file; tabs within lines become spaces."""
    cells = ((source.replace("\t", " "), target.replace("\t", " ")) for source, target in pairs)
    save_text(path, "".join(f"{source}\t{target}\n" for source, target in cells))


def words(line: str) -> int:
    """How many words a line has, split at white space."""
    return len(line.split())


def sentence_key(line: str) -> str:
    """A sentence without case and punctuation; sentences with the same key count as the same in a split."""
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFC", line.casefold()))) or line


def hold_out(pairs: Sequence[Pair], sizes: Sequence[int]) -> tuple[list[Pair], list[list[Pair]]]:
    """Split pairs into test parts of ``sizes`` pairs, and the rest for training; no source sentence is in two of them.

    For each drawn sentence only the first pair is kept, so that no sentence counts twice.

    Raises:
        ValueError: there are too few different sentences, or a size is negative.
    """
    if min(sizes, default=0) < 0:
        raise ValueError(f"parts that are held out must have at least 0 pairs, got {list(sizes)}")
    by_source: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_source.setdefault(sentence_key(pair[0]), []).append(pair)
    if sum(sizes) > len(by_source):
        raise ValueError(f"{sum(sizes)} sentences cannot be held out of {len(by_source)} different ones")
    drawn = iter(random.Random(0).sample(list(by_source), sum(sizes)))
    held = [[by_source.pop(next(drawn))[0] for _ in range(size)] for size in sizes]
    return [pair for group in by_source.values() for pair in group], held
