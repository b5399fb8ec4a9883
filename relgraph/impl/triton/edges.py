"""Edges-only attention in Triton kernels: what concerns tables in plain torch, and two custom ops around the kernels.

Tables stay outside the ops, in plain torch: B = q·(a^K)ᵀ + b and C = k·(a^Q)ᵀ enter, sums by label P leave. Masks and
causal order become one number a pair beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from relgraph.impl.common import Answer, Call, listed_entries, listed_future, repeat_heads
from relgraph.impl.kernels.edges_kernels import LN_2, Given, Inputs, Pairs, backward, dense_rows, forward
from relgraph.impl.sparse import Pattern
from relgraph.plan import listed_pairs


def attend(call: Call) -> Answer:
    """Attention over listed pairs alone; see :mod:`relgraph.impl.edges` for its meaning."""
    part, tables = call.plan.parts[0], call.tables[0]
    assert part.alone and part.csr is not None
    labelled = call.need_mass or any(table is not None for table in tables)
    labels = part.num_labels if labelled else 0
    dropped = call.dropout_p > 0.0
    given = dropped and call.keep is not None
    # drawn where it is used: no step between devices
    seed = torch.randint(1 << 62, (), device=call.query.device) if dropped and not given else None
    # lse to base 2 here: a change of base would round it, and backward could not find the weights of large scores again
    out, lse, sums, mass = torch.ops.relgraph.edges_forward(
        call.query,
        call.key,
        call.value,
        _by_query(call),
        _by_key(call),
        _added(call),
        _factor(call) if given else None,
        seed,
        list(_pairs(call)),
        labels,
        part.csr.batch != 1,
        call.scale,
        call.dropout_p,
        tables.value is not None or (call.need_mass and not dropped),
        call.need_mass and dropped,
    )
    if tables.value is not None:
        out = out + sums @ tables.value.float()
    return Answer(out, lse * LN_2, (mass if dropped else sums,) if call.need_mass else None)


def _by_query(call: Call) -> Tensor | None:
    """B, ``[B, H, N_q, R]`` float32."""
    key, bias = call.tables[0].key, call.tables[0].bias
    term = None if key is None else call.query.float() @ key.float().transpose(-1, -2) * call.scale
    if bias is None:
        return term
    bias = bias.float()[..., None, :]
    return (bias if term is None else term + bias).expand(*call.query.shape[:3], -1)


def _by_key(call: Call) -> Tensor | None:
    """C, ``[B, H, N_k, R]`` float32."""
    table = call.tables[0].query
    if table is None:
        return None
    return repeat_heads(call.key, call.query.shape[1]).float() @ table.float().transpose(-1, -2) * call.scale


def _added(call: Call) -> Tensor | None:
    """What masks add to the score of every pair, ``[L or 1, P]`` float32."""
    hidden, added = [], None
    if call.mask is not None:
        mask = listed_entries(call, call.mask)
        if mask.dtype == torch.bool:
            hidden.append(~mask)
        else:
            added = mask.float()
    if call.is_causal:
        hidden.append(listed_future(call))
    for pairs in hidden:
        added = torch.zeros((), device=pairs.device) if added is None else added
        added = added.masked_fill(pairs, float("-inf"))
    return None if added is None else added.contiguous()


def _factor(call: Call) -> Tensor:
    """What a given dropout mask multiplies the weight of every pair by, ``[L or 1, P]`` float32."""
    assert call.keep is not None
    return (listed_entries(call, call.keep).float() / (1.0 - call.dropout_p)).contiguous()


def _pairs(call: Call) -> Pairs:
    """The pairs both ways, made once for these labels."""
    csr, k_len = call.plan.parts[0].csr, call.plan.k_len
    assert csr is not None
    if "kernel pairs" in csr.memo:
        return csr.memo["kernel pairs"]
    batch, _, _ = listed_pairs(call.plan, csr)
    pattern = csr.memo.get("pairs")
    if pattern is None:
        pattern = Pattern.of(csr.row_ptr, csr.row, csr.col + batch * k_len, csr.batch * k_len)
    turned_row = pattern.turned_row % max(call.plan.q_len, 1)
    made = (csr.row_ptr, csr.col, csr.ids, pattern.col_ptr, turned_row, csr.ids[pattern.by_col], pattern.by_col)
    pairs = Pairs(*(x.to(torch.int32).contiguous() for x in made))
    if not torch.compiler.is_compiling() and not torch.is_inference_mode_enabled():  # such tensors cannot be saved
        csr.memo["kernel pairs"] = pairs
    return pairs


@torch.library.custom_op("relgraph::edges_forward", mutates_args=())
def edges_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    by_query: Tensor | None,
    by_key: Tensor | None,
    added: Tensor | None,
    factor: Tensor | None,
    seed: Tensor | None,
    pairs: list[Tensor],
    labels: int,
    joint: bool,
    scale: float,
    dropout_p: float,
    need_sums: bool,
    need_mass: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output without its value term, log-sum-exp to base 2, sums by label after and before dropout; all float32.

    Arguments as the fields of :class:`relgraph.impl.kernels.edges_kernels.Inputs`; sums nobody needs come back empty.
    """
    inputs = Inputs(
        query, key, value, by_query, by_key, added, factor, seed, Pairs(*pairs), labels, joint, scale, dropout_p
    )  # fmt: skip
    return forward(inputs.laid_out(), need_sums=need_sums, need_mass=need_mass)


@edges_forward.register_fake
def _(
    query: Tensor,
    key: Tensor,  # noqa: ARG001
    value: Tensor,
    by_query: Tensor | None,  # noqa: ARG001
    by_key: Tensor | None,  # noqa: ARG001
    added: Tensor | None,  # noqa: ARG001
    factor: Tensor | None,  # noqa: ARG001
    seed: Tensor | None,  # noqa: ARG001
    pairs: list[Tensor],  # noqa: ARG001
    labels: int,
    joint: bool,  # noqa: ARG001
    scale: float,  # noqa: ARG001
    dropout_p: float,  # noqa: ARG001
    need_sums: bool,
    need_mass: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = query.shape[:3]

    def fresh(*shape: int) -> Tensor:
        return query.new_empty(shape, dtype=torch.float32)

    return (
        fresh(*rows, value.shape[-1]),
        fresh(*rows),
        fresh(*rows, labels) if need_sums else fresh(0),
        fresh(*rows, labels) if need_mass else fresh(0),
    )


_INPUTS, _OUTPUTS = 8, 4


@torch.library.custom_op("relgraph::edges_backward", mutates_args=())
def edges_backward(
    tensors: list[Tensor],
    given: list[bool],
    pairs: list[Tensor],
    labels: int,
    joint: bool,
    scale: float,
    dropout_p: float,
) -> list[Tensor]:
    """Gradients of query, key, value, and of by_query and by_key where there are any.

    ``tensors`` holds what is there of forward's eight tensors, its four outputs and their gradients; ``given`` says
    which of them are.
    """
    filled = _fill(tensors, given)
    inputs = Inputs(*filled[:_INPUTS], Pairs(*pairs), labels, joint, scale, dropout_p)  # pyright: ignore[reportCallIssue]
    outputs, grads = filled[_INPUTS : _INPUTS + _OUTPUTS], filled[_INPUTS + _OUTPUTS :]
    do, *others = grads
    do = None if do is None else dense_rows(do)
    grads = Given(do, *(None if g is None else g.contiguous() for g in others))
    return [g for g in backward(inputs.laid_out(), Given(*outputs), grads) if g is not None]


@edges_backward.register_fake
def _(
    tensors: list[Tensor],
    given: list[bool],
    pairs: list[Tensor],  # noqa: ARG001
    labels: int,  # noqa: ARG001
    joint: bool,  # noqa: ARG001
    scale: float,  # noqa: ARG001
    dropout_p: float,  # noqa: ARG001
) -> list[Tensor]:
    return [x.new_empty(x.shape) for x in _fill(tensors, given)[:5] if x is not None]


def _fill(tensors: Sequence[Tensor], given: Sequence[bool]) -> list[Any]:
    iterator = iter(tensors)
    return [next(iterator) if there else None for there in given]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors, pairs, options = inputs[:_INPUTS], inputs[_INPUTS], inputs[_INPUTS + 1 :]
    out, lse, sums, mass = output
    kept = [*tensors, out, lse, sums if options[-2] else None, mass if options[-1] else None]
    ctx.given = [t is not None for t in kept]
    ctx.save_for_backward(*(t for t in kept if t is not None), *pairs)
    ctx.options = options[:-2]
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    everything = list(ctx.saved_tensors)  # once: under checkpointing each look computes them anew
    count = sum(ctx.given)
    tail = (None,) * (_INPUTS - 5) + ([None] * (len(everything) - count),) + (None,) * 6
    used = (True, True, *ctx.given[-2:])  # the gradient of an output that came back empty says nothing
    grads = tuple(g if use else None for g, use in zip(grads, used, strict=True))
    there = [g for g in grads if g is not None]
    if not there:
        return (*(None,) * 5, *tail)
    given = [*ctx.given, *(g is not None for g in grads)]
    found = iter(
        torch.ops.relgraph.edges_backward([*everything[:count], *there], given, everything[count:], *ctx.options)
    )
    dq, dk, dv = (next(found) for _ in range(3))
    return (dq, dk, dv, *(next(found) if there else None for there in ctx.given[3:5]), *tail)


edges_forward.register_autograd(_backward, setup_context=_setup_context)


def _no_second_derivative(_ctx: Any, *_grads: Any) -> None:
    raise NotImplementedError("impl='triton' has no second derivative; use impl='edges' or 'dense'")


edges_backward.register_autograd(_no_second_derivative)
