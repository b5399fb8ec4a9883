"""Fused attention in Triton kernels: what concerns tables in plain torch, and two custom ops around the kernels.

    (q, k, v, B, C, labels, mask, seed) -> (o, lse, P) and back

Where labels are a function of the distance, tables are laid out by distance first (*virtual* columns): a label that
several distances share then has several rows, and the kernels find a pair's column by subtraction.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from relgraph.impl.common import Answer, Call, Tables, add_value_tables, query_tables, score_tables, split_mass
from relgraph.impl.problem import Incoming, Outputs, Problem
from relgraph.impl.virtual import Virtual, is_affine, virtual
from relgraph.plan import NOT_ATTENDING, decode, encode

HAS_TRITON = find_spec("triton") is not None
"""Whether triton is installed; it is not loaded before it is used."""

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""What the kernels take."""

MOST_SIZE = 256
"""The largest head."""

MOST_COLUMNS = 128
"""Up to this many columns of written-out labels a program sums in registers."""

KEPT_CONSTANTS = 64
"""How many layouts of tables by distance are kept."""


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on a CPU (``TRITON_INTERPRET=1``, set before triton is loaded)."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on")


def why_not(call: Call) -> str | None:
    """What keeps ``impl="triton"`` from this call and what to use instead; None when nothing does."""
    query, plan = call.query, call.plan
    alone = len(plan.parts) == 1 and plan.parts[0].alone
    others = "impl='edges'" if alone else "impl='chunked'"
    if not HAS_TRITON:
        return f"needs the package triton (pip install 'relgraph[triton]'); use {others}"
    if query.device.type != "cuda" and not (query.device.type == "cpu" and interpreted()):
        return f"needs CUDA tensors (or TRITON_INTERPRET=1, slow, on a CPU), got {query.device.type}; use {others}"
    if query.dtype not in DTYPES:
        return f"takes float16, bfloat16 and float32, got {query.dtype}; use {others}"
    if max(query.shape[-1], call.value.shape[-1]) > MOST_SIZE:
        sizes = f"{query.shape[-1]} and {call.value.shape[-1]}"
        return f"takes heads of at most {MOST_SIZE} numbers, got {sizes}; use {others}"
    if call.need_weights:
        holder = "reference" if alone and plan.parts[0].csr is not None and plan.parts[0].csr.parallel else "dense"
        return f"never holds all attention weights; use impl='{holder}' for need_weights"
    if not alone and any(part.csr is not None and part.csr.parallel for part in plan.parts):
        return "has one label a pair and cannot sum those of parallel edges; use impl='chunked'"
    columns = plan.total_labels + len(plan.parts)
    if columns > MOST_COLUMNS and _sums_by_label(call, alone):
        most = MOST_COLUMNS - len(plan.parts)
        return f"sums at most {most} labels that are written out, got {plan.total_labels}; use {others}"
    return None


def _sums_by_label(call: Call, alone: bool) -> bool:
    """Whether something is summed by labels that are written out; sums by distance have no bound."""
    tables = any(table is not None for part in call.tables for table in part)
    return (alone or not is_affine(call.plan)) and (tables or call.need_mass)


def attend(call: Call) -> Answer:
    """Attention by kernels; see the module."""
    if len(call.plan.parts) == 1 and call.plan.parts[0].alone:
        from relgraph.impl.kernels.edges import attend as attend_edges

        return attend_edges(call)
    sizes, tables = call.plan.num_labels, call.tables
    by_distance = virtual(call.plan.parts[0]) if is_affine(call.plan) else None
    if by_distance is not None:
        sizes, tables = (by_distance.width + 2,), (_laid_out(tables[0], by_distance, sizes[0]),)
    by_query = score_tables(call.query.to(torch.float32), tables, sizes, call.scale)
    by_key = query_tables(call.key.to(torch.float32), call.query.shape[1], tables, sizes, call.scale)
    if by_distance is not None and NOT_ATTENDING in by_distance.columns:
        by_query = _without(call, by_query, by_distance)
    values = any(table.value is not None for table in tables)
    dropped = call.dropout_p > 0.0
    device = call.query.device
    seed = torch.randint(1 << 62, (), device=device) if dropped and call.keep is None else None
    output, lse, sums = _run(
        call, by_query, by_key, sizes, seed, values or (call.need_mass and not dropped), call.dropout_p
    )
    if values:
        output = add_value_tables(output, sums, tables, sizes)
    masses = None
    if call.need_mass:
        if dropped:  # mass is what labels receive before dropout
            sums = _run(call, by_query, by_key, sizes, None, True, 0.0)[2]
        masses = split_mass(sums, sizes)
        if by_distance is not None:
            masses = (_by_label(masses[0], by_distance, call.plan.num_labels[0]),)
    return Answer(output, lse, masses)


def _laid_out(tables: Tables, labels: Virtual, num_labels: int) -> Tables:
    """Tables with a row for every virtual column; zeros where a pair has no label."""
    if labels.columns == tuple(range(num_labels)):
        return tables
    rows = tuple(num_labels if column == NOT_ATTENDING else column for column in labels.columns)

    def lay(table: Tensor | None, dim: int) -> Tensor | None:
        if table is None:
            return None
        zero = table.new_zeros([1 if d == table.dim() + dim else n for d, n in enumerate(table.shape)])
        return torch.cat([table, zero], dim).index_select(dim, _constant(rows, table.device))

    return Tables(lay(tables.key, -2), lay(tables.value, -2), lay(tables.query, -2), lay(tables.bias, -1))


def _without(call: Call, by_query: Tensor | None, labels: Virtual) -> Tensor:
    """B with -inf in the columns of pairs that do not attend."""
    query, width = call.query, len(labels.columns) + 1
    if by_query is None:
        by_query = torch.zeros(*query.shape[:3], width, dtype=torch.float32, device=query.device)
    dead = _constant((*labels.columns, 0), query.device) == NOT_ATTENDING
    return by_query.masked_fill(dead, float("-inf"))


_constants: dict[tuple[tuple[int, ...], torch.device], Tensor] = {}


def _constant(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """These numbers as a tensor, made once: to carry them to a GPU waits for it."""
    if torch.compiler.is_compiling():
        return torch.tensor(numbers, device=device)
    if (numbers, device) not in _constants:
        while len(_constants) >= KEPT_CONSTANTS:
            _constants.pop(next(iter(_constants)))
        with torch.inference_mode(False):
            _constants[numbers, device] = torch.tensor(numbers, device=device)
    return _constants[numbers, device]


def _by_label(mass: Tensor, labels: Virtual, num_labels: int) -> Tensor:
    """Masses by virtual column, ``[..., width + 2]``, summed to masses by label."""
    if labels.columns == tuple(range(num_labels)):
        return mass
    owner = _constant(labels.columns, mass.device)
    return mass @ (owner[:, None] == torch.arange(num_labels, device=mass.device)).to(mass.dtype)


def _run(
    call: Call,
    by_query: Tensor | None,
    by_key: Tensor | None,
    sizes: Sequence[int],
    seed: Tensor | None,
    need_sums: bool,
    dropout_p: float,
) -> tuple[Tensor, Tensor, Tensor]:
    moving = isinstance(call.q_offset, Tensor)
    tensors, ints = encode(call.plan)
    return torch.ops.relgraph.fused(
        call.query,
        call.key,
        call.value,
        by_query,
        by_key,
        call.mask,
        call.keep if dropout_p > 0.0 else None,
        seed,
        call.q_offset if moving else None,
        tensors,
        ints,
        0 if moving else call.q_offset,
        call.scale,
        dropout_p,
        call.is_causal,
        sum(sizes) + len(sizes),
        need_sums,
    )


@torch.library.custom_op("relgraph::fused", mutates_args=())
def fused(
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
    columns: int,
    need_sums: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention with labels: output without its value term, log-sum-exp, and sums by column; all in float32.

    Shapes: query ``[B, H, N_q, D]``; by_query ``[B, H, N_q, columns]`` and by_key ``[B, H, N_k, columns]``, laid out as
    :func:`relgraph.impl.common.score_tables`, over virtual columns where labels are a function of the distance. Sums
    that are not needed come back empty.
    """
    from relgraph.impl.kernels import launch

    problem = Problem(
        query, key, value, by_query, by_key, mask, keep, seed, decode(plan_tensors, plan_ints),
        (moving_offset if moving_offset is not None else offset) if is_causal else None, scale, dropout_p,
    )  # fmt: skip
    return launch.forward(problem, columns, launch.memo(plan_tensors, plan_ints), need_sums=need_sums)


@fused.register_fake
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
    columns: int,
    need_sums: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    rows = query.shape[:3]
    empty = query.new_empty(0, dtype=torch.float32)
    return (
        query.new_empty(*rows, value.shape[-1], dtype=torch.float32),
        query.new_empty(rows, dtype=torch.float32),
        query.new_empty(*rows, columns, dtype=torch.float32) if need_sums else empty,
    )


_INPUTS = 9  # query, key, value, by_query, by_key, mask, keep, seed, moving_offset
_OUTPUTS = 3  # output, lse, sums


@torch.library.custom_op("relgraph::fused_backward", mutates_args=())
def fused_backward(
    grads: Sequence[Tensor],
    saved: Sequence[Tensor],
    given: Sequence[bool],
    plan_tensors: Sequence[Tensor],
    plan_ints: Sequence[int],
    offset: int,
    scale: float,
    dropout_p: float,
    is_causal: bool,
    columns: int,
) -> list[Tensor]:
    """Gradients of query, key, value, and of by_query and by_key where there are any.

    ``saved`` and ``grads`` hold what is there of the optional tensors, and ``given`` says which of them are.
    """
    from relgraph.impl.kernels import launch

    values = _fill([*saved, *grads], given)
    inputs, (output, lse, sums) = values[:_INPUTS], values[_INPUTS : _INPUTS + _OUTPUTS]
    d_output, d_lse, d_sums = values[_INPUTS + _OUTPUTS :]
    assert output is not None and lse is not None
    where = (inputs[8] if inputs[8] is not None else offset) if is_causal else None
    problem = Problem(*inputs[:8], decode(plan_tensors, plan_ints), where, scale, dropout_p)  # pyright: ignore[reportArgumentType, reportCallIssue]
    incoming = Incoming(d_output, d_lse, d_sums, None)
    kept = launch.memo(plan_tensors, plan_ints)
    found = launch.backward(problem, columns, kept, Outputs(output, lse, sums, None), incoming)
    return [grad for grad in found if grad is not None]


@fused_backward.register_fake
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
    columns: int,
) -> list[Tensor]:
    return [x.new_empty(x.shape) for x in _fill(saved, given[: _INPUTS + _OUTPUTS])[:5] if x is not None]


def _fill(tensors: Sequence[Tensor], given: Sequence[bool]) -> list[Tensor | None]:
    iterator = iter(tensors)
    return [next(iterator) if there else None for there in given]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    out, lse, sums = output
    need_sums = inputs[-1]
    kept = [*inputs[:_INPUTS], out, lse, sums if need_sums else None]
    ctx.given = [t is not None for t in kept]
    ctx.count = sum(ctx.given)
    plan_tensors, plan_ints = inputs[_INPUTS], inputs[_INPUTS + 1]
    ctx.save_for_backward(*(t for t in kept if t is not None), *plan_tensors)
    ctx.plan_count = len(plan_tensors)
    ctx.options = (list(plan_ints), *inputs[_INPUTS + 2 : -1])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    rest = (*(None,) * (_INPUTS - 5), [None] * ctx.plan_count, *(None,) * 7)
    if not ctx.given[-1]:
        grads = (*grads[:2], None)  # the gradient of sums that came back empty says nothing
    if all(g is None for g in grads):
        return (*(None,) * 5, *rest)
    everything = list(ctx.saved_tensors)  # once: under checkpointing each look computes them anew
    saved, plan_tensors = everything[: ctx.count], everything[ctx.count :]
    given = ctx.given + [g is not None for g in grads]
    there = [g for g in grads if g is not None]
    found = iter(torch.ops.relgraph.fused_backward(there, saved, given, plan_tensors, *ctx.options))
    return (*(next(found) if there else None for there in ctx.given[:5]), *rest)


fused.register_autograd(_backward, setup_context=_setup_context)


def _no_second_derivative(_ctx: Any, *_grads: Any) -> None:
    raise NotImplementedError("impl='triton' has no second derivative; use impl='dense' or 'reference'")


fused_backward.register_autograd(_no_second_derivative)
