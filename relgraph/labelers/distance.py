"""Labels of a sequence by relative position: how far the key stands after the query."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from relgraph import _check
from relgraph.labelers.base import Labeler
from relgraph.labels import NOT_ATTENDING, UNLABELED, DistanceLabels


class DistanceLabeler(Labeler):
    """A labeler that looks at the distance j - i alone, key position minus query position.

    A subclass says which id each distance carries; the labels never grow with the length.
    """

    @property
    @abstractmethod
    def lookup(self) -> tuple[int, ...]:
        """The id of each distance from ``-reach`` up; -1 no label, -2 does not attend. The ends stand for what lies beyond."""

    @property
    @abstractmethod
    def reach(self) -> int:
        """How far to the left the lookup begins."""

    @property
    @abstractmethod
    def num_labels(self) -> int:
        """R, the number of labels."""

    @final
    def __call__(
        self,
        q_len: int,
        k_len: int | None = None,
        *,
        q_offset: int | Tensor | None = None,
        ptr: Tensor | None = None,
        q_ptr: Tensor | None = None,
    ) -> DistanceLabels:
        """The labels of ``q_len`` queries against ``k_len`` keys.

        Args:
            q_len: number of queries.
            k_len: number of keys; ``q_len`` when left out.
            q_offset: position of query row 0 among the keys: an int, a scalar tensor or one number a batch row.
            ptr: ``[G+1]`` borders of a packed batch; distances count within a sequence.
            q_ptr: borders of the queries, where they differ from the keys'.

        Returns:
            Labels that store nothing of size ``N_q · N_k``.
        """
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
    """One label a distance, clipped on both sides: ``clip(j - i, -left, right) + left``.

    Source: Shaw et al. 2018, section 3.2.

    Args:
        left: how far before the query distances are told apart.
        right: how far after it; ``left`` when left out, 0 for causal attention.

    Raises:
        TypeError: a clip that is no int.
        ValueError: a negative clip.

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
        _check.integer("left", left, minimum=0)
        right = left if right is None else _check.integer("right", right, minimum=0)
        self._set(left=left, right=right, _lookup=tuple(range(left + right + 1)))

    @property
    def lookup(self) -> tuple[int, ...]:
        """Every distance within the clips has an id of its own."""
        return self._lookup  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def reach(self) -> int:
        """The left clip."""
        return self.left

    @property
    def num_labels(self) -> int:
        """``left + right + 1``."""
        return self.left + self.right + 1

    @property
    def names(self) -> tuple[str, ...]:
        """The distances; those at the ends stand for all beyond."""
        return tuple(str(distance) for distance in range(-self.left, self.right + 1))

    def __repr__(self) -> str:
        return f"ClippedDistance({_sides(self.left, self.right)})"
