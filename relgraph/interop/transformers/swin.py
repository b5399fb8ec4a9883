"""Swin and similar models: a bias per head and difference on the grid of a window; windows cut by a shift have a mask.

    e_ij = s · q_i·k_j + b[row_i − row_j, column_i − column_j] + mask_ij,  s = 1/√D

There is one mask for each window of an image, ``[W, N, N]``, 0 or −100. It is added unchanged: −100 is not −∞. The
model picks rows by query minus key, so this file flips the tables.

Swin v2 and Swin2SR compare directions, e_ij = s_h · cos(q_i, k_j) + 16 · σ(m[row_i − row_j, column_i − column_j]) with
a learned s per head and rows m that a small network computes. Their code adds the mask twice, and so do we.

Source: Liu et al. 2021 (Swin), section 3.2; Liu et al. 2022 (Swin v2), sections 3.2 and 3.3; the code of transformers.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from relgraph.interop.transformers.families import Family
from relgraph.interop.transformers.grids import labels_of_grid
from relgraph.interop.transformers.self_attention import ByArgumentMixin, SelfAttentionMixin
from relgraph.labelers import Grid

LARGEST_SCALE = math.log(100.0)
"""The bound of Swin v2 on the logarithm of its learned factors."""


class SwinMixin(SelfAttentionMixin):
    """The forward of ``SwinAttention``: attention within windows, ``[B · W, N, E]``."""

    def _relgraph_terms(self: Any, states: Tensor, given: dict[str, Any]) -> dict[str, Any]:
        holder = self.relative_position_bias
        return _terms(states, given.get("attention_mask"), _table_of(holder), holder.window_size)


class SwinSelfMixin(ByArgumentMixin):
    """The forward of ``DonutSwinSelfAttention`` and of its copies."""

    def _relgraph_terms(self: Any, states: Tensor, given: dict[str, Any]) -> dict[str, Any]:
        return _terms(states, given.get("attention_mask"), self.relative_position_bias_table, self.window_size)


class Swinv2SelfMixin(SwinSelfMixin):
    """The forward of ``Swinv2SelfAttention`` and of its copy."""

    def _relgraph_terms(self: Any, states: Tensor, given: dict[str, Any]) -> dict[str, Any]:
        mask = given.get("attention_mask")
        rows = self.continuous_position_bias_mlp(self.relative_coords_table).flatten(0, -2)
        mask = None if mask is None else 2 * mask
        return _terms(states, mask, 16 * torch.sigmoid(rows), self.window_size) | {"scale": 1.0}

    def _relgraph_heads(self: Any, states: Tensor, given: dict[str, Any]) -> list[Tensor]:
        query, key, value = super()._relgraph_heads(states, given)
        factors = self.logit_scale.clamp(max=LARGEST_SCALE).exp()  # [H, 1, 1]
        return [functional.normalize(query, dim=-1) * factors, functional.normalize(key, dim=-1), value]


def _table_of(holder: Any) -> Tensor:
    """The table ``[R, H]``; if a hook brings it, as accelerate does, the rows that the call gives."""
    table = holder.relative_position_bias_table
    if not table.is_meta or "forward" not in vars(holder):
        return table
    biases = holder()  # [1, H, N, N]
    rows = biases.new_empty(table.shape)
    rows[holder.relative_position_index.to(rows.device).flatten()] = biases.flatten(2)[0].t()
    return rows


def _terms(states: Tensor, mask: Tensor | None, table: Tensor, window: tuple[int, int]) -> dict[str, Any]:
    """Labels, table and mask for states ``[B · W, N, E]``, a mask ``[W, N, N]`` and a table ``[R, H]``."""
    height, width = window
    if states.shape[1] != height * width:
        raise ValueError(
            f"hidden_states must have {height * width} positions, those of a window {height} × {width}, "
            f"got {states.shape[1]}: the image has fewer cells than a window"
        )
    labeler = Grid((height - 1, width - 1))
    if mask is not None:
        images = states.shape[0] // mask.shape[0]
        mask = mask.expand(images, *mask.shape).flatten(0, 1)[:, None]
    labels = labels_of_grid(labeler, height, width, states.device)
    return {"labels": labels, "mask": mask, "bias_table": labeler.rows_from(table, "query-key").t()}


_SELF_KINDS = (
    "donut.DonutSwinSelfAttention",
    "maskformer.MaskFormerSwinSelfAttention",
    "clap.ClapAudioSelfAttention",
)
FAMILY = Family(
    "swin",
    "Swin, Swin v2, Swin2SR, and the Swin encoders of Donut, MaskFormer and CLAP",
    {
        "swin.SwinAttention": SwinMixin,
        **dict.fromkeys(_SELF_KINDS, SwinSelfMixin),
        "swinv2.Swinv2SelfAttention": Swinv2SelfMixin,
        "swin2sr.Swin2SRSelfAttention": Swinv2SelfMixin,
    },
)
