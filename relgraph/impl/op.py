"""The one primitive as a pair of custom ops, forward and backward, with their fake kernels and derivatives.

    (q, k, v, B, C, labels, mask, seed)  →  (o, lse, P, mass)        (do, …)  →  (dq, dk, dv, dB, dC)

An implementation plugs in two functions over a :class:`~relgraph.impl.call.Problem` (:func:`plug`). torch.compile,
export and checkpointing see one node for each direction. Tables stay outside, in plain torch. A new argument of
the primitive is a field of ``Problem``, and in this file: an argument of :func:`run`, the schema, and ``_problem``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from relgraph import score
from relgraph.impl.call import Call, Outputs, Problem, accumulation_dtype
from relgraph.plan import decode, encode

Forward = Callable[[Problem], Outputs]
"""Output without its value term, log-sum-exp, and the sums by label that the problem asks for."""

Backward = Callable[[Problem, Outputs, Outputs], Sequence[Tensor | None]]
"""(problem, outputs of forward, their gradients) → gradients of query, key, value, B and C (None without that
table), then of the mask if it learns."""


_KERNELS: dict[str, tuple[Forward, Backward, str]] = {}
"""By name: both functions, and the message that there is no second derivative."""


def plug(name: str, forward: Forward, backward: Backward, *, impl: str, instead: str) -> None:
    """Register the two functions under ``name``.

    Args:
        name: what :func:`run` is given.
        forward: the outputs of a problem.
        backward: the gradients of a problem.
        impl: the name that users give.
        instead: what to use instead, for the error about second derivatives.
    """
    _KERNELS[name] = forward, backward, f"impl={impl!r} has no second derivative; use {instead}"


def run(
    call: Call,
    kernels: str,
    by_query: Tensor | None,
    by_key: Tensor | None,
    *,
    columns: int,
    need_sums: bool,
    seed_device: torch.device | None = None,
) -> Outputs:
    """The primitive by the kernels of this name.

    Args:
        call: the checked call.
        kernels: the name that :func:`plug` was given.
        by_query: B, ``[B, H, N_q, columns]``, or None.
        by_key: C, ``[B, H, N_k, columns]``, or None.
        columns: width of B, C and the sums.
        need_sums: whether the value term needs P.
        seed_device: where a seed for dropout is drawn; the CPU when left out.

    Returns:
        Outputs, with empty tensors for the sums that are not needed. Label mass is ``mass`` under dropout, else
        ``sums``.
    """
    dropped = call.dropout_p > 0.0
    seed = torch.randint(1 << 62, (), device=seed_device) if dropped and call.keep is None else None
    offset = call.q_offset
    moving, fixed = (offset, 0) if isinstance(offset, Tensor) else (None, offset)
    need_sums = need_sums or (call.need_mass and not dropped)
    tensors, ints = encode(call.plan)
    learns = call.mask is not None and call.mask.requires_grad and torch.is_grad_enabled()
    flags = call.is_causal, need_sums, call.need_mass and dropped, learns
    header = [fixed, columns, *map(int, flags)]
    return Outputs(
        *torch.ops.relgraph.attend(
            call.query, call.key, call.value, by_query, by_key, call.mask, call.keep if dropped else None, seed, moving,
            tensors, [*header, *ints], call.scale, call.dropout_p, score.encode(call.score), kernels,
        )
    )  # fmt: skip


_TENSORS = 9  # query, key, value, by_query, by_key, mask, keep, seed, offset
_LEARNED = 5  # the first of them have gradients, and the mask if it learns
_MASK = 5
_OUTPUTS = 4  # output, lse, sums, mass
_HEADER = 6  # fixed offset, columns, is_causal, need_sums, need_mass, mask_learns; then the ints of the plan

_TAIL = "Tensor[] plan, SymInt[] ints, float scale, float dropout_p, float[] score, str kernels"
_FORWARD = (
    "(Tensor query, Tensor key, Tensor value, Tensor? by_query, Tensor? by_key, Tensor? mask, Tensor? keep, "
    f"Tensor? seed, Tensor? offset, {_TAIL}) -> (Tensor, Tensor, Tensor, Tensor)"
)
_BACKWARD = f"(Tensor[] grads, Tensor[] saved, bool[] given, {_TAIL}) -> Tensor[]"


def _problem(
    tensors: Sequence[Any], plan: Sequence[Tensor], ints: Sequence[int], scale: float, p: float, named: list[float]
) -> Problem:
    """The problem, rebuilt from the flat arguments of the op."""
    fixed, columns, is_causal, need_sums, need_mass, mask_learns, *plan_ints = ints
    query, key, value, by_query, by_key, mask, keep, seed, offset = tensors
    causal = (fixed if offset is None else offset) if is_causal else None
    return Problem(
        query, key, value, by_query, by_key, mask, keep, seed, decode(plan, plan_ints), causal, scale, p, columns,
        bool(need_sums), bool(need_mass), bool(mask_learns), score.decode(named), (plan, plan_ints),
    )  # fmt: skip


@torch.library.custom_op("relgraph::attend", mutates_args=(), schema=_FORWARD)
def _attend(*args: Any) -> tuple[Tensor, ...]:
    tensors, (*flat, kernels) = args[:_TENSORS], args[_TENSORS:]
    return tuple(_KERNELS[kernels][0](_problem(tensors, *flat)))


@_attend.register_fake
def _(*args: Any) -> tuple[Tensor, ...]:
    query, value, ints = args[0], args[2], args[_TENSORS + 1]
    rows, dtype = query.shape[:3], accumulation_dtype(query.dtype)
    columns, needed = ints[1], ints[3:5]
    sums = [query.new_empty(*rows, columns, dtype=dtype) if n else query.new_empty(0, dtype=dtype) for n in needed]
    return query.new_empty(*rows, value.shape[-1], dtype=dtype), query.new_empty(rows, dtype=dtype), *sums


@torch.library.custom_op("relgraph::attend_backward", mutates_args=(), schema=_BACKWARD)
def _attend_backward(*args: Any) -> list[Tensor]:
    grads, saved, given, *flat, kernels = args
    filled = _fill([*saved, *grads], given)
    tensors, outputs, incoming = filled[:_TENSORS], filled[_TENSORS:-_OUTPUTS], filled[-_OUTPUTS:]
    problem = _problem(tensors, *flat)
    found = _KERNELS[kernels][1](problem, Outputs(*outputs), Outputs(*incoming))
    return [grad for grad in found if grad is not None]


@_attend_backward.register_fake
def _(*args: Any) -> list[Tensor]:
    saved, given, _, ints = args[1:5]
    filled = _fill(saved, given[:-_OUTPUTS])[: _LEARNED + ints[_HEADER - 1]]
    return [x.new_empty(x.shape) for x in filled if x is not None]


def _fill(tensors: Sequence[Tensor], given: Sequence[bool]) -> list[Any]:
    """The tensors at the places that are given, None at the others."""
    iterator = iter(tensors)
    return [next(iterator) if there else None for there in given]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors, (plan, ints, *options) = inputs[:_TENSORS], inputs[_TENSORS:]
    needed = (True, True, *ints[3:5])
    kept = [*tensors, *(out if need else None for out, need in zip(output, needed, strict=True))]
    ctx.given = [t is not None for t in kept]
    ctx.save_for_backward(*(t for t in kept if t is not None), *plan)
    ctx.plan_count, ctx.options = len(plan), (list(ints), *options)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    learns = ctx.options[0][_HEADER - 1]
    no_more = (*(None,) * (_TENSORS - _MASK - 1), [None] * ctx.plan_count, *(None,) * 5)
    # sums that were not needed came back empty, so drop their gradients
    used = [g if there else None for g, there in zip(grads, ctx.given[_TENSORS:], strict=True)]
    there = [g for g in used if g is not None]
    if not there:
        return (*(None,) * (_LEARNED + 1), *no_more)
    everything = list(ctx.saved_tensors)  # read once: under checkpointing each read computes them again
    saved, plan = everything[: sum(ctx.given)], everything[sum(ctx.given) :]
    given = [*ctx.given, *(g is not None for g in used)]
    found = iter(torch.ops.relgraph.attend_backward(there, saved, given, plan, *ctx.options))
    wanted = [*ctx.given[:_LEARNED], learns]
    return (*(next(found) if there else None for there in wanted), *no_more)


def _save_name(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.kernels = inputs[-1]


def _no_second_derivative(ctx: Any, *_grads: Any) -> None:
    raise NotImplementedError(_KERNELS[ctx.kernels][2])


_attend.register_autograd(_backward, setup_context=_save)
_attend_backward.register_autograd(_no_second_derivative, setup_context=_save_name)
