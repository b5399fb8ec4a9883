"""A plan as a list of tensors and a list of ints, which custom ops take, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from relgraph.plan.parts import Csr, DistanceIds, FunctionIds, LabelPlan, Part, WrittenIds

_T = TypeVar("_T")

_WRITTEN = 0  # in place of the length of a lookup, which is at least 1
_NO_CSR = -1  # in place of the batch size of listed pairs


def encode(plan: LabelPlan) -> tuple[list[Tensor], list[int]]:
    """Encode a plan for :func:`decode`.

    Raises:
        NotImplementedError: ids by function, which are neither tensors nor ints.
    """
    if plan.by_function:
        raise NotImplementedError(
            "labels whose ids a function computes (FunctionLabels) cannot enter compiled code, modes of torch or "
            "second derivatives of kernels; write them out by .dense()"
        )
    tensors: list[Tensor] = []
    ints = [plan.q_len, plan.k_len, plan.batch, int(plan.k_ptr is not None), len(plan.parts)]
    if plan.q_ptr is not None and plan.k_ptr is not None:
        tensors += [plan.q_ptr, plan.k_ptr]
    for part in plan.parts:
        fixed = not isinstance(part.offset, Tensor)
        ints += [part.num_labels, int(fixed), part.offset if fixed else 0]  # pyright: ignore[reportArgumentType]
        if isinstance(part.offset, Tensor):
            tensors.append(part.offset)
        assert not isinstance(part.ids, FunctionIds)
        if isinstance(part.ids, DistanceIds):
            ints += [len(part.ids.lookup), part.ids.first, *part.ids.lookup]
        else:
            ints += [_WRITTEN, int(part.ids.full)]
            tensors += [part.ids.ids] if part.ids.starts is None else [part.ids.ids, part.ids.starts]
        ints += [int(part.edges_only), _NO_CSR if part.csr is None else part.csr.batch]
        if part.csr is not None:
            csr = part.csr
            tensors += [csr.row_ptr, csr.row, csr.col, csr.ids, csr.role, csr.order]
            ints.append(int(csr.parallel))
    return tensors, ints


def decode(tensors: Sequence[Tensor], ints: Sequence[int]) -> LabelPlan:
    """The plan that :func:`encode` was given."""
    next_tensor, next_int = _reader(tensors), _reader(ints)
    q_len, k_len, batch, packed, parts = (next_int() for _ in range(5))
    q_ptr, k_ptr = (next_tensor() if packed else None for _ in range(2))
    decoded = tuple(_decode_part(next_tensor, next_int, bool(packed)) for _ in range(parts))
    return LabelPlan(q_len, k_len, batch, decoded, q_ptr, k_ptr)


def _decode_part(next_tensor: Callable[[], Tensor], next_int: Callable[[], int], packed: bool) -> Part:
    num_labels, fixed, offset = next_int(), next_int(), next_int()
    where: int | Tensor = offset if fixed else next_tensor()
    length = next_int()
    if length == _WRITTEN:
        full, written = bool(next_int()), next_tensor()
        ids = WrittenIds(written, full, next_tensor() if packed else None)
    else:
        ids = DistanceIds(next_int(), tuple(next_int() for _ in range(length)))
    edges_only, csr_batch = next_int(), next_int()
    csr = None
    if csr_batch != _NO_CSR:
        row_ptr, row, col, listed, role, order = (next_tensor() for _ in range(6))
        csr = Csr(row_ptr, row, col, listed, role, order, csr_batch, bool(next_int()))
    return Part(num_labels, where, ids, csr, bool(edges_only))


def _reader(items: Sequence[_T]) -> Callable[[], _T]:
    iterator = iter(items)
    return lambda: next(iterator)


def on_device(plan: LabelPlan, device: torch.device) -> LabelPlan:
    """Return ``plan`` if its tensors are on ``device``, else a copy there."""
    tensors, ints = encode(plan)
    if all(t.device == device for t in tensors):
        return plan
    return decode([t.to(device) for t in tensors], ints)
