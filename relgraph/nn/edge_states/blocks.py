"""A formula over edges, computed for a block of targets at a time, and again in backward: nothing of it is stored.

A formula is written for the edges of some targets in plain torch. Few edges are one block, and autograd follows it. For
many edges the intermediate numbers of a block stay in the processor's cache, and memory holds only what goes in and out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relgraph.call import accumulation_dtype
from relgraph.labels.memory import plain_code
from relgraph.nn.edge_states.listed import Block, Listed

BLOCK_NUMBERS = 1 << 18
"""Numbers in one tensor of a block, edges times width: 1 MiB in float32, so that several stay in the cache."""


class Part(NamedTuple):
    """What a formula sees of one block."""

    at: Tensor  # [e], the target of each edge, counted from the first target of the block
    targets: int
    rows: tuple[Tensor, ...]  # [targets, ...]
    edges: tuple[Tensor, ...]  # [e, ...]
    weights: dict[str, Tensor]


class Inputs(NamedTuple):
    """What a formula reads.

    Attributes:
        rows: tensors with a row per target.
        gathered: tensors and ``[E]``, the row of the tensor that each edge reads, by the order of ``Listed``.
        weights: parameters by name.
    """

    rows: Sequence[Tensor]
    gathered: Sequence[tuple[Tensor, Tensor]]
    weights: Mapping[str, Tensor]


Formula = Callable[[Part], tuple[Sequence[Tensor], Sequence[Tensor]]]
"""From a part to results per target and results per edge."""

Found = tuple[list[Tensor], list[Tensor]]


def by_blocks(formula: Formula, listed: Listed, inputs: Inputs, width: int) -> Found:
    """The results per target, ``[N_q, ...]``, and per edge in the caller's order, ``[E, ...]``.

    Args:
        formula: computes in the accumulation type of what it reads.
        listed: the edges.
        inputs: what the formula reads.
        width: how many numbers per edge its largest tensors have.
    """
    edges = max(BLOCK_NUMBERS // max(width, 1), 1)
    if listed.row.shape[0] <= edges or not plain_code():
        return _at_once(formula, listed, inputs)
    tensors = [*inputs.rows, *(x for x, _ in inputs.gathered), *inputs.weights.values()]
    index = [at for _, at in inputs.gathered]
    counts: list[int] = []
    found = _ByBlocks.apply(formula, listed, edges, len(inputs.rows), index, list(inputs.weights), counts, *tensors)
    return list(found[: counts[0]]), list(found[counts[0] :])


def _at_once(formula: Formula, listed: Listed, inputs: Inputs) -> Found:
    """All edges in one block, which autograd follows."""
    dtype = _dtype(inputs)
    with torch.autocast(listed.row.device.type, enabled=False):
        rows = tuple(x.to(dtype) for x in inputs.rows)
        edges = tuple(x.index_select(0, at).to(dtype) for x, at in inputs.gathered)
        weights = {name: x.to(dtype) for name, x in inputs.weights.items()}
        of_rows, of_edges = formula(Part(listed.row, listed.queries, rows, edges, weights))
    order = listed.order
    return list(of_rows), [x.new_empty(x.shape).index_copy(0, order, x) for x in of_edges]


def _dtype(inputs: Inputs) -> torch.dtype:
    """The type in which the formula computes."""
    dtype = torch.float32
    for x in (*inputs.rows, *(x for x, _ in inputs.gathered), *inputs.weights.values()):
        dtype = torch.promote_types(dtype, accumulation_dtype(x.dtype))
    return dtype


class _Blocks:
    """The inputs of a formula, block by block, as tensors that begin a graph of autograd."""

    def __init__(self, formula: Formula, listed: Listed, inputs: Inputs, needs: Sequence[bool]) -> None:
        self.formula, self.listed, self.inputs, self.dtype = formula, listed, inputs, _dtype(inputs)
        rows, gathered = len(inputs.rows), len(inputs.gathered)
        self.needs = needs[:rows], needs[rows : rows + gathered], needs[rows + gathered :]
        self.weights = [self._leaf(x, need) for x, need in zip(inputs.weights.values(), self.needs[2], strict=True)]

    def _leaf(self, x: Tensor, needs: bool) -> Tensor:
        return x.detach().to(self.dtype).requires_grad_(needs)

    def part(self, block: Block) -> Part:
        """What the formula sees of a block."""
        first, last, begin, end = block
        rows = (self._leaf(x[first:last], n) for x, n in zip(self.inputs.rows, self.needs[0], strict=True))
        edges = (
            self._leaf(x.detach().index_select(0, at[begin:end]), needs)
            for (x, at), needs in zip(self.inputs.gathered, self.needs[1], strict=True)
        )
        weights = dict(zip(self.inputs.weights, self.weights, strict=True))
        return Part(self.listed.row[begin:end] - first, last - first, tuple(rows), tuple(edges), weights)


class _ByBlocks(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, formula: Formula, listed: Listed, edges: int, rows: int, index: list[Tensor], names: list[str],
        counts: list[int], *tensors: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        ctx.save_for_backward(*tensors)
        ctx.given = formula, listed, edges, rows, index, names
        blocks = _Blocks(formula, listed, _inputs(ctx.given, tensors), [False] * len(tensors))
        found: list[Tensor] = []
        with torch.autocast(listed.row.device.type, enabled=False):
            for block in listed.blocks(edges):
                of_rows, of_edges = formula(blocks.part(block))
                if not found:
                    counts.append(len(of_rows))
                    found += [x.new_empty(listed.queries, *x.shape[1:]) for x in of_rows]
                    found += [x.new_empty(listed.row.shape[0], *x.shape[1:]) for x in of_edges]
                places = listed.order[block.begin : block.end]
                for out, x in zip(found, of_rows, strict=False):
                    out[block.first : block.last] = x
                for out, x in zip(found[len(of_rows) :], of_edges, strict=True):
                    out.index_copy_(0, places, x)
        ctx.of_rows = counts[0]
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        tensors, needs = ctx.saved_tensors, ctx.needs_input_grad[7:]
        formula, listed, edges, rows, index, _ = ctx.given
        inputs = _inputs(ctx.given, tensors)
        none = (None,) * 7
        if torch.is_grad_enabled():  # a derivative of this one may follow
            found = _at_once(formula, listed, inputs)
            wanted = [x if need else x.detach() for x, need in zip(tensors, needs, strict=True)]
            return *none, *_gradients(found, wanted, grads, create_graph=True)
        blocks = _Blocks(formula, listed, inputs, needs)
        totals = [x.new_zeros(x.shape, dtype=blocks.dtype) if n else None for x, n in zip(tensors, needs, strict=True)]
        with torch.enable_grad(), torch.autocast(listed.row.device.type, enabled=False):
            for block in listed.blocks(edges):
                part = blocks.part(block)
                leaves = [*part.rows, *part.edges, *blocks.weights]
                places = listed.order[block.begin : block.end]
                mine = [grad[block.first : block.last] for grad in grads[: ctx.of_rows]]
                mine += [grad.index_select(0, places) for grad in grads[ctx.of_rows :]]
                made = _gradients(formula(part), leaves, mine)
                for at, (total, grad) in enumerate(zip(totals, made, strict=True)):
                    if total is None or grad is None:
                        continue
                    if at < rows:
                        total[block.first : block.last] = grad
                    elif at < rows + len(index):
                        total.index_add_(0, index[at - rows][block.begin : block.end], grad)
                    else:
                        total.add_(grad)
        return *none, *(None if x is None else x.to(y.dtype) for x, y in zip(totals, tensors, strict=True))


def _inputs(given: Any, tensors: Sequence[Tensor]) -> Inputs:
    """The inputs of a formula from the tensors of a call, in their order."""
    _, _, _, rows, index, names = given
    gathered = list(zip(tensors[rows:], index, strict=False))
    weights = dict(zip(names, tensors[rows + len(index) :], strict=True))
    return Inputs(tensors[:rows], gathered, weights)


def _gradients(
    found: tuple[Sequence[Tensor], Sequence[Tensor]], leaves: Sequence[Tensor], grads: Sequence[Tensor], **options: bool
) -> list[Tensor | None]:
    """The gradient of every leaf, None for those that need none or have no part in the results."""
    pairs = [(x, grad) for x, grad in zip((*found[0], *found[1]), grads, strict=True) if x.requires_grad]
    wanted = [x for x in leaves if x.requires_grad]
    if not pairs or not wanted:
        return [None] * len(leaves)
    outputs, of_outputs = zip(*pairs, strict=True)
    made = iter(torch.autograd.grad(outputs, wanted, of_outputs, allow_unused=True, **options))
    return [next(made) if x.requires_grad else None for x in leaves]
