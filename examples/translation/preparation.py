"""The command ``prepare``: splits a corpus into training, validation and tests, and writes its vocabulary and ids."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from examples.translation.batches import Pairs
from examples.translation.corpus import (
    Pair,
    hold_out,
    read_corpus,
    read_test,
    sentence_key,
    with_both_sides,
    words,
    write_pairs,
)
from examples.translation.files import load_json, remove_partial, save_json, save_text
from examples.translation.vocabulary import Vocabulary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    files = {"type": Path, "nargs": "+", "metavar": "FILE"}
    parser.add_argument("out", type=Path, help="the folder to write to")
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


def run(args: argparse.Namespace) -> None:
    """Write ``train.pt``, ``valid.pt``, ``valid.tsv``, ``test.tsv``, ``test-LOW-HIGH.tsv`` and ``vocabulary.json``."""
    ranges = [_range(text) for text in args.unseen]
    if ranges and (args.max_words is None or min(low for low, _ in ranges) <= args.max_words):
        raise ValueError(f"--unseen must begin above --max-words, got {args.unseen} and {args.max_words}")
    everything = read_corpus(args.train)
    pairs = with_both_sides(everything)
    if len(pairs) < len(everything):
        print(f"note: {len(everything) - len(pairs):,} pairs with an empty side are left out")
    given = {name: read_test(files) for name in ("valid", "test") if (files := getattr(args, name))}
    short = [pair for pair in pairs if args.max_words is None or words(pair[0]) <= args.max_words]
    missing = [name for name in ("valid", "test") if name not in given]
    train, held = hold_out(short, [args.held_out] * len(missing))
    parts = given | dict(zip(missing, held, strict=True))
    # a dash between spaces counts as a word but makes no different sentence: training may have its shorter form
    seen = {sentence_key(source) for source, _ in short} if ranges else set()
    for low, high in ranges:
        inside = [pair for pair in pairs if low <= words(pair[0]) <= high and sentence_key(pair[0]) not in seen]
        if not inside:
            raise ValueError(f"--unseen {low}-{high} must match the word counts of some sources, found none")
        part = parts[f"test-{low}-{high}"] = _first_of_each(inside, args.held_out)
        seen |= {sentence_key(source) for source, _ in part}
    for name, part in {"train": train, **parts}.items():
        if not part:
            raise ValueError(f"{name} must have at least one pair, got none")
    trained_on = {sentence_key(source) for source, _ in train}
    for name, part in given.items():
        if shared := sum(sentence_key(source) in trained_on for source, _ in part):
            print(f"note: {shared:,} of the {len(part):,} sources of {name} are also in the training pairs")
    tests = ", ".join(f"{name}.tsv" for name in parts)
    print(f"{args.out}: writes vocabulary.json, train.pt, valid.pt, {tests} and sizes.json")
    remove_partial(args.out)
    vocabulary = Vocabulary.train((line for pair in train for line in pair), args.vocabulary_size)
    for name, part in (("train", train), ("valid", parts["valid"])):
        Pairs.encode(part, vocabulary).save(args.out / f"{name}.pt", vocabulary)
    for name, part in parts.items():
        write_pairs(args.out / f"{name}.tsv", part)
    save_text(args.out / "vocabulary.json", vocabulary.save_text())
    _remove_others(args.out, parts)
    sizes = {"train": len(train)} | {name: len(part) for name, part in parts.items()}
    save_json(args.out / "sizes.json", sizes | {"vocabulary": len(vocabulary)})
    print(f"{args.out}: {', '.join(f'{name} {size:,}' for name, size in sizes.items())} pairs, {len(vocabulary):,} ids")


def _remove_others(out: Path, parts: dict[str, list[Pair]]) -> None:
    """Remove tests that an earlier ``prepare`` wrote to this folder and this one does not write."""
    sizes = out / "sizes.json"
    for name in load_json(sizes) if sizes.exists() else ():
        if name.startswith("test") and name not in parts:
            (out / f"{name}.tsv").unlink(missing_ok=True)


def _range(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)-(\d+)", text)
    if not match or int(match[1]) > int(match[2]):
        raise ValueError(f"--unseen must hold ranges such as 11-13, got {text!r}")
    return int(match[1]), int(match[2])


def _first_of_each(pairs: list[Pair], most: int) -> list[Pair]:
    """One pair for each different source sentence, at most ``most`` pairs."""
    return hold_out(pairs, [min(most, len({sentence_key(source) for source, _ in pairs}))])[1][0]
