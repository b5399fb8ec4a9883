"""Distances in buckets that widen: the rules of T5, DeBERTa and iRPE, as their released code computes them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby
from typing import Any, final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.labelers.sequence.difference import KEY_QUERY, QUERY_KEY
from relgraph.labelers.sequence.distance import DistanceLabeler

RULES = ("t5", "deberta", "irpe")
DEFAULT_BUCKETS = {"t5": 32, "deberta": 512}
DEFAULT_MAX_DISTANCE = {"t5": 128, "deberta": 512}
ALPHA, BETA, GAMMA = 1.9, 3.8, 15.2
"""iRPE's coefficients by default: 1, 2 and 8 times 1.9."""


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
    - ``"irpe"`` reads i - j. The id is ``bucket(i - j) + int(beta)``. The bucket of a distance up to ``alpha`` is the
      distance itself; beyond, it is
      ``±min(round(alpha + log(|i - j| / alpha) / log(gamma / alpha) * (beta - alpha)), beta)``, cut to an integer.

    Source: Raffel et al. 2020 (T5), section 2.1; He et al. 2021 (DeBERTa); Wu et al. 2021 (iRPE), equation 18; and the
    code released with each.

    Args:
        num_buckets: R. For ``"t5"`` at least 2, or 4 if bidirectional; 32 by default. For ``"deberta"`` a multiple of
            4, twice the ``position_buckets`` of a configuration; 512 by default.
        max_distance: where the logarithm ends, more than the number of single distances on one side. For ``"t5"`` 128
            by default; for ``"deberta"`` the ``max_relative_positions`` of a configuration, 512 by default.
        bidirectional: whether keys after the query have their own buckets; False only for ``"t5"``.
        rule: ``"t5"``, ``"deberta"`` or ``"irpe"``.
        alpha: for ``"irpe"``: up to this distance, each distance has its own bucket; above 0, 1.9 by default.
        beta: for ``"irpe"``, the number of the last bucket, at least 1 and ``alpha``, 3.8 by default.
        gamma: for ``"irpe"``, where the logarithm ends, more than ``alpha``, 15.2 by default.

    Raises:
        TypeError, ValueError: a wrong type, an unknown rule, an argument of another rule, too few buckets,
            ``max_distance`` within the single distances, coefficients out of order, or more than 2^20 buckets or
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
        >>> rg.BucketedDistance(rule="irpe").names
        ('>=4', '2..3', '1', '0', '-1', '-3..-2', '<=-4')
    """

    num_buckets: int
    max_distance: int | None
    bidirectional: bool
    rule: str
    alpha: float | None
    beta: float | None
    gamma: float | None

    def __init__(
        self,
        num_buckets: int | None = None,
        max_distance: int | None = None,
        bidirectional: bool = True,
        *,
        rule: str = "t5",
        alpha: float | None = None,
        beta: float | None = None,
        gamma: float | None = None,
    ) -> None:
        check.choice("rule", rule, RULES)
        check.boolean("bidirectional", bidirectional)
        if rule != "t5" and not bidirectional:
            raise ValueError(f"bidirectional must be True with rule={rule!r}, whose buckets have a sign, got False")
        if rule == "irpe":
            _refuse_unused(rule, num_buckets=num_buckets, max_distance=max_distance)
            alpha, beta, gamma = _checked_coefficients(alpha, beta, gamma)
            lookup, reach = _irpe_lookup(alpha, beta, gamma)
            num_buckets = 2 * int(beta) + 1
        else:
            _refuse_unused(rule, alpha=alpha, beta=beta, gamma=gamma)
            num_buckets = DEFAULT_BUCKETS[rule] if num_buckets is None else num_buckets
            max_distance = DEFAULT_MAX_DISTANCE[rule] if max_distance is None else max_distance
            if rule == "t5":
                lookup, reach = _t5_lookup(num_buckets, max_distance, bidirectional)
            else:
                lookup, reach = _deberta_lookup(num_buckets, max_distance)
        self._set(num_buckets=num_buckets, max_distance=max_distance, bidirectional=bidirectional, rule=rule)
        self._set(alpha=alpha, beta=beta, gamma=gamma, lookup=lookup, reach=reach)

    @property
    def num_labels(self) -> int:
        """``num_buckets``; for ``"irpe"``, ``2 · int(beta) + 1``."""
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
        usual = BucketedDistance(rule=self.rule)
        sizes = ("alpha", "beta", "gamma") if self.rule == "irpe" else ("num_buckets", "max_distance")
        given = [f"{name}={value}" for name in sizes if (value := getattr(self, name)) != getattr(usual, name)]
        if given and given[0].startswith("num_buckets="):  # first in the constructor, so they need no names
            given = [one.split("=")[1] for one in given]
        given += [] if self.bidirectional else ["bidirectional=False"]
        given += [] if self.rule == "t5" else [f"rule={self.rule!r}"]
        return f"BucketedDistance({', '.join(given)})"


def _refuse_unused(rule: str, **arguments: Any) -> None:
    """Raise ValueError if an argument that the rule does not read was given."""
    for name, value in arguments.items():
        if value is not None:
            raise ValueError(f"{name} must be left out with rule={rule!r}, which does not read it, got {value!r}")


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


def _irpe_lookup(alpha: float, beta: float, gamma: float) -> tuple[tuple[int, ...], int]:
    """IRPE's bucket of each distance j - i, and minus the first distance."""
    # The formula reaches beta at gamma; one step more leaves room for what float32 rounds.
    distance = torch.arange(max(math.ceil(gamma), math.ceil(alpha)) + 2, dtype=torch.float32, device="cpu")
    steps = torch.log(distance.clamp(min=1) / alpha) / math.log(gamma / alpha) * (beta - alpha)
    spaced = (alpha + steps).round().clamp(max=beta)
    buckets = torch.where(distance <= alpha, distance, spaced).to(torch.int64)
    return _shortest_lookup(int(beta) - buckets, int(beta) + buckets)


def _checked_coefficients(alpha: float | None, beta: float | None, gamma: float | None) -> tuple[float, float, float]:
    """IRPE's coefficients as floats, the published ones where None; raise an error unless they are in order."""
    alpha = check.finite("alpha", ALPHA if alpha is None else alpha)
    beta = check.finite("beta", BETA if beta is None else beta)
    gamma = check.finite("gamma", GAMMA if gamma is None else gamma)
    if alpha <= 0:
        raise ValueError(f"alpha must be above 0, got {alpha}")
    if beta < alpha:
        raise ValueError(f"beta must be at least alpha = {alpha}, got {beta}")
    if beta < 1:
        raise ValueError(f"beta must be at least 1, the bucket of the nearest keys, got {beta}")
    if gamma <= alpha:
        raise ValueError(f"gamma must be more than alpha = {alpha}, got {gamma}")
    for name, value in (("beta", beta), ("gamma", gamma)):
        if value >= check.MOST_LABELS / 2:
            raise ValueError(f"{name} must be less than {check.MOST_LABELS // 2:,}, got {value}")
    return alpha, beta, gamma


def _shortest_lookup(after: Tensor, before: Tensor) -> tuple[tuple[int, ...], int]:
    """A lookup without what repeats at either end, from the ids of keys 0, 1, ... after and before the query."""
    after_ids, before_ids = _without_tail(after.tolist()), _without_tail(before.tolist())
    return (*reversed(before_ids[1:]), *after_ids), len(before_ids) - 1


def _without_tail(ids: list[int]) -> list[int]:
    """The ids, which never come back to one that they left, up to the first of the equal ones at the end."""
    return ids[: ids.index(ids[-1]) + 1]
