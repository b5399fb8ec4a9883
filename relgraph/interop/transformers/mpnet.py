"""MPNet: one bias per head and bucket of the distance, for all layers.

    e_ij = q_i·k_j / √d + b[bucket(j − i)]

The encoder learns b. In transformers it computes the bias of all pairs, for each row of a batch, and passes it to the
layers. In a patched model it passes the table in its place, ``[H, R]`` numbers.

Source: Song et al. 2020; Raffel et al. 2020, section 2.1, for the buckets, which :class:`~relgraph.BucketedDistance`
follows.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from relgraph.interop.transformers.common import attend, refuse, rows_of, split_heads, version
from relgraph.interop.transformers.families import Family
from relgraph.interop.transformers.layers import layer_of, linear_of, needs_model, plain_rows
from relgraph.labelers import BucketedDistance
from relgraph.nn import RelationAttention

LABELER = BucketedDistance()
"""The buckets, which the configuration does not change: transformers reads only the number of rows from it."""


class MPNetMixin:
    """The forward of ``MPNetSelfAttention``."""

    _relgraph_mixin = True

    def forward(
        self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, *more: Any, **given: Any
    ) -> tuple[Tensor, ...]:
        """Self-attention; ``more`` may be a mask of heads (before transformers 5), the table, and whether weights.

        Returns:
            The output, and the weights if they are wanted.
        """
        names = ("position_bias", "output_attentions")
        given |= zip(names if version() >= (5, 0) else ("head_mask", *names), more, strict=False)
        refuse(self, given, "head_mask")
        table = given.get("position_bias")
        if table is not None and table.dim() != 2:
            raise ValueError(
                f"position_bias must be the table [H, R] of a patched encoder, got shape {list(table.shape)}: patch "
                "the whole model"
            )
        size, length = self.attention_head_size, hidden_states.shape[1]
        query, key, value = (split_heads(one(hidden_states), size) for one in (self.q, self.k, self.v))
        labels = None if table is None else LABELER(length)
        output, weights = attend(
            self, query, key, value, labels, mask=attention_mask, dropout=self.dropout.p, scale=size**-0.5,
            need_weights=bool(given.get("output_attentions")), bias_table=table,
        )  # fmt: skip
        output = self.o(output)
        return (output,) if weights is None else (output, weights)


class EncoderMixin:
    """The table that the encoder passes to its layers."""

    _relgraph_mixin = True

    def compute_position_bias(
        self: Any, x: Tensor, position_ids: Tensor | None = None, num_buckets: int = 32
    ) -> Tensor:
        """The table ``[H, R]``, in place of the bias of all pairs."""
        if position_ids is not None or num_buckets != LABELER.num_labels:
            raise NotImplementedError(
                f"position_ids must be None and num_buckets {LABELER.num_labels} in a patched {type(self).__name__}, "
                f"got {type(position_ids).__name__} and {num_buckets}; unpatch(model) first"
            )
        return rows_of(self.relative_attention_bias)[:num_buckets].t().to(x.device)


def convert(module: Any, encoder: Any) -> tuple[RelationAttention, BucketedDistance]:
    """A layer with the weights of a module; see :func:`relgraph.interop.transformers.convert`."""
    rows = plain_rows(needs_model(module, encoder, "its encoder"), "relative_attention_bias")
    inputs = [linear_of(module, name) for name in ("q", "k", "v")]
    tables = {"bias": rows[: LABELER.num_labels].t()}
    layer = layer_of(
        inputs, linear_of(module, "o"), tables, LABELER, heads=module.num_attention_heads, dropout=module.dropout.p
    )
    return layer, LABELER


FAMILY = Family(
    "mpnet",
    "MPNet",
    {"mpnet.MPNetSelfAttention": MPNetMixin, "mpnet.MPNetEncoder": EncoderMixin},
    convert=convert,
    holders=("mpnet.MPNetEncoder",),
)
