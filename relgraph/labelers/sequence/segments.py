"""Labels by segment: which segment the query is in and which one the key, such as question → passage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from relgraph.arguments import check
from relgraph.labelers.base import Labeler
from relgraph.labelers.sequence.difference import check_batches
from relgraph.labels import UNLABELED, DenseLabels


@final
@dataclass(frozen=True, repr=False)
class Segments(Labeler):
    """One label for each ordered pair of segments: ``segment_i * num_segments + segment_j``, query's segment first.

    A name reads query→key: ``"0→1"`` for a query in segment 0 that looks at a key in segment 1. (A graph's edge leads
    the other way, from key to query.) Called with the segment of every position, such as 0 for a question and 1 for a
    passage, it gives :class:`~relgraph.DenseLabels`. Pairs with a position in segment -1 have no label.

    Args:
        num_segments: how many segments there are, from 1 to 1024 (which have 2^20 labels).

    Raises:
        TypeError, ValueError: ``num_segments`` is not an int in this range.

    Example:
        >>> labeler = rg.Segments(2)
        >>> labeler.names
        ('0→0', '0→1', '1→0', '1→1')
        >>> labeler(torch.tensor([0, 0, 1, -1])).to_dense()[0]
        tensor([[[ 0,  0,  1, -1],
                 [ 0,  0,  1, -1],
                 [ 2,  2,  3, -1],
                 [-1, -1, -1, -1]]])
    """

    num_segments: int

    def __post_init__(self) -> None:
        check.integer("num_segments", self.num_segments, minimum=1)
        check.most_labels("num_segments", self.num_labels)

    @property
    def num_labels(self) -> int:
        """``num_segments²``."""
        return self.num_segments**2

    @property
    def names(self) -> tuple[str, ...]:
        """``"query's segment→key's segment"``."""
        segments = range(self.num_segments)
        return tuple(f"{query}→{key}" for query in segments for key in segments)

    def __call__(self, segments: Tensor, k_segments: Tensor | None = None) -> DenseLabels:
        """The labels of all pairs; every pair attends.

        Args:
            segments: ``[N_q]`` or ``[B, N_q]``, integer in ``[-1, num_segments)``, the segment of each query.
            k_segments: ``[N_k]`` or ``[B, N_k]``, the segment of each key; ``segments`` by default.

        Returns:
            Dense labels; id ``a · num_segments + b`` is called ``"a→b"``, query's segment first.

        Raises:
            ValueError: segments of a wrong rank, dtype, device or batch size, or out of range; more than 2^32 pairs.
        """
        query = self._checked("segments", segments)
        key = query if k_segments is None else self._checked("k_segments", k_segments)
        check_batches(segments=query, k_segments=key)
        query, key = query[:, :, None], key[:, None, :]
        ids = query * self.num_segments + key
        return DenseLabels(ids.masked_fill((query < 0) | (key < 0), UNLABELED), self.num_labels)

    def _checked(self, name: str, segments: Tensor) -> Tensor:
        """Segment ids as int64, ``[B or 1, N]``."""
        segments = check.integer_tensor(name, segments, dim=(1, 2)).long()
        check.id_range(name, segments, self.num_segments)
        return segments if segments.dim() == 2 else segments[None]
