"""Labels written out pair by pair, the general case."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.sharding import check_local
from relgraph.labels.alike import check_slice
from relgraph.labels.base import NOT_ATTENDING, UNLABELED, Labels, smallest_dtype
from relgraph.labels.counts import bins, less_hidden
from relgraph.labels.pairs import Pairs


def stored_ids(ids: Any, num_labels: Any, attend: Any, *, dim: int | tuple[int, ...]) -> Tensor:
    """Checked ids in the smallest type, -2 where ``attend`` is False."""
    check.length("num_labels", num_labels, most=check.MOST_IDS)
    ids = check.integer_tensor("ids", ids, dim=dim)
    check_local(ids=ids)
    if attend is not None:
        check.tensor("attend", attend)
        if attend.dtype != torch.bool or attend.shape != ids.shape:
            raise ValueError(
                f"attend must be a bool tensor of the shape of ids, {list(ids.shape)}, "
                f"got {attend.dtype} {list(attend.shape)}"
            )
        check.same_device(ids=ids, attend=attend)
        ids = ids.masked_fill(~attend, UNLABELED)
    check.id_range("ids", ids, num_labels)
    ids = ids.to(smallest_dtype(num_labels), copy=True)  # or later changes to the caller's ids would go unchecked
    return ids if attend is None else ids.masked_fill(~attend, NOT_ATTENDING)


def all_attend(attend: Tensor | None) -> bool:
    """Whether every pair is known to attend."""
    return attend is None or (check.can_look_at_data(attend) and bool(attend.all()))


def without_ids(ids: Tensor) -> bool:
    """Whether no entry is known to be an id, which only the CPU shows without waiting."""
    return ids.numel() == 0 or (ids.device.type == "cpu" and check.can_look_at_data(ids) and bool((ids < 0).all()))


@final
@dataclass(frozen=True, init=False, eq=False, repr=False)
class DenseLabels(Labels):
    """One id per (query, key) pair, the general case: N_q · N_k small integers.

    Row i is the query, column j the key. The ids are copied into the narrowest integer type; -2 does not attend.

    Args:
        ids: ``[N_q, N_k]`` or ``[B, N_q, N_k]``, integer; -1 attends without a label.
        num_labels: R; ids are in ``[-1, R)``.
        attend: ``[N_q, N_k]`` or ``[B, N_q, N_k]`` as ``ids``, bool: which pairs attend, by default all. The ids of
            other pairs are ignored.

    Example:
        >>> attend = torch.tensor([[True, False], [True, True]])
        >>> labels = rg.DenseLabels(torch.tensor([[0, 1], [-1, 0]]), 2, attend=attend)
        >>> ids, attend = labels.to_dense()
        >>> ids
        tensor([[[ 0, -1],
                 [-1,  0]]])
        >>> attend
        tensor([[[ True, False],
                 [ True,  True]]])
    """

    ids: Tensor
    num_labels: int
    full: bool

    def __init__(self, ids: Tensor, num_labels: int, *, attend: Tensor | None = None) -> None:
        ids = stored_ids(ids, num_labels, attend, dim=(2, 3))
        self._set_all(ids, num_labels, full=all_attend(attend))

    @classmethod
    def _trusted(cls, ids: Tensor, num_labels: int) -> Self:
        """Labels from raw ids given in a call: checked and copied on a CPU only."""
        if ids.device.type != "cpu" or not check.can_look_at_data(ids):
            return cls._of_codes(ids, num_labels, full=True)
        check.id_range("labels", ids, num_labels)
        return cls._of_codes(ids.to(smallest_dtype(num_labels), copy=True), num_labels, full=True)._private()

    @classmethod
    def _of_codes(cls, codes: Tensor, num_labels: int, *, full: bool) -> Self:
        """Labels that hold these codes as they are, unchecked."""
        labels = cls._make()
        labels._set_all(codes, num_labels, full=full)
        return labels

    def _set_all(self, ids: Tensor, num_labels: int, *, full: bool) -> None:
        ids = ids if ids.dim() == 3 else ids[None]
        batch_size, q_len, k_len = ids.shape
        self._set(ids=ids, num_labels=num_labels, full=full)
        self._set(q_len=q_len, k_len=k_len, batch_size=batch_size, q_ptr=None, k_ptr=None)

    @property
    def device(self) -> torch.device:
        """The device of the ids."""
        return self.ids.device

    def to_dense(self) -> tuple[Tensor, Tensor]:
        attend = self.ids != NOT_ATTENDING
        return self.ids.to(torch.int64).clamp(min=UNLABELED), attend

    def rows(self, start: int, stop: int) -> Self:
        check_slice(start, stop, self.q_len)
        return self._make(**{**self.__getstate__(), "ids": self.ids[:, start:stop], "q_len": stop - start})

    def cols(self, start: int, stop: int) -> Self:
        check_slice(start, stop, self.k_len)
        return self._make(**{**self.__getstate__(), "ids": self.ids[:, :, start:stop], "k_len": stop - start})

    def _carries_no_ids(self) -> bool:
        return self.num_labels == 0 or without_ids(self.ids)

    def _cut_batch(self, start: int, stop: int) -> Self:
        return self._make(**{**self.__getstate__(), "ids": self.ids[start:stop], "batch_size": stop - start})

    def _codes_at(self, pairs: Pairs) -> Tensor:
        row, query, key = pairs.within(self.batch_size)
        return self.ids[row, query, key].long()

    def _count(self, batch: int, hidden: Tensor) -> Tensor:
        return less_hidden(bins(self.ids.flatten().to(torch.int64), self), self, batch, hidden)
