"""How the network of ``matrix_cases`` is split over processes, each mode beside one process."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

import relgraph as rg
from tests.distributed.matrix_cases import Network, Share, cases, loss_of
from tests.distributed.worlds import caught


class Mode(NamedTuple):
    """How processes split the work.

    Attributes:
        batch: ``"DDP"`` or ``"FSDP2"`` where each process has some samples or graphs.
        heads: whether each process has some heads.
        rows: whether each process has some rows.
    """

    batch: str = ""
    heads: bool = False
    rows: bool = False

    def __str__(self) -> str:
        return " + ".join(filter(None, [self.batch, "TP" * self.heads, "CP" * self.rows]))


ONE_AXIS = [Mode("DDP"), Mode("FSDP2"), Mode(heads=True), Mode(rows=True)]
TWO_AXES = [Mode("FSDP2", heads=True), Mode(heads=True, rows=True)]
MODES = [*ONE_AXIS, *TWO_AXES]


class Split:
    """One network, split; ``step`` is forward and backward on the part of this process."""

    def __init__(self, mode, case, outer, heads):
        self.mode, self.case, self.outer = mode, case, outer
        self.rank, self.size = outer.get_local_rank(), outer.size()
        self.network = Network(case)
        if mode.heads:
            parallelize_module(self.network, heads, {"attention": rg.distributed.HeadParallel()})
        self.called = self.network
        if mode.batch == "DDP":
            self.called = nn.parallel.DistributedDataParallel(self.network, process_group=outer.get_group())
        elif mode.batch:
            fully_shard(self.network.attention, mesh=outer)
            fully_shard(self.network, mesh=outer)
        self.share = Share(case, self.rank, self.size) if mode.batch else Share(case)

    def own(self, x, parts):
        """What this process holds of something for the whole batch; ``parts`` are those of each process."""
        if self.mode.batch:
            return parts(x)[self.rank]
        if not self.mode.rows:
            return x
        return rg.distributed.Layout(x.shape[self.share.axis], self.size).shard(x, self.rank, self.share.axis)

    def step(self):
        """Outputs, the loss of all processes and the gradient of the input, of this process's part."""
        share, mode = self.share, self.mode
        # data parallelism: each process draws masks of its own
        torch.manual_seed(self.rank if mode.batch else 0)
        block = rg.distributed.context_parallel(self.outer) if mode.rows else nullcontext()
        with block:
            x, y = (share.x, share.y) if mode.batch else (self.own(part, None) for part in (share.x, share.y))
            x = x.detach().requires_grad_()
            z = self.called(x, share.labels)
            loss = loss_of(z, y)
            (loss * (self.size if mode.batch else 1)).backward()  # these average gradients over processes
        whole = loss.detach().clone()
        if mode.rows:
            self.sum_gradients()
        if mode.rows or mode.batch:
            distributed.all_reduce(whole, group=self.outer.get_group())
        grad = x.grad / (self.size if mode.batch else 1)
        return z.detach(), whole, grad

    def sum_gradients(self):
        """Add up gradients over the processes that hold other rows."""
        for parameter in self.network.parameters():
            grad = parameter.grad
            local = grad.to_local() if isinstance(grad, DTensor) else grad
            distributed.all_reduce(local, group=self.outer.get_group())

    def gradients(self):
        """All gradients, whole, by the names that they have on one process."""
        return joined({name: whole_of(p.grad) for name, p in self.network.named_parameters()})


def whole_of(x):
    return x.full_tensor() if isinstance(x, DTensor) else x


def joined(found):
    """The projections as one, where heads are split."""
    for kind in ("weight", "bias"):
        names = [f"attention.{name}_proj_{kind}" for name in "qkv"]
        if names[0] in found:
            found[f"attention.in_proj_{kind}"] = torch.cat([found.pop(name) for name in names])
    return found


class Alone:
    """The same network on one process."""

    def __init__(self, case, parts):
        """With dropout the batch goes through in ``parts``, each with the mask that its process draws."""
        self.network, self.whole = Network(case), Share(case)
        self.shares = [Share(case, rank, parts) for rank in range(parts)]
        if not case.dropout:
            self.shares = [self.whole]

    def step(self):
        found = []
        for rank, share in enumerate(self.shares):
            torch.manual_seed(rank)
            x = share.x.detach().requires_grad_()
            z = self.network(x, share.labels)
            loss = loss_of(z, share.y)
            loss.backward()
            found.append((z.detach(), loss.detach(), x.grad))
        z, loss, grad = zip(*found, strict=True)
        return torch.cat(z), torch.stack(loss).sum(), torch.cat(grad)

    def gradients(self):
        return {name: p.grad for name, p in self.network.named_parameters()}


def compare(mode, case, outer, heads):
    """The largest differences from one process, relative to the largest entry: of one step, and of all gradients."""
    split = Split(mode, case, outer, heads)
    alone = Alone(case, split.size if mode.batch else 1)
    parts = Parts(case, split.size)
    (z, loss, x), got = alone.step(), split.step()
    values = [("output", got[0], split.own(z, parts)), ("loss", got[1], loss), ("x", got[2], split.own(x, parts))]
    mine, theirs = split.gradients(), alone.gradients()
    assert mine.keys() == theirs.keys(), mine.keys() ^ theirs.keys()
    values += [(name, mine[name], theirs[name]) for name in theirs]
    return {name: difference(a, b) for name, a, b in values}


class Parts:
    """Cuts something for the whole batch into that of each process."""

    def __init__(self, case, size):
        self.lengths = [Share(case, rank, size).x.shape[0] for rank in range(size)]

    def __call__(self, x):
        return x.split(self.lengths)


def difference(a, b):
    assert a.shape == b.shape, (a.shape, b.shape)
    return float((a - b).abs().max() / b.abs().max().clamp(min=1.0)) if b.numel() else 0.0


def jobs(size):
    """What is compared, by name: mode, case and how many processes split the heads.

    Each kind of labels once; of two axes (of which one may have a single process) some kinds.
    """
    for turn, mode in enumerate(MODES):
        two_axes = mode in TWO_AXES
        for heads in ([1, 2] if size == 2 else [2]) if two_axes else [size if mode.heads else 1]:
            turned = cases(turn + heads + size // 4)
            for case in turned[heads::4] if two_axes else turned:
                yield (f"{mode}", f"{case} of {heads}"), mode, case, heads


def run(mesh):
    """All of ``jobs``, by name."""
    size = mesh.size()
    meshes = {tp: init_device_mesh("cpu", (size // tp, tp), mesh_dim_names=("outer", "heads")) for tp in {1, 2, size}}
    for name, mode, case, heads in jobs(size):
        yield name, caught(partial(compare, mode, case, meshes[heads]["outer"], meshes[heads]["heads"]))
