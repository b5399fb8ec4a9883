"""Attention of DTensors: each process runs the batch rows or heads that it holds, and gets DTensors back.

A DTensor is one tensor that several processes hold, by parts (``Shard``), as equal copies (``Replicate``) or as terms
of a sum (``Partial``), on each axis of a mesh of processes. Batch rows and heads do not depend on each other, so a
split by these needs no communication in forward. Backward sums the gradients of tensors that all parts share, such as
tables that all heads share.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from relgraph.arguments import check
from relgraph.call import AttentionAux, Drawn, Given, map_given
from relgraph.call.check import BATCHED, PACKED
from relgraph.call.operands import Operand, weight_of
from relgraph.distributed.parts import part_of
from relgraph.functional.attention import attend
from relgraph.labels import Labels
from relgraph.score import compatibility, copied

_BATCH, _HEADS = "batch", "heads"


def has_dtensors(given: Given) -> bool:
    """Whether query, key or value is a DTensor."""
    return any(isinstance(given[name], DTensor) for name in ("query", "key", "value"))


def attend_dtensors(given: Given, *, need_lse: bool) -> tuple[Tensor, AttentionAux]:
    """Run a call with DTensors on the parts of this process."""
    split = _Split(given)
    output, aux = attend(split.part_of(given), need_lse=need_lse)
    heads = -2 if split.packed else -3
    return split.joined(output, heads), AttentionAux(
        weights=split.joined(aux.weights, -3),
        label_mass=split.joined(aux.label_mass, heads),
        lse=split.joined(aux.lse, -1 if split.packed else -2),
    )


class _Split:
    """How one call is split over a mesh; ``roles`` are what each axis of the mesh splits: batch, heads or None."""

    def __init__(self, given: Given) -> None:
        self.packed = isinstance(given["labels"], Labels) and given["labels"].packed
        named = {name: given[name] for name in ("query", "key", "value")}
        dims = 3 if self.packed else 4
        for name, x in named.items():
            check.floating(name, x)
            if not isinstance(x, DTensor):
                raise TypeError(
                    f"{name} must be a DTensor, as one of query, key and value is, got {type(x).__name__}: "
                    "DTensor.from_local makes one"
                )
            if x.dim() != dims:
                raise ValueError(f"{name} must have shape {PACKED if self.packed else BATCHED}, got {list(x.shape)}")
        query = given["query"]
        self.mesh = query.device_mesh
        for name, x in named.items():
            self._check_mesh(name, x)
        by_tensor = [[self._role(name, place) for place in x.placements] for name, x in named.items()]
        self.roles = [self._common(axis, found) for axis, found in enumerate(zip(*by_tensor, strict=True))]
        self.batch = 1 if self.packed else query.shape[0]
        self.heads, self.kv_heads = query.shape[1], given["key"].shape[1]
        count = self._count(_HEADS)
        for name, heads in (("query", self.heads), ("key", self.kv_heads)):
            if heads % count:
                raise ValueError(
                    f"{name} must have a multiple of {count} heads, as the mesh splits them among {count}, got {heads}"
                )

    def _check_mesh(self, name: str, x: DTensor) -> None:
        if x.device_mesh != self.mesh:
            raise ValueError(
                f"{name} must be a DTensor on the mesh of query, {self.mesh}, got {x.device_mesh}: parameters that "
                "fully_shard splits are whole only while their module runs"
            )

    def _role(self, name: str, place: Placement) -> str | None:
        """Whether a placement splits batch rows or heads; an error if attention cannot be computed by such parts."""
        heads, batch = 1, None if self.packed else 0
        if isinstance(place, Replicate):
            return None
        if type(place) is Shard and place.dim == heads:
            return _HEADS
        if type(place) is Shard and place.dim == batch:
            return _BATCH
        wanted = "by heads, Shard(1)," if self.packed else "by batch, Shard(0), by heads, Shard(1),"
        raise NotImplementedError(
            f"{name} must be sharded {wanted} or replicated, got {place}: attention needs whole rows of keys. "
            "Call redistribute first; or let rg.distributed.context_parallel split sequences; or wrap the call in "
            "torch.distributed.tensor.experimental.local_map"
        )

    def _common(self, axis: int, roles: tuple[str | None, ...]) -> str | None:
        """Whether an axis of the mesh splits batch rows or heads, in query, key and value alike."""
        found = {role for role in roles if role is not None}
        if len(found) > 1:
            raise NotImplementedError(
                f"query, key and value must be split alike on axis {axis} of the mesh, all by batch or all by heads, "
                "got both: redistribute one of them"
            )
        return found.pop() if found else None

    def part_of(self, given: Given) -> dict[str, Any]:
        """The arguments for the batch rows and heads of this process, as plain tensors."""
        labels = given["labels"]
        if given.get("edge_attr") is not None and getattr(labels, "batch", None) is not None and _BATCH in self.roles:
            raise NotImplementedError(
                "edge_attr cannot be split by batch with edges of which each batch row has its own: split by heads"
            )
        rows = self._range(_BATCH, self.batch)
        labels = self.part(labels) if isinstance(labels, DTensor) else labels
        if isinstance(labels, Tensor) and labels.dim() == 3 and labels.shape[0] == self.batch:
            labels = labels[slice(*rows)]
        elif isinstance(labels, Labels) and not labels.packed and labels.batch_size > 1 and rows != (0, self.batch):
            labels = part_of(labels, ("batch", *rows), lambda labels: labels._batch_rows(*rows))
        return {
            **map_given(given, self._part),
            "labels": labels,
            "q_offset": self.part(given.get("q_offset"), batch=-1),
            "score": self._score(given.get("score")),
            "drawn": self._drawn(given) if given.get("dropout_p") else given.get("drawn"),
        }

    def _part(self, operand: Operand, x: Any) -> Any:
        """The part of one tensor of the call."""
        form = (operand.packed if self.packed else operand.forms)[-1]
        axes = {name: at for at, name in enumerate(form, -len(form))}
        if "H_kv" in axes:
            return self.part(x, batch=axes.get("B"), heads=axes["H_kv"], count=self.kv_heads)
        return self.part(x, batch=axes.get("B"), heads=axes.get("H"))

    def part(self, x: Any, *, batch: int | None = None, heads: int | None = None, count: int | None = None) -> Any:
        """The part of a tensor, or of each of a tuple, that this process needs, as a plain tensor; other values as is.

        ``batch`` and ``heads`` are its axes, counted from the end; ``count`` is the number of all heads, by default H.
        All parts share an axis of another length. In backward, a shared tensor gets the sum of all gradients.
        """
        if isinstance(x, (tuple, list)):
            return tuple(self.part(each, batch=batch, heads=heads, count=count) for each in x)
        if not isinstance(x, Tensor):
            return x
        if isinstance(x, DTensor):
            self._check_mesh("each tensor", x)
        else:
            x = DTensor.from_local(x, self.mesh, [Replicate()] * self.mesh.ndim, run_check=False)
        axes = {_BATCH: (batch, self.batch), _HEADS: (heads, count or self.heads)}
        wanted: list[Placement] = []
        of_gradient: list[Placement] = []
        for role in self.roles:
            axis, size = axes.get(role or "", (None, 0))
            is_split = axis is not None and x.dim() >= -axis and x.shape[axis] == size
            wanted.append(Shard(x.dim() + axis) if is_split and axis is not None else Replicate())
            of_gradient.append(Partial() if role is not None and not is_split else wanted[-1])
        # this step sums gradients that are Partial: without it a parameter would get an unsummed gradient
        local = x.redistribute(placements=wanted).to_local(grad_placements=of_gradient)
        return local.wait() if isinstance(local, AsyncCollectiveTensor) else local

    def joined(self, x: Any, heads: int) -> Any:
        """A part of the result, or each of a tuple, as a DTensor, with its heads on axis ``heads`` from the end."""
        if isinstance(x, tuple):
            return tuple(self.joined(each, heads) for each in x)
        if x is None:
            return None
        places = {_BATCH: Shard(0), _HEADS: Shard(x.dim() + heads)}
        placements = [Replicate() if role is None else places[role] for role in self.roles]
        if self.batch % self._count(_BATCH) == 0:
            return DTensor.from_local(x, self.mesh, placements, run_check=False)
        x, shape = x.contiguous(), list(x.shape)  # [b, h, ...], for batch rows that do not divide into equal parts
        shape[0], shape[heads] = self.batch, shape[heads] * self._count(_HEADS)  # [B, H, ...]
        form = {"shape": torch.Size(shape), "stride": torch.empty(shape, device="meta").stride()}
        return DTensor.from_local(x, self.mesh, placements, run_check=False, **form)

    def _count(self, role: str) -> int:
        """How many processes share the batch rows or heads."""
        return math.prod(self.mesh.size(axis) for axis, other in enumerate(self.roles) if other == role)

    def _range(self, role: str, size: int) -> tuple[int, int]:
        """The first and one past the last batch row, or head, of this process, as torch cuts them."""
        start, stop = 0, size
        for axis, other in enumerate(self.roles):
            if other == role:
                each = -(-(stop - start) // self.mesh.size(axis))
                first = min(start + each * self.mesh.get_local_rank(axis), stop)
                start, stop = first, min(first + each, stop)
        return start, stop

    def _score(self, score: Any) -> Any:
        """The score of the heads of this process."""
        how = compatibility(score)
        if how.replaces_dot:
            how = score = how.with_weight(self.part(how.weight, heads=weight_of(how).axis(how.weight, "H")))
        if not isinstance(how.function, nn.Module) or next(how.function.parameters(), None) is None:
            return score
        return how.with_function(copied(how.function, self.part))  # plain tensors, whose gradients are summed

    def _drawn(self, given: Given) -> Drawn:
        """The seed of the first process, as a single process would draw it, and where this process's part begins."""
        seed = torch.randint(1 << 62, (), device=given["query"].device)
        if any(self.mesh.get_coordinate() or ()):
            seed = torch.zeros_like(seed)
        seed = DTensor.from_local(seed, self.mesh, [Partial()] * self.mesh.ndim, run_check=False).full_tensor()
        return Drawn(seed, self._range(_BATCH, self.batch)[0], self._range(_HEADS, self.heads)[0])
