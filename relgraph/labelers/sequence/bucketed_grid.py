"""Labels of an image by iRPE's rules: buckets of the distances along rows and columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.labelers.sequence.buckets import BucketedDistance
from relgraph.labelers.sequence.difference import QUERY_KEY
from relgraph.labelers.sequence.grid import GridLabeler

RULES = ("product", "euclidean", "quant", "cross-rows", "cross-columns")
FARTHEST_SQUARED = 1 << 30
"""Where differences are cut before they are squared: the sum of two squares then fits into 64 bits."""


@final
@dataclass(frozen=True, init=False, repr=False)
class BucketedGrid(GridLabeler):
    """iRPE's labels of an image: pairs whose offsets fall into one bucket share a label.

    The ids are those of the released code, so that its tables load unchanged. They depend on ``rows`` and ``columns``,
    query minus key. ``bucket`` is iRPE's piecewise index (see :class:`~relgraph.BucketedDistance`), from ``-b`` to
    ``b = int(beta)``:

    - ``"product"``: ``(bucket(rows) + b) · (2b + 1) + bucket(columns) + b``;
    - ``"euclidean"``: ``bucket(round(sqrt(rows² + columns²))) + b``; ids below b are never used;
    - ``"quant"``: ``bucket(rows² + columns²) + b``; ids below b are never used;
    - ``"cross-rows"``: ``bucket(rows) + b``, and ``"cross-columns"``: ``bucket(columns) + b``. Their sum is the cross
      method: ``BucketedGrid("cross-rows") + BucketedGrid("cross-columns")``.

    Extra tokens, such as a class token, come before the cells; all their pairs have one label, the last.

    Source: Wu et al. 2021 (iRPE), and the code released with it. Its quantization method reads the squared distance, as
    here.

    Args:
        rule: one of the rules above.
        alpha: up to this distance, each distance has its own bucket; above 0, 1.9 by default.
        beta: the number of the last bucket, at least 1 and ``alpha``, 3.8 by default.
        gamma: where the logarithm ends, more than ``alpha``, 15.2 by default.
        extra_tokens: how many tokens without a position come first.

    Raises:
        TypeError, ValueError: a wrong type, an unknown rule, coefficients out of order, a wrong number of extra tokens,
            or more than 2^20 labels.

    Example:
        >>> labeler = rg.labelers.BucketedGrid("product", extra_tokens=1)
        >>> labeler.num_labels, labeler.names[0], labeler.names[24], labeler.names[-1]
        (50, '(>=4, >=4)', '(0, 0)', 'extra')
        >>> labeler(1, 3).to_dense()[0]
        tensor([[[49, 49, 49, 49],
                 [49, 24, 23, 22],
                 [49, 25, 24, 23],
                 [49, 26, 25, 24]]])
    """

    rule: str
    alpha: float
    beta: float
    gamma: float
    extra_tokens: int

    def __init__(
        self,
        rule: str = "product",
        *,
        alpha: float | None = None,
        beta: float | None = None,
        gamma: float | None = None,
        extra_tokens: int = 0,
    ) -> None:
        check.choice("rule", rule, RULES)
        check.integer("extra_tokens", extra_tokens, minimum=0, maximum=check.MOST_WRITTEN)
        axis = BucketedDistance(rule="irpe", alpha=alpha, beta=beta, gamma=gamma)
        self._set(rule=rule, alpha=axis.alpha, beta=axis.beta, gamma=axis.gamma, extra_tokens=extra_tokens)
        check.most_labels("beta", self.num_labels)

    @property
    def num_labels(self) -> int:
        """``2 · int(beta) + 1``, squared for ``"product"``, and 1 if there are extra tokens."""
        return self._num_cell_labels() + (1 if self.extra_tokens else 0)

    @property
    def names(self) -> tuple[str, ...]:
        """The distances in each bucket, key minus query, such as ``"(2..3, 0)"`` and ``"row -1"``; ``"extra"``."""
        axis = self._axis().names
        if self.rule == "product":
            names = [f"({row}, {column})" for row in axis for column in axis]
        elif self.rule in ("cross-rows", "cross-columns"):
            word = "row" if self.rule == "cross-rows" else "column"
            names = [f"{word} {name}" for name in axis]
        else:
            # A distance has no sign. Its names are those of keys after the query, which iRPE numbers from b down.
            word = "distance" if self.rule == "euclidean" else "squared distance"
            half = len(axis) // 2
            unused = [f"unused {bucket}" for bucket in range(half)]
            names = [*unused, *(f"{word} {name}" for name in reversed(axis[: half + 1]))]
        return (*names, *["extra"] * bool(self.extra_tokens))

    def _axis(self) -> BucketedDistance:
        """The buckets along one axis."""
        return BucketedDistance(rule="irpe", alpha=self.alpha, beta=self.beta, gamma=self.gamma)

    def _num_cell_labels(self) -> int:
        return (2 * int(self.beta) + 1) ** (2 if self.rule == "product" else 1)

    def _extra_ids(self) -> tuple[int, int, int]:
        last = self.num_labels - 1
        return last, last, last

    def _cell_ids(self, rows: Tensor, columns: Tensor) -> Tensor:
        if self.rule.startswith("cross"):
            axis = self._buckets(rows if self.rule == "cross-rows" else columns)
            return axis.expand(torch.broadcast_shapes(rows.shape, columns.shape))
        if self.rule == "product":
            return self._buckets(rows) * (2 * int(self.beta) + 1) + self._buckets(columns)
        rows, columns = (axis.clamp(-FARTHEST_SQUARED, FARTHEST_SQUARED) for axis in (rows, columns))
        squared = rows.square() + columns.square()
        if self.rule == "quant":
            return self._buckets(-squared)
        # In float32 like the published code.
        return self._buckets(-squared.to(torch.float32).sqrt().round().to(torch.int64))

    def _buckets(self, distance: Tensor) -> Tensor:
        """The bucket of distances, key minus query, shifted to begin at 0."""
        axis = self._axis()
        lookup = torch.tensor(axis.lookup, device=distance.device)
        return lookup[distance.clamp(-axis.reach, len(axis.lookup) - 1 - axis.reach) + axis.reach]

    def _order(self) -> str:
        return QUERY_KEY

    def _mirror(self) -> list[int]:
        if self.rule in ("euclidean", "quant"):
            return [*range(self.num_labels)]  # a distance is the same both ways
        return super()._mirror()

    def __repr__(self) -> str:
        usual = BucketedGrid()
        names = ("rule", "alpha", "beta", "gamma", "extra_tokens")
        given = [f"{name}={value!r}" for name in names if (value := getattr(self, name)) != getattr(usual, name)]
        return f"BucketedGrid({', '.join(given)})"
