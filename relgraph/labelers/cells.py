"""Labels between the cells of a relational database: of one row, of linked rows, of one column, and in time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.brief import brief_fields
from relgraph.labelers.base import Labeler, why_all_labeled
from relgraph.labels import NOT_ATTENDING, UNLABELED, BlockLabels, DenseLabels

RELATIONS = ("same row", "parent row", "child row", "same column")
"""What the key's cell is to the query's; if several hold, the first counts."""

TIMES = ("earlier", "same time", "later")
"""When the key's row is, compared with the query's; rows without a time count as of the same time."""


@final
@dataclass(frozen=True, eq=False, init=False, repr=False)
class Cells:
    """Cells of a relational database: the input of :class:`~relgraph.labelers.CellRelations`.

    Args:
        rows: ``[N]``, integers: the row of each cell. Rows of all tables are numbered together, from 0.
        columns: ``[N]``, integers: the column of each cell. Columns of all tables are numbered together, from 0.
        parents: ``[2, P]``, integers: (child row, parent row) for each foreign key: the child holds the key of the
            parent. None for no links.
        times: ``[rows]``, floating or integers: when each row became known, in any unit; NaN for a row without a time.
            None if no row has one. Numbers in float32 have few digits: take float64 or integers for seconds since 1970.
        until: the time of the question, in the unit of ``times``: cells that became known later are never attended to.
            None for no limit.

    Raises:
        ValueError: shapes that do not fit each other, or numbers of rows that do not exist.

    Example:
        >>> cells = rg.labelers.Cells(
        ...     rows=torch.tensor([0, 0, 1, 1]),                        # two results of one race
        ...     columns=torch.tensor([0, 1, 0, 1]),
        ...     times=torch.tensor([1.0, 5.0]),
        ...     until=3.0,
        ... )
        >>> len(cells)
        4
    """

    rows: Tensor
    columns: Tensor
    parents: Tensor
    times: Tensor | None
    until: float | None

    def __init__(
        self,
        rows: Tensor,
        columns: Tensor,
        parents: Tensor | None = None,
        times: Tensor | None = None,
        until: float | None = None,
    ) -> None:
        rows, columns = (check.integer_tensor(name, x, dim=1) for name, x in (("rows", rows), ("columns", columns)))
        if columns.shape != rows.shape:
            raise ValueError(f"columns must have one number per cell, as rows has {len(rows)}, got {len(columns)}")
        parents = rows.new_empty(2, 0) if parents is None else parents
        if check.integer_tensor("parents", parents, dim=2).shape[0] != 2:
            raise ValueError(f"parents must have shape [2, P], (child row, parent row), got {list(parents.shape)}")
        check.same_device(rows=rows, columns=columns, parents=parents)
        numbers = torch.cat([rows.flatten(), parents.flatten()])
        count = int(numbers.max()) + 1 if numbers.numel() else 0
        if times is not None:
            if check.tensor("times", times).dim() != 1 or times.is_complex() or times.dtype == torch.bool:
                raise ValueError(f"times must be numbers [rows], got {times.dtype} {list(times.shape)}")
            if len(times) < count:
                raise ValueError(f"times must have one number for each of {count} rows, got {len(times)}")
            check.same_device(rows=rows, times=times)
        if until is not None:
            check.finite("until", until)  # an int stays one: a float would round nanoseconds
            if times is None:
                raise ValueError(f"until needs times, which say what is later, got {until} and no times")
        fields: dict[str, Any] = {"rows": rows, "columns": columns, "parents": parents}
        for name, x in fields.items():
            if x.numel() and int(x.min()) < 0:
                raise ValueError(f"{name} must be numbered from 0, got {int(x.min())}")
        fields = {name: x.long() for name, x in fields.items()} | {"times": times, "until": until}
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        """The number of cells."""
        return self.rows.shape[0]

    def __repr__(self) -> str:
        return brief_fields(self)


@final
@dataclass(frozen=True, init=False, repr=False)
class CellRelations(Labeler):
    """What the cells of a relational database are to each other: of one row, of a parent or child row, of one column.

    A parent row is one whose key the query's row holds; a child row holds the key of the query's row. If several
    relations hold, the first of these counts: same row, parent row, child row, same column. A pair without a relation
    does not attend, or has a label of its own.

    With ``time=True``, all relations but that of one row are split in three: the key's row is earlier than the query's,
    of the same time (or one of both has no time), or later. A cell that became known after the time of the question,
    ``cells.until``, is never attended to, with or without these labels.

    Source: the three masks (column; row and parents; children) of the Relational Transformer of Ranjan et al. 2025; as
    labels, and with time, they are relgraph's.

    Args:
        time: whether labels say which row is earlier.
        attend: ``"related"``: pairs without a relation do not attend; ``"all"``: they have the label ``"other"``.

    Raises:
        TypeError, ValueError: a wrong type, or another word for ``attend``.

    Example:
        >>> labeler = rg.labelers.CellRelations(attend="all")
        >>> labeler.names
        ('same row', 'parent row', 'child row', 'same column', 'other')
        >>> cells = rg.labelers.Cells(
        ...     rows=torch.tensor([0, 1, 1, 2]),                        # a race, and two results of it
        ...     columns=torch.tensor([0, 1, 2, 1]),
        ...     parents=torch.tensor([[1, 2], [0, 0]]),
        ... )
        >>> labeler(cells).to_dense()[0]
        tensor([[[0, 2, 2, 2],
                 [1, 0, 0, 3],
                 [1, 0, 0, 4],
                 [1, 3, 4, 0]]])
    """

    time: bool
    attend: str

    def __init__(self, *, time: bool = False, attend: str = "related") -> None:
        self._set(time=check.boolean("time", time), attend=check.choice("attend", attend, ("related", "all")))

    @property
    def num_labels(self) -> int:
        """4, or 10 with ``time``; 5 or 13 if all pairs attend."""
        return len(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """``"same row"``, then the other relations; with ``time`` as ``"parent row, earlier"``."""
        first, *rest = (*RELATIONS, "other") if self.attend == "all" else RELATIONS
        split = [f"{name}, {when}" for name in rest for when in TIMES] if self.time else rest
        return first, *split

    _why_never_unlabeled = why_all_labeled

    def __call__(self, cells: Cells | Sequence[Cells]) -> DenseLabels | BlockLabels:
        """The labels of N cells, ``[1, N, N]``, or packed labels of several samples.

        Args:
            cells: a :class:`~relgraph.labelers.Cells`, or a sequence of them.

        Returns:
            Dense labels of one sample, block labels of several.

        Raises:
            TypeError, ValueError: not Cells, or none.
        """
        if isinstance(cells, Cells):
            return DenseLabels._of_codes(self._ids(cells)[None], self.num_labels, full=False)
        samples = list(check.items("cells", cells, "a Cells or a sequence of them"))
        if not samples:
            raise ValueError("cells must hold at least one Cells, got none")
        for at, one in enumerate(samples):
            if not isinstance(one, Cells):
                raise TypeError(f"cells[{at}] must be a Cells, got {type(one).__name__}")
        ids = torch.cat([self._ids(one).flatten() for one in samples])
        ptr = torch.tensor([0, *map(len, samples)], device=ids.device).cumsum(0)
        return BlockLabels(ids.clamp(min=UNLABELED), self.num_labels, ptr, attend=ids >= 0)

    def _ids(self, cells: Cells) -> Tensor:
        """The id of every pair, ``[N, N]``.

        All but the column follows from the two rows. Rows are fewer than cells, so relations of rows come first; then
        their numbers are spread over the cells, for pairs of one column and for the others.
        """
        rows, number = torch.unique(cells.rows, return_inverse=True)
        of_rows, of_column = self._ids_of_rows(cells, rows)
        ids = of_rows.index_select(1, number).index_select(0, number)
        query, key = _pairs_of_equal(cells.columns)
        ids[query, key] = of_column[number[query], number[key]]
        return ids

    def _ids_of_rows(self, cells: Cells, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The id that a pair of these rows gives to cells of two columns, and to those of one column."""
        count, other = len(rows), len(RELATIONS)
        known = torch.zeros(2, count, count, dtype=torch.int8, device=rows.device)  # [2, rows, rows]
        known[0], known[1] = other, RELATIONS.index("same column")
        at = torch.searchsorted(rows, cells.parents.contiguous())  # [2, links]
        there = (rows[at.clamp(max=max(count - 1, 0))] == cells.parents).all(0) if count else at[0] < 0
        child, parent = at[:, there]
        known[:, parent, child] = RELATIONS.index("child row")
        known[:, child, parent] = RELATIONS.index("parent row")
        same = torch.arange(count, device=rows.device)
        known[:, same, same] = RELATIONS.index("same row")
        ids = known
        if cells.times is not None:
            times = cells.times[rows]
            if self.time:
                ids = known * 3 - 2 + self._when(times)
                ids[:, same, same] = 0
            if cells.until is not None:
                ids[:, :, _later(times, cells.until)] = NOT_ATTENDING
        elif self.time:
            ids = torch.where(known > 0, known * 3 - 1, known)
        if self.attend == "related":
            ids = ids.masked_fill(known == other, NOT_ATTENDING)
        return ids[0], ids[1]

    def _when(self, times: Tensor) -> Tensor:
        """The place in TIMES of the key's row, ``[rows, rows]``; comparisons with NaN are false."""
        mine, theirs = times[:, None], times
        return (theirs > mine).to(torch.int8) + (~(theirs < mine)).to(torch.int8)


def _later(times: Tensor, until: float) -> Tensor:
    """Which times are after ``until``; torch would compare integers with a float in float32."""
    return times.double() > until if times.is_floating_point() else times.long() > math.floor(until)


def _pairs_of_equal(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """All pairs of places that hold the same number."""
    order = torch.argsort(numbers)
    _, group, count = torch.unique_consecutive(numbers[order], return_inverse=True, return_counts=True)
    first = count.cumsum(0) - count
    others = count[group]  # each place is in as many pairs as its group has places
    begin = (others.cumsum(0) - others).repeat_interleave(others)
    step = torch.arange(begin.shape[0], device=begin.device) - begin
    return order.repeat_interleave(others), order[first[group].repeat_interleave(others) + step]
