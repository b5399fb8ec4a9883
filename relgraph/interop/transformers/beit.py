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

from relgraph.interop.transformers.families import Family
from relgraph.interop.transformers.grids import labels_of_grid, resized
from relgraph.interop.transformers.self_attention import ByArgumentMixin, SelfAttentionMixin
from relgraph.labelers import Grid
from relgraph.labels import Labels


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
        """The table for a grid of ``window_size`` patches, and the labels; ``dim_size`` must be their number."""
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


class BeitMixin(SelfAttentionMixin):
    """The forward of ``BeitAttention``, which gets the bias in the place of a mask."""

    def _relgraph_terms(self, states: Tensor, given: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        return _terms_of(given.get("attention_mask"))


class SelfMixin(ByArgumentMixin):
    """The forward of ``Data2VecVisionSelfAttention`` and of its SDPA variant."""

    _relgraph_words = (
        "output_attentions", "relative_position_bias", "interpolate_pos_encoding", "resolution",
    )  # fmt: skip

    def _relgraph_terms(self: Any, states: Tensor, given: dict[str, Any]) -> dict[str, Any]:
        bias = given.get("relative_position_bias")
        if self.has_relative_position_bias:
            grid = tuple(length // self.config.patch_size for length in given["resolution"])
            interpolated = given.get("interpolate_pos_encoding", False)
            own = self.relative_position_bias(grid, interpolated, dim_size=states.shape[1])
            bias = own if bias is None else own + bias
        return _terms_of(bias)

    def _relgraph_answer(self, output: Tensor, weights: Tensor | None, given: dict[str, Any]) -> tuple[Any, ...]:
        if "Sdpa" in type(self).__name__:
            return output, weights
        return super()._relgraph_answer(output, weights, given)


def _terms_of(bias: GridBias | Tensor | None) -> dict[str, Any]:
    """The arguments of attention for a bias, which may be a plain mask."""
    if not isinstance(bias, GridBias):
        return {"mask": bias}
    return {"labels": bias.labels, "mask": bias.mask, "bias_table": bias.table}


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
        "beit.BeitAttention": BeitMixin,
        **dict.fromkeys(_SELF_KINDS, SelfMixin),
        **dict.fromkeys(_BIAS_KINDS, BiasMixin),
    },
    _why_not,
)
