"""Which keys each row of labels may see, by borders and causal order, before labels say which of them attend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from relgraph.labels.borders import graph_of
from relgraph.labels.pairs import Pairs

if TYPE_CHECKING:
    from relgraph.labels.base import Labels


class Rows:
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
            offset = next((x for x in labels.offsets if x is not None), None)
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
