"""Functions of Python's own standard library whose names are hidden, for a model to write them.

The functions come from ``stdlib_functions.py``: without docstrings, comments and decorators, with ``<str>`` for every
string. Training and test functions come from different files, and no function body occurs twice.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from zlib import crc32

import torch
from code_relations import graph_of
from stdlib_functions import Function, Sizes, load, subtokens
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from translation.vocabulary import END, PAD, SPECIAL, START

import relgraph as rg

HIDDEN_NAME = "<name>"
SIZES, QUICK_SIZES = Sizes(15, 80, 0), Sizes(15, 30, 0)


@dataclass(frozen=True)
class Question:
    """A function without its name, and the words of that name."""

    tokens: tuple[str, ...]
    name: tuple[str, ...]
    graph: rg.Graph
    path: str

    @classmethod
    def ask(cls, function: Function) -> Question:
        """Hide the name of a function everywhere; the graph holds no names."""
        tokens = tuple(HIDDEN_NAME if token == function.name else token for token in function.tokens)
        graph = graph_of(function.source, function.order)
        return cls(tokens, tuple(subtokens(function.name)), graph, function.path)


def has_a_name(function: Function) -> bool:
    """Whether a person chose the function's name; names like ``__init__`` belong to the language."""
    name = function.name
    return any(c.isalpha() for c in name) and not (name.startswith("__") and name.endswith("__"))


def read(*, quick: bool = False, validation: bool = False) -> dict[str, list[Question]]:
    """The questions for training and testing; with ``validation``, training functions replace the test functions."""
    parts = load(QUICK_SIZES if quick else SIZES, validation=validation, top=quick)
    return {
        part: [Question.ask(function) for function in functions if has_a_name(function)]
        for part, functions in zip(("train", "test"), parts, strict=True)
    }


class Words:
    """Numbers for words: first words of training names, which can be written, then other words of training functions.

    All other words share ``SPARE`` numbers by a hash.
    """

    LEAST, SPARE, WIDTH = 3, 64, 4

    def __init__(self, questions: Sequence[Question]) -> None:
        names = {word for question in questions for word in question.name}
        count = Counter(word for question in questions for token in question.tokens for word in subtokens(token))
        others = {word for word, times in count.items() if times >= self.LEAST} - names
        self.known = [*sorted(names), *sorted(others)]
        self.numbers = {word: number for number, word in enumerate(self.known, SPECIAL)}
        self.written = SPECIAL + len(names)
        times = Counter(self[word] for question in questions for word in question.name)
        times[END] = len(questions)
        self.frequency = torch.tensor([times[number] + 0.1 for number in range(self.written)])

    def __len__(self) -> int:
        return SPECIAL + len(self.known) + self.SPARE

    def __getitem__(self, word: str) -> int:
        return self.numbers.get(word, SPECIAL + len(self.known) + crc32(word.encode()) % self.SPARE)

    def of(self, token: str) -> list[int]:
        """The numbers of a token's first words, padded."""
        numbers = [self[word] for word in subtokens(token)[: self.WIDTH]]
        return numbers + [PAD] * (self.WIDTH - len(numbers))

    def text(self, numbers: Sequence[int]) -> tuple[str, ...]:
        """The words with these numbers."""
        return tuple(self.known[number - SPECIAL] for number in numbers)


@dataclass(frozen=True)
class Batch:
    """B functions packed end to end, T tokens in all; ``names`` are ``[B, N]``, with start and end, padded."""

    words: Tensor
    graph: rg.Graph
    names: Tensor

    @classmethod
    def make(cls, questions: Sequence[Question], words: Words) -> Batch:
        names = [torch.tensor([START, *(words[word] for word in question.name), END]) for question in questions]
        return cls(
            torch.tensor([words.of(token) for question in questions for token in question.tokens]),
            rg.Graph.batch([question.graph for question in questions]),
            pad_sequence(names, batch_first=True, padding_value=PAD),
        )


def groups(questions: Sequence[Question], tokens: int) -> list[list[int]]:
    """Groups of functions of similar length, as indices; each group has about ``tokens`` tokens."""
    sizes = [len(question.tokens) for question in questions]
    ordered = sorted(random.Random(0).sample(range(len(sizes)), len(sizes)), key=sizes.__getitem__)
    ends = accumulate(sizes[number] for number in ordered)
    parts = groupby(zip(ends, ordered, strict=True), lambda pair: pair[0] // tokens)
    return [[number for _, number in part] for _, part in parts]
