"""The one way in which results are kept for the next call: each made once, not too many, and gone with their labels."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from operator import call, is_
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import (  # pyright: ignore[reportMissingModuleSource]
    is_functorch_wrapped_tensor,
    peek_interpreter_stack,
)
from torch.utils._python_dispatch import _get_current_dispatch_mode, _get_current_dispatch_mode_stack

from relgraph.labels.contents import contents

KEPT = 64
"""How many results a memory keeps by default."""

_MISSING = object()
T = TypeVar("T")


class Memory:
    """Results under keys; beyond ``most`` (KEPT) the oldest goes. Copies and pickles of a memory are empty.

    A memory belongs to the object that its results are made from, or its keys say by value what they are made from.
    In the first case a result must not lead back to that object: then neither would ever be freed. Threads may share
    it without a lock, as single operations on a dict are atomic: two may make a result, and both get the first.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.found: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The result under this key, made at first use; compiled code, transforms and fake tensors keep nothing."""
        found = self.found.get(key, _MISSING)
        if found is not _MISSING:
            return found
        if not makes_plain():
            return make()
        found = self.found.setdefault(key, plainly(make))
        while len(self.found) > (KEPT if self.most is None else self.most):
            try:
                self.found.pop(next(iter(self.found)), None)
            except (RuntimeError, StopIteration):  # another thread, or a tensor that was freed, changed it just now
                continue
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return Memory, (self.most,)


def plainly(make: Callable[[], T]) -> T:
    """What ``make`` makes, outside inference mode, because training may take it next and cannot save its tensors."""
    if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
        return make()
    with torch.inference_mode(False):
        return make()


def plain_code() -> bool:
    """Whether nothing watches operators or changes what they make: no compiler, no transform, no mode."""
    if torch.compiler.is_compiling() or peek_interpreter_stack() is not None:
        return False
    return _get_current_dispatch_mode() is None


def makes_plain() -> bool:
    """Whether operators make plain tensors, which may be kept; a mode that only watches them may be active."""
    if torch.compiler.is_compiling() or peek_interpreter_stack() is not None:
        return False
    mode: Any = _get_current_dispatch_mode()
    return mode is None or not any(one.is_infra_mode() for one in _get_current_dispatch_mode_stack())


_entries = Memory(1024)
"""What the owners held, weak references to them, and their memory."""


def memory_of(owners: Sequence[Any], which: Hashable = None, most: int | None = None) -> Memory:
    """The memory that belongs to these objects together; it goes when one of them is freed or its contents change.

    On a CPU every change counts, whoever made it; elsewhere those that torch counts (:func:`contents`).

    Args:
        owners: tensors, or labels. Results must not lead back to them.
        which: tells apart several memories of the same objects.
        most: how many results it keeps; KEPT by default.

    Returns:
        Where nothing can be kept, without owners, with tensors of inference mode, in compiled code or a transform, an
        empty one that nothing keeps.
    """
    held: list[Any] = []
    for one in () if torch.compiler.is_compiling() else owners:
        if type(one) is not Tensor and not isinstance(one, Tensor):
            held.append(one._contents().held)
        elif one.is_inference() or is_functorch_wrapped_tensor(one):
            return Memory(most)
        else:
            held.append(contents(one))
    if not held:
        return Memory(most)
    key = which, *map(id, owners)
    known = _entries.found.get(key)
    # other objects may have the numbers of these now
    if known is not None and known[0] == held and all(map(is_, map(call, known[1]), owners)):
        return known[2]
    _entries.found.pop(key, None)
    pop = _entries.found.pop  # at the end of the process this module's names may be gone before the last owner

    def forget(_: Any) -> None:
        pop(key, None)

    return _entries.once(key, lambda: (held, [weakref.ref(x, forget) for x in owners], Memory(most)))[2]
