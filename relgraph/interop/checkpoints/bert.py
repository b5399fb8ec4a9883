"""BERT with ``relative_key`` or ``relative_key_query``, and RoBERTa and ELECTRA, whose encoders have the same names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relgraph.arguments import check
from relgraph.interop.checkpoints.build import Layer, Options, Stack, build_attention, build_encoder
from relgraph.interop.checkpoints.entries import Entries
from relgraph.interop.checkpoints.weights import Attention, Sizes, clip_of, linear, maps, norm, sizes
from relgraph.labelers import ClippedDistance
from relgraph.nn import RelationAttention, RelationEncoder
from relgraph.nn.layer_parts import Activation

_KINDS = {"relative_key": ("key",), "relative_key_query": ("key", "query")}
_MAPS = ("self.query", "self.key", "self.value", "output.dense")
_TABLE = "self.distance_embedding.weight"


def from_bert(
    state: Mapping[str, Any],
    *,
    position_embedding_type: str,
    prefix: str = "",
    activation: Activation = "gelu",
    layer_norm_eps: float = 1e-12,
    dropout: float = 0.0,
    leave_out: Sequence[str] = (),
) -> tuple[RelationAttention | RelationEncoder, ClippedDistance]:
    """Read BERT's encoder, or one attention of it; return it with the labeler of its distances.

    The names are those of transformers 4. ``distance_embedding`` has a row for each i - j, query minus key, from
    -(P - 1) to P - 1; here rows count j - i, so they are flipped. The number of heads follows from the width of a row.
    With ``relative_key_query`` the query table begins as a copy of the key table; further training may change each.

    Args:
        state: names and tensors, or arrays of numpy.
        position_embedding_type: ``"relative_key"`` or ``"relative_key_query"``, as in the configuration.
        prefix: the beginning of the names. If ``layer.0.attention.self.query.weight`` follows it, as after
            ``"bert.encoder."``, the result is a :class:`~relgraph.RelationEncoder`. If ``self.query.weight`` follows
            it, as after ``"bert.encoder.layer.0.attention."``, the result is a :class:`~relgraph.RelationAttention`,
            without the norm after it: leave out ``"output.LayerNorm.*"``.
        activation: ``hidden_act`` of the configuration.
        layer_norm_eps: ``layer_norm_eps`` of the configuration.
        dropout: dropout of the new module.
        leave_out: ``fnmatch`` patterns for names after the prefix of tensors that should not be read; each must match
            one.

    Returns:
        The module with copies of the weights, in their dtype and on their device, and its labeler.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: a prefix of something else; a tensor that is missing, has another shape, dtype or device, or that
            the module has no place for; a pattern that matches nothing.

    Example:
        >>> names = ("self.query", "self.key", "self.value", "output.dense")
        >>> state = {f"attention.{name}.weight": torch.randn(16, 16) for name in names}
        >>> state |= {f"attention.{name}.bias": torch.randn(16) for name in names}
        >>> state["attention.self.distance_embedding.weight"] = torch.randn(9, 4)           # 2 · 5 - 1 rows, 4 heads
        >>> layer, labeler = rg.interop.checkpoints.from_bert(
        ...     state, position_embedding_type="relative_key", prefix="attention."
        ... )
        >>> labeler, layer(torch.randn(1, 5, 16), labels=labeler(5)).shape
        (ClippedDistance(4), torch.Size([1, 5, 16]))
    """
    kinds = _KINDS[check.choice("position_embedding_type", position_embedding_type, tuple(_KINDS))]
    entries = Entries(state, prefix, leave_out)
    if _MAPS[0] + ".weight" in entries:
        of, labeler = _sizes(entries, "")
        weights = _attention(entries, "", of, labeler, kinds)
        entries.finish("a RelationAttention")
        options = Options(labeler, dropout, activation=activation, layer_norm_eps=layer_norm_eps)
        return build_attention(of, weights, options), labeler
    count = entries.count(r"layer\.(\d+)\.")
    if not count:
        raise entries.neither(
            "an attention, with 'self.query.weight'", "an encoder, with 'layer.0.attention.self.query.weight'"
        )
    of, labeler = _sizes(entries, "layer.0.attention.")
    inner, _ = entries.rank_two("layer.0.intermediate.dense.weight")
    layers = [_layer(entries, f"layer.{number}.", of, inner, labeler, kinds) for number in range(count)]
    entries.finish("a RelationEncoder")
    options = Options(labeler, dropout, activation=activation, layer_norm_eps=layer_norm_eps)
    return build_encoder(of, Stack(layers, None), options), labeler


def _sizes(entries: Entries, at: str) -> tuple[Sizes, ClippedDistance]:
    of = sizes(entries, f"{at}self.query.weight", at + _TABLE)
    return of, ClippedDistance(clip_of(entries, at + _TABLE, of.labels))


def _attention(entries: Entries, at: str, of: Sizes, labeler: ClippedDistance, kinds: tuple[str, ...]) -> Attention:
    found = maps(of, [at + name for name in _MAPS], lambda name, *shape: linear(entries, name, *shape))
    # a row of theirs is for i - j
    rows = labeler.rows_from(entries.take(at + _TABLE, of.labels, of.head_dim), order="query-key")
    return Attention(found, dict.fromkeys(kinds, rows))


def _layer(entries: Entries, at: str, of: Sizes, inner: int, labeler: ClippedDistance, kinds: tuple[str, ...]) -> Layer:
    return Layer(
        _attention(entries, f"{at}attention.", of, labeler, kinds),
        (
            linear(entries, f"{at}intermediate.dense", inner, of.width),
            linear(entries, f"{at}output.dense", of.width, inner),
        ),
        (norm(entries, f"{at}attention.output.LayerNorm", of.width), norm(entries, f"{at}output.LayerNorm", of.width)),
    )
