"""Labelers by the difference of two positions: checked positions, and tables of code that counts the other way."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.labelers.base import Labeler
from relgraph.labels.distance import FARTHEST

KEY_QUERY, QUERY_KEY = "key-query", "query-key"
ORDERS = (QUERY_KEY, KEY_QUERY)


class ByDifference(Labeler):
    """A labeler by the difference of two positions, which other code may take the other way round."""

    @final
    def rows_from(self, table: Tensor, order: str = QUERY_KEY, *, dim: int = 0) -> Tensor:
        """Put the rows of a table from other code into the order of this labeler's labels.

        Much published code picks a row by i - j, query minus key, but relgraph counts j - i, so such tables must be
        flipped. No error shows a table in the wrong order: results just get worse. Applied twice, this gives the table
        again, so it also converts back.

        Args:
            table: floating, ``[R, ...]`` or with the R rows in another dimension, such as ``[H, R, D]``.
            order: the difference that picks the table's rows: ``"query-key"``, i - j, or ``"key-query"``, j - i.
            dim: the dimension of the rows.

        Returns:
            ``[R, ...]``, or the shape that ``table`` has; ``table`` itself if its rows are in this labeler's order.

        Raises:
            ValueError: a table that is not floating or has another number of rows, an unknown order, a dimension that
                the table does not have, or labels that a table in that order has no rows for, such as those of buckets
                on one side only.

        Example:
            >>> labeler = rg.ClippedDistance(2)
            >>> bert = torch.tensor([[20.0], [10.0], [0.0], [-10.0], [-20.0]])  # row i - j + 2
            >>> rows = labeler.rows_from(bert, "query-key")
            >>> dict(zip(labeler.names, rows[:, 0].tolist()))
            {'-2': -20.0, '-1': -10.0, '0': 0.0, '1': 10.0, '2': 20.0}
            >>> bool((labeler.rows_from(rows) == bert).all())  # and back
            True
        """
        check.floating("table", table)
        check.choice("order", order, ORDERS)
        check.integer("dim", dim, minimum=-table.dim(), maximum=table.dim() - 1)
        if table.shape[dim] != self.num_labels:
            raise ValueError(
                f"table must have {self.num_labels} rows in dimension {dim}, one per label of {self!r}, "
                f"got shape {list(table.shape)}"
            )
        if order == self._order():
            return table
        mirror = self._mirror()
        if mirror is None:
            raise ValueError(
                f"order must be {self._order()!r} for {self!r}, as no table in the other order has one row for each of "
                f"its labels, got {order!r}"
            )
        return table.index_select(dim, torch.tensor(mirror, dtype=torch.int64, device=table.device))

    def _order(self) -> str:
        """Which difference numbers the ids: ``"key-query"``, or ``"query-key"`` if they are those of such code."""
        return KEY_QUERY

    @abstractmethod
    def _mirror(self) -> list[int] | None:
        """For each id, its row in a table of the same rows by the other difference; None if there is no such row."""


def mirrored_ids(pairs: Iterable[tuple[int, int]], num_labels: int) -> list[int] | None:
    """For each id, that of the mirrored distances, from (id, id of the mirrored distance); None if there are several.

    An id that no distance has stays where it is.
    """
    found: dict[int, int] = {}
    for label, mirrored in pairs:
        if label >= 0 and found.setdefault(label, mirrored) != mirrored:
            return None
    if any(mirrored < 0 for mirrored in found.values()):
        return None
    return [found.get(label, label) for label in range(num_labels)]


def checked_positions(q_positions: Any, k_positions: Any, *, axes: int) -> tuple[Tensor, Tensor]:
    """Positions of queries and keys as int64, ``[B or 1, N]``, or ``[B or 1, N, axes]`` with more than one axis."""
    query = check_positions("q_positions", q_positions, axes)
    key = query if k_positions is None else check_positions("k_positions", k_positions, axes)
    check_together(q_positions=query, k_positions=key)
    return query, key


def check_batches(**given: Tensor) -> None:
    """Raise unless queries and keys, ``[B or 1, N, ...]``, fit each other and all pairs can be written out."""
    check_together(**given)
    (q_name, query), (k_name, key) = given.items()
    check.written(f"{q_name} and {k_name}", max(query.shape[0], key.shape[0]), query.shape[1], key.shape[1])


def check_together(**given: Tensor) -> None:
    """Raise unless queries and keys, ``[B or 1, N, ...]``, fit each other."""
    check.same_device(**given)
    (q_name, query), (k_name, key) = given.items()
    if query.shape[0] != key.shape[0] and not check.among(1, query.shape[0], key.shape[0]):
        raise ValueError(f"{k_name} must have {query.shape[0]} batch rows like {q_name}, got {key.shape[0]}")
    for length in (*query.shape[:2], *key.shape[:2]):
        check.written(f"{q_name} and {k_name}", length)


def check_positions(name: str, positions: Any, axes: int) -> Tensor:
    """Positions as int64, ``[B or 1, N]``, or ``[B or 1, N, axes]`` with more than one axis."""
    extra = 0 if axes == 1 else 1
    positions = check.integer_tensor(name, positions, dim=(1 + extra, 2 + extra))
    if extra and positions.shape[-1] != axes:
        raise ValueError(f"{name} must have shape [N, {axes}] or [B, N, {axes}], got {list(positions.shape)}")
    check.unmapped(name, positions)
    if positions.numel() and positions.device.type == "cpu" and check.can_look_at_data(positions):
        least, most = (int(x) for x in torch.aminmax(positions))
        if least < -FARTHEST or most > FARTHEST:
            raise ValueError(f"{name} must lie in [-2**31, 2**31], got values from {least} to {most}")
    positions = positions.to(torch.int64)
    return positions if positions.dim() == 2 + extra else positions[None]
