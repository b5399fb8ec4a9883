"""The labels of some pairs, looked up in any kind of labels without writing out the others."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from relgraph.labels import ragged
from relgraph.labels.base import NOT_ATTENDING, Labels, graph_at
from relgraph.labels.block import BlockLabels
from relgraph.labels.dense import DenseLabels
from relgraph.labels.distance import DistanceLabels
from relgraph.labels.edge import EdgeLabels


class Pairs(NamedTuple):
    """Some pairs, ``[P]`` each: batch row, query and key. In a packed batch no pair crosses a border."""

    row: Tensor
    query: Tensor
    key: Tensor

    def where(self, mask: Tensor) -> Pairs:
        """The pairs for which ``mask`` is True."""
        return Pairs(self.row[mask], self.query[mask], self.key[mask])


def edge_pairs(labels: EdgeLabels, batch: int) -> tuple[Pairs, Tensor]:
    """The edges and their codes, repeated in each of ``batch`` rows unless they hold batch rows."""
    key, query = labels.edge_index
    ids = labels.ids.long()
    if labels.batch is not None:
        return Pairs(labels.batch, query, key), ids
    row = torch.arange(batch, device=key.device).repeat_interleave(key.shape[0])
    return Pairs(row, query.repeat(batch), key.repeat(batch)), ids.repeat(batch)


def union(a: Pairs, b: Pairs, labels: Labels) -> Pairs:
    """Every pair of either, once."""
    return numbered(torch.cat([numbers(a, labels), numbers(b, labels)]).unique(), labels)


def numbers(pairs: Pairs, labels: Labels) -> Tensor:
    """One number per pair, ordered by batch row, query and key."""
    return (pairs.row * labels.q_len + pairs.query) * labels.k_len + pairs.key


def numbered(numbers: Tensor, labels: Labels) -> Pairs:
    """The pairs that have these numbers."""
    q_len, k_len = max(labels.q_len, 1), max(labels.k_len, 1)
    query = numbers // k_len
    return Pairs(query // q_len, query % q_len, numbers % k_len)


def block_pairs(labels: BlockLabels) -> Pairs:
    """The pairs of all graphs in the order of their ids."""
    _, query, key = ragged.block_positions(labels.q_ptr, labels.k_ptr, labels.block_ptr(), labels.ids.shape[0])
    return Pairs(torch.zeros_like(query), query, key)


def codes_at(labels: Labels, pairs: Pairs) -> Tensor:
    """The code of each pair, ``[P]``: its id, -1 for none, -2 for not attending; the first of parallel edges counts."""
    if labels.batch_size == 1:
        pairs = pairs._replace(row=torch.zeros_like(pairs.row))
    if isinstance(labels, DistanceLabels):
        return _distance_codes(labels, pairs)
    if isinstance(labels, EdgeLabels):
        return _edge_codes(labels, pairs)
    if isinstance(labels, BlockLabels):
        q_ptr, k_ptr, graph = labels.q_ptr, labels.k_ptr, graph_at(labels.q_ptr, pairs.query)
        at = ragged.block_address(q_ptr, k_ptr, labels.block_ptr(), pairs.query, pairs.key, graph)
        return labels.ids[at].long()
    assert isinstance(labels, DenseLabels)
    return labels.ids[pairs.row, pairs.query, pairs.key].long()


def several_labels(labels: Labels) -> bool:
    """Whether parallel edges give a pair more than one label, or attend more than once."""
    if not isinstance(labels, EdgeLabels):
        return False
    if labels.parallel and (labels.default is None or labels.duplicates == "sum"):
        return True
    return isinstance(labels.default, Labels) and several_labels(labels.default)


def _distance_codes(labels: DistanceLabels, pairs: Pairs) -> Tensor:
    offset = 0 if labels.q_offset is None else labels.q_offset
    graph = None if labels.q_ptr is None else graph_at(labels.q_ptr, pairs.query)
    distance = ragged.distance_at(labels.q_ptr, labels.k_ptr, offset, *pairs, graph)
    distance = distance.clamp(-labels.left, len(labels.lookup) - 1 - labels.left)
    return torch.tensor(labels.lookup, device=distance.device)[distance + labels.left]


def _edge_codes(labels: EdgeLabels, pairs: Pairs) -> Tensor:
    if isinstance(labels.default, Labels):
        codes = codes_at(labels.default, pairs)
    else:
        codes = torch.full_like(pairs.key, NOT_ATTENDING if labels.default is None else labels.default)
    if labels.ids.shape[0] == 0:
        return codes
    if labels.batch is None:
        pairs = pairs._replace(row=torch.zeros_like(pairs.row))
    edges, ids = edge_pairs(labels, 1)
    listed, order = numbers(edges, labels).sort(stable=True)  # so that the first of parallel edges is found
    wanted = numbers(pairs, labels)
    at = torch.searchsorted(listed, wanted).clamp(max=listed.shape[0] - 1)
    return torch.where(listed[at] == wanted, ids[order[at]], codes)
