"""Labels of a sequence by relative position: how far the key is after the query."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from itertools import groupby
from typing import final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.graphs import Graph, check_only_graph
from relgraph.labelers.base import Labeler, one_or_both, why_all_labeled
from relgraph.labels import NOT_ATTENDING, UNLABELED, DistanceLabels


class DistanceLabeler(Labeler):
    """A labeler that reads only the distance j - i, key position minus query position.

    This class is abstract. Your own subclass defines ``lookup``, ``reach``, ``num_labels`` and ``names``, as properties
    of a frozen dataclass or as constants; it is then called like every sequence labeler.

    Attributes:
        lookup: the id of each distance from ``-reach`` up (-1: no label, -2: does not attend). The first and the last
            entry hold for all distances beyond them. Read in every call.
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
            q_len: N_q, number of queries; or just a graph, whose nodes are the sequence (each graph of a batch is one).
            k_len: N_k, number of keys; ``q_len`` by default.
            q_offset: key position of query row 0: an int, a scalar tensor, ``[B]``, or ``[G]`` with ``ptr``; 0 by
                default.
            ptr: ``[G+1]``, integer, borders of a packed batch; distances count within a sequence.
            q_ptr: ``[G+1]``, integer, borders of the queries if they differ from the keys'.

        Returns:
            Distance labels; id r is called ``names[r]``.

        Raises:
            TypeError: a length or offset that is not an int, or borders that are not a tensor.
            ValueError: a negative length, borders that do not fit the lengths, offsets that are floats or not one per
                graph, or another argument with a graph.
        """
        if isinstance(q_len, Graph):
            graph = check_only_graph(q_len, k_len=k_len, q_offset=q_offset, ptr=ptr, q_ptr=q_ptr)
            q_len, ptr = graph.num_nodes, graph.ptr
        return DistanceLabels(
            q_len,
            k_len,
            lookup=self.lookup,
            left=self.reach,
            num_labels=self.num_labels,
            q_offset=q_offset,
            ptr=ptr,
            q_ptr=q_ptr,
        )


@final
@dataclass(frozen=True, init=False, repr=False)
class ClippedDistance(DistanceLabeler):
    """One label per distance, clipped on both sides: ``clip(j - i, -left, right) + left``.

    Id r is the distance ``r - left``, key position j minus query position i. The first and the last id also hold for
    all distances beyond. Gives :class:`~relgraph.DistanceLabels`.

    Source: Shaw et al. 2018, section 3.2.

    Args:
        left: how many positions before the query have a label of their own, from 0.
        right: the same after the query; ``left`` by default, 0 for causal attention.

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

    left: int
    right: int

    def __init__(self, left: int, right: int | None = None) -> None:
        left, right = _checked_sides(left, right)
        check.most_labels("left and right", left + right + 1)
        self._set(left=left, right=right, lookup=tuple(range(left + right + 1)), reach=left)

    @property
    def num_labels(self) -> int:
        """``left + right + 1``."""
        return self.left + self.right + 1

    @property
    def names(self) -> tuple[str, ...]:
        """The distances, ``"-2"`` to ``"2"``."""
        return tuple(str(distance) for distance in range(-self.left, self.right + 1))

    def __repr__(self) -> str:
        return f"ClippedDistance({one_or_both(self.left, self.right)})"


@final
@dataclass(frozen=True)
class BucketedDistance(DistanceLabeler):
    """T5's buckets: each small distance has its own, larger ones share buckets that widen with the logarithm.

    On each side, the first half of the buckets hold one distance each. The others are spaced evenly in log distance,
    and the last holds everything from slightly below ``max_distance`` on. If bidirectional, the first half of all ids
    is for keys at or before the query and the second half for keys after it (its first id is never used). Otherwise
    every key after the query is in bucket 0.

    Source: Raffel et al. 2020 (T5), section 2.1, and the code released with it.

    Args:
        num_buckets: R, at least 2, or 4 if bidirectional.
        max_distance: where the logarithm ends; more than the number of single distances on one side.
        bidirectional: whether keys after the query have buckets of their own.

    Raises:
        TypeError, ValueError: a wrong type, too few buckets, ``max_distance`` within the single
            distances, or more than 2^20 of either.

    Example:
        >>> rg.BucketedDistance(8, 20).names
        ('0', '-1', '-6..-2', '<=-7', 'unused 4', '1', '2..6', '>=7')
        >>> rg.BucketedDistance(8, 20)(4).to_dense()[0]
        tensor([[[0, 5, 6, 6],
                 [1, 0, 5, 6],
                 [2, 1, 0, 5],
                 [2, 2, 1, 0]]])
    """

    num_buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = True

    def __post_init__(self) -> None:
        check.boolean("bidirectional", self.bidirectional)
        most = check.MOST_LABELS
        check.integer("num_buckets", self.num_buckets, minimum=4 if self.bidirectional else 2, maximum=most)
        side = self.num_buckets // 2 if self.bidirectional else self.num_buckets
        check.integer("max_distance", self.max_distance, minimum=side // 2 + 1, maximum=most)
        buckets = _log_buckets(side, self.max_distance)
        after = [bucket + side for bucket in buckets[1:]] if self.bidirectional else []
        self._set(lookup=(*reversed(buckets), *after), reach=len(buckets) - 1)

    @property
    def num_labels(self) -> int:
        return self.num_buckets

    @property
    def names(self) -> tuple[str, ...]:
        """The distances in each bucket, such as ``"-8"``, ``"-12..-9"`` and ``"<=-91"``."""
        names = [f"unused {bucket}" for bucket in range(self.num_buckets)]
        last = len(self.lookup) - 1
        for bucket, run in groupby(range(last + 1), key=self.lookup.__getitem__):
            slots = list(run)
            low, high = slots[0] - self.reach, slots[-1] - self.reach
            if slots[0] == 0:
                names[bucket] = f"<={high}"
            elif slots[-1] == last:
                names[bucket] = f">={low}"
            else:
                names[bucket] = str(low) if low == high else f"{low}..{high}"
        return tuple(names)


@final
@dataclass(frozen=True, init=False, repr=False)
class Window(DistanceLabeler):
    """Attends only within a distance, without labels: made for restriction, ``labeler & Window(64)``.

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
        left, right = _checked_sides(left, right)  # pyright: ignore[reportArgumentType]
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
        return f"Window({'' if self.left is None or self.right is None else one_or_both(self.left, self.right)})"


def _checked_sides(left: int, right: int | None) -> tuple[int, int]:
    check.integer("left", left, minimum=0)
    return left, left if right is None else check.integer("right", right, minimum=0)


def _log_buckets(count: int, max_distance: int) -> list[int]:
    """The bucket of distances 0, 1, ... of one side, up to the first distance in the last bucket."""
    # In float32 like the published code, so that a distance on a bucket's edge has the bucket that checkpoints expect.
    exact = count // 2
    distance = torch.arange(exact, max_distance + 1, dtype=torch.float32, device="cpu")
    steps = torch.log(distance / exact) / math.log(max_distance / exact) * (count - exact)
    spaced = (exact + steps.to(torch.int64)).clamp(max=count - 1)
    buckets = [*range(exact), *spaced.tolist()]
    return buckets[: buckets.index(count - 1) + 1]
