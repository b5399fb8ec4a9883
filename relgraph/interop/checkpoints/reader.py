"""How the readers of all origins take an attention, a layer, a stack or a model; each origin knows its own names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from relgraph.arguments import check
from relgraph.interop.checkpoints.build import Layer, Model, Options, Stack, make_attention
from relgraph.interop.checkpoints.entries import Entries
from relgraph.interop.weights import AttentionWeights, Linear, filled
from relgraph.labelers import ClippedDistance
from relgraph.nn.layer_parts import check_activation
from relgraph.nn.projections import BIASED


class Reader:
    """Takes weights by the names of an origin. The first attention determines all sizes.

    Attributes:
        maps: the maps of queries, keys, values and outputs, after the prefix of an attention.
        tables: the tables by kind, after the same prefix.
        linears: the maps of the feed-forward network, after the prefix of a layer.
        alone: what precedes the number of a layer if an encoder or a decoder is read; the first that is there counts.
        sides: the same for the encoder and the decoder of a whole model.
        attention_at: the prefix of the self-attention in a layer.
        memory_at: the prefix of the attention to a memory in a layer.
        wanted: what may follow the prefix, in words.
        attention_bias: whether maps of an attention have biases; None if the first attention tells.
    """

    maps: ClassVar[tuple[str, str, str, str]]
    tables: Mapping[str, str]
    linears: ClassVar[tuple[str, str]] = ("feed_forward.w_1", "feed_forward.w_2")
    alone: ClassVar[tuple[str, ...]] = ()
    sides: ClassVar[tuple[str, ...]] = ()
    attention_at: ClassVar[str] = "self_attn."
    memory_at: ClassVar[str] = ""
    wanted: ClassVar[tuple[str, ...]]
    attention_bias: ClassVar[bool | None] = True
    weight, bias, norm_weight, norm_bias, end = ".weight", ".bias", ".weight", ".bias", "."
    transposed = tied = norm_first = False
    width: int
    head_dim: int
    heads_width: int
    num_labels: int
    inner: int
    labeler: Any

    def __init__(self, state: Any, prefix: Any, leave_out: Any) -> None:
        self.entries = Entries(state, prefix, leave_out)

    def build(self, dropout: float, *, activation: Any = "relu", layer_norm_eps: float = 1e-5) -> tuple[Any, Any]:
        """The module with copies of the weights, and its labeler."""
        check_activation(activation)  # a single attention would not read these two
        if check.finite("layer_norm_eps", layer_norm_eps) < 0:
            raise ValueError(f"layer_norm_eps must be at least 0, got {layer_norm_eps}")
        weights = self._weights()
        options = Options(self.labeler, dropout, self.norm_first, activation, layer_norm_eps)
        attention = isinstance(weights, AttentionWeights)
        made = make_attention(weights, options) if attention else weights.make(options)
        self.entries.finish(f"a {type(made).__name__}")
        return filled(made, weights.state()), self.labeler

    def _weights(self) -> AttentionWeights | Stack | Model:
        """What follows the prefix."""
        if self.maps[0] + self.weight in self.entries:
            self._measure("")
            return self._attention("")
        after = r"(\d+)" + re.escape(self.end)
        depths = {at: self.entries.count(re.escape(at) + after) for at in (*self.sides, *self.alone)}
        if self.sides and all(depths[at] for at in self.sides):
            encoder, decoder = self.sides
            self._start(encoder)
            return Model(
                self._stack(encoder, depths[encoder], memory=False), self._stack(decoder, depths[decoder], memory=True)
            )
        at = next((at for at in self.alone if depths[at]), None)
        if at is None:
            raise self.entries.neither(*self.wanted)
        self._start(at)
        first = f"{at}0{self.end}{self.memory_at}{self.maps[0]}{self.weight}"
        return self._stack(at, depths[at], memory=bool(self.memory_at) and first in self.entries)

    def _start(self, at: str) -> None:
        """Take all sizes from the first layer."""
        layer = f"{at}0{self.end}"
        self._measure(layer + self.attention_at)
        self.inner = self.entries.rank_two(f"{layer}{self.linears[0]}{self.weight}")[int(self.transposed)]

    def _measure(self, at: str) -> None:
        """Take the sizes of an attention and its labeler from a query's weight and a table."""
        query, table = f"{at}{self.maps[0]}{self.weight}", at + self.tables["key"]
        self.num_labels, self.head_dim = self.entries.rank_two(table)
        self.heads_width, self.width = self.entries.rank_two(query)[:: -1 if self.transposed else 1]
        if self.heads_width % self.head_dim:
            raise ValueError(
                f"state must have heads as wide as the rows of {self.entries.prefix + table!r}, {self.head_dim}, so "
                f"that it divides the width of queries in {self.entries.prefix + query!r}, got {self.heads_width}"
            )
        self.labeler = self._labeler(self.entries.prefix + table)
        self.biased = {
            name: f"{at}{name}{self.bias}" in self.entries if self.attention_bias is None else self.attention_bias
            for name in self.maps
        }

    def _labeler(self, table: str) -> Any:
        """The labeler of a table; by default that of the distances -K to K."""
        if self.num_labels % 2 == 0:
            raise ValueError(
                f"state must have an odd number of rows in {table!r}, for distances on both sides, got "
                f"{self.num_labels}"
            )
        return ClippedDistance(self.num_labels // 2)

    def _linear(self, name: str, out: int, width: int, *, bias: bool = True) -> Linear:
        """A map from ``width`` to ``out``."""
        shape = (width, out) if self.transposed else (out, width)
        weight = self.entries.take(name + self.weight, *shape)
        return Linear(
            weight.T if self.transposed else weight, self.entries.take(name + self.bias, out) if bias else None
        )

    def _norm(self, name: str) -> Linear:
        """A layer norm."""
        return Linear(*(self.entries.take(name + part, self.width) for part in (self.norm_weight, self.norm_bias)))

    def _attention(self, at: str, *, labeled: bool = True) -> AttentionWeights:
        """An attention, with its tables if its pairs have labels."""
        shapes = [(self.heads_width, self.width)] * 3 + [(self.width, self.heads_width)]
        linears = [
            self._linear(at + name, *shape, bias=self.biased[name])
            for name, shape in zip(self.maps, shapes, strict=True)
        ]
        maps = dict(zip(BIASED, linears, strict=True))
        if not labeled:
            return AttentionWeights(maps, self.head_dim)
        return AttentionWeights(maps, self.head_dim, self._tables(at), self.tied)

    def _tables(self, at: str) -> dict[str, Tensor]:
        """The tables of an attention by kind."""
        shape = self.num_labels, self.head_dim
        return {kind: self.entries.take(at + name, *shape) for kind, name in self.tables.items()}

    def _stack(self, at: str, depth: int, *, memory: bool) -> Stack:
        """An encoder, or a decoder with a memory."""
        norms, last = self._norms(at, memory)
        layers = [self._layer(f"{at}{number}{self.end}", norms, memory) for number in range(depth)]
        return Stack(layers, None if last is None else self._norm(last))

    def _norms(self, at: str, memory: bool) -> tuple[Sequence[str], str | None]:
        """The names of a layer's norms, and that of the norm after the last layer."""
        raise NotImplementedError

    def _layer(self, at: str, norms: Sequence[str], memory: bool) -> Layer:
        first, second = (at + name for name in self.linears)
        return Layer(
            self._attention(at + self.attention_at),
            (self._linear(first, self.inner, self.width), self._linear(second, self.width, self.inner)),
            tuple(self._norm(at + name) for name in norms),
            self._attention(at + self.memory_at, labeled=False) if memory else None,
        )
