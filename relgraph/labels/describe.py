"""Label counts: a table of ids, names and how many pairs carry each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from relgraph.arguments.brief import shown
from relgraph.labels.base import UNLABELED, Labels
from relgraph.labels.counts import count

MOST_ROWS = 40
"""How many labels a printed table shows."""


@final
@dataclass(frozen=True, repr=False)
class LabelCounts:
    """How many pairs carry each label; it prints as a table of id, name, pairs and share of all pairs.

    Pairs across graphs of a packed batch do not count. Parallel edges that attend or add up separately each count, so
    shares may exceed 100 %. A table of more than 40 labels shows the 40 most frequent ones in the order of their ids
    and sums up the others; a table without counts leaves out the middle.

    Args:
        num_labels: R.
        names: the name of every id, or None.
        numbers: how many pairs carry each id, or None without an input to count.
        unlabeled: how many pairs attend without a label (id -1), or None.
        not_attending: how many pairs do not attend, or None.
        pairs: how many pairs there are, or None.

    Example:
        >>> rg.ClippedDistance(1).describe(4)
        id  name  pairs   share
         0  -1        6  37.5 %
         1  0         4  25.0 %
         2  1         6  37.5 %
        3 labels, 16 pairs
        >>> rg.ClippedDistance(1).describe(4).counts
        {'-1': 6, '0': 4, '1': 6}
    """

    num_labels: int
    names: tuple[str, ...] | None = None
    numbers: tuple[int, ...] | None = None
    unlabeled: int | None = None
    not_attending: int | None = None
    pairs: int | None = None

    @property
    def counts(self) -> dict[str, int] | dict[int, int] | None:
        """How many pairs carry each label, by name, or by id without names; None without an input."""
        if self.numbers is None:
            return None
        if self.names is None:
            return dict(enumerate(self.numbers))
        return dict(zip(self.names, self.numbers, strict=True))

    def __repr__(self) -> str:
        return "\n".join([*_aligned(_rows(self)), _summary(self)])


@final
@dataclass(frozen=True, repr=False)
class SumCounts:
    """The counts of a sum of labels: one :class:`~relgraph.labels.LabelCounts`, and one printed table, per part.

    Each part is counted separately, although a sum attends only where all its parts do.

    Args:
        parts: the counts of each part.

    Example:
        >>> labeler = rg.ClippedDistance((1, 0)) + rg.ClippedDistance((0, 1))
        >>> labeler.describe(3)
        part 0
        id  name  pairs   share
         0  -1        3  33.3 %
         1  0         6  66.7 %
        2 labels, 9 pairs
        part 1
        id  name  pairs   share
         0  0         6  66.7 %
         1  1         3  33.3 %
        2 labels, 9 pairs
        >>> labeler.describe(3).counts[1]
        {'0': 6, '1': 3}
    """

    parts: tuple[LabelCounts, ...]

    @property
    def counts(self) -> tuple[dict[str, int] | dict[int, int] | None, ...]:
        """For each part, how many pairs carry each label, by name, or by id without names; None without an input."""
        return tuple(part.counts for part in self.parts)

    def __repr__(self) -> str:
        return "\n".join(f"part {index}\n{part!r}" for index, part in enumerate(self.parts))


def describe(labels: Labels, names: Any = None) -> LabelCounts | SumCounts:
    """See :meth:`Labels.describe`."""
    names = labels.names if names is None else names
    summands = labels._summands
    if len(summands) == 1:
        return _counted(labels, "names", names)
    per_part = [None] * len(summands) if names is None else names
    if not isinstance(per_part, (tuple, list)) or len(per_part) != len(summands):
        got = len(per_part) if isinstance(per_part, (tuple, list)) else type(per_part).__name__
        raise ValueError(f"names must hold one sequence of names per part of the sum, {len(summands)}, got {got}")
    parts = enumerate(zip(summands, per_part, strict=True))
    return SumCounts(tuple(_counted(part, f"names[{index}]", names) for index, (part, names) in parts))


def check_names(name: str, names: Any, num_labels: Any) -> tuple[str, ...] | None:
    """Return ``names`` as a tuple; raise unless they are R different strings or None."""
    if names is None:
        return None
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(n, str) for n in names):
        raise TypeError(f"{name} must be a sequence of strings, got {shown(names)}")
    if len(names) != num_labels or len(set(names)) != num_labels:
        raise ValueError(
            f"{name} must be {num_labels} different strings, got {len(names)}, {len(set(names))} different"
        )
    return tuple(names)


def _counted(labels: Labels, argument: str, names: Any) -> LabelCounts:
    by_label, unlabeled, not_attending, pairs = count(labels)
    names = check_names(argument, names, labels.num_labels)
    return LabelCounts(len(by_label), names, by_label, unlabeled, not_attending, pairs)


def _shown(table: LabelCounts) -> list[int]:
    """The ids that the table shows, in order."""
    if table.num_labels <= MOST_ROWS:
        return list(range(table.num_labels))
    if table.numbers is None:
        half = MOST_ROWS // 2
        return [*range(half), *range(table.num_labels - half, table.num_labels)]
    carried = [label for label, number in enumerate(table.numbers) if number]
    return sorted(sorted(carried, key=lambda label: -table.numbers[label])[:MOST_ROWS])  # pyright: ignore[reportOptionalSubscript]


def _rows(table: LabelCounts) -> list[tuple[str, str, str, str]]:
    """Id, name, pairs and share, each as text."""
    rows, next_label = [], 0
    for label in _shown(table):
        if table.numbers is None and label != next_label:
            rows.append(("…", "", "", ""))
        name = "" if table.names is None else table.names[label]
        rows.append((str(label), name, *_number(table, None if table.numbers is None else table.numbers[label])))
        next_label = label + 1
    if table.unlabeled:
        rows.append((str(UNLABELED), "attends without a label", *_number(table, table.unlabeled)))
    if table.not_attending:
        rows.append(("", "does not attend", *_number(table, table.not_attending)))
    return rows


def _number(table: LabelCounts, number: int | None) -> tuple[str, str]:
    """A number of pairs and its share of all, as text."""
    if number is None or table.pairs is None:
        return "", ""
    if table.pairs == 0:
        return f"{number:,}", "-"
    share = 100 * number / table.pairs
    return f"{number:,}", "<0.1 %" if 0 < share < 0.1 else f"{share:.1f} %"


def _aligned(rows: list[tuple[str, str, str, str]]) -> list[str]:
    """The rows under their header, without empty columns."""
    if not rows:
        return []
    columns = []
    for title, cells in zip(("id", "name", "pairs", "share"), zip(*rows, strict=True), strict=True):
        if any(cells):
            width = max(map(len, (title, *cells)))
            columns.append([cell.ljust(width) if title == "name" else cell.rjust(width) for cell in (title, *cells)])
    return ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]


def _summary(table: LabelCounts) -> str:
    """The last line: the number of labels and pairs, and what the table leaves out."""
    labels = f"{table.num_labels:,} label{'' if table.num_labels == 1 else 's'}"
    if table.numbers is None or table.pairs is None:
        return labels
    ids = _shown(table)
    labels = f"{labels}, {table.pairs:,} pair{'' if table.pairs == 1 else 's'}"
    if len(ids) == table.num_labels:
        return labels
    rest = sum(table.numbers) - sum(table.numbers[label] for label in ids)
    return f"{labels}; not shown: {table.num_labels - len(ids):,} labels, carried by {rest:,} pairs"
