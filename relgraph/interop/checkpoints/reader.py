"""How the readers of all origins make an attention, a stack or a model; each origin knows its own names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from relgraph.arguments import check
from relgraph.interop.checkpoints.entries import Entries
from relgraph.interop.weights import AttentionWeights, Linear, filled
from relgraph.labelers import ClippedDistance
from relgraph.nn import (
    RelationDecoder,
    RelationDecoderLayer,
    RelationEncoder,
    RelationEncoderLayer,
    RelationTransformer,
)
from relgraph.nn.layer_parts import check_activation
from relgraph.nn.projections import BIASED

State = dict[str, Tensor]
"""The parameters of a module, by name."""


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
        self.dropout, self.options = dropout, {"activation": activation, "layer_norm_eps": layer_norm_eps}
        made, state = self._read()
        self.entries.finish(f"a {type(made).__name__}")
        return filled(made, state), self.labeler

    def _read(self) -> tuple[nn.Module, State]:
        """The module for what follows the prefix, and its parameters."""
        if self.maps[0] + self.weight in self.entries:
            self._measure("")
            weights = self._attention("")
            return self._labeled(weights), weights.state()
        after = r"(\d+)" + re.escape(self.end)
        depths = {at: self.entries.count(re.escape(at) + after) for at in (*self.sides, *self.alone)}
        if self.sides and all(depths[at] for at in self.sides):
            encoder, decoder = self.sides
            self._start(encoder)
            first, state = self._stack(encoder, depths[encoder], memory=False)
            second, more = self._stack(decoder, depths[decoder], memory=True)
            heads = self.heads_width // self.head_dim
            custom = {"custom_encoder": first, "custom_decoder": second}
            made = RelationTransformer(self.width, heads, dropout=self.dropout, **custom)
            return made, _under("encoder", state) | _under("decoder", more)
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

    def _labeled(self, weights: AttentionWeights) -> Any:
        """An attention that makes its labels itself."""
        return weights.layer(self.labeler, self.dropout, labeler=self.labeler)

    def _stack(self, at: str, depth: int, *, memory: bool) -> tuple[Any, State]:
        """An encoder, or a decoder with a memory, and its parameters."""
        norms, last = self._norms(at, memory)
        layers = [f"{at}{number}{self.end}" for number in range(depth)]
        own = [self._attention(layer + self.attention_at) for layer in layers]
        other = [self._attention(layer + self.memory_at, labeled=False) for layer in layers if memory]
        state = {} if last is None else self._norm(last).state("norm")
        for number, layer in enumerate(layers):
            first, second = (layer + name for name in self.linears)
            found = _under("self_attn", own[number].state())
            found |= _under("multihead_attn", other[number].state()) if memory else {}
            found |= self._linear(first, self.inner, self.width).state("linear1")
            found |= self._linear(second, self.width, self.inner).state("linear2")
            for at_norm, name in enumerate(norms, 1):
                found |= self._norm(layer + name).state(f"norm{at_norm}")
            state |= _under(f"layers.{number}", found)
        attention = self._labeled(own[0])
        sizes = (self.width, attention.num_heads, self.inner, self.dropout)
        options: dict[str, Any] = self.options | {"norm_first": self.norm_first}
        norm = None if last is None else nn.LayerNorm(self.width, options["layer_norm_eps"], **own[0].place)
        if not memory:
            layer = RelationEncoderLayer(*sizes, attention=attention, **options)
            return RelationEncoder(layer, depth, norm, fresh=False), state
        over_memory = other[0].layer(None, self.dropout)
        layer = RelationDecoderLayer(*sizes, self_attention=attention, cross_attention=over_memory, **options)
        return RelationDecoder(layer, depth, norm, fresh=False), state

    def _norms(self, at: str, memory: bool) -> tuple[Sequence[str], str | None]:
        """The names of a layer's norms, and that of the norm after the last layer."""
        raise NotImplementedError


def _under(name: str, state: State) -> State:
    return {f"{name}.{inner}": tensor for inner, tensor in state.items()}
