"""The encoder-decoder of Vaswani et al. with the relations of Shaw et al.: sequence or graph in, sequence out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.call import LabelsLike, check_labels_type
from relgraph.graphs import Graph
from relgraph.labelers import ClippedDistance, Labeler
from relgraph.labels import Labels
from relgraph.nn.attention import RelationAttention
from relgraph.nn.cache import LayerCache, StackCache, restores_cache_on_error
from relgraph.nn.decoder_layer import RelationDecoderLayer
from relgraph.nn.encoder_layer import RelationEncoderLayer
from relgraph.nn.inputs import check_without_tables
from relgraph.nn.layer_parts import Activation, check_place
from relgraph.nn.made_labels import check_labeler, make_labels
from relgraph.nn.memory import attend_by_borders, check_source, is_packed, within_graphs
from relgraph.nn.plain import check_plain
from relgraph.nn.positions import LearnedPositions, check_sides, first_position
from relgraph.nn.stack import RelationDecoder, RelationEncoder, check_cache, check_depth
from relgraph.nn.table import check_label_names
from relgraph.nn.tables import RelationTables

_DISTANCES = ClippedDistance(16)
_NEAR = ClippedDistance(8)
"""Shaw et al. 2018 clip distances at 16 in their base model, and at 8 in the big one."""

_Either = TypeVar("_Either", RelationEncoder, RelationDecoder)


class RelationTransformer(nn.Module):
    """An encoder and a decoder over embedded rows; labels are clipped distances by default, or come from a labeler.

    Both self-attentions have the labels of ``labeler``, or the target those of ``target_labeler``. The attention
    from target (query) to memory (key) has labels only with a ``memory_labeler``. The source may be a packed batch of
    graphs, ``[T, E]``, with a target ``[B, N, E]`` of one row per graph.

    Submodules and masks are those of :class:`~torch.nn.Transformer`, so its state loads (with ``strict=False``, because
    it has no tables). But the batch comes first, the target is causal unless ``tgt_is_causal=False``, and dropout also
    acts on the embedded inputs, after absolute positions are added. Positions count from each sequence's first token
    after the padding on its left, in packed graphs from the first node of each graph.

    Source: Vaswani et al. 2017; Shaw, Uszkoreit, Vaswani 2018, sections 3.1 and 3.2; conventions of
    :class:`~torch.nn.Transformer`.

    Args:
        d_model: E, the width of the embedded sequences.
        nhead: H; divides E.
        num_encoder_layers: depth of the encoder, from 1 to 4096.
        num_decoder_layers: depth of the decoder, from 1 to 4096.
        dim_feedforward: width of the feed-forward networks.
        dropout: probability in ``[0, 1)`` of dropout in training.
        activation: ``"relu"``, ``"gelu"``, ``"silu"`` or a function.
        custom_encoder: a :class:`~relgraph.RelationEncoder` of this width, which keeps its own options and values.
            Features of edges, ``src_edge_attr``, need one whose attentions have ``edge_dim``.
        custom_decoder: a :class:`~relgraph.RelationDecoder`, likewise.
        labeler: makes the labels of source and target, as a layer's ``labeler`` does; None for no labels.
        memory_labeler: labels target rows (queries) against memory rows (keys), unless a call gives ``memory_labels``.
            For n rows after ``past`` others and M rows of memory, the model calls ``labeler(n, M, q_offset=past)``.
        target_labeler: makes the target's labels, if not ``labeler`` does. A labeler that does not label lengths needs
            ``tgt_labels`` in each call.
        norm_first: whether norms come before each step, not after each sum.
        positions: absolute positions, added to the inputs: ``"sinusoidal"``, a module such as
            :class:`~relgraph.nn.LearnedPositions`, or None. A pair is for source and target: ``(None,
            "sinusoidal")``; one module for both shares its parameters.
        device: device of the parameters.
        dtype: floating type of the parameters.

    Raises:
        ValueError: unknown positions, bad sizes, or a labeler of an encoder or decoder that was passed in.

    Example:
        >>> model = rg.RelationTransformer(16, 4, 2, 2, 32, labeler=rg.ClippedDistance(4)).eval()
        >>> src, tgt = torch.randn(2, 7, 16), torch.randn(2, 5, 16)
        >>> model(src, tgt).shape
        torch.Size([2, 5, 16])
        >>> memory, cache = model.encode(src), model.new_cache()
        >>> steps = [model.decode(tgt[:, i : i + 1], memory, cache=cache) for i in range(5)]
        >>> torch.allclose(torch.cat(steps, 1), model(src, tgt), atol=1e-5)
        True
        >>> graphs = rg.Graph(torch.tensor([[0, 3], [1, 2]]), 5, ptr=torch.tensor([0, 2, 5]))       # of 2 and 3 nodes
        >>> labelers = {"labeler": rg.ShortestPath(2), "target_labeler": rg.ClippedDistance(4)}
        >>> model = rg.RelationTransformer(16, 4, 2, 2, 32, **labelers)
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
        custom_encoder: RelationEncoder | None = None,
        custom_decoder: RelationDecoder | None = None,
        *,
        labeler: Callable[..., Any] | None = _DISTANCES,
        memory_labeler: Callable[..., Any] | None = None,
        target_labeler: Callable[..., Any] | None = None,
        norm_first: bool = False,
        positions: Any = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(check_label_names)
        check.integer("d_model", d_model, minimum=1)
        check.integer("nhead", nhead, minimum=1)
        place = check_place(device, dtype, *(_attention_of(stack) for stack in (custom_encoder, custom_decoder)))
        rest: dict[str, Any] = {"dim_feedforward": dim_feedforward, "dropout": dropout, "activation": activation}
        rest |= {"norm_first": norm_first, **place}
        check_depth("num_encoder_layers", num_encoder_layers)
        check_depth("num_decoder_layers", num_decoder_layers)
        _check_labelers(labeler, target_labeler, memory_labeler)
        if custom_encoder is not None and custom_decoder is not None and labeler is not _DISTANCES:
            raise ValueError(
                f"labeler must be left out with both custom_encoder and custom_decoder, got {shown(labeler)}"
            )
        if custom_encoder is None:
            layer = RelationEncoderLayer(d_model, nhead, **_labeled_by(labeler), **rest)
            self.encoder = RelationEncoder(layer, num_encoder_layers, nn.LayerNorm(d_model, **place), fresh=False)
        else:
            self.encoder = _check_stack("custom_encoder", custom_encoder, RelationEncoder, d_model, nhead)
            if custom_encoder.layers[0].self_attn.edge_states is not None:
                raise NotImplementedError(
                    "custom_encoder must have attentions without edge_update, whose states nobody reads"
                )
        if custom_decoder is None:
            towards_memory = RelationAttention(d_model, nhead, dropout, **_labeled_by(memory_labeler), **place)
            mine = labeler if target_labeler is None else target_labeler
            layer = RelationDecoderLayer(d_model, nhead, cross_attention=towards_memory, **_labeled_by(mine), **rest)
            self.decoder = RelationDecoder(layer, num_decoder_layers, nn.LayerNorm(d_model, **place), fresh=False)
        else:
            for name, one in (("target_labeler", target_labeler), ("memory_labeler", memory_labeler)):
                if one is not None:
                    raise ValueError(
                        f"{name} must be left out with custom_decoder, which has its own, got {shown(one)}"
                    )
            self.decoder = _check_stack("custom_decoder", custom_decoder, RelationDecoder, d_model, nhead)
        self.encoder._name_arguments(labels="src_labels", attn_mask="src_mask", edge_attr="src_edge_attr")
        self.decoder._name_arguments(labels="tgt_labels")
        self.positions, self.tgt_positions = check_sides(positions, d_model)
        self.dropout = nn.Dropout(dropout)
        self.d_model, self.nhead = d_model, nhead
        sides = ((self.encoder, custom_encoder), (self.decoder, custom_decoder))
        _draw([stack for stack, given in sides if given is None])

    @classmethod
    def from_plain(  # noqa: D417
        cls,
        model: nn.Transformer,
        *,
        new_tables: Literal["zero", "random"] = "zero",
        labeler: Callable[..., Any] | None = _DISTANCES,
        memory_labeler: Callable[..., Any] | None = None,
        target_labeler: Callable[..., Any] | None = None,
    ) -> Self:
        """Make a model with copies of the weights and settings of torch's, and new tables.

        The new model adds no positions and drops nothing from its inputs, as torch's does. Its target is causal unless
        ``tgt_is_causal=False``.

        Args:
            model: a :class:`~torch.nn.Transformer` with ``batch_first=True`` and layers of torch.
            new_tables: as in :meth:`~relgraph.RelationAttention.from_plain`.
            labeler: this and all further arguments as in :class:`~relgraph.RelationTransformer`.

        Returns:
            The new model, with the device, dtype and training mode of ``model``.

        Raises:
            ValueError: a model that is not batch first, or unknown ``new_tables``.
        """
        check_plain("model", model, nn.Transformer, new_tables)
        _check_labelers(labeler, target_labeler, memory_labeler)
        target = _labeled_by(labeler if target_labeler is None else target_labeler)
        encoder = RelationEncoder.from_plain(model.encoder, new_tables=new_tables, **_labeled_by(labeler))
        if memory_labeler is not None:
            plain: Any = model.decoder.layers[0]
            target["cross_attention"] = RelationAttention.from_plain(plain.multihead_attn, labeler=memory_labeler)
        decoder = RelationDecoder.from_plain(model.decoder, new_tables=new_tables, **target)
        made = cls(model.d_model, model.nhead, dropout=0.0, custom_encoder=encoder, custom_decoder=decoder)
        return made.train(model.training)

    @classmethod
    def base(  # noqa: D417
        cls, *, labeler: Labeler | None = _DISTANCES, positions: Any = None, dropout: float = 0.1,
        num_encoder_layers: int = 6, num_decoder_layers: int = 6,
    ) -> Self:  # fmt: skip
        """Make the smaller model of Shaw et al. 2018, section 4.1: tables for each layer and head, k = 16.

        E = 512, 8 heads, 6 + 6 layers, feed-forward width 1024, dropout 0.1.

        Args:
            positions: the paper compares with ``"sinusoidal"``; this and all further arguments as in
                :class:`~relgraph.RelationTransformer`.

        Returns:
            The model.

        Example:
            >>> model = rg.RelationTransformer.base(num_encoder_layers=1, num_decoder_layers=1)
            >>> model.encoder.layers[0].labeler, model.encoder.layers[0].self_attn.tables.key.rows.shape
            (ClippedDistance(16), torch.Size([8, 33, 64]))
        """

        def attention() -> RelationAttention:
            if labeler is None:
                return RelationAttention(512, 8, dropout, tables=())
            tables = RelationTables(labeler, 64, 8, per_head=True, shared=False)
            return RelationAttention(512, 8, dropout, labeler=labeler, tables=tables)

        encoder = RelationEncoderLayer(512, 8, 1024, dropout, attention=attention())
        decoder = RelationDecoderLayer(512, 8, 1024, dropout, self_attention=attention())
        made = cls(
            512, 8, dropout=dropout, positions=positions,
            custom_encoder=RelationEncoder(encoder, num_encoder_layers, nn.LayerNorm(512), fresh=False),
            custom_decoder=RelationDecoder(decoder, num_decoder_layers, nn.LayerNorm(512), fresh=False),
        )  # fmt: skip
        made.reset_parameters()
        return made

    @classmethod
    def big(  # noqa: D417
        cls, *, labeler: Labeler | None = _NEAR, positions: Any = None, dropout: float = 0.3,
        num_encoder_layers: int = 6, num_decoder_layers: int = 6,
    ) -> Self:  # fmt: skip
        """Make the larger model of Shaw et al. 2018, section 4.1: tables for each layer, shared by its heads, k = 8.

        E = 1024, 16 heads, 6 + 6 layers, feed-forward width 4096, dropout 0.3, as for English-German.

        Args:
            positions: this and all further arguments as in :class:`~relgraph.RelationTransformer`.

        Returns:
            The model.
        """
        sizes = (1024, 16, num_encoder_layers, num_decoder_layers, 4096, dropout)
        return cls(*sizes, labeler=labeler, positions=positions)

    def reset_parameters(self) -> None:
        """Initialize all parameters again, apart from shared tables and scores.

        Matrices are Xavier-uniform, as in :class:`~torch.nn.Transformer`; all else begins as in its own class.
        """
        _draw([self.encoder, self.decoder])
        for module in (self.positions, self.tgt_positions):
            if isinstance(module, LearnedPositions):
                module.reset_parameters()

    @property
    def memory_labeler(self) -> Any:
        """The labeler of the attention from target to memory, or None."""
        layer: Any = self.decoder.layers[0]
        return layer.multihead_attn.labeler

    def extra_repr(self) -> str:
        """The width and the heads."""
        return f"{self.d_model}, nhead={self.nhead}"

    def new_cache(self, max_len: int | None = None) -> StackCache:
        """Make empty caches for :meth:`~relgraph.RelationTransformer.decode`.

        Args:
            max_len: as in :meth:`~relgraph.RelationDecoder.new_cache`.

        Returns:
            A :class:`~relgraph.nn.StackCache`.
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
        src_edge_attr: Tensor | None = None,
    ) -> Tensor:
        """Encode the source and decode the target.

        As in :class:`~torch.nn.Transformer`, True in a mask blocks, and floats are added to the scores.

        Args:
            src: ``[B, M, E]`` or ``[M, E]``, embedded; or packed graphs ``[T, E]`` when ``src_labels`` are packed.
            tgt: ``[B, N, E]`` or ``[N, E]``, embedded; for packed graphs ``[B, N, E]``, row b for graph b; for one
                source ``[M, E]`` also ``[1, N, E]``.
            src_mask: which pairs of the source are blocked, ``[M, M]``, ``[B·H, M, M]`` or ``[B, H, M, M]``.
            tgt_mask: the same for the target, ``[N, N]`` and so on.
            memory_mask: the same for target and source, ``[N, M]`` and so on; for packed graphs M is the size of the
                largest graph.
            src_key_padding_mask: ``[B, M]``, True for padding; ``[T]`` for packed graphs, to hide nodes.
            tgt_key_padding_mask: ``[B, N]``, True for padding.
            memory_key_padding_mask: ``[B, M]`` or ``[T]``, True for padding; ``src_key_padding_mask`` does not apply to
                the memory.
            src_is_causal: if True, no source row sees a later row.
            tgt_is_causal: as in :meth:`~relgraph.RelationDecoderLayer.forward`.
            memory_is_causal: if True, target row i sees only memory rows j ≤ i.
            src_labels: labels of the source's pairs, :class:`~relgraph.Labels`, or a :class:`~relgraph.Graph` for
                ``labeler``. Packed labels, and a graph with ``ptr``, are for a packed source.
            tgt_labels: the same for the target, but never packed.
            memory_labels: labels of the pairs of target (query) and memory (key), Labels; without a ``memory_labeler``
                also integers ``[N, M]`` or ``[B, N, M]``, with one its input. Packed labels of ``B · N`` queries, with
                ``q_ptr`` ``[0, N, 2N, ...]``, are for packed graphs and need no padding.
            src_edge_attr: ``[E, F]``, a vector for each edge of ``src_labels``, for a ``custom_encoder`` whose
                attentions have ``edge_dim``.

        Returns:
            The shape of ``tgt``, ``[B, N, E]``.

        Raises:
            ValueError: shapes, dtypes, devices or values that do not fit; labels of other lengths, or with ids for a
                side without tables; a packed source without borders, or not one graph per row of ``tgt``.
        """
        src_labels = self._labels("src", self._check_rows("src", src), src_labels, None)
        ptr = check_source(src, self._check_rows("tgt", tgt), src_labels, memory_labels)
        memory = self.encode(
            src, src_mask, src_key_padding_mask, src_is_causal, src_labels=src_labels, src_edge_attr=src_edge_attr
        )
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
        src_edge_attr: Tensor | None = None,
    ) -> Tensor:
        """Encode a source; the output is the decoder's memory.

        Args:
            src: ``[B, M, E]``; this and all further arguments as in :meth:`~relgraph.RelationTransformer.forward`.

        Returns:
            The memory, ``[B, M, E]`` or ``[M, E]``; of packed graphs ``[T, E]``.

        Raises:
            ValueError: shapes, dtypes, devices or values that do not fit.
        """
        labels = self._labels("src", self._check_rows("src", src), src_labels, None)
        ptr = labels.k_ptr if isinstance(labels, Labels) and src.dim() == 2 else None
        x = self._with_positions("src", src, src_key_padding_mask, self.positions, ptr=ptr)
        check.boolean("src_is_causal", src_is_causal)
        return self.encoder(x, src_mask, src_key_padding_mask, src_is_causal, labels=labels, edge_attr=src_edge_attr)

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
                :meth:`~relgraph.RelationTransformer.forward`. With a cache, masks and labels of the target are for the
                new rows and all keys, ``[N, len(cache) + N]``, its padding mask for the new rows.
            memory: ``[B, M, E]``, or packed ``[T, E]``, from :meth:`~relgraph.RelationTransformer.encode`; may be None
                once a cache holds it. A cache remembers its padding mask.
            memory_ptr: ``[B + 1]``, integer, the borders of the graphs of a packed memory, ``graph.ptr``. Leave it out
                with packed ``memory_labels``, which hold the borders. The memory is padded for a cache, for a
                ``memory_mask``, a ``memory_labeler`` and for ``memory_labels`` that are not packed.
            cache: from :meth:`~relgraph.RelationTransformer.new_cache`; a call that raises leaves it unchanged.

        Returns:
            The shape of ``tgt``, ``[B, N, E]``.

        Raises:
            ValueError: as in :meth:`forward`, or no memory before a cache holds it.
            NotImplementedError: a cache with packed ``memory_labels``, or a call that the implementation does not
                support.

        Example:
            >>> graphs = rg.Graph(torch.tensor([[0, 3], [1, 2]]), 5, ptr=torch.tensor([0, 2, 5]))   # of 2 and 3 nodes
            >>> labelers = {"labeler": rg.ShortestPath(2), "target_labeler": rg.ClippedDistance(4)}
            >>> model = rg.RelationTransformer(16, 4, 1, 1, 32, **labelers).eval()
            >>> nodes, tgt = torch.randn(5, 16), torch.randn(2, 4, 16)
            >>> memory = model.encode(nodes, src_labels=graphs)
            >>> model.decode(tgt, memory, memory_ptr=graphs.ptr).shape
            torch.Size([2, 4, 16])
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
            if tgt.shape[0] != 1:
                raise ValueError(
                    f"memory_ptr must be the borders of {tgt.shape[0]} graphs, as memory has shape "
                    f"{list(memory.shape)} and tgt {list(tgt.shape)}, got None"
                )
            memory = memory[None]  # [1, M, E]
            if isinstance(memory_key_padding_mask, Tensor):
                memory_key_padding_mask = memory_key_padding_mask[None]
        layer: Any = self.decoder.layers[0]
        if isinstance(memory_labels, Labels) and layer.multihead_attn.tables is None:
            check_without_tables("memory_labels", memory_labels, "give the model an argument memory_labeler")
        x = self._with_positions(
            "tgt", tgt, tgt_key_padding_mask, self.tgt_positions, None if first is None else first.self_attn
        )
        return self.decoder(
            x, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask, tgt_is_causal,
            memory_is_causal, labels=labels, memory_labels=memory_labels, cache=cache,
        )  # fmt: skip

    def _check_rows(self, name: str, x: Any) -> Tensor:
        if check.floating(name, x).dim() not in (2, 3) or x.shape[-1] != self.d_model:
            raise ValueError(f"{name} must have shape [B, N, E] or [N, E] with E = {self.d_model}, got {list(x.shape)}")
        return x

    def _labels(self, name: str, x: Tensor, labels: Any, cache: StackCache | None) -> Any:
        """The labels of one side, made by its labeler unless they are given; refused if its layers have no tables."""
        layer: Any = (self.encoder if name == "src" else self.decoder).layers[0]
        argument = f"{name}_labels"
        if isinstance(labels, Labels) and layer.self_attn.tables is None:
            check_without_tables(argument, labels, "give the model a labeler")
        made = make_labels(layer.labeler, labels, name, x, cache, argument)
        check_labels_type(made, argument)
        return made

    def _with_positions(
        self, name: str, x: Tensor, key_padding_mask: Any, positions: Any, cache: Any = None, ptr: Any = None
    ) -> Tensor:
        """``x`` with its absolute positions, counted within each graph if there are borders; then dropout."""
        if positions is not None and ptr is not None:
            if positions.sampler is not None and self.training:
                raise NotImplementedError(
                    f"positions must have no sampler for packed {name}, where a draw knows no borders, got "
                    f"{positions.sampler}"
                )
            x = positions._add(x, within_graphs(ptr, x.shape[0]))
        elif positions is not None:
            x = positions(x, first_position(name, x, key_padding_mask, cache))
        return self.dropout(x)


def _labeled_by(labeler: Any) -> dict[str, Any]:
    """The options of a layer with this labeler, or of one without labels."""
    return {"tables": ()} if labeler is None else {"labeler": labeler}


def _check_labelers(labeler: Any, target_labeler: Any, memory_labeler: Any) -> None:
    names = {"labeler": labeler, "target_labeler": target_labeler, "memory_labeler": memory_labeler}
    for name, given in names.items():
        check_labeler(given, None, (), name)


def _attention_of(stack: Any) -> Any:
    """The self-attention of the first layer of a stack; None for anything else."""
    return stack.layers[0].self_attn if isinstance(stack, (RelationEncoder, RelationDecoder)) else None


def _check_stack(name: str, stack: Any, kind: type[_Either], d_model: int, nhead: int) -> _Either:
    """Return a stack that the model was given; raise unless it is of this kind and size."""
    if not isinstance(stack, kind):
        raise TypeError(f"{name} must be a {kind.__name__} or None, got {type(stack).__name__}")
    attention = _attention_of(stack)
    if (attention.embed_dim, attention.num_heads) != (d_model, nhead):
        raise ValueError(
            f"{name} must have d_model = {d_model} and nhead = {nhead}, "
            f"got {attention.embed_dim} and {attention.num_heads}"
        )
    return stack


def _draw(stacks: Sequence[nn.Module]) -> None:
    """Initialize stacks again: matrices Xavier-uniform, tables, biases of queries and maps as an attention does."""
    attentions = [part for stack in stacks for part in stack.modules() if isinstance(part, RelationAttention)]
    parts = [part for module in attentions for part in (module.tables, module.score, module.value_map, module.gates)]
    others = {id(p) for part in parts if isinstance(part, nn.Module) for p in part.parameters()}
    biases = [x for module in attentions for x in (module.content_bias, module.position_bias, module.sink)]
    others |= {id(bias) for bias in biases}
    for stack in stacks:
        for parameter in stack.parameters():
            if parameter.dim() > 1 and id(parameter) not in others:
                nn.init.xavier_uniform_(parameter)
    for bias in biases:
        if bias is not None:
            nn.init.zeros_(bias)
    for module in attentions:
        if module.tables is not None and not module.tables.shared:
            module.tables.reset_parameters()
        for part in (module.value_map, module.gates):
            if part is not None:
                part.reset_parameters()
