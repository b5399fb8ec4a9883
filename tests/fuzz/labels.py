"""Labels as plain descriptions: each says by a rule of its own what one pair carries, and can make the real ones."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from random import Random

import torch
from torch import Tensor

import relgraph as rg
from relgraph.labels import function
from relgraph.labels.base import smallest_dtype
from tests.fuzz.frame import Frame

INTEGERS = (torch.int64, torch.int64, torch.int32, torch.int16, torch.int8)

Entry = list[int]
"""The labels of something that attends: none, one, or several whose terms add up."""


@dataclass(frozen=True)
class Distances:
    """A label by clipped distance.

    Attributes:
        frame: the pairs.
        lookup: id of each distance from ``-left`` up; -1 none, -2 does not attend.
        left: how far left the lookup reaches.
        num_labels: R.
        form: how the offset is given: ``"none"``, ``"int"``, ``"scalar"`` or ``"each"``.
    """

    frame: Frame
    lookup: tuple[int, ...]
    left: int
    num_labels: int
    form: str

    def at(self, b: int, i: int, j: int) -> list[Entry]:
        """What the pair carries: nothing where it does not attend, else one entry."""
        distance = self.frame.distance(b, i, j)
        if distance is None:
            return []
        place = min(max(distance, -self.left), len(self.lookup) - 1 - self.left) + self.left
        return _entry(self.lookup[place])

    def build(self) -> rg.Labels:
        """The real ones."""
        return rg.DistanceLabels(
            self.frame.q_len,
            self.frame.k_len,
            lookup=self.lookup,
            left=self.left,
            num_labels=self.num_labels,
            q_offset=offset_given(self.frame, self.form),
            **_borders(self.frame),
        )


@dataclass(frozen=True)
class Written:
    """An id for every pair: dense, raw (dense ids handed over as a tensor), or a block for each packed graph.

    Attributes:
        frame: the pairs.
        codes: by batch row (or graph), query and key: an id, -1 none, -2 does not attend.
        num_labels: R.
        raw: whether the ids are handed over as a tensor.
        dtype: of the ids.
        flat: whether a single batch row is written without its axis.
    """

    frame: Frame
    codes: list[list[list[int]]]
    num_labels: int
    raw: bool
    dtype: torch.dtype
    flat: bool

    def at(self, b: int, i: int, j: int) -> list[Entry]:
        """What the pair carries: nothing where it does not attend, else one entry."""
        found = self.frame.locate(b, i, j)
        if found is None:
            return []
        group, row, col = found
        return _entry(self.codes[0 if not self.frame.packed and len(self.codes) == 1 else group][row][col])

    def build(self) -> rg.Labels | Tensor:
        """The real ones; those of 32 bits are computed by a function, packed ones if they are many."""
        pairs = sum(len(row) for graph in self.codes for row in graph)
        if self.computed and not (self.frame.packed and pairs <= function.FEW_PAIRS):
            return self._computed()
        if self.frame.packed:
            codes = torch.tensor([c for graph in self.codes for row in graph for c in row], dtype=self.dtype)
            return rg.BlockLabels(codes.clamp(min=-1), self.num_labels, **_borders(self.frame), **_attend(codes))
        shape = (len(self.codes), self.frame.q_len, self.frame.k_len)
        codes = torch.tensor(self.codes, dtype=self.dtype).reshape(shape)
        codes = codes[0] if self.flat and len(self.codes) == 1 else codes
        if self.raw:
            return codes
        return rg.DenseLabels(codes.clamp(min=-1), self.num_labels, **_attend(codes))

    @property
    def computed(self) -> bool:
        """Whether a function computes the ids."""
        return self.dtype == torch.int32 and not self.raw

    def _computed(self) -> rg.Labels:
        frame, ends = self.frame, [torch.arange(n) for n in (self.frame.q_len, self.frame.k_len)]
        codes = torch.full((1 if frame.packed else len(self.codes), frame.q_len, frame.k_len), -2)
        for b, i, j in product(range(len(codes)), range(frame.q_len), range(frame.k_len)):
            for entry in self.at(b, i, j):
                codes[b, i, j] = entry[0] if entry else -1

        def of(queries, keys):
            found = codes[:, queries[0], keys[0]]
            return found[0] if len(codes) == 1 else found

        if frame.packed:
            borders = _borders(frame)
            k_ptr = borders["ptr"].long()
            q_ptr = borders.get("q_ptr", k_ptr).long()
            ids = function.FunctionIds(of, ends[:1], ends[1:], smallest_dtype(self.num_labels), full=False)
            return function.FunctionLabels._made(ids, self.num_labels, q_ptr, k_ptr)
        return function.by_function(of, ends[:1], ends[1:], self.num_labels, full=False)


@dataclass(frozen=True)
class Edges:
    """Listed pairs over a rule for the others.

    Attributes:
        frame: the pairs.
        edges: ``(batch row or None, query, key, id)`` each, in absolute positions.
        by_row: whether each edge names its batch row.
        num_labels: R.
        default: None, an id, or a description.
        duplicates: ``"error"``, ``"first"`` or ``"sum"``.
        dtype: of ids and ends.
    """

    frame: Frame
    edges: tuple[tuple[int | None, int, int, int], ...]
    by_row: bool
    num_labels: int
    default: int | Distances | Written | Edges | None
    duplicates: str
    dtype: torch.dtype

    def at(self, b: int, i: int, j: int) -> list[Entry]:
        """What the pair carries: an entry for each edge where edges attend on their own, else one or none."""
        mine = [label for row, query, key, label in self.edges if row in (None, b) and (query, key) == (i, j)]
        if self.default is None:
            return [[label] if label >= 0 else [] for label in mine]
        if mine and self.duplicates == "sum":
            return [[label for label in mine if label >= 0]]
        if mine:
            return _entry(mine[0])
        if isinstance(self.default, int):
            return [] if self.frame.locate(b, i, j) is None else _entry(self.default)
        return self.default.at(b, i, j)

    def numbers(self, b: int, i: int, j: int) -> list[Entry]:
        """For each entry of :meth:`at`, which edges it holds; a pair that is not listed holds none."""
        mine = [e for e, edge in enumerate(self.edges) if edge[0] in (None, b) and edge[1:3] == (i, j)]
        if self.default is None:
            return [[e] for e in mine]
        if mine:
            return [mine if self.duplicates == "sum" else mine[:1]]
        return [[] for _ in self.at(b, i, j)]

    @property
    def parallel(self) -> bool:
        """Whether a pair is listed twice."""
        return len({edge[:3] for edge in self.edges}) < len(self.edges)

    def build(self) -> rg.Labels:
        """The real ones."""
        ends = torch.tensor([(key, query) for _, query, key, _ in self.edges], dtype=torch.int64).reshape(-1, 2).T
        rows = torch.tensor([edge[0] for edge in self.edges] if self.by_row else [], dtype=torch.int64)
        return rg.EdgeLabels(
            ends,
            torch.tensor([edge[3] for edge in self.edges], dtype=self.dtype),
            self.num_labels,
            q_len=self.frame.q_len,
            k_len=self.frame.k_len,
            default=self.default if self.default is None or isinstance(self.default, int) else self.default.build(),
            duplicates=self.duplicates,
            **_borders(self.frame),
            **({"batch": rows, "batch_size": self.frame.batch} if self.by_row else {}),
        )


@dataclass(frozen=True)
class Sum:
    """Several labels for each pair, each part with tables of its own."""

    parts: tuple[Distances | Written | Edges, ...]
    nested: bool

    def build(self) -> rg.Labels:
        """The real ones, flat or as a sum of a sum."""
        made = [part.build() for part in self.parts]
        if self.nested and len(made) > 2:
            return rg.SumLabels(rg.SumLabels(*made[:2]), *made[2:])
        return rg.SumLabels(*made)


@dataclass(frozen=True)
class Densified:
    """Labels of any kind but a sum, transposed into dense ones."""

    inner: Distances | Written | Edges

    @property
    def num_labels(self) -> int:
        """R."""
        return self.inner.num_labels

    def at(self, b: int, i: int, j: int) -> list[Entry]:
        """What the pair carries."""
        return self.inner.at(b, i, j)

    def build(self) -> rg.Labels:
        """The real ones."""
        return self.inner.build().dense()


@dataclass(frozen=True)
class Numbers:
    """For each of some edges that attend on their own, its number: what vectors on edges are looked up by."""

    edges: Edges

    @property
    def num_labels(self) -> int:
        """How many edges there are."""
        return len(self.edges.edges)

    def at(self, b: int, i: int, j: int) -> list[Entry]:
        """The number of every edge of the pair."""
        return self.edges.numbers(b, i, j)


@dataclass(frozen=True)
class WithVectors:
    """Edges alone, each with its label and its number."""

    edges: Edges

    @property
    def parts(self) -> tuple[Edges, Numbers]:
        """Labels, and numbers."""
        return self.edges, Numbers(self.edges)


Single = Distances | Written | Edges | Densified | Numbers
Described = Single | Sum | WithVectors | None


def parts_of(labels: Described) -> tuple[Single, ...]:
    """The parts of a sum, or the labels themselves; nothing where there are none."""
    if labels is None:
        return ()
    return labels.parts if isinstance(labels, Sum | WithVectors) else (labels,)


def entries(labels: Described, frame: Frame, b: int, i: int, j: int) -> list[list[Entry]]:
    """What attends at a pair, each with an entry for every part: parallel edges several times, else once or never."""
    if labels is None:
        return [[]]
    found = [part.at(b, i, j) for part in parts_of(labels)]
    if isinstance(labels, WithVectors):
        return [list(edge) for edge in zip(*found, strict=True)]
    if len(found) == 1:
        return [[entry] for entry in found[0]]
    return [[entry for (entry,) in found]] if all(found) else []


def numbers(labels: Described, b: int, i: int, j: int) -> list[Entry]:
    """For each of :func:`entries` of edges, the edges whose vectors it carries."""
    edges = labels.edges if isinstance(labels, WithVectors) else labels
    assert isinstance(edges, Edges)
    return edges.numbers(b, i, j)


def stands_alone(labels: Described) -> bool:
    """Whether edges alone attend."""
    return isinstance(labels, Edges) and labels.default is None


def has_parallel(labels: Described) -> bool:
    """Whether edges that attend each on its own name a pair twice."""
    return isinstance(labels, Edges) and labels.default is None and labels.parallel


def is_one_matrix(part: Single) -> bool:
    """Whether every pair has one id at most and attends once at most, so that ids can be written in one matrix."""
    if not isinstance(part, Edges):
        return True
    if part.parallel and (part.default is None or part.duplicates == "sum"):
        return False
    return part.default is None or isinstance(part.default, int) or is_one_matrix(part.default)


def by_function(labels: Described) -> bool:
    """Whether a function computes ids, or those of pairs that no edge lists."""
    parts = [part.default if isinstance(part, Edges) else part for part in parts_of(labels)]
    return any(isinstance(part, Written) and part.computed for part in parts)


def sums_edges(labels: Described) -> bool:
    """Whether terms of parallel edges add up anywhere."""
    return any(_sums(part) for part in parts_of(labels))


def brings_offset(labels: Described) -> bool:
    """Whether distances are counted from an offset that the labels are given."""

    def given(part: int | Single | None) -> bool:
        if isinstance(part, Edges):
            return given(part.default)
        return isinstance(part, Distances) and part.form != "none"

    return any(given(part) for part in parts_of(labels))


def _sums(part: Single) -> bool:
    if not isinstance(part, Edges):
        return False
    inner = isinstance(part.default, Edges) and _sums(part.default)
    return inner or (part.default is not None and part.duplicates == "sum" and part.parallel)


def _entry(code: int) -> list[Entry]:
    return [] if code == -2 else [[]] if code == -1 else [[code]]


def _attend(codes: Tensor) -> dict[str, Tensor]:
    return {"attend": codes > -2} if bool((codes == -2).any()) else {}


def _borders(frame: Frame) -> dict[str, Tensor]:
    if not frame.packed:
        return {}
    ptr = {"ptr": torch.tensor(frame.k_starts)}
    if frame.q_sizes != frame.k_sizes:
        ptr["q_ptr"] = torch.tensor(frame.q_starts)
    return ptr


def offset_given(frame: Frame, form: str) -> int | Tensor | None:
    """The offsets of the frame as an argument."""
    if form == "none":
        return None
    if form == "each":
        return torch.tensor(frame.offsets, dtype=torch.int64)
    one = frame.offsets[0] if frame.offsets else 0
    return one if form == "int" else torch.tensor(one)


def offset_forms(frame: Frame) -> list[str]:
    """The ways in which the offsets of the frame can be given."""
    if len(set(frame.offsets)) > 1:
        return ["each"]
    zero = not frame.offsets or frame.offsets[0] == 0
    return ["int", "scalar", "each", *(["none"] * 2 if zero else [])]


def draw_labels(rng: Random, frame: Frame) -> Described:
    """Labels of any kind over the frame."""
    kind = rng.choice(["none", "distance", "distance", "written", "written", *["edges"] * 5, "sum", "sum"])
    if kind == "none":
        return None if not frame.packed else _distances(rng, frame, _count(rng))
    if kind == "sum":
        parts = tuple(_single(rng, frame, alone=0.15) for _ in range(rng.choice([2, 2, 3])))
        return Sum(parts, rng.random() < 0.5)
    if kind == "edges":
        return draw_edges(rng, frame, _count(rng), depth=0, parallel=True)
    return _distances(rng, frame, _count(rng)) if kind == "distance" else _written(rng, frame, _count(rng), raw=True)


def _count(rng: Random) -> int:
    return rng.choice([0, 1, 2, 3, 4, 6, 9])


def _single(rng: Random, frame: Frame, *, alone: float) -> Single:
    count = _count(rng)
    kind = rng.choice(["distance", "written", "edges"])
    if kind == "distance":
        return _distances(rng, frame, count)
    if kind == "written":
        return _written(rng, frame, count, raw=False)
    return draw_edges(rng, frame, count, depth=1, parallel=False, alone=alone)


def _distances(rng: Random, frame: Frame, count: int) -> Distances:
    length = rng.choice([1, 2, 3, rng.randint(1, 9), rng.randint(1, 30)])
    if rng.random() < 0.3 and count:
        lookup = [place % count for place in range(length)]
    else:
        lowest = rng.choice([0, -1, -2, -2]) if count else rng.choice([-1, -2])
        lookup = [rng.randint(lowest, count - 1) for _ in range(length)]
    for end in (0, -1):  # both ends serve all distances beyond them
        if rng.random() < 0.3:
            run = rng.randint(1, length)
            for place in range(run):
                lookup[place if end == 0 else -1 - place] = lookup[end]
    left = rng.randint(0, length - 1)
    return Distances(frame, tuple(lookup), left, count, rng.choice(offset_forms(frame)))


def _written(rng: Random, frame: Frame, count: int, *, raw: bool) -> Written:
    lowest = rng.choice([0, -1, -2, -2]) if count else rng.choice([-1, -2])
    raw = raw and not frame.packed and rng.random() < 0.3
    lowest = max(lowest, -1) if raw else lowest
    few = rng.random() < 0.3  # long runs of one id

    def code() -> int:
        return rng.randint(lowest, count - 1)

    if frame.packed:
        shapes = list(zip(frame.q_sizes, frame.k_sizes, strict=True))
    else:
        shapes = [(frame.q_len, frame.k_len)] * (1 if rng.random() < 0.5 else frame.batch)
    codes = []
    for rows, cols in shapes:
        usual = code()
        codes.append([[usual if few and rng.random() < 0.9 else code() for _ in range(cols)] for _ in range(rows)])
    flat = len(codes) == 1 and rng.random() < 0.5
    return Written(frame, codes, count, raw, rng.choice(INTEGERS), flat)


def draw_edges(rng: Random, frame: Frame, count: int, *, depth: int, parallel: bool, alone: float = 0.35) -> Edges:
    if rng.random() < alone:
        default, duplicates = None, rng.choice(["error", "first", "sum"])
    else:
        duplicates = rng.choice(["error", "first", "sum", "sum"])
        parallel = duplicates != "error"
        default = _default(rng, frame, count, depth)
    by_row = not frame.packed and frame.batch > 0 and rng.random() < 0.4
    pairs = [
        (b if by_row else None, i, j)
        for b in range(frame.batch if by_row else 1)
        for i in range(frame.q_len)
        for j in range(frame.k_len)
        if frame.locate(b, i, j) is not None
    ]
    wanted = rng.choice([0, 1, 2, len(pairs) // 4, len(pairs) // 2, len(pairs)])
    chosen = rng.sample(pairs, min(wanted, len(pairs)))
    if parallel and chosen and rng.random() < 0.7:
        chosen += rng.choices(chosen, k=rng.randint(1, len(chosen)))
        rng.shuffle(chosen)
    edges = tuple((*pair, rng.randint(-1 if rng.random() < 0.2 else min(0, count - 1), count - 1)) for pair in chosen)
    return Edges(frame, edges, by_row, count, default, duplicates, rng.choice(INTEGERS))


def _default(rng: Random, frame: Frame, count: int, depth: int) -> int | Distances | Written | Edges:
    kind = rng.choice(["id", "id", "distance", "written", "edges"] if depth < 2 else ["id", "distance", "written"])
    fewer = rng.randint(0, count)
    if kind == "id":
        return rng.randint(-1, count - 1)
    if kind == "distance":
        return _distances(rng, frame, fewer)
    if kind == "written":
        return _written(rng, frame, fewer, raw=False)
    return draw_edges(rng, frame, fewer, depth=depth + 1, parallel=False, alone=0.25)
