"""ALiBi: fixed biases that grow with the distance, one slope per head, as tables of an attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from relgraph.labelers import DistanceLabeler
from relgraph.nn.tables import RelationTables


def alibi_tables(labeler: DistanceLabeler, dim: int, heads: int, **place: Any) -> RelationTables:
    """Make tables whose only table is the fixed bias -slope · abs(j - i), with a slope per head.

    Slopes are 2^(-8/H), 2^(-16/H), ..., 2^-8. If H is no power of two, those of the next smaller power are followed by
    every other slope of its double, as in the authors' code. Give the tables to an attention as ``tables=``, together
    with the labeler. The bias has no gradient. The labeler must give each distance up to the longest sequence an id of
    its own: farther keys share the bias of the last one.

    Source: Press, Smith, Lewis 2022, "Train Short, Test Long", section 3.

    Args:
        labeler: ids by distance, such as :class:`~relgraph.ClippedDistance`.
        dim: D, the size of each head of the attention.
        heads: H, its number of heads.
        place: ``device`` and ``dtype`` of the biases.

    Returns:
        :class:`~relgraph.RelationTables`.

    Raises:
        ValueError: sizes below 1 or beyond any memory, or different distances that share an id.

    Example:
        >>> labeler = rg.ClippedDistance(512)
        >>> tables = rg.nn.alibi_tables(labeler, 4, 2)
        >>> layer = rg.RelationAttention(8, 2, labeler=labeler, tables=tables)
        >>> layer(torch.randn(1, 5, 8), is_causal=True).shape
        torch.Size([1, 5, 8])
        >>> tables.bias()[:, 510:515]                                     # distances -2 to 2, slopes 1/16 and 1/256
        tensor([[-0.1250, -0.0625, -0.0000, -0.0625, -0.1250],
                [-0.0078, -0.0039, -0.0000, -0.0039, -0.0078]])
    """
    if not isinstance(labeler, DistanceLabeler):
        raise TypeError(f"labeler must give ids by distance, as ClippedDistance does, got {type(labeler).__name__}")
    tables = RelationTables(labeler, dim, heads, kinds=("bias",), per_head=True, **place)
    far: dict[int, int] = {}
    for step, label in enumerate(labeler.lookup):
        distance = abs(step - labeler.reach)
        if label >= 0 and far.setdefault(label, distance) != distance:
            raise ValueError(
                f"labeler must give different distances different ids, got {far[label]} and {distance} with id {label}"
            )
    distances = torch.tensor([far.get(label, 0) for label in range(labeler.num_labels)])
    rows = tables.bias.rows.requires_grad_(False)
    rows.copy_(-_slopes(heads)[:, None] * distances)
    return tables


def _slopes(heads: int) -> Tensor:
    """The slope of each head, ``[H]``."""
    power = 1 << (heads.bit_length() - 1)
    first, rest = (2.0 ** (-8.0 / count * torch.arange(1, count + 1)) for count in (power, 2 * power))
    return torch.cat([first, rest[::2][: heads - power]])
