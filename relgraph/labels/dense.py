"""Labels written out pair by pair: the general case, N_q · N_k small integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, final

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.labels.base import METHODS, NOT_ATTENDING, UNLABELED, Labels, check_rows, smallest_dtype


def stored_ids(ids: Any, num_labels: Any, attend: Any, *, dim: int | tuple[int, ...]) -> Tensor:
    """Checked ids in the smallest type, with -2 wherever ``attend`` is False."""
    check.length("num_labels", num_labels, most=check.MOST_IDS)
    ids = check.integer_tensor("ids", ids, dim=dim)
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
    ids = ids.to(smallest_dtype(num_labels), copy=True)  # what was checked stays as it was
    return ids if attend is None else ids.masked_fill(~attend, NOT_ATTENDING)


def all_attend(attend: Tensor | None) -> bool:
    """Whether every pair is known to attend."""
    return attend is None or (check.can_look_at_data(attend) and bool(attend.all()))


@final
@dataclass(frozen=True, init=False, eq=False, repr=False)
class DenseLabels(Labels):
    """One id for every (query, key) pair: the general case, N_q · N_k small integers.

    Row i is the query, column j the key. The ids are copied into the narrowest integer type that holds them; a pair
    that does not attend is stored as -2.

    Args:
        ids: ``[N_q, N_k]`` or ``[B, N_q, N_k]``, integer; -1 attends without a label.
        num_labels: R; ids lie in ``[-1, R)``.
        attend: ``[N_q, N_k]`` or ``[B, N_q, N_k]`` as ``ids``, bool: which pairs attend; all when left out. The ids of
            the others do not count.

    Raises:
        TypeError: ``ids`` or ``attend`` that is no tensor, or ``num_labels`` that is no int.
        ValueError: ids that are not integers, of another rank, or out of range; ``attend`` of another shape, dtype or
            device than it must have; a negative ``num_labels``.

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
        ids = ids if ids.dim() == 3 else ids[None]
        batch_size, q_len, k_len = ids.shape
        self._set(
            ids=ids,
            q_len=q_len,
            k_len=k_len,
            batch_size=batch_size,
            num_labels=num_labels,
            full=all_attend(attend),
            q_ptr=None,
            k_ptr=None,
        )

    @classmethod
    def _trusted(cls, ids: Tensor, num_labels: int) -> Self:
        """From raw ids given in a call: looked at on a CPU only, and stored as they are."""
        if ids.device.type == "cpu":
            check.id_range("labels", ids, num_labels)
        ids = ids if ids.dim() == 3 else ids[None]
        batch_size, q_len, k_len = ids.shape
        return cls._make(
            ids=ids,
            q_len=q_len,
            k_len=k_len,
            batch_size=batch_size,
            num_labels=num_labels,
            full=True,
            q_ptr=None,
            k_ptr=None,
        )

    def to_dense(self) -> tuple[Tensor, Tensor]:
        attend = self.ids != NOT_ATTENDING
        return self.ids.to(torch.int64).clamp(min=UNLABELED), attend

    def rows(self, start: int, stop: int) -> Self:
        check_rows(self, start, stop)
        fields = {**self.__getstate__(), "ids": self.ids[:, start:stop], "q_len": stop - start}
        return self._make(**fields)


METHODS["dense"] = DenseLabels
