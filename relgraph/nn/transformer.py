"""The encoder-decoder of Vaswani et al. with the relations of Shaw et al.: sequence or graph in, sequence out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.call import LabelsLike, check_labels_type
from relgraph.graphs import Graph
from relgraph.labelers import ClippedDistance
from relgraph.labels import Labels
from relgraph.nn.attention import RelationAttention
from relgraph.nn.cache import KVCache, LayerCache, StackCache, restores_cache_on_error
from relgraph.nn.decoder_layer import RelationDecoderLayer
from relgraph.nn.encoder_layer import RelationEncoderLayer
from relgraph.nn.inputs import check_without_tables
from relgraph.nn.layer_parts import Activation, check_labeler, explains_arguments, make_labels, rename_in_errors
from relgraph.nn.memory import (
    attend_by_borders,
    check_source,
    is_packed,
    made_labels,
    within_graphs,
)
from relgraph.nn.positions import LearnedPositions, absolute_positions, check_sides, first_position
from relgraph.nn.stack import RelationDecoder, RelationEncoder, check_cache, check_depth
from relgraph.nn.table import check_label_names
from relgraph.nn.tables import RelationTables
from relgraph.score import Score


class RelationTransformer(nn.Module):
    """An encoder and a decoder over embedded rows; labels are clipped distances by default, or come from labelers.

    The label of query i and key j is clip(j - i, -k, k) in both self-attentions, unless that side has a labeler:
    ``encoder_labeler`` or ``decoder_labeler``. The attention from target (query) to memory (key) has labels only with a
    ``memory_labeler``. The source may be a packed batch of graphs, ``[T, E]``, with a target ``[B, N, E]`` of one row
    per graph.

    Submodules and masks are those of :class:`~torch.nn.Transformer`, so its state loads (with ``strict=False``, because
    it has no tables). Two things differ: the batch comes first, and the target is causal unless
    ``tgt_is_causal=False``. Dropout also acts on the embedded inputs, after absolute positions are added. Positions
    count from each sequence's first token after the padding on its left, so that padding changes nothing; in packed
    graphs they count from the first node of each graph.

    Source: Vaswani et al. 2017; Shaw, Uszkoreit, Vaswani 2018, section 3.2, with separate tables in each self-attention
    of encoder and decoder, and none towards the memory, and section 3.1 for labels of any kind; conventions of
    :class:`~torch.nn.Transformer`.

    Args:
        d_model: E, the width of the embedded sequences; this and all further arguments as in
            :class:`~relgraph.RelationEncoderLayer`.
        num_encoder_layers: depth of the encoder, from 1 to 4096.
        num_decoder_layers: depth of the decoder, from 1 to 4096.
        positions: ``"relative"`` (tables for clipped distances), ``"sinusoidal"`` or ``"learned"`` (added to the
            inputs), ``"both"`` (relative and sinusoidal) or ``"none"``. A pair is for source and target:
            ``("none", "sinusoidal")``.
        max_distance: k; distances beyond ±k count as ±k. This and the options of tables need labels.
        tables: kinds of tables in both self-attentions, or :class:`~relgraph.RelationTables`, which all layers then
            share.
        score: the score of both self-attentions; if it is a module, each layer gets a copy.
        content_bias: applies to both self-attentions.
        position_bias: applies to the self-attentions that have labels.
        value_map: applies to the self-attentions that have labels.
        memory_score: the score of the attention to the memory.
        max_len: how many learned positions there are, for each side that has them.
        encoder_labeler: makes the encoder's labels in place of clipped distances, as a layer's ``labeler`` does.
        decoder_labeler: the same for the target. A labeler that does not label lengths needs ``tgt_labels`` in each
            call.
        memory_labeler: labels target rows (queries) against memory rows (keys), unless a call gives ``memory_labels``.
            For n rows after ``past`` others and M rows of memory, the model calls ``labeler(n, M, q_offset=past)``.
        memory_tables: kinds of tables in the attention to the memory, or :class:`~relgraph.RelationTables`.

    Raises:
        TypeError: an argument of the wrong kind, such as a labeler without ``num_labels`` and ``names``.
        ValueError: unknown positions, sizes below 1, more than 4096 layers, a negative ``max_distance`` or one for more
            than 2²⁰ labels, learned positions without ``max_len``, ``max_len`` without them, or errors of the layers.

    Example:
        >>> model = rg.RelationTransformer(16, 4, 2, 2, 32, max_distance=4).eval()
        >>> src, tgt = torch.randn(2, 7, 16), torch.randn(2, 5, 16)
        >>> model(src, tgt).shape
        torch.Size([2, 5, 16])
        >>> memory, cache = model.encode(src), model.new_cache()
        >>> steps = [model.decode(tgt[:, i : i + 1], memory, cache=cache) for i in range(5)]
        >>> torch.allclose(torch.cat(steps, 1), model(src, tgt), atol=1e-5)
        True
        >>> graphs = rg.Graph(torch.tensor([[0, 3], [1, 2]]), 5, ptr=torch.tensor([0, 2, 5]))       # of 2 and 3 nodes
        >>> model = rg.RelationTransformer(16, 4, 2, 2, 32, encoder_labeler=rg.ShortestPath(2))
        >>> model(torch.randn(5, 16), tgt, src_labels=graphs).shape
        torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
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
        positions: str | tuple[str, str] = "relative",
        max_distance: int = 16,
        tables: Sequence[str] | RelationTables = ("key", "value"),
        per_head: bool | Sequence[str] = False,
        tie_tables: bool = False,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        scale: float | None = None,
        attention_bias: bool | Sequence[str] | None = None,
        score: Score | None = None,
        content_bias: bool = False,
        position_bias: bool = False,
        value_map: bool | int = False,
        memory_score: Score | None = None,
        impl: str | None = None,
        max_len: int | None = None,
        encoder_labeler: Callable[..., Any] | None = None,
        decoder_labeler: Callable[..., Any] | None = None,
        memory_labeler: Callable[..., Any] | None = None,
        memory_tables: Sequence[str] | RelationTables = ("key", "value"),
    ) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(check_label_names)
        sides = check_sides(positions)
        for name, depth in (("num_encoder_layers", num_encoder_layers), ("num_decoder_layers", num_decoder_layers)):
            check_depth(name, depth)
        distances = None
        if any(side in ("relative", "both") for side in sides):
            most = (check.MOST_LABELS - 1) // 2
            distances = ClippedDistance(check.integer("max_distance", max_distance, minimum=0, maximum=most))
        shared: tuple[Any, ...] = (
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias, device,
            dtype,
        )  # fmt: skip
        options: dict[str, Any] = {
            "num_kv_heads": num_kv_heads, "head_dim": head_dim, "scale": scale, "attention_bias": attention_bias,
            "score": score, "content_bias": content_bias, "impl": impl,
        }  # fmt: skip
        of_tables: dict[str, Any] = {"tables": tables, "per_head": per_head, "tie_tables": tie_tables}
        needs_labels = {"value_map": value_map, "position_bias": position_bias}
        if distances is None and encoder_labeler is None and decoder_labeler is None:
            options |= needs_labels  # refused by the layers, as they have no labels
        else:
            of_tables |= needs_labels
        num_memory_labels, memory_names = rename_in_errors(
            {"labeler": "memory_labeler"}, check_labeler, memory_labeler, None, None, memory_tables
        )
        towards_memory = {
            "num_memory_labels": num_memory_labels, "memory_tables": memory_tables, "memory_names": memory_names,
            "memory_score": memory_score,
        }  # fmt: skip

        def make(kind: Callable[..., nn.Module], side: str, name: str, labeler: Any, **more: Any) -> Any:
            """A layer of one side, with tables if that side has labels; errors call its labeler ``name``."""
            names = {"labeler": name}
            if labeler is not None:
                names["num_labels"] = f"{name}.num_labels"
            elif side in ("relative", "both"):
                labeler = distances
            if labeler is not None and getattr(labeler, "num_labels", None) != 0:
                more |= of_tables
            return rename_in_errors(names, kind, *shared, labeler=labeler, **more, **options)

        layers = (
            make(RelationEncoderLayer, sides[0], "encoder_labeler", encoder_labeler),
            make(RelationDecoderLayer, sides[1], "decoder_labeler", decoder_labeler, **towards_memory),
        )
        norms = [nn.LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype) for _ in layers]
        self.encoder = RelationEncoder(layers[0], num_encoder_layers, norms[0])
        self.decoder = RelationDecoder(layers[1], num_decoder_layers, norms[1])
        if max_len is not None and "learned" not in sides:
            raise ValueError(f"max_len must be None without learned positions, got {shown(max_len)}")
        self.positions, self.tgt_positions = (
            absolute_positions(side, d_model, max_len, device, dtype) for side in sides
        )
        self.memory_labeler = memory_labeler
        self.dropout = nn.Dropout(dropout)
        self.d_model, self.nhead = d_model, nhead
        self.reset_parameters()

    @classmethod
    def base(cls, **overrides: Any) -> Self:
        """Make the smaller model of Shaw et al. 2018, section 4.1: tables for each layer and head, k = 16.

        E = 512, 8 heads, 6 + 6 layers, feed-forward width 1024, dropout 0.1.

        Args:
            overrides: other arguments of the constructor, or other values.

        Returns:
            The model.

        Example:
            >>> model = rg.RelationTransformer.base(num_encoder_layers=1, num_decoder_layers=1)
            >>> model.encoder.layers[0].labeler
            ClippedDistance(16)
        """
        preset: dict[str, Any] = {
            "d_model": 512, "nhead": 8, "num_encoder_layers": 6, "num_decoder_layers": 6, "dim_feedforward": 1024,
            "dropout": 0.1, "max_distance": 16, "per_head": True,
        }  # fmt: skip
        return cls(**{**preset, **overrides})

    @classmethod
    def big(cls, **overrides: Any) -> Self:
        """Make the larger model of Shaw et al. 2018, section 4.1: tables for each layer, shared by its heads, k = 8.

        E = 1024, 16 heads, 6 + 6 layers, feed-forward width 4096, dropout 0.3, as for English-German.

        Args:
            overrides: other arguments of the constructor, or other values.

        Returns:
            The model.
        """
        preset: dict[str, Any] = {
            "d_model": 1024, "nhead": 16, "num_encoder_layers": 6, "num_decoder_layers": 6, "dim_feedforward": 4096,
            "dropout": 0.3, "max_distance": 8, "per_head": False,
        }  # fmt: skip
        return cls(**{**preset, **overrides})

    def reset_parameters(self) -> None:
        """Initialize all parameters again, apart from tables and scores that were passed in.

        Matrices are Xavier-uniform, as in :class:`~torch.nn.Transformer`; for tables see
        :class:`~relgraph.nn.LabelTable`, for learned positions :class:`~relgraph.nn.LearnedPositions`. Maps of values
        are the identity, biases of queries zero.
        """
        attentions = [module for module in self.modules() if isinstance(module, RelationAttention)]
        parts = [part for module in attentions for part in (module.tables, module.score, module.value_map)]
        learned = [module for module in (self.positions, self.tgt_positions) if isinstance(module, LearnedPositions)]
        kept = {id(p) for part in (*parts, *learned) if isinstance(part, nn.Module) for p in part.parameters()}
        kept |= {id(p) for module in attentions for p in (module.content_bias, module.position_bias)}
        for parameter in self.parameters():
            if parameter.dim() > 1 and id(parameter) not in kept:
                nn.init.xavier_uniform_(parameter)
        for module in learned:
            module.reset_parameters()
        for module in attentions:
            for bias in (module.content_bias, module.position_bias):
                if bias is not None:
                    nn.init.zeros_(bias)
            if module.tables is not None and not module.tables_given:
                module.tables.reset_parameters()
            if module.value_map is not None:
                module.value_map.reset_parameters()

    def extra_repr(self) -> str:
        """The width, the heads and the labeler of the attention to the memory."""
        labeler = "" if self.memory_labeler is None else f", memory_labeler={shown(self.memory_labeler)}"
        return f"{self.d_model}, nhead={self.nhead}{labeler}"

    def new_cache(self, max_len: int | None = None) -> StackCache:
        """Make empty caches for :meth:`~relgraph.RelationTransformer.decode`.

        Args:
            max_len: how many target rows there may be; without it the caches grow.

        Returns:
            A :class:`~relgraph.nn.StackCache` of one :class:`~relgraph.nn.LayerCache` per decoder layer.
        """
        return self.decoder.new_cache(max_len)

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool = False,
        tgt_is_causal: bool = True,
        memory_is_causal: bool = False,
        *,
        src_labels: Labels | Graph | None = None,
        tgt_labels: Labels | Graph | None = None,
        memory_labels: LabelsLike = None,
    ) -> Tensor:
        """Encode the source and decode the target.

        As in :class:`~torch.nn.Transformer`, True in a mask blocks, and floats are added to the scores.

        Args:
            src: ``[B, M, E]`` or ``[M, E]``, embedded; or packed graphs ``[T, E]`` when ``src_labels`` are packed.
            tgt: ``[B, N, E]`` or ``[N, E]``, embedded; for packed graphs ``[B, N, E]``, row b for graph b; for one
                source ``[M, E]`` also ``[1, N, E]``.
            src_mask: which pairs of the source are blocked, ``[M, M]``, ``[B·H, M, M]`` or ``[B, H, M, M]``.
            tgt_mask: which pairs of the target are blocked, ``[N, N]`` and so on.
            memory_mask: which pairs of target and source are blocked, ``[N, M]`` and so on; for packed graphs M is
                the size of the largest graph.
            src_key_padding_mask: ``[B, M]``, True for padding; ``[T]`` for packed graphs, to hide nodes.
            tgt_key_padding_mask: ``[B, N]``, True for padding.
            memory_key_padding_mask: ``[B, M]``, True for padding; ``src_key_padding_mask`` does not apply to the
                memory. For packed graphs ``[T]``, for their nodes only.
            src_is_causal: if True, no source row sees a later row.
            tgt_is_causal: as in :meth:`~relgraph.RelationDecoderLayer.forward`.
            memory_is_causal: if True, target row i sees only memory rows j ≤ i.
            src_labels: labels of the source's pairs, :class:`~relgraph.Labels`, or a :class:`~relgraph.Graph` for
                ``encoder_labeler``. Packed labels, and a graph with ``ptr``, are for a packed source.
            tgt_labels: labels of the target's pairs, in the same way, but never packed.
            memory_labels: labels of the pairs of target (query) and memory (key), Labels or integers ``[N, M]`` or
                ``[B, N, M]``; for packed graphs M is the size of the largest graph. Packed labels of ``B · N`` queries,
                with ``q_ptr`` ``[0, N, 2N, ...]``, need no padding.

        Returns:
            The shape of ``tgt``, ``[B, N, E]``.

        Raises:
            TypeError: an argument of the wrong kind; no labels for a side whose labeler does not label lengths.
            ValueError: shapes, dtypes, devices or values that do not fit; labels of other lengths, or with ids for a
                side without tables; a packed source without borders, or not one graph per row of ``tgt``.

        Example:
            >>> model = rg.RelationTransformer(16, 4, 1, 1, 32, max_distance=4)
            >>> pad = torch.tensor([[False] * 7, [True] * 3 + [False] * 4])         # True for padding
            >>> src, tgt = torch.randn(2, 7, 16), torch.randn(2, 5, 16)
            >>> model(src, tgt, src_key_padding_mask=pad, memory_key_padding_mask=pad).shape
            torch.Size([2, 5, 16])
        """
        src_labels = self._labels("src", self._check_rows("src", src), src_labels, None)
        ptr = check_source(src, self._check_rows("tgt", tgt), src_labels, memory_labels)
        memory = self.encode(src, src_mask, src_key_padding_mask, src_is_causal, src_labels=src_labels)
        return self.decode(
            tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask, tgt_is_causal,
            memory_is_causal, tgt_labels=tgt_labels, memory_labels=memory_labels,
            memory_ptr=None if is_packed(memory_labels) else ptr,
        )  # fmt: skip

    def encode(  # noqa: D417
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        src_is_causal: bool = False,
        *,
        src_labels: Labels | Graph | None = None,
    ) -> Tensor:
        """Encode a source; the output is the decoder's memory.

        Args:
            src: ``[B, M, E]``; this and all further arguments as in :meth:`~relgraph.RelationTransformer.forward`.

        Returns:
            The memory, ``[B, M, E]`` or ``[M, E]``; of packed graphs ``[T, E]``.

        Raises:
            TypeError: an argument of the wrong kind; no labels for an ``encoder_labeler`` that does not label lengths.
            ValueError: shapes, dtypes, devices or values that do not fit.
        """
        labels = self._labels("src", self._check_rows("src", src), src_labels, None)
        ptr = labels.k_ptr if isinstance(labels, Labels) and src.dim() == 2 else None
        x = self._with_positions("src", src, src_key_padding_mask, self.positions, ptr=ptr)
        names = {"mask": "src_mask", "is_causal": "src_is_causal", "labels": "src_labels"}
        return rename_in_errors(names, self.encoder, x, src_mask, src_key_padding_mask, src_is_causal, labels=labels)

    @explains_arguments
    @restores_cache_on_error
    def decode(  # noqa: D417
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
        tgt_labels: Labels | Graph | None = None,
        memory_labels: LabelsLike = None,
        memory_ptr: Tensor | None = None,
        cache: StackCache | None = None,
    ) -> Tensor:
        """Decode ``tgt``, the rows after those in the ``cache``.

        Args:
            tgt: ``[B, N, E]`` or ``[N, E]``, with a cache the new rows only; this and all further arguments as in
                :meth:`~relgraph.RelationTransformer.forward`.
            memory: ``[B, M, E]``, or packed ``[T, E]``, from :meth:`~relgraph.RelationTransformer.encode`; may be None
                once a cache holds it.
            tgt_mask: which pairs of the target are blocked, ``[N, N]`` and so on; with a cache for all keys, ``[N,
                len(cache) + N]``.
            tgt_key_padding_mask: ``[B, N]``, True for padding; with a cache for the new rows only, as the cache
                remembers it.
            memory_key_padding_mask: ``[B, M]``, True for padding; a cache remembers it. For a packed memory ``[T]``.
            tgt_labels: labels of the target's pairs; with a cache, of the new rows and all keys, ``[N, len(cache) +
                N]``.
            memory_labels: labels of the target's rows (with a cache, the new rows) and the memory's rows. With a cache
                they must not be packed.
            memory_ptr: ``[B + 1]``, integer, the borders of the graphs of a packed memory, ``graph.ptr``. Leave it out
                with packed ``memory_labels``, which hold the borders. A cache pads the memory; without a cache nothing
                is padded, unless there is a ``memory_mask``, a ``memory_labeler``, or ``memory_labels`` that are not
                packed.
            cache: from :meth:`~relgraph.RelationTransformer.new_cache`; a call that raises leaves it unchanged.

        Returns:
            The shape of ``tgt``, ``[B, N, E]``.

        Raises:
            TypeError: an argument of the wrong kind, such as a cache that is not a StackCache; no labels for a labeler
                that does not label lengths.
            ValueError: shapes, dtypes, devices or values that do not fit; no memory before a cache holds it; a packed
                memory without borders, or not one graph per row of ``tgt``.
            NotImplementedError: a cache with packed ``memory_labels``, or a call that the implementation does not
                support.

        Example:
            >>> graphs = rg.Graph(torch.tensor([[0, 3], [1, 2]]), 5, ptr=torch.tensor([0, 2, 5]))   # of 2 and 3 nodes
            >>> model = rg.RelationTransformer(16, 4, 1, 1, 32, encoder_labeler=rg.ShortestPath(2)).eval()
            >>> nodes, tgt = torch.randn(5, 16), torch.randn(2, 4, 16)
            >>> memory, cache = model.encode(nodes, src_labels=graphs), model.new_cache()
            >>> first = model.decode(tgt[:, :3], memory, memory_ptr=graphs.ptr, cache=cache)
            >>> rest = model.decode(tgt[:, 3:], None, cache=cache)
            >>> torch.allclose(torch.cat([first, rest], 1), model(nodes, tgt, src_labels=graphs), atol=1e-5)
            True
        """
        first: LayerCache | None = check_cache(cache, self.decoder.num_layers, LayerCache)[0]
        labels = self._labels("tgt", self._check_rows("tgt", tgt), tgt_labels, cache)
        if isinstance(labels, Labels) and labels.packed:
            raise ValueError(
                "tgt_labels must not be packed, as targets are [B, N, E]; rg.labels.padded(labels, N) pads them, "
                f"got {labels!r}"
            )
        if memory_ptr is not None:
            given = (memory_mask, memory_labels, self.memory_labeler, cache)
            memory, memory_key_padding_mask, memory_labels = attend_by_borders(
                tgt, memory, memory_ptr, memory_key_padding_mask, memory_labels, pads=any(x is not None for x in given)
            )
        elif isinstance(memory, Tensor) and (memory.dim(), tgt.dim()) == (2, 3) and not is_packed(memory_labels):
            if tgt.shape[0] == 1:  # a batch of one
                padding = memory_key_padding_mask
                memory, padding = memory[None], padding[None] if isinstance(padding, Tensor) else padding
                return self.decode(
                    tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, padding, tgt_is_causal, memory_is_causal,
                    tgt_labels=labels, memory_labels=memory_labels, cache=cache,
                )  # fmt: skip
            raise ValueError(
                f"memory_ptr must be the borders of {tgt.shape[0]} graphs, as memory has shape {list(memory.shape)} "
                f"and tgt {list(tgt.shape)}, got None"
            )
        layer: Any = self.decoder.layers[0]
        if isinstance(memory_labels, Labels) and layer.multihead_attn.tables is None:
            check_without_tables("memory_labels", memory_labels, "give the model an argument memory_labeler")
        if memory_labels is None and self.memory_labeler is not None:
            memory_labels = made_labels(self.memory_labeler, tgt, memory, first)
        x = self._with_positions(
            "tgt", tgt, tgt_key_padding_mask, self.tgt_positions, None if first is None else first.self_attn
        )
        return rename_in_errors(
            {"labels": "tgt_labels"}, self.decoder, x, memory, tgt_mask, memory_mask, tgt_key_padding_mask,
            memory_key_padding_mask, tgt_is_causal, memory_is_causal, labels=labels, memory_labels=memory_labels,
            cache=cache,
        )  # fmt: skip

    def _check_rows(self, name: str, x: Any) -> Tensor:
        if check.floating(name, x).dim() not in (2, 3) or x.shape[-1] != self.d_model:
            raise ValueError(f"{name} must have shape [B, N, E] or [N, E] with E = {self.d_model}, got {list(x.shape)}")
        return x

    def _labels(self, name: str, x: Tensor, labels: Any, cache: StackCache | None) -> Any:
        """The labels of one side, made by its labeler unless they are given; refused if its layers have no tables."""
        side, stack = ("encoder", self.encoder) if name == "src" else ("decoder", self.decoder)
        layer: Any = stack.layers[0]
        if isinstance(labels, Labels) and layer.self_attn.tables is None:
            check_without_tables(f"{name}_labels", labels, f"give the model an argument {side}_labeler")
        if labels is not None:
            names = {"labels": f"{name}_labels"}
            labels = rename_in_errors(names, make_labels, layer.labeler, labels, name, x, cache)
            rename_in_errors(names, check_labels_type, labels)
            return labels
        return make_labels(layer.labeler, None, name, x, cache, (f"{name}_labels", f"{side}_labeler"))

    def _with_positions(
        self,
        name: str,
        x: Tensor,
        key_padding_mask: Any,
        positions: Any,
        cache: KVCache | None = None,
        ptr: Tensor | None = None,
    ) -> Tensor:
        """``x`` with its absolute positions, counted within each graph if there are borders; then dropout."""
        names = {"x": name, "key_padding_mask": f"{name}_key_padding_mask"}
        if positions is not None and ptr is not None:
            x = rename_in_errors(names, positions._add, x, within_graphs(ptr, x.shape[0]))
        elif positions is not None:
            x = rename_in_errors(
                names, positions, x, rename_in_errors(names, first_position, x, key_padding_mask, cache)
            )
        return self.dropout(x)
