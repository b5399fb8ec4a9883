"""MPNet: one bias per head and bucket of the distance, for all layers.

    e_ij = q_i·k_j / √d + b[bucket(j − i)]

The encoder learns b. In transformers it computes the bias of all pairs, for each row of a batch, and passes it to the
layers. In a patched model it passes the table ``[H, R]`` in its place.

Source: Song et al. 2020; Raffel et al. 2020, section 2.1, for the buckets, which :class:`~relgraph.BucketedDistance`
follows.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from relgraph.interop.transformers.common import rows_of, shared_table
from relgraph.interop.transformers.families import Family
from relgraph.interop.transformers.self_attention import ByArgumentMixin
from relgraph.labelers import BucketedDistance

LABELER = BucketedDistance()
"""The buckets, which the configuration does not change: transformers reads only the number of rows from it."""


class MPNetMixin(ByArgumentMixin):
    """The forward of ``MPNetSelfAttention``, which gets the table in place of the bias of all pairs."""

    _relgraph_words = (*ByArgumentMixin._relgraph_words, "position_bias")

    def _relgraph_terms(self: Any, states: Tensor, given: dict[str, Any]) -> dict[str, Any]:
        table = given.get("position_bias")
        if table is None:
            return {}
        return {"labels": LABELER(states.shape[1]), "bias_table": shared_table(table, "[H, R]")}


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


FAMILY = Family(
    "mpnet",
    "MPNet",
    {"mpnet.MPNetSelfAttention": MPNetMixin, "mpnet.MPNetEncoder": EncoderMixin},
)
