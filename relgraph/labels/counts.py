"""How many pairs carry each label; arithmetic counts the pairs of labels that are not written out."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from relgraph.arguments import check
from relgraph.labels.base import NOT_ATTENDING, Labels
from relgraph.labels.pairs import numbered

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
    not_attending, unlabeled, *by_label = labels._count(labels.batch_size, nothing).tolist()
    return tuple(by_label), unlabeled, not_attending, pairs_of(labels, labels.batch_size)


def pairs_of(labels: Labels, batch: int) -> int:
    """The number of pairs within graphs (or, if not packed, within batch rows)."""
    if labels.q_ptr is None or labels.k_ptr is None:
        return batch * labels.q_len * labels.k_len
    return batch * int((labels.q_ptr.diff() * labels.k_ptr.diff()).sum())


def bins(codes: Tensor, labels: Labels) -> Tensor:
    """How often each code occurs, ``[2 + R]``: not attending, without a label, then by id."""
    assert isinstance(labels.num_labels, int)
    return torch.bincount(codes + SHIFT, minlength=labels.num_labels + SHIFT)


def less_hidden(counts: Tensor, labels: Labels, batch: int, hidden: Tensor) -> Tensor:
    """Counts of the labels' own batch rows over ``batch`` rows, without the pairs whose numbers are in ``hidden``."""
    covered = bins(labels._codes_at(numbered(hidden, labels)), labels)
    return counts * (batch // max(labels.batch_size, 1)) - covered.to(counts.device)


def pairs_up_to(distance: Tensor, queries: int, keys: int) -> Tensor:
    """For each distance, how many pairs (i, j) have j - i at most that: the sum of clamp(i + distance + 1, 0, keys)."""

    def below(end: Tensor) -> Tensor:  # sum of clamp(x, 0, keys) over all x up to end
        inside = end.clamp(0, keys)
        return inside * (inside + 1) // 2 + (end - keys).clamp(min=0) * keys

    return below(distance + queries) - below(distance)
