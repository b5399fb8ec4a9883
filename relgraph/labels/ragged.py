"""Where the pairs of a packed batch are: addresses of ids in flat blocks, and distances within a graph.

Positions are numbered through the whole batch, ``graph`` is the graph of each pair, and arguments broadcast.
"""

from __future__ import annotations

import torch
from torch import Tensor

from relgraph.labels.borders import graph_at


def block_starts(q_ptr: Tensor, k_ptr: Tensor) -> Tensor:
    """Where each graph's block of ids begins, ``[G+1]``; the last entry is the number of ids."""
    ends = (q_ptr.diff() * k_ptr.diff()).cumsum(0)
    return torch.cat([ends.new_zeros(1), ends])


def block_address(q_ptr: Tensor, k_ptr: Tensor, starts: Tensor, query: Tensor, key: Tensor, graph: Tensor) -> Tensor:
    """The index of each pair's id in flat blocks; meaningless for a key of another graph."""
    width = k_ptr[graph + 1] - k_ptr[graph]
    return starts[graph] + (query - q_ptr[graph]) * width + key - k_ptr[graph]


def block_positions(q_ptr: Tensor, k_ptr: Tensor, starts: Tensor, ids: int) -> tuple[Tensor, Tensor, Tensor]:
    """Graph, query and key of each of ``ids`` flat ids, ``[P]`` each: the inverse of :func:`block_address`."""
    address = torch.arange(ids, device=q_ptr.device)
    graph = graph_at(starts, address)
    address, width = address - starts[graph], (k_ptr[graph + 1] - k_ptr[graph]).clamp(min=1)
    return graph, q_ptr[graph] + address // width, k_ptr[graph] + address % width


def distance_at(
    q_ptr: Tensor | None, k_ptr: Tensor | None, offset: int | Tensor, batch: Tensor, query: Tensor, key: Tensor,
    graph: Tensor | None,
) -> Tensor:  # fmt: skip
    """Key position minus query position, counted within the graph, minus the offset of the batch row or graph."""
    if graph is not None:
        assert q_ptr is not None and k_ptr is not None
        query, key = query - q_ptr[graph], key - k_ptr[graph]
    if isinstance(offset, Tensor):
        offset = offset.to(key.device)
        if offset.dim() == 1:
            offset = offset[0] if offset.shape[0] == 1 else offset[batch if graph is None else graph]
    return key - query - offset
