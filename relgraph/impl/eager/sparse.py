"""Sums and products over listed pairs that never hold one vector per pair.

Three ops, each the backward of itself or of another, so that derivatives of any order work:

    sampled_dot   s[l, p] = a[l, row_p] · b[l, col_p]
    weighted_sum  y[l, i] = Σ_{p: row_p = i} w[l, p] b[l, col_p]
    row_softmax   α[l, p] = exp(s[l, p]) / Σ_{p': row_p' = row_p} exp(s[l, p'])

In eager mode plain tensors skip the custom ops, whose first call would import dynamo.

A *lane* l is one head (of one batch row, if batch rows share their pairs). Each lane of an operand with fewer lanes
serves several consecutive ones; sums into fewer lanes add over those.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from relgraph.impl import budget
from relgraph.impl.listed import Pattern
from relgraph.impl.op import unwatched

GATHERED = 1 << 15
"""Up to this many gathered numbers (lanes · pairs · width) one gather beats a sparse product per lane on a CPU."""

RUN_NUMBERS = 1 << 22
"""Most gathered numbers in memory at once on a CPU."""

HELD = 3
"""How many tensors of that size a run holds: two operands and their product."""


def run_numbers(device: torch.device, dtype: torch.dtype) -> int:
    """Most gathered numbers in memory at once on this device."""
    room = budget.block_bytes(device)
    return max(room // (dtype.itemsize * HELD), 1) if room else RUN_NUMBERS


def sampled_dot(a: Tensor, b: Tensor, pattern: Pattern) -> Tensor:
    """``[L, P]``: the product of a's row and b's column at every pair; ``[L_a, n, D]`` and ``[L_b, m, D]``."""
    lanes = 0 if a.shape[0] == 0 or b.shape[0] == 0 else max(a.shape[0], b.shape[0])
    return _run("sampled_dot", a, b, list(pattern), lanes)


def weighted_sum(weights: Tensor, b: Tensor, pattern: Pattern) -> Tensor:
    """``[L, n, D]``: each row's sum of b's columns, ``[L_b, m, D]``, with weights ``[L, P]``."""
    return _run("weighted_sum", weights, b, list(pattern), weights.shape[0])


def row_softmax(scores: Tensor, pattern: Pattern) -> tuple[Tensor, Tensor]:
    """Softmax over each row's pairs ``[L, P]`` and its log-sum-exp ``[L, n]``; a row of -inf gives zeros and -inf."""
    return _run("row_softmax", scores, pattern.row_ptr, pattern.row)


def _gathers(pattern: Pattern, lanes: int, width: int, device: torch.device) -> bool:
    """Whether to gather: there are few numbers, or sparse products cannot be used.

    These refuse more pairs than a matrix has entries, and are untested with repeated pairs on other devices.
    """
    pairs, places = pattern.col.shape[0], (pattern.row_ptr.shape[0] - 1) * (pattern.col_ptr.shape[0] - 1)
    on_cpu = not budget.block_bytes(device)
    return not on_cpu or pairs > places or lanes * pairs * width <= GATHERED


def _runs(pattern: Pattern, lanes: int, x: Tensor) -> range:
    step = max(run_numbers(x.device, x.dtype) // max(lanes * x.shape[-1], 1), 1)
    return range(0, pattern.col.shape[0], step)


def _lanes(x: Tensor, lanes: int) -> Tensor:
    """``x`` with each of its lanes repeated to make ``lanes`` of them."""
    return x if x.shape[0] in (lanes, 0) else x.repeat_interleave(lanes // x.shape[0], 0)


def _matrix(pattern: Pattern, values: Tensor, columns: int) -> Tensor:
    _silence_beta_warning()
    size = (pattern.row_ptr.shape[0] - 1, columns)
    # the format forbids repeated pairs, but the products treat them correctly
    return torch.sparse_csr_tensor(pattern.row_ptr, pattern.col, values, size, check_invariants=False)


@cache
def _silence_beta_warning() -> None:
    """Trigger torch's one-time CSR beta warning, silenced."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor([0], [], [], (0, 0))


def _sampled_dot(a: Tensor, b: Tensor, pattern: list[Tensor], lanes: int) -> Tensor:
    p = Pattern(*pattern)
    out = a.new_empty(lanes, p.col.shape[0])
    if out.numel() == 0:
        return out
    if _gathers(p, lanes, a.shape[-1], a.device):
        runs = _runs(p, lanes, a)
        for start in runs:
            at = slice(start, start + runs.step)
            out[:, at] = (_lanes(a[:, p.row[at]], lanes) * _lanes(b[:, p.col[at]], lanes)).sum(-1)
        return out
    zero = out.new_zeros(1).expand(out.shape[1]).contiguous()
    sample = _matrix(p, zero, b.shape[1])
    for lane in range(lanes):
        left, right = a[lane * a.shape[0] // lanes], b[lane * b.shape[0] // lanes]
        out[lane] = torch.sparse.sampled_addmm(sample, left, right.t(), beta=0.0).values()
    return out


def _fake_sampled_dot(a: Tensor, b: Tensor, pattern: list[Tensor], lanes: int) -> Tensor:  # noqa: ARG001
    return a.new_empty(lanes, pattern[2].shape[0])


def _weighted_sum(weights: Tensor, b: Tensor, pattern: list[Tensor], lanes: int) -> Tensor:
    p = Pattern(*pattern)
    out = b.new_zeros(lanes, p.row_ptr.shape[0] - 1, b.shape[-1])
    if out.numel() == 0 or weights.numel() == 0:
        return out
    many = weights.shape[0]
    if _gathers(p, many, b.shape[-1], b.device):
        runs = _runs(p, many, b)
        for start in runs:
            at = slice(start, start + runs.step)
            product = weights[:, at, None] * _lanes(b[:, p.col[at]], many)
            out.index_add_(1, p.row[at], product if many == lanes else product.unflatten(0, (lanes, -1)).sum(1))
        return out
    for lane in range(many):
        matrix = _matrix(p, weights[lane], b.shape[1])
        out[lane * lanes // many] += torch.sparse.mm(matrix, b[lane * b.shape[0] // many])
    return out


def _fake_weighted_sum(weights: Tensor, b: Tensor, pattern: list[Tensor], lanes: int) -> Tensor:  # noqa: ARG001
    return b.new_empty(lanes, pattern[0].shape[0] - 1, b.shape[-1])


def _row_softmax(scores: Tensor, row_ptr: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    lanes, rows = scores.shape[0], row_ptr.shape[0] - 1
    at = row.expand(scores.shape)
    top = scores.new_full((lanes, rows), float("-inf")).scatter_reduce_(1, at, scores, "amax")
    unseeing = top == float("-inf")
    weights = scores - top.masked_fill(unseeing, 0.0).index_select(1, row)
    weights.exp_()
    total = scores.new_zeros(lanes, rows).index_add_(1, row, weights)
    lse = (top + total.log()).masked_fill_(unseeing, float("-inf"))
    return weights.mul_(total.masked_fill(unseeing, 1.0).reciprocal_().index_select(1, row)), lse


def _fake_row_softmax(scores: Tensor, row_ptr: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    return torch.empty_like(scores), scores.new_empty(scores.shape[0], row_ptr.shape[0] - 1)


def _save_operands(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    first, b, pattern, _ = inputs
    ctx.save_for_backward(first, b, *pattern)


def _sampled_dot_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    a, b, *tensors = ctx.saved_tensors
    pattern = Pattern(*tensors)
    da = db = None
    if ctx.needs_input_grad[0]:
        da = _run("weighted_sum", grad, b, list(pattern), a.shape[0])
    if ctx.needs_input_grad[1]:
        transposed = pattern.transposed
        db = _run("weighted_sum", grad.index_select(1, pattern.by_col), a, list(transposed), b.shape[0])
    return da, db, [None] * len(pattern), None


def _weighted_sum_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    weights, b, *tensors = ctx.saved_tensors
    pattern = Pattern(*tensors)
    dw = db = None
    if ctx.needs_input_grad[0]:
        dw = _run("sampled_dot", grad, b, list(pattern), weights.shape[0])
    if ctx.needs_input_grad[1]:
        transposed = pattern.transposed
        mine = weights.index_select(1, pattern.by_col)
        db = _run("weighted_sum", mine, grad, list(transposed), b.shape[0])
    return dw, db, [None] * len(pattern), None


def _save_softmax(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[0], inputs[2])


def _row_softmax_backward(ctx: Any, grad: Tensor, lse_grad: Tensor) -> tuple[Any, ...]:
    weights, row = ctx.saved_tensors
    product = weights * grad
    rest = lse_grad - product.new_zeros(lse_grad.shape).index_add(1, row, product)
    return product + weights * rest.index_select(1, row), None, None


_DIRECT: dict[str, type[torch.autograd.Function]] = {}
"""Each op as a function of autograd."""


def _register(
    name: str,
    forward: Callable[..., Any],
    fake: Callable[..., Any],
    save: Callable[..., None],
    backward: Callable[..., Any],
) -> None:
    """Register an op, and the same as a function of autograd."""
    made = torch.library.custom_op(f"relgraph::{name}", forward, mutates_args=())
    made.register_fake(fake)
    made.register_autograd(backward, setup_context=save)

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            output = forward(*inputs)
            save(ctx, inputs, output)
            return output

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            return tuple(x if isinstance(x, Tensor) else None for x in backward(ctx, *grads))

    _DIRECT[name] = Direct


def _plain_dot(a: Tensor, b: Tensor, pattern: list[Tensor], lanes: int) -> Tensor:
    p = Pattern(*pattern)
    return (_lanes(a.index_select(1, p.row), lanes) * _lanes(b.index_select(1, p.col), lanes)).sum(-1)


def _plain_sum(weights: Tensor, b: Tensor, pattern: list[Tensor], lanes: int) -> Tensor:
    p, many = Pattern(*pattern), weights.shape[0]
    product = weights[..., None] * _lanes(b.index_select(1, p.col), many)
    product = product if many == lanes else product.unflatten(0, (lanes, -1)).sum(1)
    return b.new_zeros(lanes, p.row_ptr.shape[0] - 1, b.shape[-1]).index_add(1, p.row, product)


def _plain_softmax(scores: Tensor, row_ptr: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    lanes, rows = scores.shape[0], row_ptr.shape[0] - 1
    lowest = scores.new_full((lanes, rows), float("-inf"))
    top = lowest.scatter_reduce(1, row.expand(lanes, -1), scores.detach(), "amax")
    unseeing = top == float("-inf")
    weights = (scores - top.masked_fill(unseeing, 0.0).index_select(1, row)).exp()
    total = scores.new_zeros(lanes, rows).index_add(1, row, weights)
    lse = (top + total.log()).masked_fill(unseeing, float("-inf"))
    return weights / total.masked_fill(unseeing, 1.0).index_select(1, row), lse


_PLAIN = {"sampled_dot": _plain_dot, "weighted_sum": _plain_sum, "row_softmax": _plain_softmax}
"""Each op in torch's own operators, for exported programs, which run without relgraph."""


def _run(name: str, *inputs: Any) -> Any:
    """The op of this name, or its function of autograd if nothing traces."""
    if torch.compiler.is_exporting():
        return _PLAIN[name](*inputs)
    if unwatched([x for x in inputs if isinstance(x, Tensor)]):
        return _DIRECT[name].apply(*inputs)
    return getattr(torch.ops.relgraph, name)(*inputs)


_register("sampled_dot", _sampled_dot, _fake_sampled_dot, _save_operands, _sampled_dot_backward)
_register("weighted_sum", _weighted_sum, _fake_weighted_sum, _save_operands, _weighted_sum_backward)
_register("row_softmax", _row_softmax, _fake_row_softmax, _save_softmax, _row_softmax_backward)
