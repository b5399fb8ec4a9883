"""Labels of a sequence by relative position: how far the key is after the query."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.graphs import Graph, check_only_graph
from relgraph.labelers.base import Clip, as_clip, two_clips, why_all_labeled
from relgraph.labelers.sequence.difference import (
    ByDifference,
    checked_positions,
    mirrored_ids,
)
from relgraph.labels import NOT_ATTENDING, UNLABELED, DenseLabels, DistanceLabels, FunctionLabels
from relgraph.labels.distance import FARTHEST as MOST
from relgraph.labels.function import ByDistance, by_function
from relgraph.labels.memory import Memory

_made = Memory()
"""The labels of some lengths, so that all layers and steps share them and their plan. They hold no tensors."""
_checked = Memory()
"""For each labeler labels of no pair, whose lookup was checked. Each step of decoding takes it, for new lengths."""
_REMEMBERED_TYPES = {int, type(None)}


class DistanceLabeler(ByDifference):
    """A labeler that reads only the distance j - i, key position minus query position.

    This class is abstract. Your own subclass defines ``lookup``, ``reach``, ``num_labels`` and ``names``, as properties
    of a frozen dataclass or as constants. Call it like every sequence labeler.

    Attributes:
        lookup: the id of each distance from ``-reach`` up (-1: no label, -2: does not attend). The first and the last
            entry also hold for all distances beyond them.
        reach: minus the distance of the first entry.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Parity(rg.labelers.DistanceLabeler):
        ...     far: int                                 # farther keys carry no label
        ...     num_labels = 2
        ...     names = ("even", "odd")
        ...     @property
        ...     def reach(self):
        ...         return self.far + 1
        ...     @property
        ...     def lookup(self):
        ...         return (-1, *(distance % 2 for distance in range(-self.far, self.far + 1)), -1)
        >>> Parity(2)(5).to_dense()[0][0, 0]
        tensor([ 0,  1,  0, -1, -1])
        >>> Parity(2)
        Parity(far=2)
    """

    _reads_lengths = True

    lookup: tuple[int, ...]
    reach: int

    @property
    @abstractmethod
    def num_labels(self) -> int:
        """R, the number of labels."""

    def _why_never_unlabeled(self) -> str | None:
        return None if UNLABELED in self.lookup else why_all_labeled(self)

    @final
    def __call__(
        self,
        q_len: int | Graph,
        k_len: int | None = None,
        *,
        q_offset: int | Tensor | None = None,
        ptr: Tensor | None = None,
        q_ptr: Tensor | None = None,
    ) -> DistanceLabels:
        """The labels of ``q_len`` queries and ``k_len`` keys; nothing of size N_q · N_k is stored.

        Args:
            q_len: N_q, number of queries; or just a graph, whose nodes are the sequence (one per graph of a batch).
            k_len: N_k, number of keys; ``q_len`` by default.
            q_offset: key position of query row 0: an int, a scalar tensor, ``[B]``, or ``[G]`` with ``ptr``; 0 by
                default.
            ptr: ``[G+1]``, integer, borders of a packed batch; distances count within a sequence.
            q_ptr: ``[G+1]``, integer, borders of the queries if they differ from the keys'.

        Returns:
            Distance labels; id r is called ``names[r]``.

        Raises:
            ValueError: a negative length, borders that do not fit the lengths, offsets that are floats or not one per
                graph, or another argument with a graph.
        """
        if isinstance(q_len, Graph):
            graph = check_only_graph(q_len, k_len=k_len, q_offset=q_offset, ptr=ptr, q_ptr=q_ptr)
            q_len, ptr = graph.num_nodes, graph.ptr
        numbers = q_len, k_len, q_offset
        if not _REMEMBERED_TYPES.issuperset(map(type, numbers)) or ptr is not None or q_ptr is not None:
            return self._labels(*numbers, ptr, q_ptr)
        if torch.compiler.is_compiling():
            return self._labels(*numbers)
        if q_offset is None or q_len is None:
            return _made.once((self, *numbers), lambda: self._labels(*numbers))
        keys = q_len if k_len is None else k_len
        if 0 <= q_len <= MOST and 0 <= keys <= MOST and -MOST <= q_offset <= MOST:
            return _checked.once(self, lambda: self(0))._between(q_len, keys, q_offset)
        return self._labels(*numbers)

    def _labels(self, q_len: Any, k_len: Any, q_offset: Any, ptr: Any = None, q_ptr: Any = None) -> DistanceLabels:
        return DistanceLabels(
            q_len, k_len, lookup=self.lookup, left=self.reach, num_labels=self.num_labels, q_offset=q_offset, ptr=ptr,
            q_ptr=q_ptr,
        )  # fmt: skip

    @final
    def at(self, q_positions: Tensor, k_positions: Tensor | None = None) -> DenseLabels | FunctionLabels:
        """The labels of queries and keys at given positions, such as ``position_ids`` or an edge of each box.

        With at most 2^20 pairs in all, and in compiled code, every pair is written out. With more, ids are computed for
        the block that is attended. For positions 0, 1, 2, ... call the labeler with lengths instead, which is faster.

        Args:
            q_positions: ``[N_q]`` or ``[B, N_q]``, integer within ±2³¹, the position of each query.
            k_positions: ``[N_k]`` or ``[B, N_k]``, the position of each key; ``q_positions`` by default.

        Returns:
            Dense labels, with more than 2^20 pairs labels by function; query i and key j have the label of distance
            ``k_positions[j] - q_positions[i]``.

        Raises:
            ValueError: positions of a wrong rank, dtype, device or batch size, or beyond ±2³¹; more than 2^24 of them.

        Example:
            >>> rg.ClippedDistance(2).at(torch.tensor([0, 1, 5]), torch.tensor([1, 4])).to_dense()[0]
            tensor([[[3, 4],
                     [2, 4],
                     [0, 1]]])
        """
        query, key = checked_positions(q_positions, k_positions, axes=1)
        fn, full = ByDistance(self.lookup, self.reach), NOT_ATTENDING not in self.lookup
        return by_function(fn, (query,), (key,), self.num_labels, full=full)

    def _mirror(self) -> list[int] | None:
        # Clip one step beyond either end: all farther distances have the same label.
        span = range(-len(self.lookup) - 1, len(self.lookup) + 2)
        ids = {distance: self.lookup[min(max(distance + self.reach, 0), len(self.lookup) - 1)] for distance in span}
        return mirrored_ids(((ids[distance], ids[-distance]) for distance in span), self.num_labels)


@final
@dataclass(frozen=True, init=False, repr=False)
class ClippedDistance(DistanceLabeler):
    """One label per distance, clipped on both sides: ``min(max(j - i, -left), right) + left``.

    Id r is the distance ``r - left``, key position j minus query position i. The first and the last id also hold for
    all distances beyond. Gives :class:`~relgraph.DistanceLabels`.

    Source: Shaw et al. 2018, section 3.2.

    Args:
        clip: how many positions before and after the query have their own label, from 0; or a pair (left, right), such
            as ``(16, 0)`` for causal attention.

    Raises:
        TypeError, ValueError: a clip that is not an int or is negative, or more than 2^20 labels.

    Example:
        >>> labeler = rg.ClippedDistance(2)
        >>> labeler.names
        ('-2', '-1', '0', '1', '2')
        >>> labeler(4).to_dense()[0]
        tensor([[[2, 3, 4, 4],
                 [1, 2, 3, 4],
                 [0, 1, 2, 3],
                 [0, 0, 1, 2]]])
    """

    clip: Clip

    def __init__(self, clip: Clip) -> None:
        left, right = two_clips(clip)
        check.most_labels("clip", left + right + 1)
        self._set(clip=as_clip(left, right), lookup=tuple(range(left + right + 1)), reach=left)

    @property
    def num_labels(self) -> int:
        """``left + right + 1``."""
        return len(self.lookup)

    @property
    def names(self) -> tuple[str, ...]:
        """The distances, ``"-2"`` to ``"2"``."""
        return tuple(str(distance) for distance in range(-self.reach, self.num_labels - self.reach))

    def _mirror(self) -> list[int]:
        return [*reversed(range(self.num_labels))]  # also if left and right differ, and so do those of the other code

    def __repr__(self) -> str:
        return f"ClippedDistance({self.clip})"


@final
@dataclass(frozen=True, init=False, repr=False)
class Window(DistanceLabeler):
    """Let pairs attend only within a distance, without labels; use it to restrict others: ``labeler & Window(64)``.

    Query i attends to key j if ``-left <= j - i <= right``. ``num_labels`` is 0.

    Args:
        left: how many positions before the query are visible. ``Window()`` has no limits: plain attention, within each
            graph of a batch.
        right: how many after it; ``left`` by default, 0 for causal attention.

    Raises:
        TypeError, ValueError: a side that is not an int, is negative, or 2^20 positions or more in all.

    Example:
        >>> near = rg.ClippedDistance(4) & rg.Window(1, 0)
        >>> near(3).to_dense()[1]
        tensor([[[ True, False, False],
                 [ True,  True, False],
                 [False,  True,  True]]])
    """

    left: int | None
    right: int | None

    def __init__(self, left: int | None = None, right: int | None = None) -> None:
        if left is None and right is None:
            self._set(left=None, right=None, lookup=(UNLABELED,), reach=0)
            return
        check.integer("left", left, minimum=0)
        assert left is not None
        right = left if right is None else check.integer("right", right, minimum=0)
        if left + right >= check.MOST_LABELS:
            raise ValueError(
                f"left and right must make fewer than {check.MOST_LABELS:,} positions, got {left + right}: "
                "leave both out for an unlimited window"
            )
        inside = (UNLABELED,) * (left + right + 1)
        self._set(left=left, right=right, lookup=(NOT_ATTENDING, *inside, NOT_ATTENDING), reach=left + 1)

    @property
    def num_labels(self) -> int:
        return 0

    @property
    def names(self) -> tuple[str, ...]:
        return ()

    def __repr__(self) -> str:
        sides = [self.left] if self.left == self.right else [self.left, self.right]
        return f"Window({', '.join(str(side) for side in sides if side is not None)})"
