"""Gather all keys and values on every process, then let its own rows attend as usual.

Groups of heads take turns, so backward holds the gradients of all keys for one group at a time, and sends them home
before the next group.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from relgraph.call import Answer, Given, cut_given
from relgraph.distributed.collectives import gather
from relgraph.distributed.context.slices import Run, Whole, attend_part, cut_offset, positions_of

GROUPS = 2
"""The number of groups of heads. With more groups backward holds less, but a GPU has less work at a time."""


def answer(given: Given, whole: Whole) -> Answer:
    """The answer for the rows of this process."""
    runs = positions_of(whole.queries.runs[whole.rank])
    by_heads = []
    for first, part in _groups(given, packed=whole.packed):
        key, value = (gather(x, whole.keys, whole.axis, whole.group) for x in (part["key"], part["value"]))
        by_rows = []
        for own, rows in runs:
            seen = _seen(given, whole, rows)
            near_key, near_value = (x.narrow(whole.axis, 0, seen[1]) for x in (key, value))
            by_rows.append(attend_part(part, whole, own, rows, seen, near_key, near_value, first))
        by_heads.append(_tied(_joined(by_rows, 2), key, value))
    return _joined(by_heads, 1)


class _Tied(torch.autograd.Function):
    """Outputs as they are; backward adds a gradient of zero to what they were made from."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.sources = [(x.shape, x.dtype) for x in tensors[count:]]
        ctx.set_materialize_grads(False)
        return tuple(x.view_as(x) for x in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        some = next(x for x in grads if x is not None)
        return (None, *grads, *(some.new_zeros((), dtype=dtype).expand(shape) for shape, dtype in ctx.sources))


def _tied(answer: Answer, key: Tensor, value: Tensor) -> Answer:
    """The answer, whose backward always reaches all keys and values, whose gradients processes exchange.

    An implementation may find that a gradient is zero, and pass nothing on; with other rows another process may not
    find it, and would wait for this one.
    """
    if not (key.requires_grad or value.requires_grad):
        return answer
    output, lse, *mass = _Tied.apply(
        2 + len(answer.mass or ()), answer.output, answer.lse, *(answer.mass or ()), key, value
    )
    return Answer(output, lse, None if answer.mass is None else tuple(mass))


def _groups(given: Given, *, packed: bool) -> list[tuple[int, dict[str, Any]]]:
    """The arguments of each group of heads, and which head of the queries is its first."""
    heads, kv_heads = given["query"].shape[1], given["key"].shape[1]
    count = min(GROUPS, kv_heads)
    if count < 2:
        return [(0, dict(given))]
    found = []
    for part in torch.arange(kv_heads).chunk(count):
        kv = range(int(part[0]), int(part[-1]) + 1)
        of_query = range(kv.start * heads // kv_heads, kv.stop * heads // kv_heads)
        found.append((of_query.start, cut_given(given, {"H": of_query, "H_kv": kv}, packed=packed)))
    return found


def _joined(parts: list[Answer], axis: int) -> Answer:
    """Join several answers, ``[B, H, n, ...]``, along an axis."""
    if len(parts) == 1:
        return parts[0]
    output, lse = (torch.cat([getattr(part, name) for part in parts], axis) for name in ("output", "lse"))
    mass = None
    if parts[0].mass is not None:
        mass = tuple(torch.cat(each, axis) for each in zip(*(part.mass or () for part in parts), strict=True))
    return Answer(output, lse, mass)


def _seen(given: Given, whole: Whole, rows: Run) -> Run:
    """The keys up to the last one that these rows may see."""
    k_len = whole.keys.length
    offset = cut_offset(given, whole, rows, (0, k_len))
    if not given.get("is_causal") or whole.packed or not isinstance(offset, int):
        return 0, k_len
    return 0, min(max(rows[1] - rows[0] + offset, 1), k_len)
