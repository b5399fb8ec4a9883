"""How much work each row of attention needs, so that processes can get equal shares."""

from __future__ import annotations

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.call.offset import offsets_of
from relgraph.labels import BlockLabels, DenseLabels, DistanceLabels, EdgeLabels, Labels, SumLabels
from relgraph.labels.base import NOT_ATTENDING, check_labels, first_of_each, graph_of
from relgraph.labels.pairs import Pairs, codes_at, edge_pairs, numbers


def row_costs(labels: Labels, is_causal: bool = False) -> Tensor:
    """Count the keys that each row attends to: its share of the work, for :meth:`~relgraph.distributed.Layout.by_cost`.

    For edges-only labels that is the number of edges into each node; in a packed batch at most the keys of the row's
    graph. Arithmetic counts the pairs without writing them out. Batch rows add up. In a sum, a row costs as much as in
    the part in which it has the fewest keys, because it attends to no more than these.

    Args:
        labels: labels of all rows.
        is_causal: whether a row sees only keys up to its own position, in its graph; the labels' ``q_offset`` counts.

    Returns:
        ``[N_q]``, int64, on the device of the labels.

    Raises:
        TypeError: not Labels, or ``is_causal`` that is not a bool.
        ValueError: labels without data, such as those on the device ``meta``.

    Example:
        >>> rg.distributed.row_costs(rg.ClippedDistance(2)(4), is_causal=True)
        tensor([1, 2, 3, 4])
        >>> edges = rg.EdgeLabels(torch.tensor([[0, 1, 3], [1, 2, 2]]), torch.tensor([0, 1, 0]), 2, q_len=4)
        >>> costs = rg.distributed.row_costs(edges)
        >>> costs
        tensor([0, 1, 2, 0])
        >>> rg.distributed.Layout.by_cost(costs, 2).lengths
        [2, 2]
    """
    check_labels("labels", labels)
    check.boolean("is_causal", is_causal)
    check.held("labels", labels)
    return _costs(labels, _Rows(labels, is_causal))


class _Rows:
    """Where each row is in its graph, ``[B or 1, N_q]`` each, and how many of the graph's keys it may see.

    Attributes:
        graph: the graph of each row, ``[N_q]``; None unless packed.
        first_key: the position of its graph's first key.
        position: its own position in its graph.
        keys: the number of keys of its graph.
        seen: how many of these keys, from the first, come no later than the row; all of them without causal order.
    """

    def __init__(self, labels: Labels, is_causal: bool) -> None:
        device = labels.device
        rows = torch.arange(labels.q_len, device=device)[None]
        self.graph = None
        self.position, self.first_key, self.keys = rows, torch.zeros_like(rows), torch.full_like(rows, labels.k_len)
        if labels.q_ptr is not None and labels.k_ptr is not None:
            self.graph = graph_of(labels.q_ptr, labels.q_len)
            self.position = rows - labels.q_ptr[self.graph]
            self.first_key, self.keys = labels.k_ptr[self.graph][None], labels.k_ptr.diff()[self.graph][None]
        self.seen = self.keys
        if is_causal:
            offset = next((x for x in offsets_of(labels) if x is not None), None)
            self.seen = (self.position + self.offsets(offset) + 1).clamp(min=0).minimum(self.keys)

    def offsets(self, offset: int | Tensor | None) -> Tensor:
        """The ``q_offset`` of each row, ``[B or 1, N_q or 1]``."""
        given = torch.as_tensor(0 if offset is None else offset, device=self.position.device).to(torch.int64)
        if given.dim() == 1 and given.shape[0] > 1 and self.graph is not None:
            return given[self.graph][None]
        return given.reshape(-1, 1)

    def see(self, pairs: Pairs) -> Tensor:
        """Which pairs causal order lets attend, ``[P]``."""
        row = pairs.row if self.seen.shape[0] > 1 else torch.zeros_like(pairs.row)
        return pairs.key - self.first_key[0, pairs.query] < self.seen[row, pairs.query]


def _costs(labels: Labels, rows: _Rows) -> Tensor:
    """Keys of each row, ``[N_q]``, of all batch rows together."""
    if isinstance(labels, SumLabels):
        batch = labels.batch_size
        parts = [_costs(part, rows) * (batch // max(part.batch_size, 1)) for part in labels.parts]
        return torch.stack(parts).amin(0)
    if isinstance(labels, EdgeLabels):
        return _costs_of_edges(labels, rows)
    if isinstance(labels, DistanceLabels):
        return _costs_of_distances(labels, rows)
    if isinstance(labels, BlockLabels):
        return _costs_of_blocks(labels, rows)
    assert isinstance(labels, DenseLabels)
    attend = labels.ids != NOT_ATTENDING
    if rows.seen is not rows.keys:
        attend &= torch.arange(labels.k_len, device=attend.device) < rows.seen[..., None]
    return attend.sum((0, 2))


def _costs_of_edges(labels: EdgeLabels, rows: _Rows) -> Tensor:
    batch = labels.batch_size
    pairs, _ = edge_pairs(labels, batch)
    if labels.default is None:
        return torch.bincount(pairs.query[rows.see(pairs)], minlength=labels.q_len)
    if not isinstance(labels.default, Labels):
        return rows.seen.expand(batch, -1).sum(0)
    others = _costs(labels.default, rows) * (batch // max(labels.default.batch_size, 1))
    once = first_of_each(numbers(pairs, labels))
    pairs = Pairs(*(x[once] for x in pairs))
    pairs = pairs.where(rows.see(pairs))
    added = pairs.where(codes_at(labels.default, pairs) == NOT_ATTENDING)
    return others.to(labels.device) + torch.bincount(added.query, minlength=labels.q_len)


def _costs_of_distances(labels: DistanceLabels, rows: _Rows) -> Tensor:
    """The entries of the lookup that attend, between the distances of a row's first and last key."""
    attend = torch.tensor(labels.lookup, device=rows.keys.device) != NOT_ATTENDING
    upto = attend.cumsum(0)
    least, most = -labels.left, len(labels.lookup) - 1 - labels.left

    def count(distance: Tensor) -> Tensor:
        """How many distances attend, from the lookup's first distance to this; negative before the first."""
        inside = upto[(distance.clamp(least, most) - least)]
        before = (distance - least + 1).clamp(max=0) * attend[0] - attend[0].long() * (distance < least)
        return inside + before + (distance - most).clamp(min=0) * attend[-1]

    first = -rows.position - rows.offsets(labels.q_offset)
    seen = count(first + rows.seen - 1) - count(first - 1)
    return seen.sum(0)


def _costs_of_blocks(labels: BlockLabels, rows: _Rows) -> Tensor:
    """Ids are stored row by row, so the ids of a row are contiguous."""
    attend = labels.ids != NOT_ATTENDING
    done = torch.cat([attend.new_zeros(1, dtype=torch.int64), attend.cumsum(0)])
    assert rows.graph is not None
    first = labels.block_ptr()[rows.graph] + rows.position * rows.keys
    return (done[first + rows.seen] - done[first])[0]
