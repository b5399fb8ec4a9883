"""The decoder layer: labels in its self-attention and, if requested, in its attention to the memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from relgraph.arguments import check
from relgraph.call import LabelsLike
from relgraph.graphs import Graph
from relgraph.labels import Labels
from relgraph.nn.attention import RelationAttention
from relgraph.nn.cache import LayerCache, memory_labels_of_new_rows, restores_cache_on_error
from relgraph.nn.inputs import Names, check_without_tables
from relgraph.nn.layer_parts import Activation, Layer, check_input, check_place, check_sizes, make_attention, residual
from relgraph.nn.masks import check_order
from relgraph.nn.memory import labels_of_memory
from relgraph.nn.tables import NumLabels, RelationTables

# What the layer calls the arguments of its two attentions.
_OF_TARGET = ("labels", "tgt_key_padding_mask", "tgt_mask")
_NAMES = Names("tgt", "tgt", "tgt", *_OF_TARGET, is_causal="tgt_is_causal", width="d_model")
_OF_MEMORY = ("memory_labels", "memory_key_padding_mask", "memory_mask")
_MEMORY_NAMES = Names("tgt", "memory", "memory", *_OF_MEMORY, width="d_model")


class RelationDecoderLayer(Layer):
    """Self-attention over a labeled graph, attention to a memory, and a feed-forward network.

    Each step has a residual sum and a norm, as in :class:`~relgraph.RelationEncoderLayer`. Row i of the target is the
    query. The keys are the target's rows in the first step and the memory's rows in the second, which may have its own
    labels and tables. The argument order, the submodules' names and the order of computation are those of
    :class:`~torch.nn.TransformerDecoderLayer`, so its state loads (with ``strict=False``, because it has no tables).

    Source: Vaswani et al. 2017, section 3.1, with the self-attention of Shaw, Uszkoreit, Vaswani 2018; conventions of
    :class:`~torch.nn.TransformerDecoderLayer`.

    Args:
        d_model: E, the width of inputs, memory and outputs; this and all further arguments as in
            :class:`~relgraph.RelationEncoderLayer`.
        labeler: the labeler of the self-attention. The attention to the memory has no labels, unless it is passed in.
        num_labels: R of the self-attention, if there is no labeler.
        tables: kinds of tables of the self-attention, or :class:`~relgraph.RelationTables`; ``()`` for no labels.
        self_attention: the self-attention, a :class:`~relgraph.RelationAttention` with this width and number of heads,
            for all options that it has; then ``labeler``, ``num_labels`` and ``tables`` are its own.
        cross_attention: the attention from target (query) to memory (key), likewise. Its labeler, if it has one, labels
            n rows of the target, after ``past`` others in a cache, against M rows of the memory when a call gives no
            ``memory_labels``: ``labeler(n, M, q_offset=past)``.

    Raises:
        ValueError: as in :class:`~relgraph.RelationEncoderLayer`.

    Example:
        >>> layer = rg.RelationDecoderLayer(16, 4, 32, labeler=rg.ClippedDistance(2))
        >>> layer(torch.randn(2, 5, 16), torch.randn(2, 7, 16)).shape
        torch.Size([2, 5, 16])
    """

    _plain_kind = nn.TransformerDecoderLayer

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
        self_attention: RelationAttention | None = None,
        cross_attention: RelationAttention | None = None,
    ) -> None:
        super().__init__()
        self._begin(batch_first, norm_first, bias)
        given = cross_attention if self_attention is None else self_attention
        check_sizes(d_model, nhead, dim_feedforward, layer_norm_eps, given)
        factory = check_place(device, dtype, self_attention, cross_attention)
        own = {"labeler": labeler, "num_labels": num_labels, "tables": tables}
        others = {"dropout": dropout, "bias": bias, **factory}
        sizes = (d_model, nhead)
        self.self_attn = make_attention("self_attention", self_attention, sizes, own, others, _NAMES)
        self.multihead_attn = make_attention("cross_attention", cross_attention, sizes, {}, others, _MEMORY_NAMES)
        for name, one in (("self_attention", self.self_attn), ("cross_attention", self.multihead_attn)):
            if one.edge_maps is not None or one.edge_states is not None:
                raise NotImplementedError(f"{name} must have no edge_dim: features of edges are for encoder layers")
        self._make_steps(3, (d_model, dim_feedforward), dropout, activation, layer_norm_eps, bias, factory)

    @restores_cache_on_error
    def forward(
        self,
        tgt: Tensor,
        memory: Tensor | None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = True,
        memory_is_causal: bool = False,
        *,
        labels: LabelsLike | Graph = None,
        memory_labels: LabelsLike = None,
        cache: LayerCache | None = None,
        bank_features: Any = None,
    ) -> Tensor:
        """Attend to the target, then to the memory, then feed forward.

        As in :class:`~torch.nn.TransformerDecoderLayer`, True in a mask blocks, and floats are added to the scores.

        Args:
            tgt: ``[B, N, E]``, ``[N, E]``, or packed ``[T, E]`` when the labels are packed.
            memory: ``[B, M, E]``, ``[M, E]``, or packed ``[S, E]`` when the memory labels are packed. May be None once
                a cache holds its projections.
            tgt_mask: which pairs of the target are blocked, ``[N, N]``, ``[B·H, N, N]`` or ``[B, H, N, N]``.
            memory_mask: which pairs of target and memory are blocked, ``[N, M]``, ``[B·H, N, M]`` or ``[B, H, N, M]``;
                for a packed memory ``[B·N, S]``.
            tgt_key_padding_mask: ``[B, N]``, True for padding; with a cache for the new rows only.
            memory_key_padding_mask: ``[B, M]``, True for padding; a cache remembers it. For a packed memory ``[S]``.
            tgt_is_causal: if True, no row sees a later row; combines with the masks. It is True by default, unlike that
                of torch's layer, which alone would see the future. A bool ``tgt_mask`` that lets a row see a later one
                needs False (this is checked in eager mode on a CPU only).
            memory_is_causal: if True, row i of the target sees only rows j ≤ i of the memory.
            labels: labels of the target's pairs, as in :meth:`~relgraph.RelationAttention.forward`.
            memory_labels: labels of the pairs of target (query) and memory (key), Labels or integers ``[N, M]`` or
                ``[B, N, M]``. Packed labels are for a packed memory: a target ``[B, N, E]`` counts as ``B · N`` rows,
                so ``q_ptr`` is ``[0, N, 2N, ...]`` if each batch row has its own graph. With a cache, Labels of the
                whole target are cut to the new rows.
            cache: a :class:`~relgraph.nn.LayerCache` with keys and values of earlier rows and of the memory; a call
                that raises leaves it unchanged.
            bank_features: the input of the banks of the self-attention's tables.

        Returns:
            The shape of ``tgt``, ``[B, N, E]``.

        Raises:
            ValueError: what does not fit, as in :meth:`~relgraph.RelationEncoderLayer.forward`; a ``tgt_mask`` that is
                not causal without ``tgt_is_causal=False``; no memory before a cache holds it.
            NotImplementedError: a cache with packed labels, or a call that the implementation does not support.

        Example:
            >>> towards_memory = rg.RelationAttention(16, 4, num_labels=3)
            >>> layer = rg.RelationDecoderLayer(16, 4, 32, num_labels=5, cross_attention=towards_memory)
            >>> tgt, memory = torch.randn(2, 4, 16), torch.randn(2, 6, 16)
            >>> labels, memory_labels = rg.ClippedDistance(2)(4), rg.ClippedDistance(1)(4, 6, q_offset=0)
            >>> layer(tgt, memory, labels=labels, memory_labels=memory_labels).shape
            torch.Size([2, 4, 16])
        """
        if cache is not None and not isinstance(cache, LayerCache):
            raise TypeError(f"cache must be a LayerCache or None, got {type(cache).__name__}")
        check.boolean("tgt_is_causal", tgt_is_causal)
        check.boolean("memory_is_causal", memory_is_causal)
        check_input("tgt", tgt, self)
        past = 0 if cache is None else len(cache)
        if tgt_is_causal and tgt_mask is not None:
            check_order("tgt_mask", tgt_mask, tgt.shape[-2], past)
        if cache is not None:
            memory_labels = memory_labels_of_new_rows(memory_labels, past, tgt.shape[-2])
        if self.multihead_attn.tables is None and isinstance(memory_labels, Labels):
            remedy = f"give the layer a cross_attention with num_labels={memory_labels.num_labels}"
            check_without_tables("memory_labels", memory_labels, remedy)
        own, towards_memory = (None, None) if cache is None else (cache.self_attn, cache.multihead_attn)
        if memory is None and not towards_memory:
            raise ValueError("memory must be given as long as no cache holds it, got None")
        if memory_labels is None and self.multihead_attn.labeler is not None:
            memory_labels = labels_of_memory(self.multihead_attn.labeler, tgt, memory, cache)
        joined = isinstance(memory_labels, Labels) and memory_labels.packed and tgt.dim() == 3

        def attend_self(x: Tensor) -> Tensor:
            z = self.self_attn(
                x, labels=labels, attn_mask=tgt_mask, key_padding_mask=tgt_key_padding_mask, is_causal=tgt_is_causal,
                cache=own, bank_features=bank_features,
            )  # fmt: skip
            return self.dropout1(z)

        def attend_memory(x: Tensor) -> Tensor:
            z = self.multihead_attn(
                x.flatten(0, 1) if joined else x, memory, labels=memory_labels, attn_mask=memory_mask,
                key_padding_mask=memory_key_padding_mask, is_causal=memory_is_causal,
                q_offset=past if memory_is_causal else None, cache=towards_memory,
            )  # fmt: skip
            return self.dropout2(z.unflatten(0, x.shape[:2]) if joined else z)  # [B, N, E] from [B · N, E]

        def feed_forward(x: Tensor) -> Tensor:
            return self.dropout3(self._feed_forward(x))

        steps = ((self.norm1, attend_self), (self.norm2, attend_memory), (self.norm3, feed_forward))
        return residual(tgt, self.norm_first, *steps)
