"""Some pairs as numbers, so that labels can be asked for these without writing out the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from relgraph.labels.base import Labels


class Pairs(NamedTuple):
    """Some pairs, ``[P]`` each: batch row, query and key. In a packed batch no pair crosses a border."""

    row: Tensor
    query: Tensor
    key: Tensor

    def where(self, mask: Tensor) -> Pairs:
        """The pairs for which ``mask`` is True."""
        return Pairs(self.row[mask], self.query[mask], self.key[mask])

    def within(self, batch_size: int) -> Pairs:
        """The pairs in labels of this many batch rows; one row serves every batch row."""
        return self._replace(row=torch.zeros_like(self.row)) if batch_size == 1 else self


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


def first_of_each(numbers: Tensor) -> Tensor:
    """The position of the first entry of every number, in the order of the numbers."""
    ordered, order = numbers.sort(stable=True)
    fresh = torch.ones_like(ordered, dtype=torch.bool)
    fresh[1:] = ordered[1:] != ordered[:-1]
    return order[fresh]
