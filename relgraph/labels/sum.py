"""Several labels per pair: the terms of all parts add up, each part with its own tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, final

from torch import Tensor

from relgraph.arguments import check
from relgraph.labels.alike import check_alike, check_labels, check_slice, common_batch
from relgraph.labels.base import Labels


@final
@dataclass(frozen=True, init=False, eq=False, repr=False)
class SumLabels(Labels):
    """Several labels per pair, whose terms add up: a pair attends if it attends in every part.

    Tables, ``num_labels`` and label masses become tuples with one entry per part. Score and value of (i, j) add up the
    terms of ``tables[p][l^p_ij]`` over all parts p. Nested sums flatten.

    Args:
        parts: two or more labels of the same lengths, batch and borders.

    Raises:
        ValueError: fewer than two parts; parts of different pairs, batch sizes or borders; or edges-only labels with
            parallel edges.

    Example:
        >>> distance, segment = rg.ClippedDistance(1)(2), rg.Segments(1)(torch.tensor([0, 0]))
        >>> labels = rg.SumLabels(distance, segment)
        >>> labels.num_labels
        (3, 1)
        >>> labels.parts[0].to_dense()[0]
        tensor([[[1, 2],
                 [0, 1]]])
    """

    parts: tuple[Labels, ...]
    num_labels: tuple[int, ...]

    def __init__(self, *parts: Labels) -> None:
        check_labels("parts", *parts)
        flat = [part for given in parts for part in given._summands]
        if len(flat) < 2:
            raise ValueError(f"a sum must have at least two parts, got {len(flat)}")
        first = flat[0]
        batch_size = common_batch(*(part.batch_size for part in flat))
        for part in flat[1:]:
            check_alike(first, part, "parts")
        for part in flat:
            if not check.among(part.batch_size, 1, batch_size):
                low, high = sorted((part.batch_size, batch_size))
                raise ValueError(f"parts must have batch_size 1 or {high}, got {low}")
            if part._edges_only and part._several:
                raise ValueError(
                    "a part of a sum must not hold parallel edges that attend separately: give it (or its labeler) "
                    "default= other than None, and duplicates='first' or 'sum'"
                )
        self._set(
            parts=tuple(flat), q_len=first.q_len, k_len=first.k_len, batch_size=batch_size,
            num_labels=tuple(part.num_labels for part in flat), q_ptr=first.q_ptr, k_ptr=first.k_ptr,
        )  # fmt: skip

    @property
    def names(self) -> tuple[Any, ...] | None:
        if self._named is not None:
            return super().names
        names = tuple(part.names for part in self.parts)
        return None if all(name is None for name in names) else names

    @property
    def offsets(self) -> tuple[int | Tensor | None, ...]:
        return tuple(offset for part in self.parts for offset in part.offsets)

    def to_dense(self) -> tuple[Tensor, Tensor]:
        raise TypeError("a sum carries several ids per pair: call to_dense on each of .parts")

    def rows(self, start: int, stop: int) -> Self:
        check_slice(start, stop, self.q_len)
        return type(self)(*(part.rows(start, stop) for part in self.parts))

    def cols(self, start: int, stop: int) -> Self:
        check_slice(start, stop, self.k_len)
        return type(self)(*(part.cols(start, stop) for part in self.parts))

    @property
    def _summands(self) -> tuple[Labels, ...]:
        return self.parts

    def _carries_no_ids(self) -> bool:
        return all(part._carries_no_ids() for part in self.parts)

    def _keeps_order(self) -> bool:
        return any(part._keeps_order() for part in self.parts)

    def _outline(self) -> SumLabels:
        return SumLabels(*(part._outline() for part in self.parts))

    def _cut_batch(self, start: int, stop: int) -> SumLabels:
        return SumLabels(*(part._batch_rows(start, stop) for part in self.parts))

    def _padded(self, length: int) -> SumLabels:
        return SumLabels(*(part._padded(length) for part in self.parts))

    def __repr__(self) -> str:
        return f"SumLabels({', '.join(map(repr, self.parts))})"
