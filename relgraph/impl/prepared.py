"""Calls of a form that came before: what follows from the form was worked out then, and is kept with the labels.

The form of a call is all that its checks, the rule and the kernels' struct depend on: shapes, strides, dtypes and
flags, but no element of a tensor. A small call takes less time than to work these out again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from relgraph.arguments.sharding import check_context
from relgraph.call import Answer, Call, Given
from relgraph.impl.native import build
from relgraph.impl.native.prepared import Prepared, prepare
from relgraph.labels.memory import plain_code
from relgraph.labels.naming import KINDS
from relgraph.plan import lower, memo_of

_BY_VALUE = {"q_offset", "edge_attr"}
"""Arguments whose elements are checked, or counted."""


def form_of(given: Given, *, nodes: bool = False) -> tuple[Any, ...] | None:
    """The form of a call on the CPU; None if more than that decides how it is checked and answered.

    Args:
        given: the arguments by name.
        nodes: whether the inputs come from a graph layer, ``[N, H, D]``.
    """
    labels = given["labels"]
    if type(labels) not in KINDS or not plain_code() or torch.is_autocast_enabled("cpu"):
        return None
    if forward_ad._current_level >= 0:  # a tensor may have a tangent
        return None
    check_context()
    form: list[Any] = [nodes, torch.is_grad_enabled(), torch.get_num_threads(), id(build.loaded())]
    if given.get("is_causal", False) is not False:  # labels may give the offset of causal order, or not
        form.append(labels.offsets)
    for name, x in given.items():
        kind = type(x)
        if kind is Tensor or kind is nn.Parameter:
            if not x.is_cpu or x.layout != torch.strided or x.is_nested or x.is_neg() or name in _BY_VALUE:
                return None
            form.append((name, x.shape, x.stride(), x.dtype, x.requires_grad))
        elif x is None or kind in (bool, int, float, str):
            form.append((name, kind, x))
        elif x is not labels:
            return None
    return tuple(form)


def answer(form: tuple[Any, ...], given: Given) -> Answer | None:
    """The answer to a call of this form, in the layout of the caller; None if no call of it came before."""
    plan = lower(given["labels"])
    ready: Prepared | None = memo_of(plan).found.get(form)
    return None if ready is None else ready.answer(given, plan)


def remember(form: tuple[Any, ...], given: Given, call: Call, impl: str) -> Prepared | None:
    """What was worked out for a call, kept if the next one of this form can use it."""
    ready = prepare(call, given) if impl == "native" else None
    return None if ready is None else memo_of(call.plan).once(form, lambda: ready)
