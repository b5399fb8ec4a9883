"""How many pairs carry each label; arithmetic counts the pairs of labels that are not written out."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from relgraph.arguments import check
from relgraph.labels.base import NOT_ATTENDING, Labels, first_of_each
from relgraph.labels.block import BlockLabels
from relgraph.labels.dense import DenseLabels
from relgraph.labels.distance import DistanceLabels
from relgraph.labels.edge import EdgeLabels
from relgraph.labels.pairs import codes_at, edge_pairs, numbered, numbers

SHIFT = -NOT_ATTENDING
"""Added to a code to get its bin: ids begin at 2, after both sentinels."""

MOST_COUNTED = 1 << 24
"""The most ids that labels may have to be counted, as each gets a bin."""


def count(labels: Labels) -> tuple[tuple[int, ...], int, int, int]:
    """Numbers of pairs: by label id, without a label, not attending, and of all; labels are not a sum.

    Parallel edges that each count are counted one by one.
    """
    assert isinstance(labels.num_labels, int)
    if labels.num_labels > MOST_COUNTED:
        raise NotImplementedError(
            f"labels of more than {MOST_COUNTED:,} ids cannot be counted, got num_labels = {labels.num_labels:,}"
        )
    check.data("labels", *pytree.tree_leaves(labels))
    check.numbered_pairs("q_len and k_len of labels that are counted", labels.batch_size, labels.q_len, labels.k_len)
    nothing = torch.zeros(0, dtype=torch.int64, device=labels.device)
    not_attending, unlabeled, *by_label = _count(labels, labels.batch_size, nothing).tolist()
    return tuple(by_label), unlabeled, not_attending, pairs_of(labels, labels.batch_size)


def pairs_of(labels: Labels, batch: int) -> int:
    """The number of pairs within graphs (or, if not packed, within batch rows)."""
    if labels.q_ptr is None or labels.k_ptr is None:
        return batch * labels.q_len * labels.k_len
    return batch * int((labels.q_ptr.diff() * labels.k_ptr.diff()).sum())


def _count(labels: Labels, batch: int, hidden: Tensor) -> Tensor:
    """Counts ``[2 + R]`` over ``batch`` rows, without the pairs whose numbers are in ``hidden``."""
    if isinstance(labels, EdgeLabels):
        return _count_edges(labels, batch, hidden)
    if isinstance(labels, DistanceLabels):
        counts = _count_distances(labels)
    else:
        assert isinstance(labels, (DenseLabels, BlockLabels))
        counts = _bins(labels.ids.flatten().to(torch.int64), labels)
    covered = _bins(codes_at(labels, numbered(hidden, labels)), labels)
    return counts * (batch // max(labels.batch_size, 1)) - covered.to(counts.device)


def _bins(codes: Tensor, labels: Labels) -> Tensor:
    assert isinstance(labels.num_labels, int)
    return torch.bincount(codes + SHIFT, minlength=labels.num_labels + SHIFT)


def _count_edges(labels: EdgeLabels, batch: int, hidden: Tensor) -> Tensor:
    pairs, ids = edge_pairs(labels, batch)
    listed = numbers(pairs, labels)
    if labels.default is not None and labels.duplicates == "first":
        first = first_of_each(listed)
        listed, ids = listed[first], ids[first]
    total = _bins(ids[~torch.isin(listed, hidden)], labels)
    covered = torch.cat([hidden, listed]).unique()
    if isinstance(labels.default, Labels):
        rest = _count(labels.default, batch, covered)
        total[: rest.shape[0]] += rest.to(total.device)
    else:
        code = NOT_ATTENDING if labels.default is None else labels.default
        total[code + SHIFT] += pairs_of(labels, batch) - covered.shape[0]
    return total


def _count_distances(labels: DistanceLabels) -> Tensor:
    device = labels.device
    slots = torch.arange(len(labels.lookup), device=device) - labels.left
    counts = torch.zeros(len(labels.lookup), dtype=torch.int64, device=device)
    sizes, times = _rectangles(labels).unique(dim=1, return_counts=True)
    for (queries, keys, offset), often in zip(sizes.T.tolist(), times.tolist(), strict=True):
        upto = _pairs_up_to(slots + offset, queries, keys)
        upto[-1] = queries * keys  # the last entry also counts all larger distances
        counts += often * upto.diff(prepend=upto.new_zeros(1))
    places = torch.tensor(labels.lookup, device=device) + SHIFT
    return counts.new_zeros(labels.num_labels + SHIFT).index_add(0, places, counts)


def _rectangles(labels: DistanceLabels) -> Tensor:
    """Queries, keys and offset of every graph or batch row, ``[3, G]``."""
    offset = torch.as_tensor(0 if labels.q_offset is None else labels.q_offset, device=labels.device).reshape(-1)
    if labels.q_ptr is None or labels.k_ptr is None:
        queries, keys = (torch.full_like(offset, n) for n in (labels.q_len, labels.k_len))
    else:
        queries, keys = labels.q_ptr.diff(), labels.k_ptr.diff()
    return torch.stack([x.to(torch.int64).expand(queries.shape[0]) for x in (queries, keys, offset)])


def _pairs_up_to(distance: Tensor, queries: int, keys: int) -> Tensor:
    """For each distance, how many pairs (i, j) have j - i at most that: the sum of clamp(i + distance + 1, 0, keys)."""

    def below(end: Tensor) -> Tensor:  # sum of clamp(x, 0, keys) over all x up to end
        inside = end.clamp(0, keys)
        return inside * (inside + 1) // 2 + (end - keys).clamp(min=0) * keys

    return below(distance + queries) - below(distance)
