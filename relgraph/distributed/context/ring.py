"""Ring attention: keys and values go from process to process, and each merges the attention of its rows to them.

Forward keeps no keys of others: backward sends them around again, with the sums of their gradients, and computes each
part again. So memory for keys does not grow with the number of processes.

Source: Liu, Zaharia, Abbeel 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context"; parts merge
by their log-sum-exp, as in Milakov and Gimelshein 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed

from relgraph.arguments import check
from relgraph.call import Answer, Given, accumulation_dtype, map_given
from relgraph.distributed.collectives import Travel
from relgraph.distributed.context.slices import Run, Whole, attend_part, positions_of, sees_nothing
from relgraph.distributed.layout import Layout
from relgraph.score import compatibility


class Ring(NamedTuple):
    """How one call goes around the ring.

    Attributes:
        whole: what all processes hold together.
        queries: which rows each process holds.
        keys: which keys each process holds.
        group: the processes.
        seed: the seed of dropout, or None.
    """

    whole: Whole
    queries: Layout
    keys: Layout
    group: Any
    seed: Tensor | None

    def key_shape(self, x: Tensor, source: int) -> list[int]:
        """The shape of the keys of process ``source``, if those of this process are ``x``."""
        shape = list(x.shape)
        shape[self.whole.axis] = self.keys.lengths[source]
        return shape


def answer(given: Given, whole: Whole, queries: Layout, keys: Layout, group: Any, seed: Tensor | None) -> Answer:
    """The answer for the rows of this process."""
    ring = Ring(whole, queries, keys, group, seed)
    tensors: list[Tensor] = []
    # without its tensors, which autograd keeps
    frame = map_given(given, lambda _, x: tensors.append(x) or _TENSOR)
    output, lse, *mass = _RingAttention.apply(ring, frame, *tensors, *compatibility(given.get("score")).tensors())
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

    def __init__(self, given: Given, ring: Ring) -> None:
        query, value = given["query"], given["value"]
        dtype = accumulation_dtype(query.dtype)
        rows = list(query.shape[:3]) if ring.whole.axis else [1, query.shape[1], query.shape[0]]
        self.output = query.new_zeros(*rows, value.shape[-1], dtype=dtype)
        self.top = query.new_full(rows, float("-inf"), dtype=dtype)  # the largest log-sum-exp of a part
        self.total = query.new_zeros(rows, dtype=dtype)  # the sum of exp(lse - top) over parts
        self.mass: list[Tensor] = []
        if given.get("need_label_mass"):
            labels = ring.whole.labels
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
        """Output, log-sum-exp and masses, divided by the sum of all shares.

        A log-sum-exp near the lowest number has lost its sum to rounding, so dividing by its exponential would not do.
        """
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
    def forward(ctx: Any, ring: Ring, frame: Given, *tensors: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        given = _filled(frame, tensors)
        device = given["query"].device.type
        ctx.cast = check.autocast_dtype(device)
        merged, size = _Merged(given, ring), ring.keys.processes
        rank = distributed.get_rank(ring.group)
        moving = [given["key"], given["value"]]
        for step in range(size):
            source = (rank - step) % size
            shapes = [ring.key_shape(x, (source - 1) % size) for x in moving]
            with Travel(moving, shapes, ring.group, needed=step + 1 < size) as travel:
                for own, rows, at, keys in _pieces(ring, rank, source):
                    if not sees_nothing(given, ring.whole, rows, keys):
                        key, value = (x.narrow(ring.whole.axis, at[0], at[1] - at[0]) for x in moving)
                        part = attend_part(given, ring.whole, own, rows, keys, key, value, (ring.seed, 0))
                        merged.add(own, part)
            moving = travel.coming
        outputs = merged.finish()
        ctx.ring, ctx.frame = ring, frame
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
            found = _Backward(ctx.ring, ctx.frame, tensors, merged, outputs, grads, ctx.needs_input_grad[2:]).run()
        return (None, None, *found)


class _Backward:
    """The rounds of backward: each part again, its gradients, and the sums for the keys as they go around."""

    def __init__(
        self,
        ring: Ring,
        frame: Given,
        tensors: Sequence[Tensor],
        merged: Sequence[Tensor],
        outputs: Sequence[Tensor],
        grads: Sequence[Tensor | None],
        needs: Sequence[bool],
    ) -> None:
        self.ring, self.frame, self.tensors, self.needs = ring, frame, list(tensors), list(needs)
        self.output, self.lse, *self.mass = outputs
        self.top, self.total = merged
        self.grads = grads
        self.totals = [
            torch.zeros_like(x, dtype=accumulation_dtype(x.dtype)) if need and at not in (_KEY, _VALUE) else None
            for at, (x, need) in enumerate(zip(self.tensors, self.needs, strict=True))
        ]
        # Σ over outputs of output · gradient, and the gradient of the log-sum-exp, which all parts share
        rest = [] if len(grads) < 3 else list(zip(self.mass, grads[2:], strict=True))
        terms = [(x * grad).sum(-1) for x, grad in [(self.output, grads[0]), *rest] if grad is not None]
        self.common = sum(terms, torch.zeros_like(self.lse)) - (0.0 if grads[1] is None else grads[1])

    def run(self) -> list[Tensor | None]:
        """The gradients of all tensors, in their dtypes."""
        ring, size = self.ring, self.ring.keys.processes
        rank = distributed.get_rank(ring.group)
        moving = self.tensors[_KEY : _VALUE + 1]
        sums = [torch.zeros_like(x, dtype=accumulation_dtype(x.dtype)) for x in moving]
        for step in range(size):
            source = (rank - step) % size
            before = (source - 1) % size
            shapes = [ring.key_shape(x, before) for x in moving]
            given = _filled(self.frame, self.tensors)
            with Travel(moving, shapes, ring.group, needed=step + 1 < size) as travel:
                for own, rows, at, keys in _pieces(ring, rank, source):
                    if not sees_nothing(given, ring.whole, rows, keys):
                        self._add(own, rows, at, keys, moving, sums)
            # the sums come home in the last step, one process further than the keys went
            with Travel(sums, [ring.key_shape(x, before) for x in sums], ring.group, needed=size > 1) as homeward:
                pass
            moving, sums = travel.coming, homeward.coming
        for at, total in zip((_KEY, _VALUE), sums, strict=True):
            self.totals[at] = total if self.needs[at] else None
        return [
            None if total is None else total.to(x.dtype) for total, x in zip(self.totals, self.tensors, strict=True)
        ]

    def _add(self, own: Run, rows: Run, at: Run, keys: Run, moving: list[Tensor], sums: list[Tensor]) -> None:
        """Add the gradients of one part."""
        ring, axis = self.ring, self.ring.whole.axis
        here = [x.narrow(axis, at[0], at[1] - at[0]).detach() for x in moving]
        leaves = [x.detach() for x in self.tensors]
        leaves[_KEY], leaves[_VALUE] = here
        wanted = [i for i, need in enumerate(self.needs) if need]
        for i in wanted:
            leaves[i] = leaves[i].requires_grad_()
        with torch.enable_grad():
            given = _filled(self.frame, leaves)
            part = attend_part(given, ring.whole, own, rows, keys, leaves[_KEY], leaves[_VALUE], (ring.seed, 0))
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
            [x for x, _ in used], [leaves[i] for i in wanted], [grad for _, grad in used], allow_unused=True
        )
        for i, grad in zip(wanted, found, strict=True):
            if grad is None:
                continue
            if i in (_KEY, _VALUE):
                sums[i - _KEY].narrow(axis, at[0], at[1] - at[0]).add_(grad)
            else:
                total = self.totals[i]
                assert total is not None
                total.add_(grad)


_KEY, _VALUE = 1, 2
"""Where key and value are among the tensors: a caller names query, key and value first."""


def _pieces(ring: Ring, rank: int, source: int) -> list[tuple[Run, Run, Run, Run]]:
    """Rows of this process in the shard and in the whole, with keys of ``source`` in its shard and in the whole."""
    return [
        (own, rows, at, keys)
        for own, rows in positions_of(ring.queries.runs[rank])
        for at, keys in positions_of(ring.keys.runs[source])
    ]
