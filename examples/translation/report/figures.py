"""Figures over seeds, and how sure the difference of two of them is, with their text in tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from scipy.stats import t

from examples.translation.intervals import interval


@dataclass(frozen=True)
class Spread:
    """Some figures of equal runs with different seeds: their mean, and their sample standard deviation."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return mean(self.values)

    @property
    def spread(self) -> float | None:
        return stdev(self.values) if len(self.values) > 1 else None

    def __str__(self) -> str:
        return as_figure(self.mean) + ("" if self.spread is None else f" ± {as_figure(self.spread, self.mean)}")


@dataclass(frozen=True)
class Difference:
    """The difference of two means.

    Attributes:
        value: the first mean less the second.
        low: where its 95 % interval begins; None without an interval.
        high: where it ends.
        p: how likely chance alone gives as much; None without an interval.
        sentences: whether sentences were resampled too, not seeds only.
    """

    value: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    sentences: bool = False

    @property
    def sign(self) -> int:
        """1 or -1 where the interval lies above or below 0, else 0."""
        if self.low is None or self.high is None:
            return 0
        return int(self.low > 0) - int(self.high < 0)

    def text(self, form: str | None = None) -> str:
        """The difference with its interval; bold where the interval excludes 0."""
        value = _signed(self.value, form)
        if self.low is None or self.high is None:
            return f"{value} (one seed)"
        bold = f"**{value}**" if self.sign else value
        return f"{bold} [{_signed(self.low, form)}, {_signed(self.high, form)}]"


def over_seeds(values: Sequence[float]) -> Difference:
    """The mean of changes or differences, one for each seed, with Student's t interval; one value gives no interval."""
    value = mean(values)
    if len(values) < 2:
        return Difference(value)
    error, freedom = stdev(values) / math.sqrt(len(values)), len(values) - 1
    p = 2 * float(t.sf(abs(value) / error, freedom)) if error > 0 else float(value == 0)
    return Difference(value, *interval(values), p)


def as_figure(value: float, of: float = 0.0) -> str:
    """A figure with as many decimals as the larger one, ``of``, that it belongs to."""
    largest = max(abs(value), abs(of))
    if not largest < 1e6:
        return f"{value:.3g}"
    return f"{value:,.0f}" if largest >= 1000 else f"{value:.2f}"


def _signed(value: float, form: str | None) -> str:
    size = as_figure(abs(value)) if form is None else format(abs(value), form)
    return ("−" if value < 0 else "+") + size
