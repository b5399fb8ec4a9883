"""A cache for what implementations derive from a plan and reuse in the next layer or step, such as a tile map."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack  # pyright: ignore[reportMissingModuleSource]
from torch.utils.weak import WeakIdKeyDictionary

from relgraph.plan.codec import encode
from relgraph.plan.parts import LabelPlan

KEPT_PLANS = 64
"""Largest number of plans without tensors that have entries."""

_by_tensor: Any = WeakIdKeyDictionary()
_by_ints: dict[Any, dict[Any, Any]] = {}


def plan_memo(tensors: Sequence[Tensor], ints: Sequence[int]) -> dict[Any, Any]:
    """The cache of the plan with these tensors and ints; dropped when a tensor is freed or changed."""
    if any(t.is_inference() for t in tensors):
        return {}  # such tensors have no version
    key = (tuple(ints), *((id(t), t._version) for t in tensors))
    if not tensors:
        while len(_by_ints) >= KEPT_PLANS and key not in _by_ints:
            _by_ints.pop(next(iter(_by_ints)))
        return _by_ints.setdefault(key, {})
    entries = _by_tensor.setdefault(tensors[0], {})
    if key not in entries or any(ref() is not t for ref, t in zip(entries[key][0], tensors, strict=True)):
        for old in [k for k, (refs, _) in entries.items() if any(r() is None for r in refs) or _is_older(k, key)]:
            del entries[old]
        entries[key] = (tuple(weakref.ref(t) for t in tensors), {})
    return entries[key][1]


def kept(derived: dict[Any, Tensor], key: Any, make: Callable[[], Tensor]) -> Tensor:
    """The tensor under this key, made at first use, because copying numbers to a GPU makes the host wait."""
    if torch.compiler.is_compiling():
        return make()
    if key not in derived:
        made = make()
        # autograd cannot save what inference mode made, and a transform or a mode makes tensors of another kind
        if made.is_inference() or type(made) is not Tensor or peek_interpreter_stack() is not None:
            return made
        derived[key] = made
    return derived[key]


def memo_of(plan: LabelPlan) -> dict[Any, Any]:
    """The same cache as from :func:`plan_memo`, found without encoding the plan.

    If only listed pairs attend, it is the cache that implementations share, which is stored with the pairs.
    """
    csr = plan.parts[0].csr
    if csr is not None and plan.edges_only:
        return csr.derived
    if "memo" in plan.derived:
        tensors, versions, memo = plan.derived["memo"]
        if versions == [tensor._version for tensor in tensors]:
            return memo
    tensors, ints = encode(plan)
    memo = plan_memo(tensors, ints)
    if not any(tensor.is_inference() for tensor in tensors):
        plan.derived["memo"] = tensors, [tensor._version for tensor in tensors], memo
    return memo


def _is_older(key: tuple[Any, ...], new: tuple[Any, ...]) -> bool:
    """Whether a key belongs to the same labels before their tensors changed."""
    return key[0] == new[0] and [number for number, _ in key[1:]] == [number for number, _ in new[1:]]
