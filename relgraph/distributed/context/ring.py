"""Ring attention: keys and values go from process to process, and each merges the attention of its rows to them.

Forward keeps no keys of others: backward sends them around again, with the sums of their gradients, and computes each
part again. So memory for keys does not grow with the number of processes.

Source: Liu, Zaharia, Abbeel 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context"; parts merge
by their log-sum-exp, as in Milakov and Gimelshein 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.call import Answer, Given, accumulation_dtype, map_given
from relgraph.distributed.collectives import sent_around
from relgraph.distributed.context.slices import Run, Whole, attend_part, positions_of, sees_nothing
from relgraph.score import compatibility


def _key_shape(x: Tensor, whole: Whole, source: int) -> list[int]:
    """The shape of the keys of process ``source``, if those of this process are ``x``."""
    shape = list(x.shape)
    shape[whole.axis] = whole.keys.lengths[source]
    return shape


def answer(given: Given, whole: Whole) -> Answer:
    """The answer for the rows of this process."""
    tensors: list[Tensor] = []
    # without its tensors, which autograd keeps
    frame = map_given(given, lambda _, x: tensors.append(x) or _TENSOR)
    output, lse, *mass = _RingAttention.apply(whole, frame, *tensors, *compatibility(given.get("score")).tensors())
    return Answer(output, lse, tuple(mass) if given.get("need_label_mass") else None)


_TENSOR = object()
"""Marks the place of a tensor."""


def _filled(frame: Given, tensors: Sequence[Tensor]) -> dict[str, Any]:
    """The arguments with these tensors in their places, and then those of the score."""
    rest = iter(tensors)
    found = map_given(frame, lambda *_: next(rest))
    return {**found, "score": compatibility(frame.get("score")).with_tensors(list(rest))}


class _Merged:
    """The rows of this process, merged over the keys that they have seen."""

    def __init__(self, given: Given, whole: Whole) -> None:
        query, value = given["query"], given["value"]
        dtype = accumulation_dtype(query.dtype)
        rows = list(query.shape[:3]) if whole.axis else [1, query.shape[1], query.shape[0]]
        self.output = query.new_zeros(*rows, value.shape[-1], dtype=dtype)
        self.top = query.new_full(rows, float("-inf"), dtype=dtype)  # the largest log-sum-exp of a part
        self.total = query.new_zeros(rows, dtype=dtype)  # the sum of exp(lse - top) over parts
        self.mass: list[Tensor] = []
        if given.get("need_label_mass"):
            labels = whole.labels
            sizes = labels.num_labels if labels is not None else ()
            sizes = sizes if isinstance(sizes, tuple) else (sizes,)
            self.mass = [query.new_zeros(*rows, size, dtype=dtype) for size in sizes]

    def add(self, own: Run, part: Answer) -> None:
        """Merge attention of rows ``own`` to further keys."""
        at = slice(*own)
        before = self.top[:, :, at]
        top = torch.maximum(before, part.lse)
        old, new = share_of(before, top), share_of(part.lse, top)
        pairs = [(self.output, part.output), *zip(self.mass, part.mass or (), strict=True)]
        for total, found in pairs:
            total[:, :, at].mul_(old[..., None]).addcmul_(found, new[..., None])
        self.total[:, :, at] = self.total[:, :, at] * old + new
        self.top[:, :, at] = top

    def finish(self) -> list[Tensor]:
        """Output, log-sum-exp and masses, divided by the sum of all shares."""
        # not by the exponential of the log-sum-exp, which near the lowest number has lost its sum to rounding
        self.total.masked_fill_(self.total == 0, 1.0)
        for x in (self.output, *self.mass):
            x.div_(self.total[..., None])
        return [self.output, self.top + self.total.log(), *self.mass]


def share_of(part: Tensor, whole: Tensor) -> Tensor:
    """exp(part - whole), the share that a part has in the weight of a row; 0 for a row that sees nothing."""
    return torch.where(part == float("-inf"), torch.zeros_like(part), (part - whole).exp())


class _RingAttention(torch.autograd.Function):
    """All rounds of the ring, forward and backward."""

    @staticmethod
    def forward(ctx: Any, whole: Whole, frame: Given, *tensors: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        given = _filled(frame, tensors)
        device = given["query"].device.type
        ctx.cast = check.autocast_dtype(device)
        merged, size = _Merged(given, whole), whole.keys.processes
        rank = whole.rank
        moving = [given["key"], given["value"]]
        for step in range(size):
            source = (rank - step) % size
            shapes = [_key_shape(x, whole, (source - 1) % size) for x in moving]
            with sent_around(moving, shapes, whole.group, needed=step + 1 < size) as coming:
                for own, rows, at, keys in _pieces(whole, source):
                    if not sees_nothing(given, whole, rows, keys):
                        key, value = (x.narrow(whole.axis, at[0], at[1] - at[0]) for x in moving)
                        part = attend_part(given, whole, own, rows, keys, key, value)
                        merged.add(own, part)
            moving = coming
        outputs = merged.finish()
        ctx.whole, ctx.frame = whole, frame
        ctx.save_for_backward(*tensors, merged.top, merged.total, *outputs)
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        saved = ctx.saved_tensors  # read once: under checkpointing each read computes them again
        given, outputs = saved[: -len(grads)], saved[-len(grads) :]
        tensors, merged = given[:-2], given[-2:]
        device = tensors[0].device.type
        with torch.autocast(device, dtype=ctx.cast, enabled=ctx.cast is not None):
            found = _Backward(ctx.whole, ctx.frame, tensors, merged, outputs, grads, ctx.needs_input_grad[2:]).run()
        return (None, None, *found)


class _Backward:
    """The rounds of backward: each part again, its gradients, and the sums for the keys as they go around."""

    def __init__(
        self, whole: Whole, frame: Given, tensors: Any, merged: Any, outputs: Any, grads: Any, needs: Sequence[bool]
    ) -> None:
        self.whole, self.frame, self.tensors, self.needs = whole, frame, list(tensors), list(needs)
        self.output, self.lse, *self.mass = outputs
        self.top, self.total = merged
        self.grads = grads
        self.wanted = [at for at, need in enumerate(needs) if need]
        self.totals = {at: _zeros(self.tensors[at]) for at in self.wanted if at not in (_KEY, _VALUE)}
        # Σ over outputs of output · gradient, and the gradient of the log-sum-exp, which all parts share
        rest = [] if len(grads) < 3 else list(zip(self.mass, grads[2:], strict=True))
        terms = [(x * grad).sum(-1) for x, grad in [(self.output, grads[0]), *rest] if grad is not None]
        self.common = sum(terms, torch.zeros_like(self.lse)) - (0.0 if grads[1] is None else grads[1])

    def run(self) -> list[Tensor | None]:
        """The gradients of all tensors, in their dtypes."""
        whole, size = self.whole, self.whole.keys.processes
        rank = whole.rank
        moving = self.tensors[_KEY : _VALUE + 1]
        sums = [_zeros(x) for x in moving]
        for step in range(size):
            source = (rank - step) % size
            before = (source - 1) % size
            shapes = [_key_shape(x, whole, before) for x in moving]
            given = _filled(self.frame, self.tensors)
            with sent_around(moving, shapes, whole.group, needed=step + 1 < size) as coming:
                for own, rows, at, keys in _pieces(whole, source):
                    if not sees_nothing(given, whole, rows, keys):
                        self._add(own, rows, at, keys, moving, sums)
            # the sums come home in the last step, one process further than the keys went
            with sent_around(sums, shapes, whole.group, needed=size > 1) as sums_before:
                pass
            moving, sums = coming, sums_before
        totals = self.totals | {_KEY: sums[0], _VALUE: sums[1]}
        return [totals[at].to(x.dtype) if self.needs[at] else None for at, x in enumerate(self.tensors)]

    def _add(self, own: Run, rows: Run, at: Run, keys: Run, moving: list[Tensor], sums: list[Tensor]) -> None:
        """Add the gradients of one part."""
        whole, axis = self.whole, self.whole.axis
        leaves = list(self.tensors)
        leaves[_KEY], leaves[_VALUE] = (x.narrow(axis, at[0], at[1] - at[0]) for x in moving)
        leaves = [x.detach().requires_grad_(need) for x, need in zip(leaves, self.needs, strict=True)]
        with torch.enable_grad():
            given = _filled(self.frame, leaves)
            part = attend_part(given, whole, own, rows, keys, leaves[_KEY], leaves[_VALUE])
        mine = slice(*own)
        share = share_of(part.lse.detach(), self.top[:, :, mine]) / self.total[:, :, mine]
        pieces: list[Tensor] = []
        incoming: list[Tensor] = []
        weight = -self.common[:, :, mine]
        for found, grad in zip((part.output, *(part.mass or ())), (self.grads[0], *self.grads[2:]), strict=True):
            if grad is not None:
                own_grad = grad[:, :, mine]
                weight = weight + (found.detach() * own_grad).sum(-1)
                pieces.append(found)
                incoming.append(own_grad * share[..., None])
        pieces.append(part.lse)
        incoming.append(weight * share)
        used = [(x, grad) for x, grad in zip(pieces, incoming, strict=True) if x.requires_grad]
        if not used:
            return
        found = torch.autograd.grad(
            [x for x, _ in used], [leaves[i] for i in self.wanted], [grad for _, grad in used], allow_unused=True
        )
        for i, grad in zip(self.wanted, found, strict=True):
            if grad is not None:
                moves = i in (_KEY, _VALUE)
                total = sums[i - _KEY].narrow(axis, at[0], at[1] - at[0]) if moves else self.totals[i]
                total.add_(grad)


def _zeros(x: Tensor) -> Tensor:
    return torch.zeros_like(x, dtype=accumulation_dtype(x.dtype))


_KEY, _VALUE = 1, 2
"""Where key and value are among the tensors: a caller names query, key and value first."""


def _pieces(whole: Whole, source: int) -> list[tuple[Run, Run, Run, Run]]:
    """Rows of this process in the shard and in the whole, with keys of ``source`` in its shard and in the whole."""
    return [
        (own, rows, at, keys)
        for own, rows in positions_of(whole.queries.runs[whole.rank])
        for at, keys in positions_of(whole.keys.runs[source])
    ]
