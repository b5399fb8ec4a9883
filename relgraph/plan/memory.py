"""What implementations derive from a plan and reuse in the next layer or step, such as a tile map."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from relgraph.labels.memory import Memory, makes_plain, memory_of
from relgraph.plan.codec import encode
from relgraph.plan.parts import LabelPlan

_by_ints = Memory()


def plan_memo(tensors: Sequence[Tensor], ints: Sequence[int]) -> Memory:
    """The memory of the plan with these tensors and ints. No result may lead back to the tensors."""
    if not makes_plain():
        return Memory()
    return memory_of(tensors, tuple(ints)) if tensors else _by_ints.once(tuple(ints), Memory)


def tensor_once(memory: Memory, key: object, make: Callable[[], Tensor]) -> Tensor:
    """The tensor under this key, made at first use, because copying numbers to a GPU makes the host wait."""
    # compiled code holds its numbers itself: it need not ask at each call whether they are still there
    return make() if torch.compiler.is_compiling() else memory.once(key, make)


def memo_of(plan: LabelPlan) -> Memory:
    """The same memory as from :func:`plan_memo`, found without encoding the plan.

    If only listed pairs attend, it is the one that implementations share, which belongs to the pairs. A plan with ids
    by function has its own.
    """
    if plan.by_function:
        return plan.memory
    csr = plan.parts[0].csr
    if csr is not None and plan.edges_only:
        return csr.memory
    known = plan.memory.found.get("memo")
    if known is not None:
        for tensor, version in known[0]:
            if tensor._version != version:
                break
        else:
            return known[1]
    tensors, ints = encode(plan)
    memo = plan_memo(tensors, ints)
    if makes_plain() and not any(tensor.is_inference() for tensor in tensors):
        plan.memory.found["memo"] = [(tensor, tensor._version) for tensor in tensors], memo
    return memo
