"""Calls of a form that came before: what follows from the form was worked out then, and is kept with the labels.

The form of a call is all that its checks, the rule and the kernels' struct depend on: shapes, strides, dtypes and
flags, but no element of a tensor. A small call takes less time than to work these out again.

A step of decoding has one more key each time. Its form leaves out the number of keys and the offset, which only have to
agree with each other, and has the ids by distance in the place of labels; it is kept under them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from relgraph.arguments.sharding import check_context
from relgraph.call import Answer, Call, Given
from relgraph.impl.native import build, problem
from relgraph.impl.native.prepared import prepare
from relgraph.labels import DistanceLabels
from relgraph.labels.memory import Memory, plain_code
from relgraph.labels.naming import KINDS
from relgraph.plan import lower, memo_of

_BY_VALUE = {"q_offset", "edge_attr"}
"""Arguments whose elements are checked, or counted."""

_steps = Memory()


def form_of(given: Given, *, nodes: bool = False) -> tuple[Any, ...] | None:
    """The form of a call on the CPU; None if more than that decides how it is checked and answered.

    Args:
        given: the arguments by name.
        nodes: whether the inputs come from a graph layer, ``[N, H, D]``.
    """
    labels = given["labels"]
    if not plain_code() or torch.is_autocast_enabled("cpu"):
        return None
    if forward_ad._current_level >= 0:  # a tensor may have a tangent
        return None
    check_context()
    step = None if torch.is_grad_enabled() else _step(given)
    if step is None and type(labels) not in KINDS:
        return None
    form: list[Any] = [step, nodes, torch.is_grad_enabled(), torch.get_num_threads(), id(build.loaded())]
    # labels may give the offset of causal order, or not
    if step is None and given.get("is_causal", False) is not False:
        form.append(labels.offsets)
    for name, x in given.items():
        kind = type(x)
        if kind is Tensor or kind is nn.Parameter:
            if not x.is_cpu or x.layout != torch.strided or x.is_nested or x.is_neg() or name in _BY_VALUE:
                return None
            if step is None or name not in _MOVING:
                form.append((name, x.shape, x.stride(), x.dtype, x.requires_grad))
            elif name == "attn_mask":
                form.append((name, x.shape[:3], x.dtype, x.requires_grad))
            else:
                form.append((name, x.shape[:2], x.shape[3], x.stride(), x.dtype, x.requires_grad))
        elif x is None or kind in (bool, int, float, str):
            form.append((name, kind, x if step is None or name != "q_offset" else None))
        elif x is not labels:
            return None
    return tuple(form)


_MOVING = {"key", "value", "attn_mask"}
"""The tensors of a step that grow with the number of keys."""


def _step(given: Given) -> tuple[Any, ...] | None:
    """What a step of decoding has in the place of labels; None if the call is none, or its lengths do not fit."""
    query, key, value, labels = given["query"], given["key"], given["value"], given["labels"]
    mask, offset = given.get("attn_mask"), given.get("q_offset")
    for x in (query, key, value, query if mask is None else mask):
        if type(x) not in (Tensor, nn.Parameter) or x.dim() != 4:
            return None
    rows, keys = query.shape[2], key.shape[2]
    if not 0 < rows <= problem.FEWEST_ROWS or not 0 < keys == value.shape[2]:
        return None
    if mask is not None and mask.shape[3] != keys:
        return None
    if labels is None:
        return () if type(offset) is int and 0 <= offset < keys else None
    if type(labels) is not DistanceLabels or labels.k_ptr is not None or type(labels.q_offset) is not int:
        return None
    if labels.q_len != rows or labels.k_len != keys or (offset is not None and offset != labels.q_offset):
        return None
    return labels.lookup, labels.left, labels.num_labels


def answer(form: tuple[Any, ...], given: Given) -> Answer | None:
    """The answer to a call of this form, in the layout of the caller; None if no call of it came before."""
    if form[0] is not None:
        ready: Any = _steps.found.get(form)
        return None if ready is None else ready.answer_step(given)
    plan = lower(given["labels"])
    ready = memo_of(plan).found.get(form)
    return None if ready is None else ready.answer(given, plan)


def first_answer(form: tuple[Any, ...], given: Given, call: Call, impl: str) -> Answer | None:
    """The answer by what is worked out for a call and kept for the next ones; None if it cannot be prepared.

    The first call is answered as the next ones are, so that what it saves for backward has their layout: checkpointing
    computes it again and compares.
    """
    step = form[0] is not None
    ready: Any = prepare(call, given, step=step) if impl == "native" else None
    if ready is None:
        return None
    ready = (_steps if step else memo_of(call.plan)).once(form, lambda: ready)
    return ready.answer_step(given) if step else ready.answer(given, call.plan)
