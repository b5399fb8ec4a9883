"""The one primitive as a pair of custom ops, forward and backward, with their fake kernels and derivatives.

    (q, k, v, B, C, tables, vectors, labels, mask, seed)  →  (o, lse, P, mass)
    (do, …)  →  (dq, dk, dv, dB, dC, …)

An implementation plugs in two functions over a :class:`~relgraph.impl.problem.Problem` (:func:`plug`). torch.compile,
export and checkpointing see one node for each direction. Tables stay outside, in plain torch, except for kernels:
compiled ones take a table's rows pair by pair over listed pairs and add the value term over all pairs; those of a GPU
make B and C of tables themselves, in each direction, so that autograd keeps neither. The
arguments of the ops are the fields of ``Problem``, so a new one is a field there and nothing here.

An op costs a tenth of a millisecond before its kernel begins, which is most of the time on a small graph. So kernels
that ask for it are called without the op if this makes no difference (:func:`unwatched`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import compress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from relgraph import score
from relgraph.call import Call, accumulation_dtype
from relgraph.impl import by_function
from relgraph.impl.problem import Outputs, Problem, with_origin
from relgraph.labels.memory import plain_code
from relgraph.plan import LabelPlan, decode, encode, memo_of

Forward = Callable[[Problem], Outputs]
"""Output with the value term of tables that the problem gives, log-sum-exp, and the sums by label that it asks for."""

Backward = Callable[[Problem, Outputs, Outputs], Sequence[Tensor | None]]
"""(problem, outputs of forward, their gradients) → gradients of query, key, value, B and C (None without that
table) and of each table given, then of the vectors and the mask, each if it needs one."""


class _Kernels(NamedTuple):
    """The arguments of :func:`plug`."""

    forward: Forward
    backward: Backward
    impl: str
    instead: str
    twin: Forward | None
    keeps_plain: bool
    check: Callable[[Problem], None] | None


_KERNELS: dict[str, _Kernels] = {}


class How(NamedTuple):
    """How the primitive is computed without the op.

    Attributes:
        kernels: the name of the kernels.
        rest: what :func:`problem_of` takes after the tensors.
        places: which of all tensors are given.
        packed: whether query, key, value and the output are ``[N, H, D]``, as a graph layer has them.
        forward: the outputs from the tensors that are given; None for that of the kernels.
        backward: the gradients of these tensors, from the tensors, the outputs and the gradients of the outputs, or
            None for gradients that it does not take; None for that of the kernels.
    """

    kernels: str
    rest: tuple[Any, ...]
    places: Sequence[bool]
    packed: bool = False
    forward: Callable[[Sequence[Tensor]], Outputs] | None = None
    backward: Callable[[Sequence[Tensor], Outputs, Outputs], Sequence[Tensor | None] | None] | None = None


def plug(
    name: str,
    forward: Forward,
    backward: Backward,
    *,
    impl: str,
    instead: str,
    twin: Forward | None = None,
    keeps_plain: bool = False,
    check: Callable[[Problem], None] | None = None,
) -> None:
    """Register the two functions under ``name``.

    Args:
        name: the name for :func:`run`.
        forward: the outputs of a problem.
        backward: the gradients of a problem.
        impl: the name that users give.
        instead: what to use instead, for the error about second derivatives.
        twin: the same outputs in plain torch, differentiable to any order, dropout included: through it the gradients
            are differentiated again. Without it there is no second derivative.
        keeps_plain: whether backward needs the output without the value term if forward adds it.
        check: raises if a problem from the flat arguments of the op, which anyone may call, has tensors that do not
            fit; :func:`run` is given checked calls.
    """
    _KERNELS[name] = _Kernels(forward, backward, impl, instead, twin, keeps_plain, check)


_FIELDS = {field.name: str(field.type) for field in fields(Problem)}
_TENSORS = (*(name for name, kind in _FIELDS.items() if kind in ("Tensor", "Tensor | None")), "offset")
"""The tensors of a problem, and the key position of query row 0 if it is a tensor."""

_PLACE = {name: at for at, name in enumerate(_TENSORS)}
_FLAGS = ("is_causal", *(name for name, kind in _FIELDS.items() if kind == "bool"))
_HEADER = {name: at for at, name in enumerate(("fixed_offset", "columns", *_FLAGS))}
"""Numbers and flags of a problem as ints, which come before those of the plan."""

_GRADIENT_IF = {"vectors": "vectors_gradient", "mask": "mask_gradient"}
_WITHOUT_GRADIENT = {"keep", "seed", "offset"}
_OUTPUTS = len(Outputs._fields)


def run(call: Call, kernels: str, *, recorded: bool = True, **how: Any) -> Outputs:
    """The primitive by the kernels of this name.

    Args:
        call: the checked call.
        kernels: the name that :func:`plug` was given.
        recorded: whether compiled code may record the kernels in a CUDA graph; not if they wait for the device.
        how: the other arguments of :func:`flat`.

    Returns:
        Outputs; the sums that are not needed are None or empty. Label mass is ``mass`` under dropout, else
        ``sums``.
    """
    tensors, header = flat(call, **how)
    code = call.score.code
    assert code is not None  # implementations refuse other scores
    if unwatched(tensors):
        named = None if call.score is score.DOT else score.decode(code)
        rest = call.plan, header, call.scale, call.dropout_p, named, memo_of(call.plan)
        there, needs_gradient = [], False
        for x in tensors:
            if x is not None:
                there.append(x)
                needs_gradient = needs_gradient or x.requires_grad
        if needs_gradient and torch.is_grad_enabled():
            return with_gradients(How(kernels, rest, [x is not None for x in tensors]), there)
        return _forward_of(kernels, problem_of(tensors, *rest))
    plan, ints = encode(call.plan)
    ints = [*header, *ints]
    attend = torch.ops.relgraph.attend if recorded else torch.ops.relgraph.attend_unrecorded
    return Outputs(*attend(*tensors, plan, ints, call.scale, call.dropout_p, list(code), kernels))


def _forward_of(kernels: str, problem: Problem) -> Outputs:
    """The outputs of a problem by the kernels of this name, in blocks if a function computes its ids."""
    forward = _KERNELS[kernels].forward
    return by_function.forward(forward, problem) if problem.plan.by_function else forward(problem)


def flat(
    call: Call,
    *,
    columns: int,
    need_sums: bool,
    seed_device: torch.device | None = None,
    vectors_in_score: bool = False,
    vectors_in_value: bool = False,
    **terms: Tensor | None,
) -> tuple[tuple[Tensor | None, ...], list[int]]:
    """The tensors of a call's problem, in the order of the op, and its numbers and flags.

    Args:
        call: the checked call.
        columns: width of B, C and the sums.
        need_sums: whether the value term needs P.
        seed_device: the device on which a seed for dropout is drawn; the CPU by default.
        vectors_in_score: as in :class:`~relgraph.impl.problem.Problem`.
        vectors_in_value: as there.
        terms: tensors that the implementation made of tables and edge vectors, by their names in the problem.
    """
    dropped, grows = call.dropout_p > 0.0, torch.is_grad_enabled()
    seed = None
    if dropped and call.keep is None:
        given = call.dropout_seed
        seed = torch.randint(1 << 62, (), device=seed_device or "cpu") if given is None else given
    if seed is not None and any(call.dropout_origin):
        seed = with_origin(seed, call.dropout_origin)
    offset = call.q_offset
    moving, fixed = (offset, 0) if isinstance(offset, Tensor) else (None, offset)
    vectors, mask = terms.get("vectors"), call.mask
    by_name: dict[str, Any] = {
        **terms, "query": call.query, "key": call.key, "value": call.value, "mask": mask,
        "keep": call.keep if dropped else None, "seed": seed, "offset": moving,
        "is_causal": call.is_causal,
        "need_sums": need_sums or (call.need_mass and not dropped), "need_mass": call.need_mass and dropped,
        "vectors_in_score": vectors_in_score, "vectors_in_value": vectors_in_value,
        "mask_gradient": grows and mask is not None and mask.requires_grad,
        "vectors_gradient": grows and vectors is not None and vectors.requires_grad,
    }  # fmt: skip
    return tuple(map(by_name.get, _TENSORS)), [fixed, columns, *map(int, map(by_name.__getitem__, _FLAGS))]


def with_gradients(how: How, there: Sequence[Tensor]) -> Outputs:
    """The primitive of the tensors that are given, without the op, for autograd."""
    return Outputs(*_Direct.apply(how, *there))


_TAIL = "Tensor[] plan, SymInt[] ints, float scale, float dropout_p, float[] score, str kernels"
_ARGUMENTS = ", ".join(f"{'Tensor' if _FIELDS.get(name) == 'Tensor' else 'Tensor?'} {name}" for name in _TENSORS)
_FORWARD = f"({_ARGUMENTS}, {_TAIL}) -> ({', '.join(['Tensor'] * _OUTPUTS)})"
_BACKWARD = f"(Tensor[] grads, Tensor[] saved, bool[] given, {_TAIL}) -> Tensor[]"


def problem_of(
    tensors: Sequence[Any],
    plan: LabelPlan,
    header: Sequence[int],
    scale: float,
    p: float,
    named: score.Coded | None,
    plan_key: Any,
) -> Problem:
    """The problem of tensors, numbers and flags as :func:`flat` gives them."""
    fixed, columns, is_causal, *flags = header
    *operands, offset = tensors
    causal = (fixed if offset is None else offset) if is_causal else None
    arguments: list[Any] = [*operands, plan, causal, scale, p, columns, *map(bool, flags), named, plan_key]
    return Problem(*arguments)


def _decoded(
    tensors: Sequence[Any], plan: Sequence[Tensor], ints: Sequence[int], scale: float, p: float, named: list[float]
) -> Problem:
    """The problem, rebuilt from the flat arguments of the op."""
    header, plan_ints = ints[: len(_HEADER)], ints[len(_HEADER) :]
    return problem_of(tensors, decode(plan, plan_ints), header, scale, p, score.decode(named), (plan, plan_ints))


def _checked(kernels: str, problem: Problem) -> Problem:
    """The problem, if these kernels may have it."""
    check = _KERNELS[kernels].check
    if check is not None:
        check(problem)
    return problem


def _differentiable(header: Sequence[int]) -> list[bool]:
    """Which of the tensors have a gradient if they are given."""
    asked = {name: bool(header[_HEADER[flag]]) for name, flag in _GRADIENT_IF.items()}
    return [asked.get(name, name not in _WITHOUT_GRADIENT) for name in _TENSORS]


def _at_places(found: Sequence[Tensor], given: Sequence[bool], header: Sequence[int]) -> list[Tensor | None]:
    """Gradients at the places of their tensors, None at the others."""
    iterator = iter(found)
    wanted = zip(given, _differentiable(header), strict=False)
    return [next(iterator) if there and has_gradient else None for there, has_gradient in wanted]


def _attend(*args: Any) -> tuple[Tensor, ...]:
    tensors, (*flat, kernels) = args[: len(_TENSORS)], args[len(_TENSORS) :]
    outputs = _KERNELS[kernels].forward(_checked(kernels, _decoded(tensors, *flat)))
    return tuple(outputs.lse.new_empty(0) if out is None else out.contiguous() for out in outputs)


def _fake_attend(*args: Any) -> tuple[Tensor, ...]:
    given, ints = dict(zip(_TENSORS, args, strict=False)), args[len(_TENSORS) + 1]
    query, value, vectors = given["query"], given["value"], given["vectors"]
    rows, dtype, columns = query.shape[:3], accumulation_dtype(query.dtype), ints[_HEADER["columns"]]
    nothing = query.new_empty(0, dtype=dtype)
    _, _, *needed, plain = _needed(ints, _keeps_plain(args[-1], args))
    sums = [query.new_empty(*rows, columns, dtype=dtype) if n else torch.empty_like(nothing) for n in needed]
    width = value.shape[-1] + (vectors.shape[-1] if ints[_HEADER["vectors_in_value"]] else 0)
    output, lse = query.new_empty(*rows, width, dtype=dtype), query.new_empty(rows, dtype=dtype)
    return output, lse, *sums, torch.empty_like(output if plain else nothing)


def _attend_backward(*args: Any) -> list[Tensor]:
    grads, saved, given, *flat, kernels = args
    filled = _fill([*saved, *grads], given)
    tensors, outputs, incoming = filled[: len(_TENSORS)], filled[len(_TENSORS) : -_OUTPUTS], filled[-_OUTPUTS:]
    problem = _checked(kernels, _decoded(tensors, *flat))
    found = _KERNELS[kernels].backward(problem, Outputs(*outputs), Outputs(*incoming))
    return [grad.contiguous() for grad in found if grad is not None]


def _fake_attend_backward(*args: Any) -> list[Tensor]:
    saved, given, _, ints = args[1:5]
    filled = _fill(saved, given[:-_OUTPUTS])[: len(_TENSORS)]
    wanted = zip(filled, _differentiable(ints), strict=True)
    return [x.new_empty(x.shape) for x, has_gradient in wanted if has_gradient and x is not None]


def _fill(tensors: Sequence[Tensor], given: Sequence[bool]) -> list[Any]:
    """The tensors at the places that are given, None at the others."""
    iterator = iter(tensors)
    return [next(iterator) if there else None for there in given]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors, (plan, ints, *options) = inputs[: len(_TENSORS)], inputs[len(_TENSORS) :]
    kept = [*tensors, *_at_needed(output, _needed(ints, _keeps_plain(inputs[-1], inputs)))]
    ctx.given = [t is not None for t in kept]
    ctx.save_for_backward(*(t for t in kept if t is not None), *plan)
    ctx.set_materialize_grads(False)
    ctx.plan_count, ctx.options = len(plan), (list(ints), *options)


def _needed(header: Sequence[int], plain: bool) -> tuple[Any, ...]:
    """Which outputs are needed; the others come back empty."""
    return True, True, header[_HEADER["need_sums"]], header[_HEADER["need_mass"]], plain


def _keeps_plain(kernels: str, tensors: Sequence[Any]) -> bool:
    """Whether there is an output without the value term."""
    return _KERNELS[kernels].keeps_plain and tensors[_PLACE["label_values"]] is not None


def _at_needed(outputs: Sequence[Tensor | None], needed: Sequence[Any]) -> list[Tensor | None]:
    """The outputs that are needed, or their gradients, and None in place of the others."""
    return [out if need else None for out, need in zip(outputs, needed, strict=True)]


def _differentiate(
    given: Sequence[bool],
    saved: Sequence[Tensor],
    used: Sequence[Tensor | None],
    plan: Sequence[Tensor],
    options: Sequence[Any],
    name: str = "attend",
) -> list[Tensor | None]:
    """The gradient of each tensor, by the op of backward that belongs to the one of this name."""
    there = [g for g in used if g is not None]
    all_given = [*given, *(g is not None for g in used)]
    found = getattr(torch.ops.relgraph, f"{name}_backward")(there, saved, all_given, plan, *options)
    return _at_places(found, given, options[0])


def _backward(name: str, ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    no_more = ([None] * ctx.plan_count, *(None,) * 5)
    used = _at_needed(grads, ctx.given[len(_TENSORS) :])
    if all(g is None for g in used):
        return (*(None,) * len(_TENSORS), *no_more)
    everything = list(ctx.saved_tensors)  # read once: under checkpointing each read computes them again
    saved, plan = everything[: sum(ctx.given)], everything[sum(ctx.given) :]
    return (*_differentiate(ctx.given, saved, used, plan, ctx.options, name), *no_more)


def _save_again(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    grads, saved, given, plan, *options = inputs
    ctx.kernels = options[-1]
    if _KERNELS[ctx.kernels].twin is not None:
        ctx.counts, ctx.given, ctx.options = (len(grads), len(saved), len(plan)), given, options
        ctx.save_for_backward(*grads, *saved, *plan)


def _backward_again(ctx: Any, coming: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """The derivative of backward, through the twin, by the incoming gradients and the saved tensors.

    Outputs of forward were saved too, but the result of backward is a function of its other inputs.
    """
    kernels = _KERNELS[ctx.kernels]
    if kernels.twin is None:
        raise NotImplementedError(f"impl={kernels.impl!r} has no second derivative; use {kernels.instead}")
    again = torch.is_grad_enabled()
    everything, (grad_count, saved_count, plan_count) = list(ctx.saved_tensors), ctx.counts
    grads, saved = everything[:grad_count], everything[grad_count : grad_count + saved_count]
    plan = everything[grad_count + saved_count :]
    filled = _fill(saved, ctx.given[: len(_TENSORS) + _OUTPUTS])
    learned = [at for at, may in enumerate(_differentiable(ctx.options[0])) if may and filled[at] is not None]
    with torch.enable_grad():
        for at in learned:
            filled[at] = _leaf(filled[at], again)
        grads = [_leaf(grad, again) for grad in grads]
        inputs = [filled[at] for at in learned]
        outputs = kernels.twin(_decoded(filled[: len(_TENSORS)], plan, *ctx.options[:-1]))
        used = [out for out, there in zip(outputs, ctx.given[-_OUTPUTS:], strict=True) if there]
        first = torch.autograd.grad(used, inputs, grads, create_graph=True, materialize_grads=True)
        both = [(mine, g) for mine, g in zip(first, coming, strict=True) if g is not None and mine.requires_grad]
        found: Sequence[Tensor | None] = [None] * (len(inputs) + grad_count)
        if both:
            of, incoming = zip(*both, strict=True)
            found = torch.autograd.grad(of, [*inputs, *grads], incoming, create_graph=again, allow_unused=True)
    by_place = dict(zip(learned, found, strict=False))
    of_saved = [by_place.get(at) for at, there in enumerate(ctx.given[: len(_TENSORS) + _OUTPUTS]) if there]
    return list(found[len(inputs) :]), of_saved, None, [None] * plan_count, *(None,) * 5


def _leaf(x: Tensor, again: bool) -> Tensor:
    """``x`` as a tensor to differentiate by; still part of its graph if that will be differentiated again."""
    return x.view_as(x) if again and x.requires_grad else x.detach().requires_grad_()


def _register(name: str, tags: Sequence[torch.Tag]) -> None:
    """Register the pair of ops under a name."""
    ops = torch.library.custom_op
    forward = ops(f"relgraph::{name}", _attend, mutates_args=(), schema=_FORWARD, tags=tags)
    backward = ops(f"relgraph::{name}_backward", _attend_backward, mutates_args=(), schema=_BACKWARD, tags=tags)
    forward.register_fake(_fake_attend)
    backward.register_fake(_fake_attend_backward)
    forward.register_autograd(functools.partial(_backward, name), setup_context=_save)
    backward.register_autograd(_backward_again, setup_context=_save_again)


_register("attend", ())
# the same ops: torch.compile(mode="reduce-overhead") leaves them out of the CUDA graphs that it records
_register("attend_unrecorded", (torch.Tag.cudagraph_unsafe,))


class _Direct(torch.autograd.Function):
    """The primitive without the ops, as :func:`run` calls it, with the second derivative of the op of backward.

    It takes only the tensors that are given, because torch's Python goes through its arguments one by one.
    """

    @staticmethod
    def forward(ctx: Any, how: How, *there: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        tensors = _fill(there, how.places)
        outputs = how.forward(there) if how.forward else _forward_of(how.kernels, problem_of(tensors, *how.rest))
        ctx.needed = _needed(how.rest[1], _keeps_plain(how.kernels, tensors))
        ctx.save_for_backward(*tensors, *_at_needed(outputs, ctx.needed))
        ctx.set_materialize_grads(False)
        ctx.how = how
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        how: How = ctx.how
        used = _at_needed(grads, ctx.needed)
        if all(g is None for g in used):
            return (None,) * (1 + sum(how.places))
        how.rest[0].check_unchanged()
        saved, watched = ctx.saved_tensors, torch.is_grad_enabled() or not unwatched(used)
        if how.backward is not None and not watched:
            outputs = Outputs(*saved[len(_TENSORS) :])
            found = how.backward(list(compress(saved, how.places)), outputs, Outputs(*used))
            if found is not None:
                return None, *found
        if how.packed:
            saved = [_of_rows(x) if at < 3 or at == len(_TENSORS) else x for at, x in enumerate(saved)]
            used[0] = _of_rows(used[0])
        given = [x is not None for x in saved]
        plan, header, scale, p, named, _ = how.rest
        if watched:
            plan_tensors, ints = encode(plan)
            options = [*header, *ints], scale, p, list(score.encode(named)), how.kernels
            there = [x for x in saved if x is not None]
            found = _differentiate(given, there, used, plan_tensors, options)
        else:
            problem, outputs = problem_of(saved[: len(_TENSORS)], *how.rest), Outputs(*saved[len(_TENSORS) :])
            backward = _KERNELS[how.kernels].backward
            if plan.by_function:
                made = by_function.backward(backward, problem, outputs, Outputs(*used))
            else:
                made = [g for g in backward(problem, outputs, Outputs(*used)) if g is not None]
            found = _at_places(made, given, header)
        if how.packed:
            found[:3] = [None if g is None else g[0].transpose(0, 1) for g in found[:3]]
        return None, *compress(found, how.places)


def _of_rows(x: Tensor | None) -> Tensor | None:
    """``[N, H, D]`` as ``[1, H, N, D]``."""
    return None if x is None else x.transpose(0, 1)[None]


def unwatched(tensors: Sequence[Tensor | None]) -> bool:
    """Whether nothing traces the ops: no compiler, no mode, no transform, no tensor of another kind or device.

    Before this, kernels have refused tensors on the wrong device, CPU or GPU.
    """
    if not plain_code():
        return False
    for x in tensors:
        if x is not None and (type(x) not in (Tensor, nn.Parameter) or not (x.is_cpu or x.is_cuda)):
            return False
    return True
