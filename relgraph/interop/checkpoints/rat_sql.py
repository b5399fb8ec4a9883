"""RAT-SQL's encoder over question and schema, of the released code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relgraph.interop.checkpoints.build import Layer, Options, Stack, build_encoder
from relgraph.interop.checkpoints.entries import Entries
from relgraph.interop.checkpoints.weights import Attention, Sizes, linear, maps, norm, sizes
from relgraph.labelers import SchemaRelations
from relgraph.nn import RelationEncoder
from relgraph.nn.made_labels import check_labeler

_QUERY, _KEYS, _VALUES = "self_attn.linears.0.weight", "relation_k_emb.weight", "relation_v_emb.weight"


def from_rat_sql(
    state: Mapping[str, Any],
    *,
    prefix: str = "",
    labeler: Callable[..., Any] | None = None,
    layer_norm_eps: float = 1e-5,
    dropout: float = 0.0,
    leave_out: Sequence[str] = (),
) -> tuple[RelationEncoder, Any]:
    """Read RAT-SQL's encoder; return it with the labeler of its relations.

    Each layer has a key and a value table, ``relation_k_emb`` and ``relation_v_emb``; row r is for relation r of the
    released code, in the same order as in :class:`~relgraph.labelers.SchemaRelations`. The number of heads follows from
    the width of a row.

    Args:
        state: names and tensors, or arrays of numpy.
        prefix: the beginning of the names, before ``layers.0.relation_k_emb.weight``: in a checkpoint of the released
            code it ends in ``"encs_update.encoder."``.
        labeler: makes the labels; by default ``SchemaRelations(clip, released=True)``, with a clip that follows from
            the number of rows: 2 for 51. A checkpoint with other relations, such as the 37 without ``sc_link`` and
            ``cv_link``, needs another labeler.
        layer_norm_eps: the number that norms add to variances; the released code has the default of torch.
        dropout: dropout of the new module.
        leave_out: ``fnmatch`` patterns for names after the prefix of tensors that should not be read; each must match
            one.

    Returns:
        The encoder with copies of the weights, in their dtype and on their device, and its labeler.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: a prefix of something else; tables of another size than the labeler; a tensor that is missing, has
            another shape, dtype or device, or that the encoder has no place for; a pattern that matches nothing.

    Example:
        >>> sizes = {"self_attn.linears.0": (16, 16), "feed_forward.w_1": (32, 16), "feed_forward.w_2": (16, 32)}
        >>> sizes |= {f"self_attn.linears.{number}": (16, 16) for number in (1, 2, 3)}
        >>> state = {f"layers.0.{name}.weight": torch.randn(*size) for name, size in sizes.items()}
        >>> state |= {f"layers.0.{name}.bias": torch.randn(size[0]) for name, size in sizes.items()}
        >>> for name in ("layers.0.sublayer.0.norm", "layers.0.sublayer.1.norm", "norm"):
        ...     state |= {f"{name}.weight": torch.ones(16), f"{name}.bias": torch.zeros(16)}
        >>> state |= {f"layers.0.relation_{kind}_emb.weight": torch.randn(51, 4) for kind in "kv"}
        >>> encoder, labeler = rg.interop.checkpoints.from_rat_sql(state)
        >>> schema = rg.labelers.Schema(["singer", "age"], [(0, ["age"])], [["singer"]])
        >>> labeler.num_labels, encoder(torch.randn(1, 4, 16), labels=labeler(schema)).shape
        (51, torch.Size([1, 4, 16]))
    """
    entries = Entries(state, prefix, leave_out)
    count = entries.count(r"layers\.(\d+)\.")
    if not count:
        raise entries.neither(f"an encoder, with 'layers.0.{_KEYS}'")
    of = sizes(entries, f"layers.0.{_QUERY}", f"layers.0.{_KEYS}")
    labeler = _labeler(labeler, of.labels, f"{prefix}layers.0.{_KEYS}")
    inner, _ = entries.rank_two("layers.0.feed_forward.w_1.weight")
    layers = [_layer(entries, f"layers.{number}.", of, inner) for number in range(count)]
    weights = Stack(layers, norm(entries, "norm", of.width))
    entries.finish("a RelationEncoder")
    options = Options(labeler, dropout, norm_first=True, layer_norm_eps=layer_norm_eps)
    return build_encoder(of, weights, options), labeler


def _labeler(labeler: Any, rows: int, name: str) -> Any:
    """The labeler for this number of rows."""
    if labeler is not None:
        num_labels, _ = check_labeler(labeler, None, ())
        if num_labels != rows:
            raise ValueError(f"labeler must have as many labels as {name!r} has rows, {rows}, got {num_labels}")
        return labeler
    least = SchemaRelations(0, released=True).num_labels
    clip, rest = divmod(rows - least, SchemaRelations(1, released=True).num_labels - least)
    if clip < 0 or rest:
        raise ValueError(
            f"labeler must be given for {name!r}, which has {rows} rows: those of SchemaRelations are 39, 45, 51, ..., "
            "got None"
        )
    return SchemaRelations(clip, released=True)


def _layer(entries: Entries, at: str, of: Sizes, inner: int) -> Layer:
    names = [f"{at}self_attn.linears.{number}" for number in range(4)]
    found = maps(of, names, lambda name, *shape: linear(entries, name, *shape))
    named = {"key": _KEYS, "value": _VALUES}
    tables = {kind: entries.take(at + name, of.labels, of.head_dim) for kind, name in named.items()}
    return Layer(
        Attention(found, tables),
        (
            linear(entries, f"{at}feed_forward.w_1", inner, of.width),
            linear(entries, f"{at}feed_forward.w_2", of.width, inner),
        ),
        (norm(entries, f"{at}sublayer.0.norm", of.width), norm(entries, f"{at}sublayer.1.norm", of.width)),
    )
