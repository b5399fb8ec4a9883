"""LeViT: a bias per head for each pair of distances of rows and columns, without signs; some layers halve the grid.

    e_ij = q_i·k_j / √d + b[|row_i − row_j|, |column_i − column_j|]

Source: Graham et al. 2021, section 3; the code of transformers for the order of the columns of b.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from relgraph.interop.transformers.common import compute
from relgraph.interop.transformers.families import Family
from relgraph.labels import DenseLabels
from relgraph.labels.memory import memory_of


class LevitMixin:
    """The forward of ``LevitAttention``."""

    _relgraph_mixin = True

    def forward(self: Any, hidden_state: Tensor) -> Tensor:
        """The output for states ``[B, N, E]`` of a square grid."""
        parts = _heads(self, self.queries_keys_values(hidden_state))
        return _attended(self, *parts.tensor_split((self.key_dim, 2 * self.key_dim), -1))


class LevitSubsampleMixin:
    """The forward of ``LevitAttentionSubsample``, with queries for every other row and column."""

    _relgraph_mixin = True

    def forward(self: Any, hidden_state: Tensor) -> Tensor:
        """The output for states ``[B, N, E]`` of a square grid, which has about N / 4 positions."""
        key, value = _heads(self, self.keys_values(hidden_state)).tensor_split((self.key_dim,), -1)
        return _attended(self, _heads(self, self.queries(self.queries_subsample(hidden_state))), key, value)


def _heads(module: Any, x: Tensor) -> Tensor:
    return x.unflatten(-1, (module.num_attention_heads, -1)).transpose(1, 2)


def _attended(module: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The output of the module for queries, keys and values ``[B, H, N, D]``."""
    ids, table = module.attention_bias_idxs, module.attention_biases
    labels = memory_of([ids]).once("labels", lambda: DenseLabels(ids.clone()[None], table.shape[1]))
    output, _ = compute(module, query, key, value, labels, mask=None, dropout=0.0, scale=module.scale, bias_table=table)
    return module.projection(module.activation(output))


_KINDS = {"levit.LevitAttention": LevitMixin, "levit.LevitAttentionSubsample": LevitSubsampleMixin}
FAMILY = Family("levit", "LeViT", _KINDS)
