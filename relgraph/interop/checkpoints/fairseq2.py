"""The attention of fairseq2 with Shaw positions, as in w2v-BERT 2.0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relgraph.interop.checkpoints.reader import Reader
from relgraph.labelers import ClippedDistance
from relgraph.nn import RelationAttention


class _Reader(Reader):
    maps = ("q_proj", "k_proj", "v_proj", "output_proj")
    wanted = ("an attention, with 'q_proj.weight'",)
    attention_bias = None  # fairseq2 leaves out biases in all maps, in none, or in the output only
    clip: ClippedDistance

    def _labeler(self, table: str) -> ClippedDistance:
        if self.num_labels != self.clip.num_labels:
            raise ValueError(
                f"clip must be that of {table!r}, whose {self.num_labels} rows are left + right + 1, got "
                f"{self.clip.clip!r}"
            )
        return self.clip


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
    are required. The number of heads follows from the width of a row. A value table is read if there is one.

    Args:
        state: names and tensors, or arrays of numpy.
        clip: the distances to the left and to the right, ``max_lhs_rel_pos`` and ``max_rhs_rel_pos`` of the original
            (``max_left_rel_pos`` and ``max_right_rel_pos`` in older versions); (64, 8) for w2v-BERT 2.0.
        prefix: the beginning of the names, before ``q_proj.weight``, such as ``"encoder.layers.0.self_attn."``.
        dropout: dropout of the new module.
        leave_out: ``fnmatch`` patterns for names after the prefix of tensors to skip.

    Returns:
        The layer with copies of the weights, in their dtype and on their device, and its labeler.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: a table without a row for each distance; a prefix, pattern or tensor that does not
            fit; see the package.

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
    reader = _Reader(state, prefix, leave_out)
    named = {"key": "sdpa.rel_k_embed.weight", "value": "sdpa.rel_v_embed.weight"}
    reader.tables = {kind: name for kind, name in named.items() if kind == "key" or name in reader.entries}
    reader.clip = labeler
    return reader.build(dropout)
