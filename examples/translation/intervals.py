"""Student's confidence interval of a mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev

from scipy.stats import t

CONFIDENCE = 0.95


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's 95 % confidence interval of the mean: lower and upper end.

    Args:
        values: two or more, one for each seed; to compare two rows, pass their differences seed by seed.

    Raises:
        ValueError: fewer than two values.
    """
    if len(values) < 2:
        raise ValueError(f"values must be two or more, got {len(values)}")
    error = stdev(values) / math.sqrt(len(values))
    half = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * error
    return mean(values) - half, mean(values) + half
