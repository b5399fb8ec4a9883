"""What implementations derive from a plan and reuse in the next layer or step, such as a tile map."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from relgraph.labels.memory import Memory, memory_of
from relgraph.plan.codec import encode
from relgraph.plan.parts import LabelPlan

_by_ints = Memory()


def plan_memo(tensors: Sequence[Tensor], ints: Sequence[int]) -> Memory:
    """The memory of the plan with these tensors and ints. No result may lead back to the tensors."""
    return memory_of(tensors, tuple(ints)) if tensors else _by_ints.once(tuple(ints), Memory)


def tensor_once(memory: Memory, key: object, make: Callable[[], Tensor]) -> Tensor:
    """The tensor under this key, made at first use, because copying numbers to a GPU makes the host wait."""
    # compiled code holds its numbers itself: it need not ask at each call whether they are still there
    return make() if torch.compiler.is_compiling() else memory.once(key, make)


def memo_of(plan: LabelPlan) -> Memory:
    """A memory of this plan, that of its pairs if only these attend, or that of its numbers if it has no tensors."""
    csr, found = plan.parts[0].csr, plan.memory.found.get("memo")
    if found is not None:
        return found
    if plan.by_function:
        return plan.memory
    if csr is not None and plan.edges_only:
        return csr.memory
    tensors, ints = encode(plan)
    return plan.memory.once("memo", Memory if tensors else lambda: plan_memo(tensors, ints))
