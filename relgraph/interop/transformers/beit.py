"""BEiT and Data2Vec for images: a bias per head and difference on the grid of patches, and three for the class token.

    e_ij = s · q_i·k_j + b[row_i − row_j, column_i − column_j],  s = 1/√D

Pairs with the class token have the last three rows: class → patch, patch → class, class → class. Each layer has a
table, or all layers share one, or both, which then add up. The model picks rows by query minus key, so this file flips
the tables. It interpolates them if the image has another size than the one that they were made for.

In a patched model, the module that makes the bias ``[1, H, N, N]`` returns its table and labels instead, as a
:class:`GridBias`, which layers pass on in place of the bias.

Source: Bao et al. 2022 (BEiT); the code of transformers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from relgraph.interop.transformers.common import attend, refuse, split_heads, version, wants_weights
from relgraph.interop.transformers.families import Family
from relgraph.interop.transformers.grids import dropout_of, labels_of_grid, projections_of, resized
from relgraph.interop.transformers.layers import layer_of, needs_model
from relgraph.labelers import Grid
from relgraph.labels import Labels
from relgraph.nn import RelationAttention

BEFORE_FIVE = version() < (5, 0)
"""Whether transformers is older than 5.0, which removed ``BeitSelfAttention``."""


class GridBias(NamedTuple):
    """A table and labels in place of a bias of all pairs.

    Its sum with another bias is a GridBias again: tables add up, because all are for the same grid.

    Attributes:
        table: ``[H, R]``.
        labels: labels of all pairs, the class token first.
        mask: a mask that is also added to the scores, or None.
    """

    table: Tensor
    labels: Labels
    mask: Tensor | None = None

    def __add__(self, other: Any) -> GridBias:  # type: ignore[override]  # not the sum of two tuples
        """This bias and another one, or a mask."""
        if not isinstance(other, GridBias):
            return GridBias(self.table, self.labels, other if self.mask is None else self.mask + other)
        mask = self.mask if other.mask is None else other.mask
        if self.mask is not None and other.mask is not None:
            mask = self.mask + other.mask
        return GridBias(self.table + other.table, self.labels, mask)


class BiasMixin:
    """The forward of ``BeitRelativePositionBias`` and of its copy."""

    _relgraph_mixin = True

    def forward(
        self: Any, window_size: tuple[int, int], interpolate_pos_encoding: bool = False, dim_size: int | None = None
    ) -> GridBias:
        """The table for a grid of ``window_size`` patches, and the labels.

        Their code interpolates the bias itself to ``dim_size`` positions if ``interpolate_pos_encoding`` is set, which
        changes nothing: there are as many already.
        """
        height, width = window_size
        if interpolate_pos_encoding and dim_size != height * width + 1:
            raise ValueError(
                f"dim_size must be {height * width + 1}, the patches of a grid {height} × {width} and a class token, "
                f"got {dim_size}"
            )
        old_height, old_width = (2 * length - 1 for length in self.window_size)
        labeler = Grid((height - 1, width - 1), extra_tokens=1)
        table = self.relative_position_bias_table
        # width before height, as their code has it: on a grid that is not square it mixes the two
        cells = table[:-3].unflatten(0, (old_width, old_height))
        cells = resized(cells, (2 * height - 1, 2 * width - 1), "bilinear").flatten(0, 1)
        rows = labeler.rows_from(torch.cat((cells, table[-3:])), "query-key")
        return GridBias(rows.t(), labels_of_grid(labeler, height, width, table.device))


class SelfMixin:
    """The forward of ``BeitSelfAttention``, of its SDPA variant and of their copies."""

    _relgraph_mixin = True

    def forward(self: Any, hidden_states: Tensor, *more: Any, **given: Any) -> tuple[Tensor | None, ...]:
        """Attention over a class token and patches, ``[B, N, E]``.

        Returns:
            The output before the last projection, and the weights ``[B, H, N, N]`` if they are asked for.
        """
        names = ("output_attentions", "relative_position_bias", "interpolate_pos_encoding", "resolution")
        names = ("head_mask", *names) if BEFORE_FIVE else names
        given |= dict(zip(names, more, strict=False))
        refuse(self, given, "head_mask")
        bias = given.get("relative_position_bias")
        if self.has_relative_position_bias:
            height, width = given["resolution"]
            size = self.config.patch_size
            own = self.relative_position_bias(
                (height // size, width // size),
                given.get("interpolate_pos_encoding", False),
                dim_size=hidden_states.shape[1],
            )
            bias = own if bias is None else own + bias
        query, key, value = (
            split_heads(project(hidden_states), self.attention_head_size)
            for project in (self.query, self.key, self.value)
        )
        need_weights = bool(given.get("output_attentions"))
        output, weights = _attended(
            self, query, key, value, bias, self.dropout.p, self.attention_head_size**-0.5, need_weights
        )
        if "Sdpa" in type(self).__name__:
            return output, weights
        return (output,) if weights is None else (output, weights)


class BeitMixin:
    """The forward of ``BeitAttention`` from 5.0 on."""

    _relgraph_mixin = True

    def forward(
        self: Any, hidden_states: Tensor, attention_mask: Any = None, **given: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Attention over a class token and patches, ``[B, N, E]``; the bias comes in the place of a mask.

        Returns:
            The output, and the weights ``[B, H, N, N]`` or None.
        """
        query, key, value = (
            split_heads(project(hidden_states), self.head_dim) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        need_weights = wants_weights(self, given)
        output, weights = _attended(
            self, query, key, value, attention_mask, self.attention_dropout, self.scaling, need_weights
        )
        return self.o_proj(output), weights


def _attended(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: GridBias | Tensor | None,
    dropout: float,
    scale: float,
    need_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """The output ``[B, N, E]`` and, if they are wanted, the weights; ``bias`` may be a plain mask."""
    if not isinstance(bias, GridBias):
        return attend(
            module, query, key, value, None, mask=bias, dropout=dropout, scale=scale, need_weights=need_weights
        )
    return attend(
        module, query, key, value, bias.labels, mask=bias.mask, dropout=dropout, scale=scale,
        need_weights=need_weights, bias_table=bias.table,
    )  # fmt: skip


def convert(module: Any, holder: Any) -> tuple[RelationAttention, Grid]:
    """A layer for the grid that the tables were made for; see :func:`relgraph.interop.transformers.convert`."""
    makers = _makers(module, holder)
    height, width = makers[0].window_size
    labeler = Grid((height - 1, width - 1), extra_tokens=1, beyond="error")
    tables = [BiasMixin.forward(maker, (height, width)).table for maker in makers]
    layer = layer_of(
        *projections_of(module), {"bias": sum(tables[1:], tables[0])}, labeler, heads=module.num_attention_heads,
        dropout=dropout_of(module),
    )  # fmt: skip
    return layer, labeler


def _makers(module: Any, holder: Any) -> list[Any]:
    """The modules that make the biases of an attention: its own and the one that all layers share, if they exist."""
    found = []
    newer = hasattr(module, "o_proj")  # BEiT from 5.0 on: the layer around the module holds its own one
    if module.config.use_relative_position_bias:
        if newer:
            layers = needs_model(module, holder, "its layer").layers
            found.append(next(one for one in layers if one.attention is module).relative_position_bias)
        else:
            found.append(module.relative_position_bias)
    if module.config.use_shared_relative_position_bias:
        holder = needs_model(module, holder, "its model" if newer else "its encoder")
        found.append(holder.shared_position_bias if newer else holder.relative_position_bias)
    return found


def _why_not(module: nn.Module) -> str | None:
    """Without tables there is nothing to do; layers that share a table find that out from the configuration only."""
    config: Any = getattr(module, "config", None)
    if config is None or config.use_relative_position_bias or config.use_shared_relative_position_bias:
        return None
    return "it has no table of relative positions"


_SELF_KINDS = ("data2vec.Data2VecVisionSelfAttention", "data2vec.Data2VecVisionSdpaSelfAttention")
_BIAS_KINDS = ("beit.BeitRelativePositionBias", "data2vec.Data2VecVisionRelativePositionBias")
FAMILY = Family(
    "beit",
    "BEiT and Data2Vec for images",
    {
        **(
            {"beit.BeitSelfAttention": SelfMixin, "beit.BeitSdpaSelfAttention": SelfMixin}
            if BEFORE_FIVE
            else {"beit.BeitAttention": BeitMixin}
        ),
        **dict.fromkeys(_SELF_KINDS, SelfMixin),
        **dict.fromkeys(_BIAS_KINDS, BiasMixin),
    },
    _why_not,
    convert,
    ("beit.BeitEncoder" if BEFORE_FIVE else "beit.BeitModel", "data2vec.Data2VecVisionEncoder"),
    dict.fromkeys(_BIAS_KINDS, "it makes the biases of attention modules: convert these"),
)
