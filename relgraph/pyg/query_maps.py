"""Dot products of queries and keys that are both mapped by relation: one number for each edge and head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from relgraph.call import accumulation_dtype
from relgraph.impl.eager.sparse import sampled_dot
from relgraph.impl.listed import Pattern, inverse
from relgraph.labels import EdgeLabels
from relgraph.labels.memory import memory_of
from relgraph.pyg.full_maps import FullMaps
from relgraph.pyg.related import related


def scored_by_pairs(
    maps: FullMaps, x: Tensor, key: Tensor, labels: EdgeLabels, attr: Tensor | None, edge_value: Tensor | None
) -> dict[str, Any]:
    """The arguments of attention whose scores are (W[r] x_i)·k_j / √C, as features of edges that enter the score.

    Args:
        maps: those of the queries.
        x: the targets, ``[N, F]``.
        key: ``[U, H, C]``.
        labels: edges from the rows of ``key`` to targets.
        attr: features of edges that enter the values, ``[E, F]``, or None.
        edge_value: their projection, ``[H, C, F]``.
    """
    pairs, (heads, size) = related(labels, 1), key.shape[1:]
    query = maps(pairs.rows(x), pairs).view(-1, heads, size)  # [P, H, C]

    def find() -> tuple[Pattern, Tensor]:
        order = pairs.at.argsort(stable=True)
        row = pairs.at[order]
        first = torch.searchsorted(row, torch.arange(len(pairs.nodes) + 1, device=row.device))
        return Pattern.of(first, row, labels.edge_index[0][order], labels.k_len), inverse(order)

    pattern, back = memory_of([labels], "related").once("pattern", find)
    dtype = accumulation_dtype(key.dtype)
    left, right = (one.to(dtype).transpose(0, 1).contiguous() for one in (query * size**-0.5, key))
    scores = sampled_dot(left, right, pattern)
    features, to_key = scores.T[back], torch.eye(heads, dtype=dtype, device=x.device)[:, None]
    if attr is not None:
        assert edge_value is not None
        features = torch.cat([features, attr.to(dtype)], 1)
        to_key = torch.nn.functional.pad(to_key, (0, attr.shape[1]))
        edge_value = torch.nn.functional.pad(edge_value, (heads, 0))
    return {
        "query": key.new_ones(x.shape[0], heads, 1), "key": key.new_zeros(*key.shape[:2], 1), "scale": 1.0,
        "edge_attr": features, "edge_key": to_key, "edge_value": edge_value,
    }  # fmt: skip
