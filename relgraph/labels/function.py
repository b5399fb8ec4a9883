"""Labels whose ids a function computes, block by block, from what each query and each key carries: its position."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.labels.alike import check_room, check_slice, common_batch
from relgraph.labels.base import NOT_ATTENDING, UNLABELED, Labels, smallest_dtype
from relgraph.labels.block import BlockLabels
from relgraph.labels.borders import cut_borders, graph_of
from relgraph.labels.counts import SHIFT, less_hidden
from relgraph.labels.dense import DenseLabels
from relgraph.labels.distance import DistanceLabels
from relgraph.labels.memory import Memory
from relgraph.labels.pairs import Pairs
from relgraph.labels.ragged import block_positions, block_starts
from relgraph.labels.rules import JoinRule

FEW_PAIRS = 1 << 20
"""Up to this many pairs, those of all batch rows or graphs together, ids are written out once; see :func:`_few`."""

PAIRS_AT_ONCE = 1 << 18
"""The number of pairs that a function gets at a time: 2 MiB per tensor of 64 bits."""

Codes = Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]
"""From numbers of queries and keys, which broadcast, to the code of each pair: its id, -1 for none, -2 if it does not
attend."""


@dataclass(frozen=True, eq=False)
class FunctionIds:
    """Ids that a function computes when they are needed, for some pairs at a time.

    Attributes:
        fn: the function.
        queries: what it reads of each query, such as a position: ``[N_q]`` or ``[B or 1, N_q]`` each.
        keys: what it reads of each key, ``[N_k]`` or ``[B or 1, N_k]`` each.
        dtype: the type of the ids.
        full: whether every pair attends.
    """

    fn: Codes
    queries: Sequence[Tensor]
    keys: Sequence[Tensor]
    dtype: torch.dtype
    full: bool

    @property
    def batch(self) -> int:
        """The number of batch rows with ids of their own; 1 if all share them."""
        return common_batch(*(x.shape[0] for x in (*self.queries, *self.keys) if x.dim() == 2))

    def block(self, batch: range, rows: range, keys: range) -> Tensor:
        """The codes of these queries and keys, ``[batch, rows, keys]``, or ``[1, rows, keys]`` if rows share them.

        A function may give batch rows ids of their own that its numbers do not show; :func:`by_function` finds out.
        """
        j = [_some(x, batch, keys).unsqueeze(-2) for x in self.keys]
        several = len(batch) if self.batch > 1 else 1
        step = max(PAIRS_AT_ONCE // max(several * len(keys), 1), 1)
        step = max(len(rows), 1) if torch.compiler.is_compiling() else step
        found = torch.empty(0)
        for start in range(0, max(len(rows), 1), step):
            i = [_some(x, batch, rows[start : start + step]).unsqueeze(-1) for x in self.queries]
            codes = self.fn(i, j)
            if start == 0:
                several = codes.shape[0] if codes.dim() == 3 and codes.shape[0] != 1 else several
                found = codes.new_empty(several, len(rows), len(keys), dtype=self.dtype)
            found[:, start : start + step] = codes
        return found

    def at(self, batch: Tensor, query: Tensor, key: Tensor, *, packed: bool) -> Tensor:
        """The codes of some pairs, in the broadcast shape of the arguments, in ``dtype``."""
        given = torch.broadcast_tensors(batch, query, key)
        shape, flat = given[0].shape, [x.reshape(-1) for x in given]
        many = flat[0].shape[0]
        step = many if torch.compiler.is_compiling() else PAIRS_AT_ONCE
        found = []
        for start in range(0, max(many, 1), max(step, 1)):
            row, *ends = (x[start : start + step] for x in flat)
            sides = [[_each(x, row, end) for x in of] for of, end in zip((self.queries, self.keys), ends, strict=True)]
            if not packed:  # a function may give batch rows ids of their own, in an axis before those of pairs
                sides = [[x[:, None] for x in side] for side in sides]
            found.append(self.fn(*sides).expand(sides[0][0].shape).to(self.dtype).reshape(-1))
        return torch.cat(found).view(shape)

    def written(self, q_ptr: Tensor, k_ptr: Tensor) -> Tensor:
        """The codes of all pairs within graphs with these borders, as the flat blocks of :class:`BlockLabels`."""
        starts = block_starts(q_ptr, k_ptr)
        _, query, key = block_positions(q_ptr, k_ptr, starts, int(starts[-1]))
        return self.at(torch.zeros_like(query[:1]), query, key, packed=True)


def _some(x: Tensor, batch: range, at: range) -> Tensor:
    """The numbers of some queries or keys of some batch rows."""
    x = x[..., at.start : at.stop]
    return x[batch.start : batch.stop] if x.dim() == 2 and x.shape[0] != 1 else x


def _each(x: Tensor, row: Tensor, at: Tensor) -> Tensor:
    """The number of each of these queries or keys, ``[P]``."""
    return x[at] if x.dim() == 1 else x[row if x.shape[0] != 1 else 0, at]


def by_function(
    fn: Codes, queries: Sequence[Tensor], keys: Sequence[Tensor], num_labels: int, *, full: bool = True
) -> DenseLabels | FunctionLabels:
    """Labels of all pairs by a function of numbers of queries and keys.

    With few pairs (:func:`_few`) the ids are written out. Otherwise only those of the first rows are, so that mistakes
    of the function show here.
    """
    ids = FunctionIds(fn, queries, keys, smallest_dtype(num_labels), full)
    batch, rows, columns = range(ids.batch), range(queries[0].shape[-1]), range(keys[0].shape[-1])
    if _few(lambda: len(batch) * len(rows) * len(columns)):
        return DenseLabels._of_codes(ids.block(batch, rows, columns), num_labels, full=full)
    first = ids.block(batch, rows[: max(PAIRS_AT_ONCE // (len(batch) * len(columns)), 1)], columns)
    if first.shape[0] != len(batch):
        numbers = torch.arange(first.shape[0], device=queries[0].device)[:, None].expand(-1, len(rows))
        ids = replace(ids, fn=OwnRows(fn), queries=(*queries, numbers))
    return FunctionLabels._made(ids, num_labels, None, None)


def packed_by_function(
    fn: Codes,
    queries: Sequence[Tensor],
    keys: Sequence[Tensor],
    num_labels: int,
    q_ptr: Tensor,
    k_ptr: Tensor,
) -> BlockLabels | FunctionLabels:
    """Labels of all pairs within graphs with these borders; see :func:`by_function`."""
    ids = FunctionIds(fn, queries, keys, smallest_dtype(num_labels), full=True)
    if _few(lambda: int((q_ptr.diff() * k_ptr.diff()).sum())):
        lengths = queries[0].shape[0], keys[0].shape[0]
        return BlockLabels._of_codes(ids.written(q_ptr, k_ptr), num_labels, q_ptr, k_ptr, lengths, full=True)
    labels = FunctionLabels._made(ids, num_labels, q_ptr, k_ptr)
    next(labels._pieces())
    return labels


def _few(count: Callable[[], int]) -> bool:
    """The rule by which ids of a function are written out once: for at most FEW_PAIRS pairs, and in compiled code.

    Then every implementation can use them, and small calls do not compute them again.
    """
    return torch.compiler.is_compiling() or count() <= FEW_PAIRS


@dataclass(frozen=True)
class OwnRows:
    """A function that gives batch rows ids of their own, as one of the batch row too, a further number of a query."""

    fn: Codes

    def __call__(self, queries: Sequence[Tensor], keys: Sequence[Tensor]) -> Tensor:
        """The codes of the batch rows that the queries name."""
        *queries, row = queries
        codes = self.fn(queries, keys)
        if row.dim() == 3:
            return codes[row[:, 0, 0]]
        return codes[row[:, 0], torch.arange(len(row), device=row.device)]


def _memory() -> Memory | None:
    """A memory, but none in compiled code, which keeps nothing and cannot make one."""
    return None if torch.compiler.is_compiling() else Memory()


@dataclass(frozen=True)
class ByDistance:
    """A function of two positions: the entry of a lookup for their distance, as in :class:`DistanceLabels`."""

    lookup: tuple[int, ...]
    left: int
    memory: Memory | None = field(default_factory=_memory, repr=False, compare=False)

    def __call__(self, queries: Sequence[Tensor], keys: Sequence[Tensor]) -> Tensor:
        """The entries of the lookup."""
        (i,), (j,) = queries, keys
        dtype = smallest_dtype(max(self.lookup) + 1)

        def make() -> Tensor:
            return torch.tensor(self.lookup, dtype=dtype, device=i.device)

        table = make() if self.memory is None else self.memory.once(i.device, make)
        return table[(j - i).clamp_(-self.left, len(self.lookup) - 1 - self.left).add_(self.left)]


@dataclass(frozen=True)
class Joined:
    """Two functions, whose codes a rule combines; the first reads the first ``of_a`` numbers of queries and of keys."""

    rule: JoinRule
    a: Codes
    b: Codes
    of_a: tuple[int, int]

    def __call__(self, queries: Sequence[Tensor], keys: Sequence[Tensor]) -> Tensor:
        """The combined codes."""
        i, j = self.of_a
        return self.rule.codes(self.a(queries[:i], keys[:j]).long(), self.b(queries[i:], keys[j:]).long())


@final
@dataclass(frozen=True, init=False, eq=False, repr=False)
class FunctionLabels(Labels):
    """Labels whose ids a function of query and key computes whenever a block of rows is attended.

    They hold what the function reads of each query and of each key, such as its position: N_q + N_k numbers instead of
    N_q · N_k ids. Backward computes the ids again. :class:`~relgraph.FromFunction` and ``labeler.at`` make these labels
    for more than 2^20 pairs; :meth:`dense` writes them out.

    Attributes:
        fn: the function, from numbers of queries and keys to ids.
        queries: the numbers that it reads of each query, ``[N_q]`` or ``[B, N_q]`` each.
        keys: the numbers that it reads of each key, ``[N_k]`` or ``[B, N_k]`` each.
        full: whether every pair attends.

    Example:
        >>> labels = rg.FromFunction(lambda i, j: (i * j) % 7, num_labels=7)(4096)
        >>> labels
        FunctionLabels(q_len=4096, k_len=4096, num_labels=7)
        >>> labels.rows(2, 4).cols(0, 5).to_dense()[0]
        tensor([[[0, 2, 4, 6, 1],
                 [0, 3, 6, 2, 5]]])
    """

    fn: Codes
    queries: tuple[Tensor, ...]
    keys: tuple[Tensor, ...]
    num_labels: int
    full: bool

    @classmethod
    def _made(cls, ids: FunctionIds, num_labels: int, q_ptr: Tensor | None, k_ptr: Tensor | None) -> Self:
        return cls._make(
            fn=ids.fn, queries=tuple(ids.queries), keys=tuple(ids.keys), num_labels=num_labels, full=ids.full,
            q_len=ids.queries[0].shape[-1], k_len=ids.keys[0].shape[-1], batch_size=ids.batch, q_ptr=q_ptr, k_ptr=k_ptr,
        )  # fmt: skip

    @property
    def _ids(self) -> FunctionIds:
        return FunctionIds(self.fn, self.queries, self.keys, smallest_dtype(self.num_labels), self.full)

    def _changed(self, **changed: Any) -> Self:
        return self._make(**{**self.__getstate__(), **changed})

    def to_dense(self) -> tuple[Tensor, Tensor]:
        check_room(self)
        codes = self._codes().long()
        return codes.clamp(min=UNLABELED), codes > NOT_ATTENDING

    def _codes(self) -> Tensor:
        """The code of every pair, ``[B or 1, N_q, N_k]``."""
        if self.q_ptr is None or self.k_ptr is None:
            return self._ids.block(range(self.batch_size), range(self.q_len), range(self.k_len))
        flat = self._ids.written(self.q_ptr, self.k_ptr)
        _, query, key = block_positions(self.q_ptr, self.k_ptr, block_starts(self.q_ptr, self.k_ptr), flat.shape[0])
        codes = flat.new_full((1, self.q_len, self.k_len), NOT_ATTENDING)
        codes[0, query, key] = flat
        return codes

    def dense(self) -> DenseLabels:
        check_room(self)
        return DenseLabels._of_codes(self._codes(), self.num_labels, full=self.full and not self.packed)

    def rows(self, start: int, stop: int) -> Self:
        check_slice(start, stop, self.q_len)
        q_ptr = None if self.q_ptr is None else cut_borders(self.q_ptr, start, stop)
        return self._changed(queries=tuple(x[..., start:stop] for x in self.queries), q_len=stop - start, q_ptr=q_ptr)

    def cols(self, start: int, stop: int) -> Self:
        check_slice(start, stop, self.k_len)
        k_ptr = None if self.k_ptr is None else cut_borders(self.k_ptr, start, stop)
        return self._changed(keys=tuple(x[..., start:stop] for x in self.keys), k_len=stop - start, k_ptr=k_ptr)

    def _cut_batch(self, start: int, stop: int) -> Self:
        queries, keys = (
            tuple(x[start:stop] if x.dim() == 2 and x.shape[0] > 1 else x for x in side)
            for side in (self.queries, self.keys)
        )
        return self._changed(queries=queries, keys=keys, batch_size=stop - start)

    def _padded(self, length: int) -> Self:
        assert self.k_ptr is not None
        first, last = self.k_ptr[:-1, None], self.k_ptr[1:, None] - 1
        # padding repeats the last position of its graph, for the function may know no others
        at = (first + torch.arange(length, device=first.device)).minimum(last).clamp(0, max(self.k_len - 1, 0))
        queries, keys = (tuple(x[at] for x in side) for side in (self.queries, self.keys))
        return self._changed(
            queries=queries, keys=keys, q_len=length, k_len=length, batch_size=len(first), q_ptr=None, k_ptr=None
        )

    def _codes_at(self, pairs: Pairs) -> Tensor:
        return self._ids.at(*pairs.within(self.batch_size), packed=self.packed).long()

    def _pieces(self) -> Iterator[tuple[slice, DenseLabels | BlockLabels]]:
        """Some rows at a time, written out."""
        longest = self.k_len if self.k_ptr is None else int(self.k_ptr.diff().max())
        step = max(PAIRS_AT_ONCE // max(self.batch_size * longest, 1), 1)
        for start in range(0, self.q_len, step):
            part = self.rows(start, min(start + step, self.q_len))
            here = slice(start, start + part.q_len)
            if part.q_ptr is None or part.k_ptr is None:
                yield here, part.dense()
            else:
                codes = part._ids.written(part.q_ptr, part.k_ptr)
                lengths = part.q_len, part.k_len
                yield (
                    here,
                    BlockLabels._of_codes(codes, self.num_labels, part.q_ptr, part.k_ptr, lengths, full=self.full),
                )

    def _count(self, batch: int, hidden: Tensor) -> Tensor:
        counts = hidden.new_zeros(self.num_labels + SHIFT)
        for _, part in self._pieces():
            counts += part._count(part.batch_size, hidden[:0])
        return less_hidden(counts, self, batch, hidden)


def join_by_function(rule: JoinRule, a: Labels, b: Labels) -> FunctionLabels:
    """Combine labels by function with others, or with distances, pair by pair when they are attended."""
    (one, other) = (labels if isinstance(labels, FunctionLabels) else _of_distances(labels, a, b) for labels in (a, b))
    check.outside_compiled_code("joining labels by function")
    ids = FunctionIds(
        Joined(rule, one.fn, other.fn, (len(one.queries), len(one.keys))),
        (*one.queries, *other.queries), (*one.keys, *other.keys), smallest_dtype(rule.num_labels),
        one.full and other.full,
    )  # fmt: skip
    return FunctionLabels._made(ids, rule.num_labels, one.q_ptr, one.k_ptr)


def _of_distances(labels: Any, *both: Labels) -> FunctionLabels:
    """Distances as a function of positions, on the device of the labels by function that they meet."""
    assert isinstance(labels, DistanceLabels)
    device = next(x.device for x in both if isinstance(x, FunctionLabels))
    i, j = (torch.arange(length, device=device) for length in (labels.q_len, labels.k_len))
    offset: Any = 0 if labels.q_offset is None else labels.q_offset
    offset = offset.to(torch.int64) if isinstance(offset, Tensor) else offset
    if labels.q_ptr is not None and labels.k_ptr is not None:
        graph = graph_of(labels.q_ptr, labels.q_len)
        i, j = i - labels.q_ptr[graph], j - labels.k_ptr[graph_of(labels.k_ptr, labels.k_len)]
        i = i + (offset[graph] if isinstance(offset, Tensor) and offset.numel() > 1 else offset)
    else:
        i = i + (offset[:, None] if isinstance(offset, Tensor) and offset.dim() == 1 else offset)
    ids = FunctionIds(
        ByDistance(labels.lookup, labels.left), (i,), (j,), torch.int64, NOT_ATTENDING not in labels.lookup
    )
    return FunctionLabels._made(ids, labels.num_labels, labels.q_ptr, labels.k_ptr)
