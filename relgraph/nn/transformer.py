"""The encoder-decoder of Vaswani et al. with the relative positions of Shaw et al."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from relgraph.arguments import check
from relgraph.labelers import ClippedDistance
from relgraph.nn.attention import RelationAttention
from relgraph.nn.cache import KVCache, LayerCache, StackCache, restores_cache_on_error
from relgraph.nn.decoder_layer import RelationDecoderLayer
from relgraph.nn.encoder_layer import RelationEncoderLayer
from relgraph.nn.layer_parts import Activation, rename_in_errors
from relgraph.nn.positions import SinusoidalPositions, first_position
from relgraph.nn.stack import RelationDecoder, RelationEncoder, check_cache, check_depth
from relgraph.nn.table import check_label_names
from relgraph.nn.tables import RelationTables
from relgraph.score import Score

POSITIONS = ("relative", "sinusoidal", "both", "none")


class RelationTransformer(nn.Module):
    """An encoder and a decoder over embedded sequences; the labels of both self-attentions are clipped distances.

    The label of query i and key j is clip(j - i, -k, k). Submodules and masks are those of
    :class:`~torch.nn.Transformer`, whose state loads (with ``strict=False``, as it has no tables). Two things differ:
    the batch comes first, and the target is causal unless ``tgt_is_causal=False``. Dropout also acts on the embedded
    inputs, after sinusoidal positions are added. Those count from each sequence's first token after the padding on its
    left, so that padding changes nothing.

    Source: Vaswani et al. 2017; Shaw, Uszkoreit, Vaswani 2018, section 3.2, with separate tables in each self-attention
    of encoder and decoder, and none towards the memory; conventions of :class:`~torch.nn.Transformer`.

    Args:
        d_model: E, the width of the embedded sequences; this and all further arguments as in
            :class:`~relgraph.RelationEncoderLayer`.
        num_encoder_layers: depth of the encoder, from 1 to 4096.
        num_decoder_layers: depth of the decoder, from 1 to 4096.
        positions: ``"relative"``, tables for clipped distances; ``"sinusoidal"``, added to the inputs; ``"both"``;
            ``"none"``.
        max_distance: k; distances beyond ±k count as ±k. This and the options of tables need relative positions.
        tables: kinds of tables, or :class:`~relgraph.RelationTables`, which all layers then share.
        score: the score of both self-attentions; each layer gets a copy of a module.
        value_map: for the self-attentions; needs relative positions.
        memory_score: the score of the attention to the memory.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: unknown positions, sizes below 1, more than 4096 layers, a negative ``max_distance`` or one for more
            than 2²⁰ labels, or what the layers raise.

    Example:
        >>> model = rg.RelationTransformer(16, 4, 2, 2, 32, max_distance=4).eval()
        >>> src, tgt = torch.randn(2, 7, 16), torch.randn(2, 5, 16)
        >>> model(src, tgt).shape
        torch.Size([2, 5, 16])
        >>> memory, cache = model.encode(src), model.new_cache()
        >>> steps = [model.decode(tgt[:, i : i + 1], memory, cache=cache) for i in range(5)]
        >>> torch.allclose(torch.cat(steps, 1), model(src, tgt), atol=1e-5)
        True
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
        positions: str = "relative",
        max_distance: int = 16,
        tables: Sequence[str] | RelationTables = ("key", "value"),
        per_head: bool | Sequence[str] = False,
        tie_tables: bool = False,
        num_kv_heads: int | None = None,
        score: Score | None = None,
        value_map: bool | int = False,
        memory_score: Score | None = None,
        impl: str | None = None,
    ) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(check_label_names)
        check.choice("positions", positions, POSITIONS)
        for name, depth in (("num_encoder_layers", num_encoder_layers), ("num_decoder_layers", num_decoder_layers)):
            check_depth(name, depth)
        options: dict[str, Any] = {"num_kv_heads": num_kv_heads, "score": score, "value_map": value_map, "impl": impl}
        if positions in ("relative", "both"):
            most = (check.MOST_LABELS - 1) // 2
            labeler = ClippedDistance(check.integer("max_distance", max_distance, minimum=0, maximum=most))
            options |= {"labeler": labeler, "tables": tables, "per_head": per_head, "tie_tables": tie_tables}
        shared: tuple[Any, ...] = (
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias, device,
            dtype,
        )  # fmt: skip
        layers = (
            RelationEncoderLayer(*shared, **options),
            RelationDecoderLayer(*shared, **options, memory_score=memory_score),
        )
        norms = [nn.LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype) for _ in layers]
        self.encoder = RelationEncoder(layers[0], num_encoder_layers, norms[0])
        self.decoder = RelationDecoder(layers[1], num_decoder_layers, norms[1])
        self.positions = SinusoidalPositions(d_model) if positions in ("sinusoidal", "both") else None
        self.dropout = nn.Dropout(dropout)
        self.d_model, self.nhead = d_model, nhead
        self.reset_parameters()

    @classmethod
    def base(cls, **overrides: Any) -> Self:
        """The smaller model of Shaw et al. 2018, section 4.1: tables for each layer and head, k = 16.

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
        """The larger model of Shaw et al. 2018, section 4.1: tables for each layer, shared by its heads, k = 8.

        E = 1024, 16 heads, 6 + 6 layers, feed-forward width 4096. Dropout is that of English-German, 0.3.

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
        :class:`~relgraph.nn.LabelTable`. Maps of values are the identity.
        """
        attentions = [module for module in self.modules() if isinstance(module, RelationAttention)]
        parts = [part for module in attentions for part in (module.tables, module.score, module.value_map)]
        kept = {id(p) for part in parts if isinstance(part, nn.Module) for p in part.parameters()}
        for parameter in self.parameters():
            if parameter.dim() > 1 and id(parameter) not in kept:
                nn.init.xavier_uniform_(parameter)
        for module in attentions:
            if module.tables is not None and not module.tables_given:
                module.tables.reset_parameters()
            if module.value_map is not None:
                module.value_map.reset_parameters()

    def extra_repr(self) -> str:
        """The width and the heads."""
        return f"{self.d_model}, nhead={self.nhead}"

    def new_cache(self, max_len: int | None = None) -> StackCache:
        """Empty caches for :meth:`~relgraph.RelationTransformer.decode`.

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
    ) -> Tensor:
        """Encode the source and decode the target.

        Masks have the polarity of :class:`~torch.nn.Transformer`: True blocks, and floats are added to the scores.

        Args:
            src: ``[B, M, E]`` or ``[M, E]``, embedded.
            tgt: ``[B, N, E]`` or ``[N, E]``, embedded.
            src_mask: which pairs of the source are blocked, ``[M, M]``, ``[B·H, M, M]`` or ``[B, H, M, M]``.
            tgt_mask: which pairs of the target are blocked, ``[N, N]`` and so on.
            memory_mask: which pairs of target and source are blocked, ``[N, M]`` and so on.
            src_key_padding_mask: ``[B, M]``, True for padding.
            tgt_key_padding_mask: ``[B, N]``, True for padding.
            memory_key_padding_mask: ``[B, M]``, True for padding; ``src_key_padding_mask`` is not used for it.
            src_is_causal: source rows see no later rows.
            tgt_is_causal: target rows see no later rows.
            memory_is_causal: target row i sees memory rows j ≤ i.

        Returns:
            The shape of ``tgt``, ``[B, N, E]``.

        Raises:
            TypeError: an argument of the wrong kind.
            ValueError: shapes, dtypes, devices or values that do not fit.

        Example:
            >>> model = rg.RelationTransformer(16, 4, 1, 1, 32, max_distance=4)
            >>> pad = torch.tensor([[False] * 7, [True] * 3 + [False] * 4])         # True for padding
            >>> src, tgt = torch.randn(2, 7, 16), torch.randn(2, 5, 16)
            >>> model(src, tgt, src_key_padding_mask=pad, memory_key_padding_mask=pad).shape
            torch.Size([2, 5, 16])
        """
        memory = self.encode(src, src_mask, src_key_padding_mask, src_is_causal)
        return self.decode(
            tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask, tgt_is_causal,
            memory_is_causal,
        )  # fmt: skip

    def encode(  # noqa: D417
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        src_is_causal: bool = False,
    ) -> Tensor:
        """The encoder's output for a source: the memory.

        Args:
            src: ``[B, M, E]``; this and all further arguments as in :meth:`~relgraph.RelationTransformer.forward`.

        Returns:
            The memory, ``[B, M, E]`` or ``[M, E]``.

        Raises:
            TypeError: an argument of the wrong kind.
            ValueError: shapes, dtypes, devices or values that do not fit.
        """
        x = self._with_positions("src", src, src_key_padding_mask, None)
        names = {"mask": "src_mask", "is_causal": "src_is_causal"}
        return rename_in_errors(names, self.encoder, x, src_mask, src_key_padding_mask, src_is_causal)

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
        cache: StackCache | None = None,
    ) -> Tensor:
        """The decoder's output for ``tgt``, the rows after those in the ``cache``.

        Args:
            tgt: ``[B, N, E]`` or ``[N, E]``, with a cache the new rows only; this and all further arguments as in
                :meth:`~relgraph.RelationTransformer.forward`.
            memory: ``[B, M, E]``, of :meth:`~relgraph.RelationTransformer.encode`; may be None once a cache holds it.
            tgt_mask: which pairs of the target are blocked, ``[N, N]`` and so on; with a cache all keys, ``[N,
                len(cache) + N]``.
            tgt_key_padding_mask: ``[B, N]``, True for padding; with a cache for the new rows only, and remembered.
            memory_key_padding_mask: ``[B, M]``, True for padding; remembered by a cache.
            cache: from :meth:`~relgraph.RelationTransformer.new_cache`; a call that raises leaves it as it was.

        Returns:
            The shape of ``tgt``, ``[B, N, E]``.

        Raises:
            TypeError: an argument of the wrong kind, such as a cache that is not a StackCache.
            ValueError: shapes, dtypes, devices or values that do not fit; no memory before a cache holds it.
        """
        first: LayerCache | None = check_cache(cache, self.decoder.num_layers, LayerCache)[0]
        x = self._with_positions("tgt", tgt, tgt_key_padding_mask, None if first is None else first.self_attn)
        return self.decoder(
            x, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask, tgt_is_causal,
            memory_is_causal, cache=cache,
        )  # fmt: skip

    def _with_positions(self, name: str, x: Any, key_padding_mask: Any, cache: KVCache | None) -> Tensor:
        if check.floating(name, x).dim() not in (2, 3) or x.shape[-1] != self.d_model:
            raise ValueError(f"{name} must have shape [B, N, E] or [N, E] with E = {self.d_model}, got {list(x.shape)}")
        if self.positions is not None:
            names = {"x": name, "key_padding_mask": f"{name}_key_padding_mask"}
            x = self.positions(x, rename_in_errors(names, first_position, x, key_padding_mask, cache))
        return self.dropout(x)
