"""Distances in buckets that widen: the rules of T5 and DeBERTa, as their released code computes them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby
from typing import final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.labelers.sequence.difference import KEY_QUERY, QUERY_KEY
from relgraph.labelers.sequence.distance import DistanceLabeler

DEFAULTS = {"t5": (32, 128), "deberta": (512, 512)}
"""The number of buckets and the largest distance by rule."""


@final
@dataclass(frozen=True, init=False, repr=False)
class BucketedDistance(DistanceLabeler):
    """Buckets of distances: each small distance has its own, larger ones share buckets that widen with the logarithm.

    The ids are those of the released code, so that its tables load unchanged. They are computed in float32 as in that
    code, so that a distance on the edge of a bucket falls where a checkpoint expects it.

    - ``"t5"`` reads j - i. On each side, the first half of the buckets hold one distance each. The others are spaced
      evenly in log distance, and the last holds everything from slightly below ``max_distance`` on. If bidirectional,
      the first half of all ids is for keys at or before the query and the second half for keys after it (its first id
      is never used). Otherwise every key after the query is in bucket 0.
    - ``"deberta"`` (DeBERTa v2 and v3) reads i - j. With ``m = num_buckets / 4`` the id is
      ``clip(bucket(i - j) + 2m, 0, 4m - 1)``. The bucket of a distance up to m is the distance itself; beyond, it is
      ``±(ceil(log(|i - j| / m) / log((max_distance - 1) / m) * (m - 1)) + m)``.

    Source: Raffel et al. 2020 (T5), section 2.1; He et al. 2021 (DeBERTa); and the code released with each.

    Args:
        num_buckets: R. For ``"t5"`` at least 2, or 4 if bidirectional; 32 by default. For ``"deberta"`` a multiple of
            4, twice the ``position_buckets`` of a configuration; 512 by default.
        max_distance: where the logarithm ends, more than the number of single distances on one side. For ``"t5"`` 128
            by default; for ``"deberta"`` the ``max_relative_positions`` of a configuration, 512 by default.
        bidirectional: whether keys after the query have their own buckets; False only for ``"t5"``.
        rule: ``"t5"`` or ``"deberta"``.

    Raises:
        ValueError: too few buckets, ``max_distance`` within the single distances, or more than 2^20 buckets or
            distances.

    Example:
        >>> rg.BucketedDistance(8, 20).names
        ('0', '-1', '-6..-2', '<=-7', 'unused 4', '1', '2..6', '>=7')
        >>> rg.BucketedDistance(8, 20)(4).to_dense()[0]
        tensor([[[0, 5, 6, 6],
                 [1, 0, 5, 6],
                 [2, 1, 0, 5],
                 [2, 2, 1, 0]]])
        >>> rg.BucketedDistance(8, 7, rule="deberta").names
        ('>=7', '3..6', '2', '1', '0', '-1', '-2', '<=-3')
    """

    num_buckets: int
    max_distance: int
    bidirectional: bool
    rule: str

    def __init__(
        self,
        num_buckets: int | None = None,
        max_distance: int | None = None,
        bidirectional: bool = True,
        *,
        rule: str = "t5",
    ) -> None:
        check.choice("rule", rule, tuple(DEFAULTS))
        check.boolean("bidirectional", bidirectional)
        usual_buckets, usual_distance = DEFAULTS[rule]
        num_buckets = usual_buckets if num_buckets is None else num_buckets
        max_distance = usual_distance if max_distance is None else max_distance
        if rule == "t5":
            lookup, reach = _t5_lookup(num_buckets, max_distance, bidirectional)
        elif bidirectional:
            lookup, reach = _deberta_lookup(num_buckets, max_distance)
        else:
            raise ValueError("bidirectional must be True with rule='deberta', whose buckets have a sign, got False")
        self._set(num_buckets=num_buckets, max_distance=max_distance, bidirectional=bidirectional, rule=rule)
        self._set(lookup=lookup, reach=reach)

    @property
    def num_labels(self) -> int:
        """``num_buckets``."""
        return self.num_buckets

    @property
    def names(self) -> tuple[str, ...]:
        """The distances j - i in each bucket, such as ``"-8"``, ``"-12..-9"`` and ``"<=-91"``."""
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

    def _order(self) -> str:
        return KEY_QUERY if self.rule == "t5" else QUERY_KEY

    def __repr__(self) -> str:
        sizes = self.num_buckets, self.max_distance
        given = [] if sizes == DEFAULTS[self.rule] else [str(size) for size in sizes]
        given += [] if self.bidirectional else ["bidirectional=False"]
        given += [] if self.rule == "t5" else [f"rule={self.rule!r}"]
        return f"BucketedDistance({', '.join(given)})"


def _t5_lookup(num_buckets: int, max_distance: int, bidirectional: bool) -> tuple[tuple[int, ...], int]:
    """T5's bucket of each distance j - i, and minus the first distance."""
    most = check.MOST_LABELS
    check.integer("num_buckets", num_buckets, minimum=4 if bidirectional else 2, maximum=most)
    side = num_buckets // 2 if bidirectional else num_buckets
    exact = side // 2
    check.integer("max_distance", max_distance, minimum=exact + 1, maximum=most)
    # In float32 like the published code, so that a distance on a bucket's edge has the bucket that checkpoints expect.
    distance = torch.arange(exact, max_distance + 1, dtype=torch.float32, device="cpu")
    steps = torch.log(distance / exact) / math.log(max_distance / exact) * (side - exact)
    spaced = (exact + steps.to(torch.int64)).clamp(max=side - 1)
    buckets = _without_tail([*range(exact), *spaced.tolist()])
    after = [bucket + side for bucket in buckets[1:]] if bidirectional else []
    return (*reversed(buckets), *after), len(buckets) - 1


def _deberta_lookup(num_buckets: int, max_distance: int) -> tuple[tuple[int, ...], int]:
    """DeBERTa's bucket of each distance j - i, and minus the first distance."""
    most = check.MOST_LABELS
    check.integer("num_buckets", num_buckets, minimum=4, maximum=most)
    if num_buckets % 4:
        raise ValueError(f"num_buckets must be a multiple of 4 with rule='deberta', got {num_buckets}")
    side = num_buckets // 2
    middle = side // 2
    check.integer("max_distance", max_distance, minimum=middle + 2, maximum=most)
    # Twice as far as the logarithm reaches, every bucket is beyond the last one, whatever float32 rounds.
    distance = torch.arange(2 * max_distance + 1, dtype=torch.float32, device="cpu")
    end = torch.tensor((max_distance - 1) / middle, dtype=torch.float32, device="cpu")
    steps = torch.ceil(torch.log(distance.clamp(min=middle) / middle) / torch.log(end) * (middle - 1)) + middle
    buckets = torch.where(distance <= middle, distance, steps).to(torch.int64)
    return _shortest_lookup((side - buckets).clamp(min=0), (side + buckets).clamp(max=num_buckets - 1))


def _shortest_lookup(after: Tensor, before: Tensor) -> tuple[tuple[int, ...], int]:
    """A lookup without what repeats at either end, from the ids of keys 0, 1, ... after and before the query."""
    after_ids, before_ids = _without_tail(after.tolist()), _without_tail(before.tolist())
    return (*reversed(before_ids[1:]), *after_ids), len(before_ids) - 1


def _without_tail(ids: list[int]) -> list[int]:
    """The ids, which never come back to one that they left, up to the first of the equal ones at the end."""
    return ids[: ids.index(ids[-1]) + 1]
