"""Stacks of encoder or decoder layers: the labels are made once for all layers."""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Literal, Self

from torch import Tensor, nn

from relgraph.arguments import check
from relgraph.call import LabelsLike
from relgraph.graphs import Graph
from relgraph.nn.cache import KVCache, LayerCache, StackCache, memory_labels_of_new_rows, restores_cache_on_error
from relgraph.nn.decoder_layer import RelationDecoderLayer
from relgraph.nn.encoder_layer import RelationEncoderLayer
from relgraph.nn.layer_parts import Layer
from relgraph.nn.made_labels import labels_at, make_labels
from relgraph.nn.memory import labels_of_memory
from relgraph.nn.plain import check_plain, check_plain_attention
from relgraph.nn.table import check_label_names
from relgraph.nn.tables import RelationTables

MOST_LAYERS = 4096


class _Stack(nn.Module):
    """Copies of a layer, which share the tables passed to it, and a norm."""

    layers: Any  # nn.ModuleList, whose items a type checker takes for tensors: Any lets users write layers[0].self_attn
    _layer_kind: ClassVar[type[Layer]]
    _plain_kind: ClassVar[type[nn.Module]]
    _cache_kind: ClassVar[type[KVCache | LayerCache]]

    def __init__(self, layer: Any, num_layers: int, norm: nn.Module | None = None, *, fresh: bool = True) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(check_label_names)
        if not isinstance(layer, self._layer_kind):
            raise TypeError(f"layer must be a {self._layer_kind.__name__}, got {type(layer).__name__}")
        check_depth("num_layers", num_layers)
        if norm is not None and not isinstance(norm, nn.Module):
            raise TypeError(f"norm must be a Module or None, got {type(norm).__name__}")
        check.boolean("fresh", fresh)
        shared = {id(part): part for part in layer.modules() if isinstance(part, RelationTables) and part.shared}
        self.layers = nn.ModuleList(copy.deepcopy(layer, {**shared}) for _ in range(num_layers))
        self.num_layers = num_layers
        self.norm = norm
        if fresh:
            _reset(self.layers)

    @classmethod
    def from_plain(cls, stack: nn.Module, *, new_tables: Literal["zero", "random"] = "zero", **options: Any) -> Self:
        """Make a stack with copies of the weights and settings of a stack of torch, its norm too, and new tables.

        Args:
            stack: a :class:`~torch.nn.TransformerEncoder` for an encoder, a :class:`~torch.nn.TransformerDecoder` for a
                decoder; with layers of torch that are ``batch_first=True``.
            new_tables: as in :meth:`~relgraph.RelationAttention.from_plain`.
            options: the keyword-only arguments of a layer, such as ``labeler``; every layer has a copy of an attention
                that you pass.

        Returns:
            The new stack, with the device, dtype and training mode of ``stack``.

        Raises:
            ValueError: layers that are not all of one size, or an error of a layer's ``from_plain``.
        """
        kind = cls._layer_kind
        check_plain("stack", stack, cls._plain_kind, new_tables)
        source: Any = stack
        for plain in source.layers:
            check_plain("the layers of stack", plain, kind._plain_kind, new_tables)
            check_plain_attention("stack", plain.self_attn)
        first: Any = kind.from_plain(source.layers[0], new_tables=new_tables, **options)
        passed = options.get("tables")
        rows = {path: copy.deepcopy(x.state_dict()) for path, x in first.named_modules() if x is passed}
        fresh = new_tables == "random"
        made = cls(first, len(source.layers), copy.deepcopy(source.norm), fresh=fresh).train(stack.training)
        for layer, plain in zip(made.layers, source.layers, strict=True):
            layer._copy_plain(plain)
            for path, state in rows.items():
                layer.get_submodule(path).load_state_dict(state)
        return made

    def reset_parameters(self) -> None:
        """Initialize the parameters of every layer, and the norm, again; shared tables keep their rows."""
        _reset(self.layers)
        if self.norm is not None:
            _reset(self.norm)

    def _name_arguments(self, **names: str) -> None:
        """Set what errors call the arguments of the self-attentions."""
        for layer in self.layers:
            layer.self_attn._names = layer.self_attn._names._replace(**names)

    def new_cache(self, max_len: int | None = None) -> StackCache:
        """Make empty caches for all layers; in a decoder, for target and memory.

        Args:
            max_len: how many rows (in a decoder, target rows) there may be; without it the caches grow.

        Returns:
            A :class:`~relgraph.nn.StackCache` of one :class:`~relgraph.KVCache`, in a decoder
            :class:`~relgraph.nn.LayerCache`, per layer.
        """
        return StackCache(*(self._cache_kind(max_len) for _ in self.layers))


def _reset(module: nn.Module) -> None:
    """Initialize a module again; its parts, if it cannot do so itself."""
    reset = getattr(module, "reset_parameters", None)
    if reset is not None:
        reset()
        return
    for part in module.children():
        _reset(part)


class RelationEncoder(_Stack):
    """Copies of an encoder layer, one after the other; labels are made once for all layers.

    Each copy draws its own initial parameters, unlike in :class:`~torch.nn.TransformerEncoder`, where all layers begin
    equal; with ``fresh=False`` the copies keep those of ``layer``, such as trained ones. The state of that stack loads
    (with ``strict=False``). If you passed tables to the layer as :class:`~relgraph.RelationTables`, all layers share
    them, unless those have ``shared=False``.

    Source: Vaswani et al. 2017, section 3.1; conventions of :class:`~torch.nn.TransformerEncoder`.

    Args:
        layer: the :class:`~relgraph.RelationEncoderLayer` to copy.
        num_layers: how many copies, from 1 to 4096.
        norm: a module applied to the output of the last layer; None for none.
        fresh: whether each copy is initialized anew; False keeps the values of ``layer`` in all copies.

    Raises:
        ValueError: ``num_layers`` below 1 or above 4096.

    Example:
        >>> layer = rg.RelationEncoderLayer(16, 4, 32, labeler=rg.ClippedDistance(2))
        >>> rg.RelationEncoder(layer, 2)(torch.randn(3, 7, 16)).shape
        torch.Size([3, 7, 16])
    """

    _layer_kind, _plain_kind, _cache_kind = RelationEncoderLayer, nn.TransformerEncoder, KVCache

    def __init__(
        self, layer: RelationEncoderLayer, num_layers: int, norm: nn.Module | None = None, *, fresh: bool = True
    ) -> None:
        super().__init__(layer, num_layers, norm, fresh=fresh)
        self._name_arguments(attn_mask="mask")

    @restores_cache_on_error
    def forward(  # noqa: D417
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
        *,
        labels: LabelsLike | Graph = None,
        cache: StackCache | None = None,
        bank_features: Any = None,
        edge_attr: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor | Any:
        """Apply all layers, then the norm.

        Args:
            src: ``[B, N, E]``; this and all further arguments as in :meth:`~relgraph.RelationEncoderLayer.forward`.
            mask: which pairs are blocked, ``[N, N]``, ``[B·H, N, N]`` or ``[B, H, N, N]``; the layer's ``src_mask``.
            cache: from :meth:`~relgraph.RelationEncoder.new_cache`; a call that raises leaves it unchanged.
            positions: ``[N]`` or ``[B, N]``, the position of each row, in all layers.

        Returns:
            The shape of ``src``, ``[B, N, E]``; with attentions that have ``edge_update`` a pair of this and the
            vectors of the edges after the last layer, ``[E, F]``: every layer reads those of the layer before.

        Raises:
            ValueError: shapes, dtypes, devices or values that do not fit; a cache for another stack.
            NotImplementedError: a cache with packed labels, or a call that the implementation does not support.

        Example:
            >>> layer = rg.RelationEncoderLayer(16, 4, 32, labeler=rg.ShortestPath(2))
            >>> graph = rg.Graph(torch.tensor([[0, 1], [1, 2]]), 3)                 # edges 0 → 1 → 2
            >>> rg.RelationEncoder(layer, 2)(torch.randn(3, 16), labels=graph).shape
            torch.Size([3, 16])
        """
        caches = check_cache(cache, self.num_layers, KVCache)
        attention = self.layers[0].self_attn
        carries = attention.edge_states is not None
        if positions is None:
            labels = make_labels(attention.labeler, labels, "src", src, cache, attention._names.labels)
        else:
            labels = labels_at(attention, labels, positions, src, cache=cache)
            positions = None if attention.rotary is None else positions  # the labels are made
        for layer, own in zip(self.layers, caches, strict=True):
            found = layer(
                src, mask, src_key_padding_mask, is_causal, labels=labels, cache=own, bank_features=bank_features,
                edge_attr=edge_attr, positions=positions,
            )  # fmt: skip
            src, edge_attr = found if carries else (found, edge_attr)
        src = src if self.norm is None else self.norm(src)
        return (src, edge_attr) if carries else src


class RelationDecoder(_Stack):
    """Copies of a decoder layer, one after the other; labels are made once for all layers.

    The copies are initialized and share tables as in :class:`~relgraph.RelationEncoder`. The state of
    :class:`~torch.nn.TransformerDecoder` loads (with ``strict=False``).

    Source: Vaswani et al. 2017, section 3.1; conventions of :class:`~torch.nn.TransformerDecoder`.

    Args:
        layer: the :class:`~relgraph.RelationDecoderLayer` to copy; this and all further arguments as in
            :class:`~relgraph.RelationEncoder`.

    Raises:
        ValueError: ``num_layers`` below 1 or above 4096.

    Example:
        >>> layer = rg.RelationDecoderLayer(16, 4, 32, labeler=rg.ClippedDistance(2))
        >>> decoder, memory = rg.RelationDecoder(layer, 2), torch.randn(3, 7, 16)
        >>> cache = decoder.new_cache()
        >>> for _ in range(4):
        ...     z = decoder(torch.randn(3, 1, 16), memory, cache=cache)
        >>> z.shape, len(cache)
        (torch.Size([3, 1, 16]), 4)
    """

    _layer_kind, _plain_kind, _cache_kind = RelationDecoderLayer, nn.TransformerDecoder, LayerCache

    @restores_cache_on_error
    def forward(  # noqa: D417
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
        cache: StackCache | None = None,
        bank_features: Any = None,
    ) -> Tensor:
        """Apply all layers, then the norm.

        Args:
            tgt: ``[B, N, E]``; this and all further arguments as in :meth:`~relgraph.RelationDecoderLayer.forward`.
            cache: from :meth:`~relgraph.RelationDecoder.new_cache`; a call that raises leaves it unchanged.

        Returns:
            The shape of ``tgt``, ``[B, N, E]``.

        Raises:
            ValueError: shapes, dtypes, devices or values that do not fit; a cache for another stack; no memory before a
                cache holds it.
            NotImplementedError: a cache with packed labels, or a call that the implementation does not support.

        Example:
            >>> decoder = rg.RelationDecoder(rg.RelationDecoderLayer(16, 4, 32, labeler=rg.ClippedDistance(2)), 2)
            >>> pad = torch.tensor([[False, False, True]])                          # the memory's last row is padding
            >>> tgt, memory = torch.randn(1, 5, 16), torch.randn(1, 3, 16)
            >>> decoder(tgt, memory, memory_key_padding_mask=pad).shape
            torch.Size([1, 5, 16])
        """
        caches = check_cache(cache, self.num_layers, LayerCache)
        attention = self.layers[0].self_attn
        labels = make_labels(attention.labeler, labels, "tgt", tgt, cache, attention._names.labels)
        if cache is not None:
            memory_labels = memory_labels_of_new_rows(memory_labels, len(cache), tgt.shape[-2])
        labeler = self.layers[0].multihead_attn.labeler
        if memory_labels is None and labeler is not None:
            memory_labels = labels_of_memory(labeler, tgt, memory, caches[0])
        for layer, own in zip(self.layers, caches, strict=True):
            tgt = layer(
                tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask, tgt_is_causal,
                memory_is_causal, labels=labels, memory_labels=memory_labels, cache=own, bank_features=bank_features,
            )  # fmt: skip
        return tgt if self.norm is None else self.norm(tgt)


def check_depth(name: str, depth: Any) -> None:
    """Raise unless ``depth`` is a plausible number of layers: copying too many would take hours."""
    check.integer(name, depth, minimum=1, maximum=MOST_LAYERS)


def check_cache(cache: Any, num_layers: int, kind: type) -> tuple[Any, ...]:
    """The caches of the layers, or one None per layer."""
    if cache is None:
        return (None,) * num_layers
    if not isinstance(cache, StackCache):
        raise TypeError(f"cache must be a StackCache or None, got {type(cache).__name__}")
    if len(cache.layers) != num_layers or not all(isinstance(layer, kind) for layer in cache.layers):
        raise ValueError(f"cache must hold one {kind.__name__} for each of the {num_layers} layers, got {cache!r}")
    return cache.layers
