"""The attention of fairseq2 with Shaw positions, as in w2v-BERT 2.0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relgraph.interop.checkpoints.build import Options, build_attention
from relgraph.interop.checkpoints.entries import Entries
from relgraph.interop.checkpoints.weights import Attention, linear, maps, sizes
from relgraph.labelers import ClippedDistance
from relgraph.nn import RelationAttention

_MAPS = ("q_proj", "k_proj", "v_proj", "output_proj")
_KEYS, _VALUES = "sdpa.rel_k_embed.weight", "sdpa.rel_v_embed.weight"


def from_fairseq2(
    state: Mapping[str, Any],
    *,
    clip: tuple[int, int],
    prefix: str = "",
    dropout: float = 0.0,
    leave_out: Sequence[str] = (),
) -> tuple[RelationAttention, ClippedDistance]:
    """Read one attention of fairseq2 with ``ShawRelativePositionSDPA``; return it with the labeler of its distances.

    Rows count j - i, key minus query, as in relgraph. The number of rows gives only the sum of both distances, so both
    are required. The number of heads follows from the width of
    a row. A value table is read if there is one.

    Args:
        state: names and tensors, or arrays of numpy.
        clip: the distances to the left and to the right, ``max_lhs_rel_pos`` and ``max_rhs_rel_pos`` of the original
            (``max_left_rel_pos`` and ``max_right_rel_pos`` in older versions); (64, 8) for w2v-BERT 2.0.
        prefix: the beginning of the names, before ``q_proj.weight``, such as ``"encoder.layers.0.self_attn."``.
        dropout: dropout of the new module.
        leave_out: ``fnmatch`` patterns for names after the prefix of tensors that should not be read; each must match
            one.

    Returns:
        The layer with copies of the weights, in their dtype and on their device, and its labeler.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: a prefix of something else; a table that has no row for each distance; a tensor that is missing, has
            another shape, dtype or device, or that the layer has no place for; a pattern that matches nothing.

    Example:
        >>> names = ("q_proj", "k_proj", "v_proj", "output_proj")
        >>> state = {f"self_attn.{name}.weight": torch.randn(16, 16) for name in names}
        >>> state |= {f"self_attn.{name}.bias": torch.randn(16) for name in names}
        >>> state["self_attn.sdpa.rel_k_embed.weight"] = torch.randn(6, 4)                      # 4 heads
        >>> layer, labeler = rg.interop.checkpoints.from_fairseq2(state, clip=(4, 1), prefix="self_attn.")
        >>> labeler, layer(torch.randn(1, 5, 16), labels=labeler(5)).shape
        (ClippedDistance((4, 1)), torch.Size([1, 5, 16]))
    """
    labeler = ClippedDistance(clip)
    entries = Entries(state, prefix, leave_out)
    if _MAPS[0] + ".weight" not in entries:
        raise entries.neither("an attention, with 'q_proj.weight'")
    of = sizes(entries, "q_proj.weight", _KEYS)
    if of.labels != labeler.num_labels:
        raise ValueError(
            f"clip must be that of {prefix + _KEYS!r}, whose {of.labels} rows are left + right + 1, got {clip!r}"
        )
    # fairseq2 leaves out biases in all maps, in none, or in the output only
    found = maps(of, _MAPS, lambda name, *shape: linear(entries, name, *shape, bias=f"{name}.bias" in entries))
    named = {"key": _KEYS, "value": _VALUES}
    tables = {
        kind: entries.take(name, of.labels, of.head_dim)
        for kind, name in named.items()
        if kind == "key" or name in entries
    }
    entries.finish("a RelationAttention")
    return build_attention(of, Attention(found, tables), Options(labeler, dropout)), labeler
