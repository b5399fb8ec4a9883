"""BERT's relative positions, the same for a checkpoint and for a module of transformers."""

from __future__ import annotations

from torch import Tensor

from relgraph.labelers import ClippedDistance

KEY, KEY_QUERY = KINDS = ("relative_key", "relative_key_query")
"""The values of ``position_embedding_type`` with a table."""


def tables_of(rows: Tensor, kind: str) -> tuple[dict[str, Tensor], ClippedDistance]:
    """The tables of an attention, and their labeler.

    Args:
        rows: ``distance_embedding``, ``[2P - 1, D]``: a row for each i - j, query minus key, from -(P - 1) to P - 1.
        kind: one of ``KINDS``; with the second, the query table begins as a copy of the key table.
    """
    labeler = ClippedDistance(rows.shape[0] // 2)
    rows = labeler.rows_from(rows, order="query-key")
    return {"key": rows} | ({"query": rows} if kind == KEY_QUERY else {}), labeler
