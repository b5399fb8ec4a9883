"""Biases of the query, as in Transformer-XL: one for its product with the key, one for that with the key table.

    e_ij = ((q_i + u)·k_j + (q_i + v)·a^K[l_ij]) · scale

Implementations do not handle these biases. They get q_i + u as the query, and a bias table with (v - u)·a^K[l_ij]
added, which is one number per head and label.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.call.call import EdgeVectors, Tables, accumulation_dtype
from relgraph.score import Compatibility


def with_query_biases(
    content: Tensor | None,
    position: Tensor | None,
    query: Tensor,
    tables: tuple[Tables, ...],
    scale: float,
    score: Compatibility,
    edge: EdgeVectors | None,
) -> tuple[Tensor, tuple[Tables, ...]]:
    """Fold the biases ``[H, D]`` into query and tables, with the same scores; ``query`` is ``[B, H, N_q, D]``."""
    for name, bias in (("content_bias", content), ("position_bias", position)):
        if bias is not None and score.replaces_dot:
            raise ValueError(f"{name} must be None with score={type(score).__name__}: it is for dot products")
        if bias is not None and edge is not None and edge.key is not None:
            raise NotImplementedError(f"{name} cannot be added where edge vectors have an edge_key")
    if position is not None and all(table.key is None for table in tables):
        raise ValueError("position_bias needs a key_table, whose rows it is multiplied by, got none")
    device, dtype = query.device.type, accumulation_dtype(query.dtype)
    with torch.autocast(device, enabled=False) if check.has_autocast(device) else nullcontext():
        of_content, of_position = (None if bias is None else bias.to(dtype) for bias in (content, position))
        between = _difference(of_position, of_content)
        found = tuple(_with_bias_row(table, between, scale) for table in tables)
        if of_content is not None:
            query = (query.to(dtype) + of_content[:, None]).to(query.dtype)
    return query, found


def _difference(position: Tensor | None, content: Tensor | None) -> Tensor:
    """The bias v - u, ``[H, D]``; a missing one counts as zero."""
    if content is None:
        assert position is not None
        return position
    return -content if position is None else position - content


def _with_bias_row(table: Tables, between: Tensor, scale: float) -> Tables:
    """The tables of a part, with (v - u)·a^K · scale added to the biases of its labels, ``[H, R]``."""
    if table.key is None:
        return table
    added = (table.key.to(between.dtype) @ between[..., None]).squeeze(-1) * scale
    return table._replace(bias=added if table.bias is None else added + table.bias)
