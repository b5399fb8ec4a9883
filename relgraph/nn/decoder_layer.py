"""The decoder layer: relations in its self-attention, and where asked for towards the memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from relgraph import _check
from relgraph.functional import LabelsLike
from relgraph.graphs import Graph
from relgraph.nn.attention import RelationAttention
from relgraph.nn.cache import LayerCache, undone_when_refused
from relgraph.nn.layer_parts import (
    Activation,
    check_activation,
    check_batch_first,
    check_labeler,
    check_sizes,
    describe,
    like,
    made_labels,
    residual,
)
from relgraph.nn.tables import NumLabels, RelationTables, check_kinds


class RelationDecoderLayer(nn.Module):
    """Self-attention over a labeled graph, attention to a memory, and a feed-forward network.

    The constructor's order, the names of all parts and the order of computation are those of
    ``nn.TransformerDecoderLayer``, whose state loads (with ``strict=False``, as the tables are missing).

    Args:
        d_model: E, the width of inputs, memory and outputs.
        nhead: H; divides E.
        dim_feedforward: width of the feed-forward network.
        dropout: probability of dropout, on attention weights and in each step.
        activation: ``"relu"``, ``"gelu"`` or a function.
        layer_norm_eps: added to variances in the norms.
        batch_first: must be True: ``[B, N, E]``.
        norm_first: whether norms come before each step, not after each sum.
        bias: whether projections and norms have a bias.
        device: where the parameters live.
        dtype: floating type of the parameters.
        labeler: makes the labels of the self-attention when the layer is called without any; as in
            :class:`RelationEncoderLayer`.
        num_labels: R of the self-attention, when there is no labeler; None, it has no tables.
        tables: kinds of tables in the self-attention, or :class:`RelationTables`: see :class:`RelationAttention`.
        per_head: of the self-attention: see :class:`RelationAttention`.
        tie_tables: of the self-attention: see :class:`RelationAttention`.
        names: the names of the self-attention's labels, when there is no labeler.
        frozen: of the self-attention: see :class:`RelationAttention`.
        num_kv_heads: of both attentions: see :class:`RelationAttention`.
        impl: of both attentions: see :class:`RelationAttention`.
        num_memory_labels: R of the attention to the memory; None, it has no tables.
        memory_tables: kinds of tables in the attention to the memory, or :class:`RelationTables`.
        memory_names: the names of the labels between target and memory.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: ``batch_first=False``, an unknown activation, a labeler beside other labels' number or names.

    Example:
        >>> layer = rg.RelationDecoderLayer(16, 4, 32, labeler=rg.ClippedDistance(2))
        >>> layer(torch.randn(2, 5, 16), torch.randn(2, 7, 16), tgt_is_causal=True).shape
        torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = functional.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = True,
        norm_first: bool = False,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        labeler: Callable[..., Any] | None = None,
        num_labels: NumLabels = None,
        tables: Sequence[str] | RelationTables = ("key", "value"),
        per_head: bool | Sequence[str] = False,
        tie_tables: bool = False,
        names: Sequence[Any] | None = None,
        frozen: int | Sequence[int | None] | None = None,
        num_kv_heads: int | None = None,
        impl: str | None = None,
        num_memory_labels: NumLabels = None,
        memory_tables: Sequence[str] | RelationTables = ("key", "value"),
        memory_names: Sequence[Any] | None = None,
    ) -> None:
        super().__init__()
        check_sizes(d_model, nhead, dim_feedforward, layer_norm_eps)
        check_batch_first(batch_first)
        if not isinstance(memory_tables, RelationTables):
            memory_tables = check_kinds("memory_tables", memory_tables)
        num_labels, names = check_labeler(labeler, num_labels, names, tables)
        self.labeler = labeler
        self.norm_first = _check.boolean("norm_first", norm_first)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.self_attn = RelationAttention(
            d_model, nhead, dropout, bias, num_labels=num_labels, num_kv_heads=num_kv_heads, tables=tables,
            per_head=per_head, tie_tables=tie_tables, names=names, frozen=frozen, impl=impl, **factory,
        )  # fmt: skip
        self.multihead_attn = RelationAttention(
            d_model, nhead, dropout, bias, num_labels=num_memory_labels, num_kv_heads=num_kv_heads,
            tables=memory_tables, names=memory_names, impl=impl, **factory,
        )  # fmt: skip
        self.linear1 = nn.Linear(d_model, dim_feedforward, bias=bias, **factory)
        self.dropout = nn.Dropout(dropout)
        self.linear2 = nn.Linear(dim_feedforward, d_model, bias=bias, **factory)
        self.norm1 = nn.LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **factory)
        self.norm2 = nn.LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **factory)
        self.norm3 = nn.LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **factory)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(dropout)
        self.dropout3 = nn.Dropout(dropout)
        self.activation = check_activation(activation)

    @classmethod
    def from_plain(cls, layer: nn.TransformerDecoderLayer, **options: Any) -> Self:
        """A layer with the weights, dropout, activation and order of norms of one of torch's.

        Args:
            layer: the plain layer; the new one is batch first whether or not this one was.
            options: the keyword-only arguments of the constructor.

        Raises:
            TypeError: another kind of layer, or an unknown option.
        """
        return like(cls, layer, nn.TransformerDecoderLayer, options)

    @undone_when_refused
    def forward(
        self,
        tgt: Tensor,
        memory: Tensor | None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
        *,
        labels: LabelsLike | Graph = None,
        memory_labels: LabelsLike = None,
        cache: LayerCache | None = None,
        bank_features: Any = None,
    ) -> Tensor:
        """Attend to the target, then to the memory, then feed forward.

        Args:
            tgt: ``[B, N, E]``, ``[N, E]``, or packed ``[T, E]`` when the labels are packed.
            memory: ``[B, M, E]``, likewise. Projected by the first call with a cache; later calls may leave it None.
            tgt_mask: which pairs of the target are blocked: ``attn_mask`` of :class:`RelationAttention`.
            memory_mask: which pairs of target and memory are blocked, ``[N, M]`` and so on.
            tgt_key_padding_mask: ``[B, N]``, True for padding; with a cache of the new rows only.
            memory_key_padding_mask: ``[B, M]``, True for padding; remembered by a cache.
            tgt_is_causal: rows see no later rows, beside what the masks say.
            memory_is_causal: row i of the target sees rows j ≤ i of the memory.
            labels: of the target's pairs, or a graph for the labeler to read; made by the labeler when left out.
            memory_labels: of the pairs of target and memory.
            cache: keys and values of earlier rows and of the memory; a call that raises leaves it as it was.
            bank_features: what the banks of the self-attention's tables read.

        Returns:
            The shape of ``tgt``.

        Raises:
            TypeError: an argument of the wrong kind.
            ValueError: shapes, dtypes, devices or values that do not fit, or no memory at all.
        """
        if cache is not None and not isinstance(cache, LayerCache):
            raise TypeError(f"cache must be a LayerCache or None, got {type(cache).__name__}")
        labels = made_labels(self.labeler, labels, "tgt", tgt, cache)
        own, held = (None, None) if cache is None else (cache.self_attn, cache.multihead_attn)
        if memory is None and not held:
            raise ValueError("memory must be given as long as no cache holds it, got None")
        past = 0 if own is None else len(own)

        def attend(x: Tensor) -> Tensor:
            z = self.self_attn(
                x, labels=labels, attn_mask=tgt_mask, key_padding_mask=tgt_key_padding_mask,
                is_causal=tgt_is_causal, cache=own, bank_features=bank_features,
            )  # fmt: skip
            return self.dropout1(z)

        def attend_memory(x: Tensor) -> Tensor:
            z = self.multihead_attn(
                x, memory, labels=memory_labels, attn_mask=memory_mask, key_padding_mask=memory_key_padding_mask,
                is_causal=memory_is_causal, q_offset=past if memory_is_causal else None, cache=held,
            )  # fmt: skip
            return self.dropout2(z)

        def feed_forward(x: Tensor) -> Tensor:
            return self.dropout3(self.linear2(self.dropout(self.activation(self.linear1(x)))))

        steps = ((self.norm1, attend), (self.norm2, attend_memory), (self.norm3, feed_forward))
        return residual(tgt, self.norm_first, *steps)

    def extra_repr(self) -> str:
        """What the parts below do not show."""
        return describe(self)
