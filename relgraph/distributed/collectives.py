"""Collectives of torch.distributed that differentiate, for shards of sequences; and how many bytes they send."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed

from relgraph.call import accumulation_dtype
from relgraph.distributed.layout import Layout, in_order, in_turn, shards_of

_counts: list[dict[str, int]] = []


@contextmanager
def count_bytes() -> Iterator[dict[str, int]]:
    """Count the bytes that this process sends within the block, by the kind of exchange.

    It counts the tensors that relgraph hands to torch.distributed: those of a gather once for each of the other
    processes, those of an all-to-all without the part that stays, and those that go around the ring.

    Yields:
        Bytes sent so far: ``"gather"``, ``"all_to_all"`` and ``"ring"``.

    Example:
        >>> with rg.distributed.count_bytes() as sent:
        ...     pass
        >>> sent
        {'gather': 0, 'all_to_all': 0, 'ring': 0}
    """
    counted = {"gather": 0, "all_to_all": 0, "ring": 0}
    _counts.append(counted)
    try:
        yield counted
    finally:
        _counts.remove(counted)


def _sent(what: str, amount: int) -> None:
    for counted in _counts:
        counted[what] += amount


def all_gather(found: Tensor, own: Tensor, group: Any) -> None:
    """Fill ``found`` with the tensors of all processes, one after the other; torch 2.13 renamed this function."""
    name = "all_gather_single" if hasattr(distributed, "all_gather_single") else "all_gather_into_tensor"
    getattr(distributed, name)(found, own, group=group)


def gather_shards(x: Tensor, lengths: Sequence[int], group: Any) -> list[Tensor]:
    """The shards ``[n, ...]`` of all processes, whose lengths are known; not differentiable."""
    longest, whole = max(lengths), _gathered(x, lengths, group)
    return [shard[:length] for shard, length in zip(whole.split(longest), lengths, strict=True)]


def _gathered(x: Tensor, lengths: Sequence[int], group: Any) -> Tensor:
    """The same, one after the other; each is padded to the longest."""
    longest = max(lengths)
    _sent("gather", (len(lengths) - 1) * longest * x[:1].numel() * x.element_size())
    own = x.contiguous()
    if own.shape[0] < longest:
        own = torch.cat([own, own.new_zeros(longest - own.shape[0], *own.shape[1:])])
    whole = own.new_empty(len(lengths) * longest, *own.shape[1:])
    all_gather(whole, own, group)
    return whole


def exchange(parts: Sequence[Tensor], lengths: Sequence[int], group: Any) -> list[Tensor]:
    """Send part p ``[.., ...]`` to process p; the parts that arrive here have these lengths. Not differentiable."""
    rank = distributed.get_rank(group)
    _sent("all_to_all", sum(x.numel() * x.element_size() for p, x in enumerate(parts) if p != rank))
    given = torch.cat(list(parts)).contiguous()
    found = given.new_empty(sum(lengths), *given.shape[1:])
    distributed.all_to_all_single(found, given, list(lengths), [part.shape[0] for part in parts], group=group)
    return list(found.split(list(lengths)))


class _Gather(torch.autograd.Function):
    """All rows in order, from the shards; backward gives each process the sum of the gradients of its rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layout: Layout, dim: int, group: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.layout, ctx.dim, ctx.group = layout, dim, group
        rows, lengths = x.movedim(dim, 0), layout.lengths
        if in_turn(layout) and len(set(lengths)) == 1:
            return _gathered(rows, lengths, group).movedim(0, dim)  # in order as they come: no copy
        return in_order(layout, gather_shards(rows, lengths, group), 0).movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        layout, rank = ctx.layout, distributed.get_rank(ctx.group)
        mine, *others = exchange(
            shards_of(layout, grad.movedim(ctx.dim, 0), 0), [layout.lengths[rank]] * layout.processes, ctx.group
        )
        total = mine.to(accumulation_dtype(grad.dtype), copy=True)
        for other in others:  # one by one, to avoid a second tensor with all rows
            total += other
        return total.to(grad.dtype).movedim(0, ctx.dim), None, None, None


def gather(x: Tensor, layout: Layout, dim: int, group: Any) -> Tensor:
    """All rows in order, from the shards of all processes, on axis ``dim``; differentiable."""
    return x if layout.processes == 1 else _Gather.apply(x, layout, dim, group)


class _RowsToHeads(torch.autograd.Function):
    """From some rows of all heads to all rows of some heads, or back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layout: Layout, rows: int, heads: int, back: bool, group: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.given = layout, rows, heads, back, group
        return _swap(x, layout, rows, heads, back, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        layout, rows, heads, back, group = ctx.given
        return _swap(grad, layout, rows, heads, not back, group), None, None, None, None, None


def _swap(x: Tensor, layout: Layout, rows: int, heads: int, back: bool, group: Any) -> Tensor:
    """See :func:`rows_to_heads`; axes ``rows`` and ``heads`` come first while data travel."""
    x = x.movedim((rows, heads), (0, 1))
    count, rank = layout.processes, distributed.get_rank(group)
    if back:
        found = exchange(shards_of(layout, x, 0), [layout.lengths[rank]] * count, group)
        return torch.cat(found, 1).movedim((0, 1), (rows, heads))
    found = exchange(x.chunk(count, 1), layout.lengths, group)
    return in_order(layout, found, 0).movedim((0, 1), (rows, heads))


def rows_to_heads(x: Tensor, layout: Layout, rows: int, heads: int, group: Any, *, back: bool = False) -> Tensor:
    """From the rows of this process, of all heads, to all rows of 1/P of the heads, or ``back``; differentiable.

    ``rows`` and ``heads`` are their axes in ``x``; P divides the heads.
    """
    return x if layout.processes == 1 else _RowsToHeads.apply(x, layout, rows, heads, back, group)


@contextmanager
def sent_around(
    tensors: Sequence[Tensor], shapes: Sequence[Sequence[int]], group: Any, *, needed: bool
) -> Iterator[list[Tensor]]:
    """Send tensors to the next process of a ring, while a block of code runs; nothing travels unless ``needed``.

    It yields the tensors from the process before, which have these shapes and are complete when the block ends, even
    if it raises, because a later receive would take late tensors for its own.
    """
    if not needed:
        yield list(tensors)
        return
    size, rank = distributed.get_world_size(group), distributed.get_rank(group)
    following, before = (distributed.get_global_rank(group, (rank + step) % size) for step in (1, -1))
    given = [x.contiguous() for x in tensors]
    coming = [x.new_empty(tuple(shape)) for x, shape in zip(given, shapes, strict=True)]
    _sent("ring", sum(x.numel() * x.element_size() for x in given))
    sends = [distributed.P2POp(distributed.isend, x, following, group) for x in given]
    takes = [distributed.P2POp(distributed.irecv, x, before, group) for x in coming]
    # even processes send first: with blocking sends a ring of senders would wait for itself
    work = distributed.batch_isend_irecv([*sends, *takes] if rank % 2 == 0 else [*takes, *sends])
    try:
        yield coming
    finally:
        for each in work:
            each.wait()
