"""Labels that depend on the distance j - i only, so that no pair is ever written out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.labels.alike import check_room, check_slice
from relgraph.labels.base import NOT_ATTENDING, UNLABELED, Labels
from relgraph.labels.borders import check_ptrs, cut_borders, graph_at, graph_of, positions_before
from relgraph.labels.counts import SHIFT, less_hidden, pairs_up_to
from relgraph.labels.pairs import Pairs
from relgraph.labels.ragged import distance_at

MOST_DISTANCES = 4 * check.MOST_LABELS
"""The most entries of a lookup: those of two labelers joined, with room to spare."""


@final
@dataclass(frozen=True, init=False, eq=False, repr=False)
class DistanceLabels(Labels):
    """Labels that a lookup gives by the clipped distance of a pair: key position minus query position.

    ``id_ij = lookup[clip(j - i - q_offset, -left, len(lookup) - 1 - left) + left]`` for query i and key j.

    The first entry of ``lookup`` is the id of distance ``-left``; distances beyond either end take the entry at that
    end. So Shaw's clip to ±k is ``left=k, lookup=range(2k+1)``, and T5's buckets are another ``lookup``. Nothing of
    size N_q · N_k is stored. Labelers such as :class:`~relgraph.ClippedDistance` make these labels, with names.

    Source: Shaw et al. 2018, section 3.2.

    Args:
        q_len: N_q, number of queries (of all graphs when packed).
        k_len: N_k, number of keys; ``q_len`` by default.
        lookup: the id of each distance from ``-left`` up, at most 2^22 entries; -1 attends without a label, -2 does not
            attend.
        left: how far left the lookup reaches, at least 0.
        num_labels: R; by default one more than the largest id in ``lookup``.
        q_offset: key position of query row 0 within ±2³¹, 0 by default: an int, a scalar tensor, ``[B]``, or ``[G]``
            when packed.
        ptr: ``[G+1]``, integer, borders of a packed batch; distances count within a graph.
        q_ptr: ``[G+1]``, integer, borders of the queries if they differ from those of the keys.

    Example:
        >>> labels = rg.DistanceLabels(3, lookup=range(5), left=2)
        >>> labels.to_dense()[0]
        tensor([[[2, 3, 4],
                 [1, 2, 3],
                 [0, 1, 2]]])
    """

    lookup: tuple[int, ...]
    left: int
    num_labels: int
    q_offset: int | Tensor | None

    def __init__(
        self,
        q_len: int,
        k_len: int | None = None,
        *,
        lookup: Sequence[int],
        left: int,
        num_labels: int | None = None,
        q_offset: int | Tensor | None = None,
        ptr: Tensor | None = None,
        q_ptr: Tensor | None = None,
    ) -> None:
        check.length("q_len", q_len)
        k_len = q_len if k_len is None else check.length("k_len", k_len)
        lookup = _ids_by_distance(lookup)
        most = max(max(lookup) + 1, 0)
        num_labels = most if num_labels is None else check.length("num_labels", num_labels, most=check.MOST_IDS)
        if most > num_labels:
            raise ValueError(f"lookup must hold ids in [-2, {num_labels}), got {most - 1}")
        check.integer("left", left, minimum=0, maximum=len(lookup) - 1)
        q_ptr, k_ptr = check_ptrs(ptr, q_ptr, q_len, k_len)
        graphs = None if k_ptr is None else k_ptr.shape[0] - 1
        check_offset(q_offset, graphs)
        rows = q_offset.shape[0] if isinstance(q_offset, Tensor) and q_offset.dim() == 1 and graphs is None else 1
        self._set(
            q_len=q_len, k_len=k_len, batch_size=rows, num_labels=num_labels, lookup=lookup, left=left,
            q_offset=q_offset, q_ptr=q_ptr, k_ptr=k_ptr,
        )  # fmt: skip

    @property
    def device(self) -> torch.device | None:
        """The device of offsets and borders; None without them."""
        for x in (self.q_offset, self.k_ptr):
            if isinstance(x, Tensor):
                return x.device
        return None

    @property
    def offsets(self) -> tuple[int | Tensor | None, ...]:
        return (self.q_offset,)

    def to_dense(self) -> tuple[Tensor, Tensor]:
        check_room(self)
        distance, inside = self._distances()
        ids = self._ids_of(distance)
        attend = inside & (ids > NOT_ATTENDING)
        return ids.masked_fill(~attend, UNLABELED), attend

    def _ids_of(self, distance: Tensor) -> Tensor:
        """The entries of the lookup for these distances."""
        table = torch.tensor(self.lookup, device=distance.device)
        return table[distance.clamp(-self.left, len(self.lookup) - 1 - self.left) + self.left]

    def _distances(self) -> tuple[Tensor, Tensor]:
        """The distance of every pair, and whether it is within one graph, ``[B or 1, N_q, N_k]``."""
        device = self.device
        i, j = torch.arange(self.q_len, device=device), torch.arange(self.k_len, device=device)
        offset = torch.as_tensor(0 if self.q_offset is None else self.q_offset, device=device)
        if self.q_ptr is None or self.k_ptr is None:
            distance = j - i[:, None] - offset.reshape(-1, 1, 1)
            return distance, torch.ones_like(distance, dtype=torch.bool)
        q_graph, k_graph = graph_of(self.q_ptr, self.q_len), graph_of(self.k_ptr, self.k_len)
        i, j = i - self.q_ptr[q_graph], j - self.k_ptr[k_graph]
        offset = offset.expand(self.q_ptr.shape[0] - 1)[q_graph]
        return (j - (i + offset)[:, None])[None], (q_graph[:, None] == k_graph)[None]

    def rows(self, start: int, stop: int) -> Self:
        check_slice(start, stop, self.q_len)
        if self.q_ptr is None:
            return self._cut(start, stop - start, self.k_len, None, None)
        cut = cut_borders(self.q_ptr, start, stop)
        return self._cut(positions_before(self.q_ptr, start), stop - start, self.k_len, cut, self.k_ptr)

    def cols(self, start: int, stop: int) -> Self:
        check_slice(start, stop, self.k_len)
        if self.k_ptr is None:
            return self._cut(-start, self.q_len, stop - start, None, None)
        cut = cut_borders(self.k_ptr, start, stop)
        return self._cut(-positions_before(self.k_ptr, start), self.q_len, stop - start, self.q_ptr, cut)

    def _cut(self, further: int | Tensor, q_len: int, k_len: int, q_ptr: Tensor | None, k_ptr: Tensor | None) -> Self:
        """The same distances between other positions, with ``q_offset`` grown by ``further``."""
        offset: int | Tensor = 0 if self.q_offset is None else self.q_offset
        if isinstance(offset, Tensor):
            offset = offset.to(torch.int64)  # a narrow type could overflow
        check_offset(offset + further)
        return self._between(q_len, k_len, offset + further, q_ptr, k_ptr)

    def _between(
        self, q_len: int, k_len: int, q_offset: int | Tensor | None, q_ptr: Tensor | None = None,
        k_ptr: Tensor | None = None,
    ) -> Self:  # fmt: skip
        """The same ids by distance for other queries and keys, which are checked."""
        rows = q_offset.shape[0] if isinstance(q_offset, Tensor) and q_offset.dim() == 1 and k_ptr is None else 1
        return self._make(
            q_len=q_len, k_len=k_len, batch_size=rows, num_labels=self.num_labels, lookup=self.lookup, left=self.left,
            q_offset=q_offset, q_ptr=q_ptr, k_ptr=k_ptr, _named=self._named,
        )  # fmt: skip

    def _carries_no_ids(self) -> bool:
        return max(self.lookup) < 0

    def _keeps_order(self) -> bool:
        return set(self.lookup[self.left + 1 :] or self.lookup[-1:]) == {NOT_ATTENDING}

    def _cut_batch(self, start: int, stop: int) -> Self:
        assert isinstance(self.q_offset, Tensor)
        return self._between(self.q_len, self.k_len, self.q_offset[start:stop])

    def _padded(self, length: int) -> Self:
        return self._between(length, length, self.q_offset)

    def _codes_at(self, pairs: Pairs) -> Tensor:
        offset = 0 if self.q_offset is None else self.q_offset
        graph = None if self.q_ptr is None else graph_at(self.q_ptr, pairs.query)
        distance = distance_at(self.q_ptr, self.k_ptr, offset, *pairs.within(self.batch_size), graph)
        return self._ids_of(distance)

    def _count(self, batch: int, hidden: Tensor) -> Tensor:
        slots = torch.arange(len(self.lookup), device=self.device) - self.left
        counts = torch.zeros_like(slots)
        sizes, times = self._rectangles().unique(dim=1, return_counts=True)
        for (queries, keys, offset), often in zip(sizes.T.tolist(), times.tolist(), strict=True):
            upto = pairs_up_to(slots + offset, queries, keys)
            upto[-1] = queries * keys  # the last entry also counts all larger distances
            counts += often * upto.diff(prepend=upto.new_zeros(1))
        places = torch.tensor(self.lookup, device=self.device) + SHIFT
        counts = counts.new_zeros(self.num_labels + SHIFT).index_add(0, places, counts)
        return less_hidden(counts, self, batch, hidden)

    def _rectangles(self) -> Tensor:
        """Queries, keys and offset of every graph or batch row, ``[3, G]``."""
        offset = torch.as_tensor(0 if self.q_offset is None else self.q_offset, device=self.device).reshape(-1)
        if self.q_ptr is None or self.k_ptr is None:
            queries, keys = (torch.full_like(offset, n) for n in (self.q_len, self.k_len))
        else:
            queries, keys = self.q_ptr.diff(), self.k_ptr.diff()
        return torch.stack([x.to(torch.int64).expand(queries.shape[0]) for x in (queries, keys, offset)])

    def _describe(self) -> list[str]:
        right = len(self.lookup) - 1 - self.left
        out = [*super()._describe(), f"distances={-self.left}..{right}"]
        if self.q_offset is not None:
            shown = self.q_offset
            out.append(f"q_offset={shown if isinstance(shown, int) else f'<tensor {list(shown.shape)}>'}")
        return out


def _ids_by_distance(lookup: Any) -> tuple[int, ...]:
    """The entries of a lookup, checked: at least one, each an int from -2 up."""
    if not isinstance(lookup, Sequence):
        raise TypeError(f"lookup must be a sequence of ints, got {type(lookup).__name__}")
    lookup = check.items("lookup", lookup, "a sequence of ints", most=MOST_DISTANCES)
    if not lookup:
        raise ValueError("lookup must hold at least one id, got none")
    if not all(type(value) is int for value in lookup):
        for value in lookup:
            check.integer("lookup", value)
    check.integer("lookup", min(lookup), minimum=NOT_ATTENDING)
    check.integer("lookup", max(lookup), maximum=check.MOST_IDS - 1)
    return lookup


FARTHEST = 1 << 31
"""The largest absolute q_offset: beyond it, sums of positions would overflow 64 bits."""


def check_offset(q_offset: Any, graphs: int | None = None) -> None:
    """Raise unless ``q_offset`` is None, an int or an integer tensor, scalar or 1-D, within ±2³¹ (on a CPU)."""
    if q_offset is None:
        return
    if not isinstance(q_offset, Tensor):
        check.integer("q_offset", q_offset, minimum=-FARTHEST, maximum=FARTHEST)
        return
    check.integer_tensor("q_offset", q_offset, dim=(0, 1))
    check.unmapped("q_offset", q_offset)
    if graphs is not None and q_offset.dim() == 1 and q_offset.shape[0] != graphs:
        raise ValueError(f"q_offset must hold one number per graph, {graphs}, got {q_offset.shape[0]}")
    if q_offset.numel() and q_offset.device.type == "cpu" and check.can_look_at_data(q_offset):
        least, most = (int(x) for x in torch.aminmax(q_offset))
        if least < -FARTHEST or most > FARTHEST:
            raise ValueError(f"q_offset must lie in [-2**31, 2**31], got values from {least} to {most}")
