"""The ids of one block, as the split term uses them: gather a table over pairs, scatter pairs into sums by label.

A block is cut by key into tiles, which do the work. Listed pairs then correct the results of their tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from relgraph.impl.chunked.parts import Listed, PartInUnit
from relgraph.impl.chunked.tiles import Tile
from relgraph.impl.problem import Problem
from relgraph.impl.units import Offset, Unit, offset_in


class UnitIds:
    """The ids of all blocks of a unit. Batch rows with the same labels share them."""

    def __init__(self, problem: Problem, unit: Unit, rows: int) -> None:
        self.parts = [PartInUnit(problem, index, unit) for index in range(len(problem.plan.parts))]
        self._causal = None if problem.causal is None else offset_in(problem.causal, unit)
        total = len(unit.queries)
        self._rows = [range(first, min(first + rows, total)) for first in range(0, total, rows)]
        light = all(part.light for part in self.parts) and (self._causal is None or self._causal.fixed)
        self.small = light or len(self._rows) == 1
        self._kept: list[BlockIds] | None = None

    @staticmethod
    def shared(problem: Problem) -> bool:
        """Whether all units of the problem may share their ids."""
        fixed = not isinstance(problem.causal, Tensor) or problem.causal.numel() == 1
        return problem.plan.q_ptr is None and problem.plan.batch == 1 and fixed

    def blocks(self) -> Iterator[BlockIds]:
        """The blocks in which some pair may attend. They are kept if they are ``small``."""
        if self._kept is not None:
            return iter(self._kept)
        each = (ids for ids in (BlockIds(self.parts, r, self._causal) for r in self._rows) if ids.width)
        if not self.small:
            return each
        self._kept = list(each)
        return iter(self._kept)


class BlockIds:
    """The ids of the pairs of one block, all parts together. Keys outside ``start:stop`` do not attend."""

    def __init__(self, parts: Sequence[PartInUnit], rows: range, causal: Offset | None) -> None:
        self.rows = rows
        hulls = [part.hull(rows) for part in parts]
        start, stop = max(h[0] for h in hulls), min(h[1] for h in hulls)
        if causal is not None:
            stop = min(stop, rows.stop + causal.high)
        self.start, self.stop = start, max(stop, start)
        self._masks: list[tuple[int, Tensor]] = []
        self._tiles: list[list[Tile]] = []
        self._listed: list[Listed | None] = []
        for part in parts if self.stop > self.start else ():
            tiles, masks = part.tiles(rows, self.start, self.stop)
            listed = part.listed(rows, self.start, self.stop)
            if listed is not None and not part.complete:
                masks = [self._not_listed(part, masks, listed.taken)]
            self._tiles.append(tiles)
            self._listed.append(listed)
            self._masks += masks
        if causal is not None and self.stop > self.start:
            self._mask_future(causal, parts[0].device)

    @property
    def width(self) -> int:
        """Number of keys that the block covers."""
        return self.stop - self.start

    @property
    def masked(self) -> bool:
        """Whether some pair within the block may not attend."""
        return bool(self._masks)

    def _not_listed(
        self, part: PartInUnit, masks: list[tuple[int, Tensor]], taken: tuple[Tensor, Tensor]
    ) -> tuple[int, Tensor]:
        """One mask for a part with listed pairs: the pairs that do not attend by its ids and are not listed."""
        left_out = torch.zeros(1, len(self.rows), self.width, dtype=torch.bool, device=part.device)
        for first, mask in masks:
            left_out[..., first - self.start : first - self.start + mask.shape[-1]] = mask
        left_out[0, taken[0], taken[1]] = False
        return self.start, left_out

    def _mask_future(self, causal: Offset, device: torch.device) -> None:
        first = max(self.start, self.rows.start + causal.low + 1)
        if first >= self.stop:
            return
        behind = causal.value if isinstance(causal.value, int) else 0
        i = torch.arange(self.rows.start + behind, self.rows.stop + behind, device=device)[:, None]
        j = torch.arange(first, self.stop, device=device)
        future = j > i if isinstance(causal.value, int) else j - i > causal.value
        self._masks.append((first, future if future.dim() == 3 else future[None]))

    def hide(self, scores: Tensor) -> None:
        """Set every pair of ``[batch, H, rows, width]`` that does not attend to -inf."""
        for first, mask in self._masks:
            at = first - self.start
            scores[..., at : at + mask.shape[-1]].masked_fill_(mask[:, None], float("-inf"))

    def gather(self, out: Tensor, by_query: Tensor | None, by_key: Tensor | None) -> None:
        """Gather table entries over pairs: ``out[i, j] = by_query[i, l_ij] + by_key[j, l_ij]``.

        Shapes: ``out`` ``[batch, H, rows, width]``, ``by_query`` ``[batch, H, rows, columns]``, ``by_key``
        ``[batch, H, keys, columns]``.
        """
        if by_query is None:
            out.zero_()
        for index, (tiles, listed) in enumerate(zip(self._tiles, self._listed, strict=True)):
            fresh = index == 0 and by_query is not None
            taken = None if listed is None else listed.taken
            before = None if taken is None or fresh else out[..., taken[0], taken[1]]
            for tile in tiles:
                piece = out[..., tile.start - self.start : tile.stop - self.start]
                keys = None if by_key is None else by_key[..., tile.start : tile.stop, :]
                tile.gather(piece, by_query, keys, add=not fresh)
            if taken is not None:
                out[..., taken[0], taken[1]] = 0.0 if before is None else before
            if listed is not None:
                self._gather_listed(out, listed, by_query, by_key)

    def scatter(self, pairs: Tensor, by_query: Tensor | None, by_key: Tensor | None) -> None:
        """Sum pairs by label: ``by_query[i, l_ij] += pairs[i, j]`` and ``by_key[j, l_ij] += pairs[i, j]``."""
        for tiles, listed in zip(self._tiles, self._listed, strict=True):
            taken, kept = None if listed is None else listed.taken, None
            if taken is not None:  # listed pairs are left out of the sums of their tile
                kept = pairs[..., taken[0], taken[1]]
                pairs[..., taken[0], taken[1]] = 0.0
            for tile in tiles:
                piece = pairs[..., tile.start - self.start : tile.stop - self.start]
                tile.scatter(piece, by_query, None if by_key is None else by_key[..., tile.start : tile.stop, :])
            if taken is not None and kept is not None:
                pairs[..., taken[0], taken[1]] = kept
            if listed is not None:
                self._scatter_listed(pairs, listed, by_query, by_key)

    def _gather_listed(self, out: Tensor, listed: Listed, by_query: Tensor | None, by_key: Tensor | None) -> None:
        flat, at = out.flatten(-2), listed.row * self.width + listed.col
        for table, position in ((by_query, listed.row), (by_key, listed.col + self.start)):
            if table is not None:
                entries = table[..., position, listed.column]
                flat.scatter_add_(-1, at.expand(entries.shape), entries)

    def _scatter_listed(self, pairs: Tensor, listed: Listed, by_query: Tensor | None, by_key: Tensor | None) -> None:
        weights = pairs[..., listed.row, listed.col]
        for table, position in ((by_query, listed.row), (by_key, listed.col + self.start)):
            if table is not None:
                table.index_put_((*_grid(table), position, listed.column), weights, accumulate=True)


def _grid(table: Tensor) -> tuple[Tensor, Tensor]:
    batch = torch.arange(table.shape[0], device=table.device)[:, None, None]
    return batch, torch.arange(table.shape[1], device=table.device)[None, :, None]
