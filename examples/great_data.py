"""Variable-misuse questions, from GREAT's JSON lines or from misuses planted in your own Python source.

A question is a function in which another variable may have replaced one use of a variable. Both sources give the same
records. Their edges belong to the program that contains the bug: edges of the original program would reveal the answer.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from code_relations import graph_of
from stdlib_functions import Function, Sizes, read_functions, subtokens
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import relgraph as rg

ROWS, WORDS = 4096, 6
PARTS = {"train": range(7), "validation": range(7, 8), "test": range(8, 10)}


@dataclass(frozen=True)
class Record:
    """A function and its question.

    Attributes:
        tokens: the function as the model sees it, with the bug; the first token is never a variable.
        graph: its edges; edge types are indices into ``rg.labelers.GREAT_TYPES``.
        variables: for each token the number of its local variable, or -1; numbered in order of appearance.
        error: the token with the bug; 0 for none.
        repair: the variable that belongs there; -1 without a bug.
        project: where the function comes from; each project is in one part of the data only.
    """

    tokens: tuple[str, ...]
    graph: rg.Graph
    variables: tuple[int, ...]
    error: int
    repair: int
    project: str

    @property
    def part(self) -> str:
        """Train, validation or test; the project's name decides."""
        bucket = hashlib.sha256(self.project.encode()).digest()[0] % 10
        return next(part for part, buckets in PARTS.items() if bucket in buckets)

    @property
    def asks(self) -> bool:
        """Whether there are at least two variables to choose from, including the right one."""
        return max(self.variables, default=0) > 0 and (self.error == 0) == (self.repair < 0)


def from_json(line: str) -> Record:
    """Read a line of GREAT's data.

    The order of the candidates reveals the answer, and so do candidates given by name, which occur only in functions
    without a bug. So this uses only the set of their places.

    Raises:
        ValueError: the type of an edge is not in ``rg.labelers.GREAT_TYPES``.
    """
    item = json.loads(line)
    tokens = tuple(item["source_tokens"])
    variables = _numbered(tokens, {place for place in item["repair_candidates"] if isinstance(place, int)})
    answers = {variables[place] for place in item["repair_targets"] if isinstance(place, int)}
    path = item["provenances"][0]["datasetProvenance"]["filepath"]
    return Record(
        tokens,
        _graph(item["edges"], len(tokens)),
        variables,
        item["error_location"] if item["has_bug"] else 0,
        max(answers, default=-1) if item["has_bug"] else -1,
        "/".join(path.split("/")[:2]),
    )


def _numbered(tokens: Sequence[str], places: Iterable[int]) -> tuple[int, ...]:
    numbers: dict[str, int] = {}
    found = {place: numbers.setdefault(tokens[place], len(numbers)) for place in sorted(places)}
    return tuple(found.get(place, -1) for place in range(len(tokens)))


def _graph(edges: Sequence[tuple[int, int, int, str]], count: int) -> rg.Graph:
    """A graph with types looked up by name, because GREAT's own numbers begin at 1."""
    names = [name.removeprefix("enum_") for *_, name in edges]
    unknown = set(names) - set(rg.labelers.GREAT_TYPES)
    if unknown:
        raise ValueError(f"edges must have types of {rg.labelers.GREAT_TYPES}, got {sorted(unknown)}")
    ends = torch.tensor([edge[:2] for edge in edges], dtype=torch.int64).view(-1, 2).T
    kinds = torch.tensor([rg.labelers.GREAT_TYPES.index(name) for name in names], dtype=torch.int64)
    return rg.Graph(ends, count, edge_type=kinds)


def great_files(place: Path) -> list[Path]:
    """The file itself; or, of a folder or its ``great-varmisuse``, the JSON lines (zipped or not) or GREAT's shards."""
    if place.is_file():
        return [place]
    folder = place / "great-varmisuse" if (place / "great-varmisuse").is_dir() else place
    return sorted(path for kind in ("*.jsonl", "*.jsonl.gz", "*VARIABLE_MISUSE*.txt-*") for path in folder.glob(kind))


def read_great(files: Iterable[Path], longest: int) -> Iterator[Record]:
    """The questions of some files whose functions have up to ``longest`` tokens."""
    for path in files:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
            records = map(from_json, filter(str.strip, lines))
            yield from (record for record in records if len(record.tokens) <= longest and record.asks)


def read_source(files: Iterable[Path], longest: int, rng: random.Random) -> Iterator[Record]:
    """Two questions per function, one of them with a planted bug; each file counts as a project."""
    for path in files:
        for function, _ in read_functions(path, "/".join(path.parts[-2:]), Sizes(longest=longest)):
            yield plant(function)
            at = rng.choice(function.uses)
            others = [number for number in range(len(function.names)) if number != function.variables[at]]
            yield plant(function, at, rng.choice(others))


def plant(function: Function, at: int = 0, wrong: int = -1) -> Record:
    """A function of Python source, with the variable ``wrong`` at the token ``at`` if there is a ``wrong``."""
    tokens, variables, source = list(function.tokens), list(function.variables), function.source
    right = -1
    if wrong >= 0:
        right, name = variables[at], function.names[wrong]
        line, column = function.places[at]
        lines = source.split("\n")
        lines[line] = lines[line][:column] + name + lines[line][column + len(tokens[at]) :]
        tokens[at], variables[at], source = name, wrong, "\n".join(lines)
    graph = graph_of(source, function.order)
    # Renumber the variables: their old order must not reveal that one of them is gone.
    numbered = _numbered(tokens, (place for place, variable in enumerate(variables) if variable >= 0))
    repair = numbered[variables.index(right)] if wrong >= 0 else -1
    return Record(tuple(tokens), graph, numbered, at if wrong >= 0 else 0, repair, function.path)


def word_ids(token: str) -> list[int]:
    """Row numbers for the words of a token, by a hash, padded with zeros."""
    words = [word for piece in re.findall(r"[^\W\d]\w*|\S", token) for word in subtokens(piece)][:WORDS]
    ids = [1 + zlib.crc32(word.encode()) % (ROWS - 1) for word in words]
    return ids + [0] * (WORDS - len(ids))


@dataclass(frozen=True)
class Batch:
    """B questions packed end to end, T tokens in all.

    Attributes:
        words: ``[T, W]``, the words of every token, 0 for none.
        graph: the packed graph.
        places: ``[B, P]``, where a bug may be: first the first token, which means nowhere, then every place of a
            variable; -1 for padding.
        owner: ``[B, P]``, the number of the variable at each of ``places``; -1 at the first token and for padding.
        error: ``[B]``, the index into ``places`` of the bug; 0 for none.
        repair: ``[B]``, the variable that belongs there; -1 for none.
    """

    words: Tensor
    graph: rg.Graph
    places: Tensor
    owner: Tensor
    error: Tensor
    repair: Tensor

    @classmethod
    def make(cls, records: Sequence[Record]) -> Batch:
        graph = rg.Graph.batch([record.graph for record in records])
        places, owner, error = [], [], []
        for record, start in zip(records, graph.borders().tolist(), strict=False):
            here = [0, *(place for place, number in enumerate(record.variables) if number >= 0)]
            places.append(torch.tensor(here) + start)
            owner.append(torch.tensor([record.variables[place] for place in here]))
            error.append(here.index(record.error))
        return cls(
            torch.tensor([word_ids(token) for record in records for token in record.tokens]),
            graph,
            pad_sequence(places, batch_first=True, padding_value=-1),
            pad_sequence(owner, batch_first=True, padding_value=-1),
            torch.tensor(error),
            torch.tensor([record.repair for record in records]),
        )


def batches(records: Sequence[Record], tokens: int, rng: random.Random | None = None) -> list[Batch]:
    """Batches of up to ``tokens`` tokens; questions in random order if ``rng`` is given."""
    order = rng.sample(records, len(records)) if rng else list(records)
    groups: list[list[Record]] = [[]]
    for record in order:
        if groups[-1] and sum(len(other.tokens) for other in groups[-1]) + len(record.tokens) > tokens:
            groups.append([])
        groups[-1].append(record)
    return [Batch.make(group) for group in groups if group]
