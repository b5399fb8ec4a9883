"""A plan as a list of tensors and a list of ints, and back: the form in which custom ops receive it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from relgraph.plan.regions import Band, Block, Csr, LabelPlan, Part, Region, Uniform

_T = TypeVar("_T")

_UNIFORM, _BAND, _BLOCK = range(3)
_NO_CSR = -1  # in place of the batch size of listed pairs
_UNBOUNDED = 0  # stands where a bound is missing; a flag beside it says so


def encode(plan: LabelPlan) -> tuple[list[Tensor], list[int]]:
    """Tensors and ints that :func:`decode` turns back into the same plan."""
    tensors: list[Tensor] = []
    ints = [plan.q_len, plan.k_len, plan.batch, int(plan.k_ptr is not None), len(plan.parts)]
    if plan.q_ptr is not None and plan.k_ptr is not None:
        tensors += [plan.q_ptr, plan.k_ptr]
    for part in plan.parts:
        fixed = not isinstance(part.offset, Tensor)
        ints += [part.num_labels, int(fixed), part.offset if fixed else 0]  # pyright: ignore[reportArgumentType]
        if isinstance(part.offset, Tensor):
            tensors.append(part.offset)
        ints += [int(part.edges_only), _NO_CSR if part.csr is None else part.csr.batch, len(part.regions)]
        if part.csr is not None:
            csr = part.csr
            tensors += [csr.row_ptr, csr.row, csr.col, csr.ids, csr.role, csr.order]
            ints.append(int(csr.parallel))
        for region in part.regions:
            _encode_region(region, tensors, ints)
    return tensors, ints


def decode(tensors: Sequence[Tensor], ints: Sequence[int]) -> LabelPlan:
    """The plan that :func:`encode` took apart."""
    next_tensor, next_int = _reader(tensors), _reader(ints)
    q_len, k_len, batch, packed, parts = (next_int() for _ in range(5))
    q_ptr = next_tensor() if packed else None
    k_ptr = next_tensor() if packed else None
    decoded = tuple(_decode_part(next_tensor, next_int) for _ in range(parts))
    return LabelPlan(q_len, k_len, batch, decoded, q_ptr, k_ptr)


def _decode_part(next_tensor: Callable[[], Tensor], next_int: Callable[[], int]) -> Part:
    num_labels, fixed, offset = next_int(), next_int(), next_int()
    where: int | Tensor = offset if fixed else next_tensor()
    edges_only, csr_batch, regions = next_int(), next_int(), next_int()
    csr = None
    if csr_batch != _NO_CSR:
        row_ptr, row, col, ids, role, order = (next_tensor() for _ in range(6))
        csr = Csr(row_ptr, row, col, ids, role, order, csr_batch, bool(next_int()))
    decoded = tuple(_decode_region(next_tensor, next_int) for _ in range(regions))
    return Part(num_labels, where, decoded, csr, bool(edges_only))


def _encode_region(region: Region, tensors: list[Tensor], ints: list[int]) -> None:
    if isinstance(region, Uniform):
        ints += [_UNIFORM, region.label]
        for bound in (region.low, region.high):
            ints += [int(bound is not None), _UNBOUNDED if bound is None else bound]
    elif isinstance(region, Band):
        ints += [_BAND, region.low, len(region.lookup), *region.lookup]
    else:
        ints += [_BLOCK, int(region.full)]
        tensors.append(region.ids)


def _decode_region(next_tensor: Callable[[], Tensor], next_int: Callable[[], int]) -> Region:
    kind = next_int()
    if kind == _UNIFORM:
        label = next_int()
        bounds = [(next_int(), next_int()) for _ in range(2)]
        low, high = (value if given else None for given, value in bounds)
        return Uniform(label, low, high)
    if kind == _BAND:
        low, width = next_int(), next_int()
        return Band(low, tuple(next_int() for _ in range(width)))
    return Block(next_tensor(), bool(next_int()))


def _reader(items: Sequence[_T]) -> Callable[[], _T]:
    iterator = iter(items)
    return lambda: next(iterator)


def on_device(plan: LabelPlan, device: torch.device) -> LabelPlan:
    """``plan`` itself when all its tensors live on ``device``, else a copy that does."""
    tensors, ints = encode(plan)
    if all(t.device == device for t in tensors):
        return plan
    return decode([t.to(device) for t in tensors], ints)
