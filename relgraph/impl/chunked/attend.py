"""The split term in blocks of query rows, recomputed in backward: memory n·(d+R) for any labels.

Two custom ops, forward and backward, carry the primitive

    (q, k, v, B, C, labels, mask, seed) -> (o, lse, P) and back,

so that torch.compile, export and checkpointing see one node each; what concerns tables stays outside, in plain torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from relgraph.impl.blocks import backward, forward
from relgraph.impl.common import (
    Answer,
    Call,
    accumulation_dtype,
    add_value_tables,
    query_tables,
    score_tables,
    split_mass,
)
from relgraph.impl.problem import Incoming, Outputs, Problem
from relgraph.plan import decode, encode


def attend(call: Call) -> Answer:
    """Attention block by block; see the module."""
    dtype = accumulation_dtype(call.query.dtype)
    heads, sizes = call.query.shape[1], call.plan.num_labels
    by_query = score_tables(call.query.to(dtype), call.tables, sizes, call.scale)
    by_key = query_tables(call.key.to(dtype), heads, call.tables, sizes, call.scale)
    values = any(tables.value is not None for tables in call.tables)
    dropped = call.dropout_p > 0.0
    seed = torch.randint(1 << 62, ()) if dropped and call.keep is None else None
    moving = isinstance(call.q_offset, Tensor)
    tensors, ints = encode(call.plan)
    output, lse, sums, mass = torch.ops.relgraph.chunked(
        call.query,
        call.key,
        call.value,
        by_query,
        by_key,
        call.mask,
        call.keep,
        seed,
        call.q_offset if moving else None,
        tensors,
        ints,
        0 if moving else call.q_offset,
        call.scale,
        call.dropout_p,
        call.is_causal,
        values or (call.need_mass and not dropped),
        call.need_mass and dropped,
    )
    if values:
        output = add_value_tables(output, sums, call.tables, sizes)
    masses = split_mass(mass if dropped else sums, sizes) if call.need_mass else None
    return Answer(output, lse, masses)


@torch.library.custom_op("relgraph::chunked", mutates_args=())
def chunked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    by_query: Tensor | None,
    by_key: Tensor | None,
    mask: Tensor | None,
    keep: Tensor | None,
    seed: Tensor | None,
    moving_offset: Tensor | None,
    plan_tensors: Sequence[Tensor],
    plan_ints: Sequence[int],
    offset: int,
    scale: float,
    dropout_p: float,
    is_causal: bool,
    need_sums: bool,
    need_mass: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attention with labels: output without its value term, log-sum-exp, sums by label (after and before dropout).

    Shapes: query ``[B, H, N_q, D]``; by_query ``[B, H, N_q, columns]`` and by_key ``[B, H, N_k, columns]``, one column
    a label and one of zeros after each part. Sums that are not needed come back empty. Outputs are in the accumulation
    dtype.
    """
    problem = Problem(
        query, key, value, by_query, by_key, mask, keep, seed, decode(plan_tensors, plan_ints),
        (moving_offset if moving_offset is not None else offset) if is_causal else None, scale, dropout_p,
    )  # fmt: skip
    return forward(problem, need_sums=need_sums, need_mass=need_mass)


@chunked.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    by_query: Tensor | None,
    by_key: Tensor | None,
    mask: Tensor | None,
    keep: Tensor | None,
    seed: Tensor | None,
    moving_offset: Tensor | None,
    plan_tensors: Sequence[Tensor],
    plan_ints: Sequence[int],
    offset: int,
    scale: float,
    dropout_p: float,
    is_causal: bool,
    need_sums: bool,
    need_mass: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dtype = accumulation_dtype(query.dtype)
    rows = query.shape[:3]
    columns = _columns(plan_tensors, plan_ints)
    empty = query.new_empty(0, dtype=dtype)
    return (
        query.new_empty(*rows, value.shape[-1], dtype=dtype),
        query.new_empty(rows, dtype=dtype),
        query.new_empty(*rows, columns, dtype=dtype) if need_sums else empty,
        query.new_empty(*rows, columns, dtype=dtype) if need_mass else empty.clone(),
    )


def _columns(plan_tensors: Sequence[Tensor], plan_ints: Sequence[int]) -> int:
    """All labels of all parts, and one column of zeros a part."""
    sizes = decode(plan_tensors, plan_ints).num_labels
    return sum(sizes) + len(sizes)


@torch.library.custom_op("relgraph::chunked_backward", mutates_args=())
def chunked_backward(
    grads: Sequence[Tensor],
    saved: Sequence[Tensor],
    given: Sequence[bool],
    plan_tensors: Sequence[Tensor],
    plan_ints: Sequence[int],
    offset: int,
    scale: float,
    dropout_p: float,
    is_causal: bool,
) -> list[Tensor]:
    """Gradients of query, key, value, and of by_query and by_key where there are any.

    ``saved`` and ``grads`` hold what is there of the optional tensors, and ``given`` says which of them are.
    """
    problem, outputs, incoming = _restore(
        grads, saved, given, plan_tensors, plan_ints, offset, scale, dropout_p, is_causal
    )
    return [g for g in backward(problem, outputs, incoming) if g is not None]


@chunked_backward.register_fake
def _(
    grads: Sequence[Tensor],
    saved: Sequence[Tensor],
    given: Sequence[bool],
    plan_tensors: Sequence[Tensor],
    plan_ints: Sequence[int],
    offset: int,
    scale: float,
    dropout_p: float,
    is_causal: bool,
) -> list[Tensor]:
    filled = _fill(saved, given[: _INPUTS + _OUTPUTS])
    return [x.new_empty(x.shape) for x in filled[:5] if x is not None]


_INPUTS = 9  # query, key, value, by_query, by_key, mask, keep, seed, moving_offset
_OUTPUTS = 4  # output, lse, sums, mass


def _fill(tensors: Sequence[Tensor], given: Sequence[bool]) -> list[Tensor | None]:
    iterator = iter(tensors)
    return [next(iterator) if there else None for there in given]


def _restore(
    grads: Sequence[Tensor],
    saved: Sequence[Tensor],
    given: Sequence[bool],
    plan_tensors: Sequence[Tensor],
    plan_ints: Sequence[int],
    offset: int,
    scale: float,
    dropout_p: float,
    is_causal: bool,
) -> tuple[Problem, Outputs, Incoming]:
    values = _fill(saved, given[: _INPUTS + _OUTPUTS])
    incoming = _fill(grads, given[_INPUTS + _OUTPUTS :])
    inputs, outputs = values[:_INPUTS], values[_INPUTS:]
    moving = inputs[8]
    where = (moving if moving is not None else offset) if is_causal else None
    plan = decode(plan_tensors, plan_ints)
    problem = Problem(*inputs[:8], plan, where, scale, dropout_p)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return problem, Outputs(*outputs), Incoming(*incoming)  # pyright: ignore[reportArgumentType]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors = inputs[:_INPUTS]
    plan_tensors, plan_ints = inputs[_INPUTS], inputs[_INPUTS + 1]
    out, lse, sums, mass = output
    need_sums, need_mass = inputs[-2], inputs[-1]
    outputs = [out, lse, sums if need_sums else None, mass if need_mass else None]
    kept = [*tensors, *outputs]
    ctx.given = [t is not None for t in kept]
    ctx.count = sum(ctx.given)
    ctx.save_for_backward(*(t for t in kept if t is not None), *plan_tensors)
    ctx.plan_count = len(plan_tensors)
    ctx.options = (list(plan_ints), *inputs[_INPUTS + 2 : -2])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    everything = list(ctx.saved_tensors)  # once: under checkpointing each look computes them anew
    saved, plan_tensors = everything[: ctx.count], everything[ctx.count :]
    plan_ints, offset, scale, dropout_p, is_causal = ctx.options
    used = (True, True, *ctx.given[-2:])  # the gradient of an output that came back empty says nothing
    grads = tuple(g if use else None for g, use in zip(grads, used, strict=True))
    given = ctx.given + [g is not None for g in grads]
    there = [g for g in grads if g is not None]
    tables = ctx.given[3:5]
    rest = (None,) * (_INPUTS - 5)
    tail = ([None] * ctx.plan_count, None, None, None, None, None, None, None)
    if not there:
        return (*(None,) * 5, *rest, *tail)
    found = iter(
        torch.ops.relgraph.chunked_backward(
            there, saved, given, plan_tensors, plan_ints, offset, scale, dropout_p, is_causal
        )
    )
    dq, dk, dv = (next(found) for _ in range(3))
    return (dq, dk, dv, *(next(found) if t else None for t in tables), *rest, *tail)


chunked.register_autograd(_backward, setup_context=_setup_context)


def _no_second_derivative(_ctx: Any, *_grads: Any) -> None:
    raise NotImplementedError("impl='chunked' has no second derivative; use impl='dense' or 'reference'")


chunked_backward.register_autograd(_no_second_derivative)
