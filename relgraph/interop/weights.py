"""The weights of an attention of other code under relgraph's names, and a layer made for them and filled with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from relgraph.nn import RelationAttention, RelationTables
from relgraph.nn.projections import BIASED

_Module = TypeVar("_Module", bound=nn.Module)


@dataclass(frozen=True)
class Linear:
    """A linear map: weight ``[out, in]`` and, if it has one, bias ``[out]``. Or a norm: both ``[width]``."""

    weight: Tensor
    bias: Tensor | None = None

    def chunk(self, count: int) -> list[Linear]:
        """The maps of which this is one after the other."""
        biases = [None] * count if self.bias is None else self.bias.chunk(count)
        return [Linear(*parts) for parts in zip(self.weight.chunk(count), biases, strict=True)]

    def state(self, name: str) -> dict[str, Tensor]:
        """The parameters of a module of this name."""
        return {f"{name}.weight": self.weight} | ({} if self.bias is None else {f"{name}.bias": self.bias})


@dataclass(frozen=True)
class AttentionWeights:
    """The weights of an attention.

    Attributes:
        maps: the four linear maps, by the names of the option ``bias``.
        head_dim: D.
        tables: the rows of each kind of table, ``[R, D]`` (of biases ``[R]``), after an axis of heads if each head has
            its own; for a sum of labels one per part.
        tied: whether the key table is the value table, too.
        query_biases: u and v of Transformer-XL, ``[H, D]`` each, if there are any.
        shared: whether all layers of a stack have the tables of the first.
    """

    maps: Mapping[Any, Linear]
    head_dim: int
    tables: Mapping[str, Tensor | tuple[Tensor, ...]] = field(default_factory=dict)
    tied: bool = False
    query_biases: tuple[Tensor, Tensor] | None = None
    shared: bool = False

    @property
    def place(self) -> dict[str, Any]:
        """Device and dtype."""
        weight = self.maps["query"].weight
        return {"device": weight.device, "dtype": weight.dtype}

    def layer(self, labeler: Any, dropout: float, /, **options: Any) -> RelationAttention:
        """A layer of these sizes, its weights still to be filled in; without a labeler it has no tables."""
        total, width = self.maps["query"].weight.shape
        heads = total // self.head_dim
        options["tables"] = ()
        if labeler is not None:
            kinds = ("key", "value") if self.tied else tuple(self.tables)
            options["tables"] = RelationTables(
                labeler.num_labels, self.head_dim, heads, kinds=kinds, tied=self.tied, names=labeler.names,
                per_head=[kind for kind in self.tables if self._per_head(kind)] or False, shared=self.shared,
                **self.place,
            )  # fmt: skip
        biased = tuple(name for name in BIASED if self.maps[name].bias is not None)
        has_biases = self.query_biases is not None
        return RelationAttention(
            width, heads, dropout, biased, head_dim=self.head_dim, content_bias=has_biases, position_bias=has_biases,
            **options, **self.place,
        )  # fmt: skip

    def _per_head(self, kind: str) -> bool:
        rows = self.tables[kind]
        one = rows[0] if isinstance(rows, tuple) else rows
        return one.dim() == (2 if kind == "bias" else 3)

    def state(self) -> dict[str, Tensor]:
        """The parameters of the layer, by name."""
        inputs = {name[0]: self.maps[name] for name in BIASED[:3]}
        found = {"in_proj_weight": torch.cat([linear.weight for linear in inputs.values()])}
        biases = {f"{letter}_proj_bias": linear.bias for letter, linear in inputs.items() if linear.bias is not None}
        found |= {"in_proj_bias": torch.cat(list(biases.values()))} if len(biases) == len(inputs) else biases
        found |= self.maps["output"].state("out_proj")
        for kind, rows in self.tables.items():
            parts = {f"{part}.": one for part, one in enumerate(rows)} if isinstance(rows, tuple) else {"": rows}
            found |= {f"tables.{kind}.{part}rows": one for part, one in parts.items()}
        if self.query_biases is not None:
            found["content_bias"], found["position_bias"] = self.query_biases
        return found


def filled(module: _Module, state: Mapping[str, Tensor]) -> _Module:
    """The module with copies of these tensors, which must have their shapes, as its parameters: every one gets one."""
    parameters = dict(module.named_parameters())
    assert parameters.keys() == state.keys(), sorted(parameters.keys() ^ state.keys())
    with torch.no_grad():
        for name, parameter in parameters.items():
            if parameter.shape != state[name].shape:
                raise ValueError(f"{name} must have shape {list(parameter.shape)}, got {list(state[name].shape)}")
            parameter.copy_(state[name])
    return module
