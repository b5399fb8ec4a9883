"""One dense block of labels per graph of a packed batch, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.labels.alike import check_room, check_slice
from relgraph.labels.base import NOT_ATTENDING, UNLABELED, Labels
from relgraph.labels.borders import check_ptrs, cut_borders, graph_at, graph_of, positions_before
from relgraph.labels.counts import bins, less_hidden
from relgraph.labels.dense import DenseLabels, all_attend, stored_ids, without_ids
from relgraph.labels.pairs import Pairs
from relgraph.labels.ragged import block_address, block_positions, block_starts


def _check_pairs(ids: Tensor, q_ptr: Tensor, k_ptr: Tensor) -> None:
    """Raise ValueError unless there is an id for each pair."""
    if check.can_look_at_data(k_ptr):
        wanted = int((q_ptr.diff() * k_ptr.diff()).sum())
        if ids.shape[0] != wanted:
            raise ValueError(f"ids must hold one id per pair of each graph, {wanted} in all, got {ids.shape[0]}")


def _lengths(lengths: Any, ptr: Tensor, q_ptr: Tensor | None) -> tuple[int, int]:
    """N_q and N_k, as given or read from the borders."""
    if lengths is None:
        k_len = _total("ptr", ptr)
        return k_len if q_ptr is None else _total("q_ptr", q_ptr), k_len
    if not isinstance(lengths, (tuple, list)):
        raise TypeError(f"lengths must be a tuple of two ints, N_q and N_k, got {type(lengths).__name__}")
    if len(lengths) != 2:
        raise ValueError(f"lengths must be two ints, N_q and N_k, got {len(lengths)} entries")
    return check.length("lengths[0]", lengths[0]), check.length("lengths[1]", lengths[1])


def _total(name: str, ptr: Tensor) -> int:
    """The last border."""
    if check.integer_tensor(name, ptr, dim=1).shape[0] == 0:
        raise ValueError(f"{name} must hold at least one border, [0], got an empty tensor")
    if ptr.is_meta:
        raise ValueError(f"{name} must hold numbers when lengths are left out, got a tensor on the device meta")
    return int(ptr[-1])


@final
@dataclass(frozen=True, init=False, eq=False, repr=False)
class BlockLabels(Labels):
    """One block of ids per graph of a packed batch, and no pair across graphs.

    The ids are one flat list, without padding: the block of graph 0 row by row, then that of graph 1, and so on. Query
    i of a graph is row i of its block, key j is column j.

    Args:
        ids: ``[sum of q_g · k_g]``, integer; -1 attends without a label.
        num_labels: R; ids are in ``[-1, R)``.
        ptr: ``[G+1]``, integer, borders of the graphs among the keys (and the queries).
        q_ptr: ``[G+1]``, integer, borders of the queries if they differ from those of the keys.
        attend: ``[sum of q_g · k_g]``, bool: which pairs attend, by default all pairs of a block.
        lengths: ``(N_q, N_k)``; by default read from the borders. Give it in compiled code.

    Example:
        >>> labels = rg.BlockLabels(torch.tensor([0, 1, 1, 0, 1]), 2, torch.tensor([0, 2, 3]))
        >>> labels.to_dense()[0]
        tensor([[[ 0,  1, -1],
                 [ 1,  0, -1],
                 [-1, -1,  1]]])
    """

    ids: Tensor
    num_labels: int
    full: bool
    q_ptr: Tensor
    k_ptr: Tensor

    def __init__(
        self,
        ids: Tensor,
        num_labels: int,
        ptr: Tensor,
        *,
        q_ptr: Tensor | None = None,
        attend: Tensor | None = None,
        lengths: tuple[int, int] | None = None,
    ) -> None:
        ids = stored_ids(ids, num_labels, attend, dim=1)
        q_len, k_len = _lengths(lengths, ptr, q_ptr)
        q_ptr, k_ptr = check_ptrs(ptr, q_ptr, q_len, k_len)
        assert q_ptr is not None and k_ptr is not None
        check.same_device(ids=ids, ptr=k_ptr)
        _check_pairs(ids, q_ptr, k_ptr)
        self._set(
            ids=ids, q_len=q_len, k_len=k_len, batch_size=1, num_labels=num_labels, full=all_attend(attend),
            q_ptr=q_ptr, k_ptr=k_ptr,
        )  # fmt: skip

    @classmethod
    def _of_codes(
        cls, codes: Tensor, num_labels: int, q_ptr: Tensor, k_ptr: Tensor, lengths: tuple[int, int], *, full: bool
    ) -> Self:
        """Labels that hold these codes as they are, unchecked."""
        return cls._make(
            ids=codes, q_len=lengths[0], k_len=lengths[1], batch_size=1, num_labels=num_labels, full=full, q_ptr=q_ptr,
            k_ptr=k_ptr,
        )  # fmt: skip

    @classmethod
    def from_blocks(cls, blocks: Sequence[Tensor], num_labels: int) -> Self:
        """Make labels from one matrix of ids per graph.

        Args:
            blocks: ``[q_g, k_g]`` each, integer; -1 attends without a label.
            num_labels: R; ids are in ``[-1, R)``.

        Returns:
            Packed labels of one graph per block; every pair of a block attends.

        Example:
            >>> rg.BlockLabels.from_blocks([torch.tensor([[0, 1], [1, 0]]), torch.tensor([[1]])], 2).k_ptr
            tensor([0, 2, 3])
        """
        blocks = check.items("blocks", blocks, "a sequence of Tensors")
        if not blocks:
            raise ValueError("blocks must hold at least one tensor, got none")
        named = {f"blocks[{index}]": block for index, block in enumerate(blocks)}
        for name, block in named.items():
            check.integer_tensor(name, block, dim=2)
        check.same_device(**named)
        sizes = torch.tensor([[0, 0], *(list(b.shape) for b in blocks)], device=blocks[0].device).cumsum(0)
        flat = torch.cat([b.reshape(-1) for b in blocks])
        return cls(flat, num_labels, sizes[:, 1].contiguous(), q_ptr=sizes[:, 0].contiguous())

    def block_ptr(self) -> Tensor:
        """Where each graph's block begins in ``ids``.

        Returns:
            ``[G+1]``, int64; the last entry is the number of ids.
        """
        return block_starts(self.q_ptr, self.k_ptr)

    @property
    def device(self) -> torch.device:
        """The device of the ids."""
        return self.ids.device

    def to_dense(self) -> tuple[Tensor, Tensor]:
        check_room(self)
        q_graph, k_graph = graph_of(self.q_ptr, self.q_len), graph_of(self.k_ptr, self.k_len)
        i = torch.arange(self.q_len, device=self.ids.device) - self.q_ptr[q_graph]
        j = torch.arange(self.k_len, device=self.ids.device) - self.k_ptr[k_graph]
        width = self.k_ptr.diff()[q_graph]
        inside = q_graph[:, None] == k_graph
        at = (self.block_ptr()[q_graph] + i * width)[:, None] + j
        padded = torch.cat([self.ids, self.ids.new_full((1,), NOT_ATTENDING)])
        ids = padded[torch.where(inside, at, self.ids.shape[0])].to(torch.int64)[None]
        return ids.clamp(min=UNLABELED), ids > NOT_ATTENDING

    def rows(self, start: int, stop: int) -> Self:
        check_slice(start, stop, self.q_len)
        q_ptr = cut_borders(self.q_ptr, start, stop)
        cut = [block[rows] for block, rows in zip(self._blocks(), _within(self.q_ptr, q_ptr, start), strict=True)]
        return self._cut(cut, stop - start, self.k_len, q_ptr, self.k_ptr)

    def cols(self, start: int, stop: int) -> Self:
        check_slice(start, stop, self.k_len)
        k_ptr = cut_borders(self.k_ptr, start, stop)
        cut = [block[:, cols] for block, cols in zip(self._blocks(), _within(self.k_ptr, k_ptr, start), strict=True)]
        return self._cut(cut, self.q_len, stop - start, self.q_ptr, k_ptr)

    def _check_again(self) -> None:
        super()._check_again()
        _check_pairs(self.ids, self.q_ptr, self.k_ptr)

    def _carries_no_ids(self) -> bool:
        return self.num_labels == 0 or without_ids(self.ids)

    def _padded(self, length: int) -> DenseLabels:
        graphs, ptr = self.k_ptr.shape[0] - 1, self.k_ptr
        check.most_pairs("length", graphs * length**2)
        graph, query, key = self._positions()
        codes = torch.full((graphs, length, length), NOT_ATTENDING, device=ptr.device)
        codes[graph, query - ptr[graph], key - ptr[graph]] = self.ids.to(torch.int64)
        return DenseLabels(codes.clamp(min=UNLABELED), self.num_labels, attend=codes > NOT_ATTENDING)

    def _pairs(self) -> Pairs:
        """The pairs of all graphs in the order of their ids."""
        _, query, key = self._positions()
        return Pairs(torch.zeros_like(query), query, key)

    def _positions(self) -> tuple[Tensor, Tensor, Tensor]:
        """Graph, query and key of every id."""
        return block_positions(self.q_ptr, self.k_ptr, self.block_ptr(), self.ids.shape[0])

    def _codes_at(self, pairs: Pairs) -> Tensor:
        graph = graph_at(self.q_ptr, pairs.query)
        return self.ids[block_address(self.q_ptr, self.k_ptr, self.block_ptr(), pairs.query, pairs.key, graph)].long()

    def _count(self, batch: int, hidden: Tensor) -> Tensor:
        return less_hidden(bins(self.ids.to(torch.int64), self), self, batch, hidden)

    def _blocks(self) -> list[Tensor]:
        """The ids of each graph, ``[q_g, k_g]``."""
        sizes = torch.stack([self.q_ptr.diff(), self.k_ptr.diff()])
        flat = self.ids.split(sizes.prod(0).tolist())
        return [ids.view(size) for ids, size in zip(flat, sizes.T.tolist(), strict=True)]

    def _cut(self, blocks: list[Tensor], q_len: int, k_len: int, q_ptr: Tensor, k_ptr: Tensor) -> Self:
        """Labels of parts of these blocks."""
        ids = torch.cat([block.reshape(-1) for block in blocks]) if blocks else self.ids
        return self._of_codes(ids, self.num_labels, q_ptr, k_ptr, (q_len, k_len), full=self.full)


def _within(ptr: Tensor, cut: Tensor, start: int) -> list[slice]:
    """Which positions of each graph are behind ``start`` and within the borders ``cut``, counted within the graph."""
    begins, sizes = positions_before(ptr, start).tolist(), cut.diff().tolist()
    return [slice(begin, begin + size) for begin, size in zip(begins, sizes, strict=True)]
