"""Lets several processes train one translator: on separate batches, or each on its part of every batch.

All modes learn the same model. An update takes the same batches, and its losses and gradients match those of one
process up to rounding. The modes differ in what a process holds and what it sends. Modules of torch.distributed are
imported inside functions, because they are slow to load and a torch for one process may lack them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import relgraph as rg
from examples.translation.batches import Batch
from examples.translation.model import Translator
from examples.translation.processes import Processes

MODES = DATA, SHARDS, HEADS = "data", "shards", "heads"


class Alone:
    """A translator that this process trains alone. The other classes share the work among processes.

    Attributes:
        model: the translator; this process may hold only a part of its parameters.
        copies: how many processes take the same batches; 1 if each has its own batches.
        in_step: whether all processes must compute the same number of batches.

    Args:
        model: the whole translator, the same on all processes.
        processes: this process among those that train together (default: a single process).
    """

    copies = 1
    in_step = False

    def __init__(self, model: Translator, processes: Processes | None = None) -> None:
        self.model = model
        self.processes = processes or Processes(0, 1, model.embedding.weight.device)
        self.wrapped: nn.Module = model

    def work(self, *, last: bool = True) -> AbstractContextManager[Any]:  # noqa: ARG002
        """Context manager for forward and backward of a batch; ``last`` says that the update follows."""
        return nullcontext()

    def sums(self, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """This process's part of the loss and of the negative log-likelihood; the sum over processes is the whole.

        Multiply each loss by the number of processes before backward to get the right gradients, because most modes
        average gradients.
        """
        model = self.wrapped if self.model.training else self.model
        return model(batch.source, batch.given, batch.wanted, smoothing)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer, which cannot step DTensors and plain tensors together."""
        split, whole = _by_kind(list(self.model.parameters()))
        return [{"params": group} for group in (whole, split) if group]

    def clip(self, limit: float) -> None:
        """Scale the gradients down to a norm of at most ``limit``."""
        kinds = [group for group in _by_kind(list(self.model.parameters())) if group]
        norms = [whole(nn.utils.get_total_norm([p.grad for p in group if p.grad is not None])) for group in kinds]
        total = norms[0] if len(norms) == 1 else torch.stack(norms).norm()
        for group in kinds:
            nn.utils.clip_grads_with_norm_(group, limit, total)


class ByData(Alone):
    """Each process has the whole model and its own batches: DistributedDataParallel."""

    def __init__(self, model: Translator, processes: Processes) -> None:
        super().__init__(model, processes)
        ids = [processes.device.index] if processes.device.type == "cuda" else None
        self.wrapped = DistributedDataParallel(model, device_ids=ids)

    def work(self, *, last: bool = True) -> AbstractContextManager[Any]:
        return nullcontext() if last else self.wrapped.no_sync()  # type: ignore[operator]


class ByShards(Alone):
    """Each process has its own batches and holds a part of every parameter: FSDP2, ``fully_shard``.

    All processes gather a layer's parameters when it computes, so all must compute the same number of batches.
    """

    in_step = True

    def __init__(self, model: Translator, processes: Processes) -> None:
        from torch.distributed.fsdp import fully_shard

        super().__init__(model, processes)
        mesh = _mesh(processes)
        for side in (model.transformer.encoder, model.transformer.decoder):
            for layer in side.layers:
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)


class ByHeads(Alone):
    """All processes take the same batches; each computes some heads and some columns of the feed-forward networks.

    Embeddings and norms are not split; they and their gradients are the same on all processes.
    """

    def __init__(self, model: Translator, processes: Processes) -> None:
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        super().__init__(model, processes)
        world = self.copies = processes.world
        for name in ("heads", "hidden"):
            if (value := getattr(model.settings, name)) % world:
                raise ValueError(f"{name} must be a multiple of the {world} processes for {HEADS!r}, got {value}")
        plan = {
            "self_attn": rg.distributed.HeadParallel(),
            "multihead_attn": rg.distributed.HeadParallel(),  # of the decoder's layers
            "linear1": ColwiseParallel(),
            "linear2": RowwiseParallel(),
        }
        mesh = _mesh(processes)
        for side in (model.transformer.encoder, model.transformer.decoder):
            for layer in side.layers:
                parallelize_module(layer, mesh, {name: style for name, style in plan.items() if hasattr(layer, name)})
                layer.dropout = _DropoutOfWhole(layer.dropout.p, processes)

    def sums(self, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        loss, nll = super().sums(batch, smoothing)
        return loss / self.copies, nll / self.copies


def share(model: Translator, mode: str, processes: Processes) -> Alone:
    """A translator that the processes train together, or one process by itself.

    Args:
        model: the whole translator, the same on all processes; modified if each process keeps only a part.
        mode: one of ``MODES``.
        processes: this process among those that train together.

    Raises:
        ValueError: the mode is unknown, needs several processes, or would give unequal parts.
    """
    if mode not in MODES:
        raise ValueError(f"parallel must be one of {list(MODES)}, got {mode!r}")
    if processes.world == 1:
        if mode != DATA:
            raise ValueError(f"parallel must be {DATA!r} for one process, got {mode!r}: start several with torchrun")
        return Alone(model, processes)
    kinds: dict[str, Callable[[Translator, Processes], Alone]] = {DATA: ByData, SHARDS: ByShards, HEADS: ByHeads}
    return kinds[mode](model, processes)


class _DropoutOfWhole(nn.Module):
    """Dropout of this process's columns, with the mask that one process would draw for all columns.

    All processes draw the same mask, because they have the same seed, and each takes its part. Otherwise all parts
    would have equal masks.
    """

    def __init__(self, p: float, processes: Processes) -> None:
        super().__init__()
        self.p, self.processes = p, processes

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        mask = functional.dropout(x.new_ones(*x.shape[:-1], x.shape[-1] * self.processes.world), self.p)
        return x * mask.chunk(self.processes.world, -1)[self.processes.rank]


def _mesh(processes: Processes) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(processes.device.type, (processes.world,))


def _by_kind(parameters: list[Any]) -> tuple[list[Any], list[Any]]:
    """Split parameters into DTensors, of which each process holds a part, and plain tensors."""
    split = [parameter for parameter in parameters if hasattr(parameter, "placements")]
    return split, [parameter for parameter in parameters if not hasattr(parameter, "placements")]


def whole(x: Any) -> Any:
    """A DTensor as a tensor that all processes have whole; anything else as it is."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x
