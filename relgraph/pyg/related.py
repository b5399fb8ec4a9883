"""The different pairs of a node and a relation among edges: rows that depend on both are computed once for each."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from relgraph.labels import EdgeLabels
from relgraph.labels.memory import memory_of

Runs = tuple[tuple[int, int, int], ...]
"""(relation, first row, end) of every relation that has rows, for rows sorted by relation."""


class Related(NamedTuple):
    """U different pairs (node, relation), in the order of their relations."""

    nodes: Tensor  # [U]
    relations: Tensor  # [U]
    runs: Runs
    at: Tensor  # [E], the pair of every edge

    def rows(self, x: Tensor) -> Tensor:
        """The row of every pair's node, ``[U, ...]``."""
        return torch.nn.functional.embedding(self.nodes, x.flatten(1)).view(-1, *x.shape[1:])


def related(labels: EdgeLabels, side: int) -> Related:
    """The pairs of a relation and the node at this side of its edges, 0 or 1, found once for these labels."""

    def find() -> Related:
        ids, count = labels.ids.long(), labels.q_len if side else labels.k_len
        found, at = torch.unique(ids * max(count, 1) + labels.edge_index[side], return_inverse=True)
        relations = found.div(max(count, 1), rounding_mode="floor")
        numbers, sizes = torch.unique_consecutive(relations, return_counts=True)
        if (listed := numbers.tolist())[:1] == [-1]:
            raise ValueError("edge_type must be in [0, R) for full maps and normalize='relation', got -1")
        ends = sizes.cumsum(0).tolist()
        runs = tuple(zip(listed, [0, *ends], ends, strict=False))
        return Related(found - relations * max(count, 1), relations, runs, at)

    return memory_of([labels], "related").once(side, find)


def from_pairs(labels: EdgeLabels, side: int) -> EdgeLabels:
    """The same edges, whose end at this side is the number of its pair, so that pairs take the place of nodes."""

    def make() -> EdgeLabels:
        pairs = related(labels, side)
        ends = [pairs.at, labels.edge_index[1]] if side == 0 else [labels.edge_index[0], pairs.at]
        sizes = [labels.k_len, labels.q_len]
        sizes[side] = pairs.nodes.shape[0]
        return EdgeLabels._trusted(torch.stack(ends), labels.ids, labels.num_labels, sizes[1], sizes[0])._private()

    return memory_of([labels], "related").once(("labels", side), make)
