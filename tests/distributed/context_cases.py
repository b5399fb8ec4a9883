"""Calls within a region that the drawn ones do not cover, compared with one process."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import torch
from torch import distributed

import relgraph as rg
from relgraph.distributed.context import gathered
from tests.distributed.worlds import caught

N, H, D, R = 16, 4, 8, 5
LABELER = rg.ClippedDistance(2)


def learned(*shape):
    return torch.randn(shape, dtype=torch.float64).requires_grad_()


def wrong_table(mesh):
    """A table for the heads of a part is not one for all heads."""
    q, table = torch.randn(1, 4, N // mesh.size(), D), torch.randn(2, R, D)
    with rg.distributed.context_parallel(mesh):
        rg.relation_attention(q, q, q, LABELER(N), table)
    return "no error"


def run_in_thread(work):
    """What ``work`` gives, computed in a new thread."""
    found = []
    thread = threading.Thread(target=lambda: found.append(caught(work)))
    thread.start()
    thread.join()
    return found[0]


def checkpointed(mesh, kind, place, threaded):
    """The gradients of two checkpointed calls of which ``place`` says what runs within the region."""
    rank, rows = mesh.get_local_rank(), rg.distributed.Layout(N, mesh.size())
    torch.manual_seed(6)
    whole, table = learned(1, H, N, D), learned(R, D)

    def twice(x):
        for _ in range(2):
            x = rg.relation_attention(x.sin(), x.cos(), x, LABELER(x.shape[2] * size), table)
        return x

    def forward(x):
        return torch.utils.checkpoint.checkpoint(twice, x, use_reentrant=kind == "reentrant")

    def backward(loss):
        run_in_thread(loss.backward) if threaded else loss.backward()

    size = 1
    twice(whole).sin().sum().backward()
    wanted, whole.grad, table.grad = [whole.grad, table.grad], None, None
    mine = whole.detach() if place == "backward" else rows.shard(whole.detach(), rank, 2)
    mine.requires_grad_()
    block = rg.distributed.context_parallel(mesh)
    if place == "backward":  # a forward on whole rows before the block
        loss = forward(mine).sin().sum()
        with block:
            backward(loss)
        return [float((x.grad - y).abs().max()) for x, y in zip([mine, table], wanted, strict=True)]
    with block:
        size = mesh.size()
        loss = forward(mine).sin().sum()
        if place == "both":
            backward(loss)
    if place == "forward":
        backward(loss)
    distributed.all_reduce(table.grad)
    pairs = [(mine.grad, rows.shard(wanted[0], rank, 2)), (table.grad, wanted[1])]
    return [float((x - y).abs().max()) for x, y in pairs]


CHECKPOINTS = [
    (kind, place, threaded != (kind == "other"))
    for kind in ("reentrant", "other")
    for place, threaded in (("both", False), ("forward", True), ("backward", False))
]


def hidden_by_the_lowest_number(mesh):
    """The differences where a row's mask is the lowest number for all keys, as Hugging Face writes it: all count alike."""
    rank, rows = mesh.get_local_rank(), rg.distributed.Layout(N, mesh.size())
    torch.manual_seed(8)
    x, mask, found = torch.randn(1, H, N, D), torch.zeros(N, N), []
    mask[3::4] = torch.finfo(mask.dtype).min
    for split in (False, True):
        own = (rows.shard(x, rank, 2) if split else x.clone()).requires_grad_()
        block = rg.distributed.context_parallel(mesh) if split else nullcontext()
        with block:
            z = rg.relation_attention(own, own, own, None, attn_mask=rows.shard(mask, rank, 0) if split else mask)
            z.sin().sum().backward()
        found.append([z.detach(), own.grad])
    return [float((b - rows.shard(a, rank, 2)).abs().max()) for a, b in zip(*found, strict=True)]


def without_gradients_of_keys(mesh):
    """The difference of gradients where the implementation of process 1 finds none for keys and values."""
    rank, rows, original = mesh.get_local_rank(), rg.distributed.Layout(N, mesh.size()), gathered.answer_to
    torch.manual_seed(9)
    x = learned(1, H, N, D)
    first = N // mesh.size()
    rg.relation_attention(x, x, x, None)[:, :, :first].sin().sum().backward()
    own = rows.shard(x.detach(), rank, 2).requires_grad_()

    def of_queries_alone(call, impl):
        return original(call, impl)._replace(output=call.query.detach() + 0 * call.query)

    gathered.answer_to = of_queries_alone if rank else original
    with rg.distributed.context_parallel(mesh):
        z = rg.relation_attention(own, own, own, None)
        (z.sin() * (rank == 0)).sum().backward()
    gathered.answer_to = original
    return [float((own.grad - rows.shard(x.grad, rank, 2)).abs().max())]


def all_cases(mesh):
    yield "tied", caught(lambda: without_gradients_of_keys(mesh))
    yield "wrong table", caught(lambda: wrong_table(mesh))
    yield "lowest", caught(lambda: hidden_by_the_lowest_number(mesh))
    for how in CHECKPOINTS:
        yield ("checkpoint", *how), caught(lambda: checkpointed(mesh, *how))  # noqa: B023
