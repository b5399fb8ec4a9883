"""Parts of labels: each is made once, because to cut edges takes time and each part has a plan of its own."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from torch import Tensor

from relgraph.labels import Labels, SumLabels, WeightedLabels
from relgraph.labels.memory import memory_of

MOST_PARTS = 256
"""How many parts of the same labels are remembered."""


def part_of(labels: Labels, which: Hashable, cut: Callable[[Labels], Labels]) -> Labels:
    """The part that ``which`` identifies; ``cut`` makes it from labels of all rows, and it must not refer to them.

    Weights change from step to step and have gradients, so parts with weights are made each time.
    """
    if labels._weighted:
        return cut(labels)
    return memory_of([labels], "parts", MOST_PARTS).once(which, lambda: cut(labels))


Weights = tuple[Tensor | None, ...]
"""The weights of each part of a sum of labels; None for a part whose pairs carry one label."""


def weights_of(labels: Labels | None) -> Weights | None:
    """The weights of labels; None without any."""
    if labels is None or not labels._weighted:
        return None
    return tuple(part._weights for part in labels._summands)


def with_weights(labels: Labels, weights: Weights) -> Labels:
    """The labels with other weights."""
    parts = [
        part.with_weights(own) if isinstance(part, WeightedLabels) and own is not None else part
        for part, own in zip(labels._summands, weights, strict=True)
    ]
    return parts[0] if len(parts) == 1 else SumLabels(*parts)
