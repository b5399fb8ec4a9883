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

from relgraph.interop.transformers.common import attend, refuse, split_heads, version, wants_weights
from relgraph.interop.transformers.families import Family
from relgraph.interop.transformers.grids import dropout_of, labels_of_grid, projections_of
from relgraph.interop.transformers.layers import layer_of
from relgraph.labelers import Grid
from relgraph.nn import RelationAttention

BEFORE_FIVE = version() < (5, 0)
"""Whether transformers is older than 5.0, which removed ``SwinSelfAttention``."""

LARGEST_SCALE = math.log(100.0)
"""The bound of Swin v2 on the logarithm of its learned factors."""


class SwinSelfMixin:
    """The forward of ``SwinSelfAttention`` and of its copies."""

    _relgraph_mixin = True

    def forward(
        self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, *more: Any, **given: Any
    ) -> tuple[Tensor, ...]:
        """Attention within windows, ``[B · W, N, E]``.

        Returns:
            The output before the last projection, and the weights ``[B · W, H, N, N]`` if they are asked for.
        """
        need_weights = _needs_weights(self, more, given)
        size = self.attention_head_size
        output, weights = _attended(
            self,
            *(split_heads(project(hidden_states), size) for project in (self.query, self.key, self.value)),
            table=self.relative_position_bias_table,
            window=self.window_size,
            mask=attention_mask,
            dropout=self.dropout.p,
            scale=size**-0.5,
            need_weights=need_weights,
        )
        return (output,) if weights is None else (output, weights)


class SwinMixin:
    """The forward of ``SwinAttention`` from 5.0 on."""

    _relgraph_mixin = True

    def forward(
        self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, **given: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Attention within windows, ``[B · W, N, E]``.

        Returns:
            The output, and the weights ``[B · W, H, N, N]`` or None.
        """
        output, weights = _attended(
            self,
            *(
                split_heads(project(hidden_states), self.head_dim)
                for project in (self.q_proj, self.k_proj, self.v_proj)
            ),
            table=_table_of(self.relative_position_bias),
            window=self.relative_position_bias.window_size,
            mask=attention_mask,
            dropout=self.attention_dropout,
            scale=self.scaling,
            need_weights=wants_weights(self, given),
        )
        return self.o_proj(output), weights


class Swinv2SelfMixin:
    """The forward of ``Swinv2SelfAttention`` and of its copy."""

    _relgraph_mixin = True

    def forward(
        self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, *more: Any, **given: Any
    ) -> tuple[Tensor, ...]:
        """Attention within windows, ``[B · W, N, E]``.

        Returns:
            The output before the last projection, and the weights ``[B · W, H, N, N]`` if they are asked for.
        """
        need_weights = _needs_weights(self, more, given)
        query, key, value = (
            split_heads(project(hidden_states), self.attention_head_size)
            for project in (self.query, self.key, self.value)
        )
        factors = self.logit_scale.clamp(max=LARGEST_SCALE).exp()  # [H, 1, 1]
        rows = self.continuous_position_bias_mlp(self.relative_coords_table).flatten(0, -2)
        output, weights = _attended(
            self,
            functional.normalize(query, dim=-1) * factors,
            functional.normalize(key, dim=-1),
            value,
            table=16 * torch.sigmoid(rows),
            window=self.window_size,
            mask=None if attention_mask is None else 2 * attention_mask,
            dropout=self.dropout.p,
            scale=1.0,
            need_weights=need_weights,
        )
        return (output,) if weights is None else (output, weights)


def _table_of(holder: Any) -> Tensor:
    """The table ``[R, H]``; if a hook brings it, as accelerate does, the rows that the call gives."""
    table = holder.relative_position_bias_table
    if not table.is_meta or "forward" not in vars(holder):
        return table
    biases = holder()  # [1, H, N, N]
    rows = biases.new_empty(table.shape)
    rows[holder.relative_position_index.to(rows.device).flatten()] = biases.flatten(2)[0].t()
    return rows


def _needs_weights(module: Any, more: tuple[Any, ...], given: dict[str, Any]) -> bool:
    """Whether weights are wanted by arguments after the mask, which may be given by position."""
    names = ("head_mask", "output_attentions") if BEFORE_FIVE else ("output_attentions",)
    given = given | dict(zip(names, more, strict=False))
    refuse(module, given, "head_mask")
    return bool(given.get("output_attentions"))


def _attended(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    table: Tensor,
    window: tuple[int, int],
    mask: Tensor | None,
    dropout: float,
    scale: float,
    need_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """The output ``[B · W, N, E]`` and, if they are wanted, the weights.

    Args:
        module: the patched module.
        query: ``[B · W, H, N, D]``, like keys and values.
        key: keys.
        value: values.
        table: ``[R, H]``, by query minus key.
        window: how many rows and columns of cells a window has.
        mask: added to the scores, ``[W, N, N]``, the same for every image.
        dropout: the probability of the module.
        scale: factor on products.
        need_weights: whether to return the weights too.
    """
    height, width = window
    if query.shape[2] != height * width:
        raise ValueError(
            f"hidden_states must have {height * width} positions, those of a window {height} × {width}, "
            f"got {query.shape[2]}: the image has fewer cells than a window"
        )
    labeler = Grid((height - 1, width - 1))
    if mask is not None:
        images = query.shape[0] // mask.shape[0]
        mask = mask.expand(images, *mask.shape).flatten(0, 1)[:, None]
    return attend(
        module, query, key, value, labels_of_grid(labeler, height, width, query.device), mask=mask, dropout=dropout,
        scale=scale, need_weights=need_weights, bias_table=labeler.rows_from(table, "query-key").t(),
    )  # fmt: skip


def convert(module: Any) -> tuple[RelationAttention, Grid]:
    """A layer for windows; see :func:`relgraph.interop.transformers.convert`."""
    holder = getattr(module, "relative_position_bias", module)  # from 5.0 on Swin has a module for its table
    height, width = holder.window_size
    labeler = Grid((height - 1, width - 1), beyond="error")
    table = labeler.rows_from(holder.relative_position_bias_table, "query-key").t()
    layer = layer_of(
        *projections_of(module), {"bias": table}, labeler, heads=module.num_attention_heads, dropout=dropout_of(module)
    )
    return layer, labeler


_NO_LAYER = "it compares the directions of queries and keys, and a network computes its biases"
_SELF_KINDS = (
    "donut.DonutSwinSelfAttention",
    "maskformer.MaskFormerSwinSelfAttention",
    "clap.ClapAudioSelfAttention",
)
FAMILY = Family(
    "swin",
    "Swin, Swin v2, Swin2SR, and the Swin encoders of Donut, MaskFormer and CLAP",
    {
        **({"swin.SwinSelfAttention": SwinSelfMixin} if BEFORE_FIVE else {"swin.SwinAttention": SwinMixin}),
        **dict.fromkeys(_SELF_KINDS, SwinSelfMixin),
        "swinv2.Swinv2SelfAttention": Swinv2SelfMixin,
        "swin2sr.Swin2SRSelfAttention": Swinv2SelfMixin,
    },
    convert=convert,
    no_layer=dict.fromkeys(("swinv2.Swinv2SelfAttention", "swin2sr.Swin2SRSelfAttention"), _NO_LAYER),
)
