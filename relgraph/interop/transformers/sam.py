"""SAM and similar models: a vector per row distance and one per column distance, added to keys; in windows or globally.

    e_ij = s · q_i·k_j + q_i·h[row_i − row_j] + q_i·w[column_i − column_j]

The scale s = 1/√D applies only to the products, so this file divides the tables by it. The model picks rows by query
minus key, so this file flips the tables; it interpolates them if the grid has another size than the one that they were
made for. The code of transformers adds up a bias ``[B · H, N, N]`` before attention; this file makes no such tensor.

Source: Kirillov et al. 2023; Li et al. 2022 (MViTv2), section 4.1; the code of transformers.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from relgraph.interop.transformers.common import compute, is_recorded, wants_weights
from relgraph.interop.transformers.families import Family
from relgraph.interop.transformers.grids import labels_of_grid, resized
from relgraph.labelers import GridColumns, GridRows, Labeler


class SegGptMixin:
    """The forward of ``SegGptAttention``."""

    _relgraph_mixin = True

    def forward(self: Any, hidden_states: Tensor, output_attentions: bool | None = False) -> tuple[Any, ...]:
        """The output for a grid ``[B, height, width, E]``, and the weights ``[B, H, N, N]`` if they are asked for."""
        return self._relgraph_attended(hidden_states, bool(output_attentions))

    def _relgraph_attended(self: Any, states: Tensor, need_weights: bool) -> tuple[Tensor, Tensor | None]:
        height, width = states.shape[1:3]
        # [B, height, width, 3 · H · D] as three tensors [B, H, N, D]
        parts = self.qkv(states).flatten(1, 2).unflatten(-1, (3, _heads(self), -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        labeler, tables = _labeler_and_tables(self, height, width)
        output, weights = compute(
            self, query, key, value, labels_of_grid(labeler, height, width, states.device), mask=None,
            dropout=_dropout(self), scale=self.scale, need_weights=need_weights, key_table=tables,
        )  # fmt: skip
        return self.proj(output.unflatten(1, (height, width))), weights


class SamMixin(SegGptMixin):
    """The forward of ``SamVisionAttention``, of its SDPA variant and of their copies; weights are ``[B · H, N, N]``."""

    def forward(self: Any, hidden_states: Tensor, output_attentions: bool | None = None) -> tuple[Any, ...]:
        """Attention over a grid."""
        output, weights = self._relgraph_attended(hidden_states, bool(output_attentions) or is_recorded())
        return output, None if weights is None else weights.flatten(0, 1)


class VitDetMixin(SegGptMixin):
    """The forward of ``VitDetAttention``."""

    def forward(self: Any, hidden_state: Tensor, output_attentions: bool | None = False) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]  # their name
        """Attention over a grid."""
        need_weights = wants_weights(self, {"output_attentions": output_attentions})
        output, weights = self._relgraph_attended(hidden_state, need_weights)
        return (output,) if weights is None else (output, weights)


def _heads(module: Any) -> int:
    return module.num_heads if hasattr(module, "num_heads") else module.num_attention_heads


def _labeler_and_tables(module: Any, height: int, width: int) -> tuple[Labeler, tuple[Tensor, Tensor]]:
    """The differences of rows and of columns on a grid of this size, and a table for each."""
    rows, columns = GridRows(height - 1), GridColumns(width - 1)
    return rows + columns, (
        rows.rows_from(resized(module.rel_pos_h, rows.num_labels, "linear") / module.scale, "query-key"),
        columns.rows_from(resized(module.rel_pos_w, columns.num_labels, "linear") / module.scale, "query-key"),
    )


def _dropout(module: Any) -> float:
    """The probability with which a module drops attention weights; modules of some classes never drop any."""
    kind = type(module).__name__
    return module.dropout if hasattr(module, "dropout") and "Sdpa" not in kind else 0.0


def _why_not(module: nn.Module) -> str | None:
    """Without tables there is nothing to do."""
    return None if hasattr(module, "rel_pos_h") else "it has no tables of relative positions"


_KINDS = (
    "sam.SamVisionAttention",
    "sam_hq.SamHQVisionAttention",
    "got_ocr2.GotOcr2VisionAttention",
    "slanext.SLANeXtVisionAttention",
    "pp_formulanet.PPFormulaNetVisionAttention",
    "deepseek_ocr2.DeepseekOcr2SamVisionAttention",
    "unlimited_ocr.UnlimitedOcrSamVisionAttention",
    "sam.SamVisionSdpaAttention",
    "sam_hq.SamHQVisionSdpaAttention",
    "deepseek_ocr2.DeepseekOcr2SamVisionSdpaAttention",
    "unlimited_ocr.UnlimitedOcrSamVisionSdpaAttention",
)
FAMILY = Family(
    "sam",
    "SAM, SAM-HQ, ViTDet, SegGPT, the vision encoders of GOT-OCR2, SLANeXt, PP-FormulaNet, DeepSeek-OCR2",
    {
        **dict.fromkeys(_KINDS, SamMixin),
        "vitdet.VitDetAttention": VitDetMixin,
        "seggpt.SegGptAttention": SegGptMixin,
    },
    _why_not,
)
