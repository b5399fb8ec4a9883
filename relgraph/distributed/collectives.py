"""The gather of rows, which differentiates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed

from relgraph.call import accumulation_dtype
from relgraph.distributed.layout import Layout


def all_gather(whole: Tensor, shard: Tensor, group: Any) -> None:
    """Fill ``whole`` with the tensors of all processes, one after the other; torch 2.13 renamed this function."""
    name = "all_gather_single" if hasattr(distributed, "all_gather_single") else "all_gather_into_tensor"
    getattr(distributed, name)(whole, shard, group=group)


class _Gather(torch.autograd.Function):
    """All rows in order, from the shards; backward gives each process the sum of the gradients of its rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layout: Layout, dim: int, group: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.layout, ctx.dim, ctx.group = layout, dim, group
        shard = x.movedim(dim, 0).contiguous()  # [n, ...]
        whole = shard.new_empty(layout.length, *shard.shape[1:])
        all_gather(whole, shard, group)
        return _in_order(layout, whole).movedim(0, dim)  # [..., N, ...]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        layout = ctx.layout
        sent = _by_process(layout, grad.movedim(ctx.dim, 0)).contiguous()  # [N, ...]
        received = torch.empty_like(sent)  # of the rows of this process, by all
        distributed.all_to_all_single(received, sent, group=ctx.group)
        first, *others = received.chunk(layout.processes)
        total = first.to(accumulation_dtype(grad.dtype), copy=True)
        for other in others:  # one by one, to avoid a second tensor with all rows
            total += other
        return total.to(grad.dtype).movedim(0, ctx.dim), None, None, None


def gather(x: Tensor, layout: Layout, dim: int, group: Any) -> Tensor:
    """All rows in order, from the shards of all processes, on axis ``dim``; differentiable."""
    return x if layout.processes == 1 else _Gather.apply(x, layout, dim, group)


def _by_process(layout: Layout, x: Tensor) -> Tensor:
    """All rows ``[N, ...]`` in the order of the processes, from their own order."""
    if layout.kind == "even":
        return x
    chunks = x.chunk(2 * layout.processes)
    return torch.cat([chunks[at] for rank in range(layout.processes) for at in (rank, -1 - rank)])


def _in_order(layout: Layout, x: Tensor) -> Tensor:
    """All rows ``[N, ...]`` in their own order, from that of the processes."""
    if layout.kind == "even":
        return x
    chunks = x.chunk(2 * layout.processes)
    return torch.cat([*chunks[::2], *chunks[::-2]])
