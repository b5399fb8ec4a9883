"""Weights under relgraph's names: the linear maps and norms of its layers, and the sizes that they imply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from relgraph.interop.checkpoints.entries import Entries
from relgraph.nn.projections import BIASED


@dataclass(frozen=True)
class Sizes:
    """The sizes of an attention.

    Attributes:
        width: E, of inputs and outputs.
        heads: H.
        head_dim: D.
        labels: R.
    """

    width: int
    heads: int
    head_dim: int
    labels: int

    @property
    def inner(self) -> int:
        """The width of all heads."""
        return self.heads * self.head_dim


@dataclass(frozen=True)
class Linear:
    """A linear map: weight ``[out, in]`` and, if it has one, bias ``[out]``. Or a norm: both ``[width]``."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True)
class Attention:
    """The weights of an attention.

    Attributes:
        maps: the four linear maps, by the names of the option ``bias``.
        tables: the rows ``[R, D]`` of each kind of table.
        tied: whether the key table is the value table, too.
    """

    maps: dict[str, Linear]
    tables: dict[str, Tensor] = field(default_factory=dict)
    tied: bool = False

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of tables."""
        return ("key", "value") if self.tied else tuple(self.tables)

    @property
    def biased(self) -> tuple[str, ...]:
        """The maps that have a bias."""
        return tuple(name for name in BIASED if self.maps[name].bias is not None)

    def state(self) -> dict[str, Tensor]:
        """The parameters of :class:`~relgraph.RelationAttention`, by name."""
        inputs = [(name[0], self.maps[name]) for name in BIASED[:3]]
        found = {"in_proj_weight": torch.cat([linear.weight for _, linear in inputs])}
        biases = {f"{letter}_proj_bias": linear.bias for letter, linear in inputs if linear.bias is not None}
        found |= {"in_proj_bias": torch.cat(list(biases.values()))} if len(biases) == len(inputs) else biases
        output = self.maps["output"]
        found["out_proj.weight"] = output.weight
        if output.bias is not None:
            found["out_proj.bias"] = output.bias
        return found | {f"tables.{kind}.rows": rows for kind, rows in self.tables.items()}


def sizes(entries: Entries, query: str, table: str, *, transposed: bool = False) -> Sizes:
    """The sizes that follow from a query's weight, ``[out, in]`` unless ``transposed``, and a table, ``[R, D]``."""
    labels, head_dim = entries.rank_two(table)
    inner, width = entries.rank_two(query)[:: -1 if transposed else 1]
    if inner % head_dim:
        raise ValueError(
            f"state must have heads as wide as the rows of {entries.prefix + table!r}, {head_dim}, so that it divides "
            f"the width of queries in {entries.prefix + query!r}, got {inner}"
        )
    return Sizes(width, inner // head_dim, head_dim, labels)


def clip_of(entries: Entries, table: str, labels: int) -> int:
    """K of a table that has rows for the distances -K to K."""
    if labels % 2 == 0:
        raise ValueError(
            f"state must have an odd number of rows in {entries.prefix + table!r}, for distances on both sides, "
            f"got {labels}"
        )
    return labels // 2


def linear(entries: Entries, name: str, out: int, width: int, *, bias: bool = True) -> Linear:
    """``name.weight``, ``[out, width]``, and ``name.bias``."""
    weight = entries.take(f"{name}.weight", out, width)
    return Linear(weight, entries.take(f"{name}.bias", out) if bias else None)


def norm(entries: Entries, name: str, width: int) -> Linear:
    """``name.weight`` and ``name.bias``, both ``[width]``."""
    return Linear(entries.take(f"{name}.weight", width), entries.take(f"{name}.bias", width))


def maps(of: Sizes, names: Sequence[str], take: Callable[[str, int, int], Linear]) -> dict[str, Linear]:
    """The maps of query, key, value and output with these names; ``take`` gets a name, out and in."""
    shapes = [(of.inner, of.width)] * 3 + [(of.width, of.inner)]
    linears = [take(name, *shape) for name, shape in zip(names, shapes, strict=True)]
    return dict(zip(BIASED, linears, strict=True))
