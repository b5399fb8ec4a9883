"""Scores and values that the primitive does not support: ``dense`` for some query rows at a time, again in backward.

torch differentiates each block, so any function that it can differentiate may act on the scores. Memory grows with the
number of keys, not with the number of pairs. No block holds rows of two graphs of a packed batch. Gradients of blocks
are added in place, because the autograd graphs of all blocks at once would scatter small allocations between large
ones, so that their memory could not be used again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from relgraph.call import Answer, Call, accumulation_dtype
from relgraph.impl import budget
from relgraph.impl.eager import dense
from relgraph.impl.terms import hashes_of
from relgraph.impl.units import Unit, units
from relgraph.plan import LabelPlan, cut, memo_of

BLOCK_NUMBERS = 1 << 20
"""Numbers per block on a CPU, 4 MiB in float32: one or more per pair, see :func:`_numbers_per_pair`."""


def needed(call: Call) -> bool:
    """Whether the primitive lacks the call's score, its maps of values, gates or edge vectors."""
    given = call.value_map is not None or call.gates is not None or call.edge is not None
    return given or unknown_score(call)


def unknown_score(call: Call) -> bool:
    """Whether the score is neither the dot product nor a named function of it."""
    return call.score.code is None or call.score.replaces_dot


def attend(call: Call) -> Answer:
    """Attention block by block of query rows; compiled code breaks its graph here."""
    if torch.compiler.is_compiling():
        # not a decorator: that would load the compiler with relgraph
        outside: Any = torch.compiler.disable(_attend, reason="scores by rows need impl='dense' for a full graph")
        return outside(call)
    return _attend(call)


def _attend(call: Call) -> Answer:
    if call.dropout_p > 0.0 and call.keep is None:  # blocks draw with one seed, by place
        seed = torch.randint(1 << 62, ()) if call.dropout_seed is None else call.dropout_seed
        call = replace(call, drawn=hashes_of(replace(call, dropout_seed=seed)))
    output, lse, *mass = _ByRows.apply(call, *call.tensors())
    return Answer(output, lse, tuple(mass) if call.need_mass else None)


class _ByRows(torch.autograd.Function):
    """All blocks, forward and backward; inputs are the tensors of the call."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        (batch, heads, q_len), value = call.query.shape[:3], call.value
        output = value.new_zeros(batch, heads, q_len, value.shape[-1], dtype=accumulation_dtype(call.query.dtype))
        lse = output.new_full((batch, heads, q_len), float("-inf"))
        mass = [output.new_zeros(batch, heads, q_len, r) for r in call.plan.num_labels] if call.need_mass else []
        whole = [output, lse, *mass]
        for unit, rows, mine in _blocks(call):
            answer = dense.attend(mine)
            for out, piece in zip(whole, (answer.output, answer.lse, *(answer.mass or ())), strict=True):
                _rows_of(out, unit, rows).copy_(piece)
        ctx.call = call
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        return tuple(whole)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.call.plan.check_unchanged()
        saved, needs = list(ctx.saved_tensors), ctx.needs_input_grad[1:]
        # sums over blocks, in float32 at least
        grads = [
            torch.zeros_like(x, dtype=accumulation_dtype(x.dtype)) if need else None
            for x, need in zip(saved, needs, strict=True)
        ]
        # cut like the call, the sums of gradients give the views that a block's gradients are added to
        sums = ctx.call.with_tensors([x if grad is None else grad for x, grad in zip(saved, grads, strict=True)])
        for unit, rows, mine in _blocks(ctx.call.with_tensors(saved)):
            inputs = [x.detach() for x in mine.tensors()]  # copies: hooks of parameters wait for the sum
            wanted = [x.requires_grad_() for x in _chosen(inputs, needs)]
            # as in forward: the implementations choose their own precision
            with torch.enable_grad(), torch.autocast(mine.query.device.type, enabled=False):
                answer = dense.attend(mine.with_tensors(inputs))
            pieces = (answer.output, answer.lse, *(answer.mass or ()))
            used = [(x, grad) for x, grad in zip(pieces, incoming, strict=True) if grad is not None and x.requires_grad]
            if not used:
                continue
            found = torch.autograd.grad(
                [x for x, _ in used],
                wanted,
                [_rows_of(grad, unit, rows) for _, grad in used],
                allow_unused=True,
            )
            for total, piece in zip(_chosen(_cut(sums, unit, rows, mine.plan).tensors(), needs), found, strict=True):
                if piece is not None:
                    total.add_(piece.detach())
        grads = [None if x is None else x.to(own.dtype) for x, own in zip(grads, saved, strict=True)]
        if torch.is_grad_enabled():  # create_graph=True: a second derivative may follow
            made = _chosen(grads, needs)
            found = iter(_Once.apply(len(made), *made, *_chosen(saved, needs)))
            grads = [x if x is None else next(found) for x in grads]
        return None, *grads


class _Once(torch.autograd.Function):
    """Gradients without a second derivative; they depend on the given tensors, so that torch asks for it and raises."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG004
        return tuple(x.view_as(x) for x in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError("impl='chunked' has no second derivative; use impl='dense' or 'reference'")


def _chosen(tensors: list[Any], needs: Sequence[bool]) -> list[Any]:
    """Those with a gradient."""
    return [x for x, need in zip(tensors, needs, strict=True) if need]


def _blocks(call: Call) -> Iterator[tuple[Unit, range, Call]]:
    """The units, their rows in blocks, and the call for each block."""
    query, plan = call.query, call.plan
    numbers = BLOCK_NUMBERS
    if room := budget.block_bytes(query.device):
        numbers = room // (accumulation_dtype(query.dtype).itemsize * dense.NUMBERS_PER_SCORE)
    most = max(numbers // max(query.shape[1] * plan.k_len * _numbers_per_pair(call), 1), 1)
    together = 1 if any(part.csr is not None for part in plan.parts) else max(most // max(plan.q_len, 1), 1)
    for unit in units(plan, memo_of(plan), query.shape[0], together):
        for first in range(unit.queries.start, unit.queries.stop, most):
            rows = range(first, min(first + most, unit.queries.stop))
            own_plan = cut(plan, unit.batch, rows, unit.keys, unit.graph, first - unit.queries.start)
            yield unit, rows, _cut(call, unit, rows, own_plan)


def _numbers_per_pair(call: Call) -> int:
    """How many numbers a block holds per pair: D of an additive score, one per map or gate."""
    return max(call.query.shape[-1] if call.score.additive else 1, maps_per_pair(call))


def maps_per_pair(call: Call) -> int:
    """How many maps of a bilinear score or of values, or gates, a pair may take; one without them."""
    maps = call.plan.num_labels[0] if call.score.by_label or call.gates is not None else 1
    return max(maps, 1 if call.value_map is None else call.value_map.bases.shape[-3])


def _rows_of(x: Tensor, unit: Unit, rows: range) -> Tensor:
    """``[B, H, N_q, ...]`` of a block."""
    return x[unit.batch.start : unit.batch.stop, :, rows.start : rows.stop]


def _cut(call: Call, unit: Unit, rows: range, plan: LabelPlan) -> Call:
    """The same call for some rows of a unit, whose plan is given; its tensors are views."""
    return call.cut(unit.batch, rows, unit.keys, plan, rows.start - unit.queries.start, unit.graph)
