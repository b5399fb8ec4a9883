"""A formula over edges, computed for a block of targets at a time, and again in backward: nothing of it is stored.

A formula is written in plain torch for some targets and all their edges. Few edges are one block, and autograd follows
it. With many edges the numbers in between stay in the processor's cache, and memory holds only what goes in and out.
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


class Inputs(NamedTuple):
    """What a formula reads; edges are sorted by target.

    Attributes:
        rows: tensors with a row per target, ``[N_q, ...]``.
        edges: tensors with a row per edge, ``[E, ...]``.
        gathered: tensors, and the row ``[E]`` of the tensor that each edge reads.
        weights: parameters by name.
    """

    rows: Sequence[Tensor]
    edges: Sequence[Tensor]
    gathered: Sequence[tuple[Tensor, Tensor]]
    weights: Mapping[str, Tensor]

    def tensors(self) -> list[Tensor]:
        """All of them, in the order of the fields."""
        return [*self.rows, *self.edges, *(x for x, _ in self.gathered), *self.weights.values()]

    def holding(self, tensors: Sequence[Tensor]) -> Inputs:
        """The same inputs with other tensors, in that order."""
        given = iter(tensors)
        rows, edges = ([next(given) for _ in part] for part in (self.rows, self.edges))
        gathered = [(next(given), at) for _, at in self.gathered]
        return Inputs(rows, edges, gathered, dict(zip(self.weights, given, strict=True)))

    def dtype(self) -> torch.dtype:
        """The type in which the formula computes."""
        dtype = torch.float32
        for x in self.tensors():
            dtype = torch.promote_types(dtype, accumulation_dtype(x.dtype))
        return dtype


class Part(NamedTuple):
    """What a formula sees of one block."""

    at: Tensor  # [e], the target of each edge, counted from the first target of the block
    rows: Sequence[Tensor]  # [targets, ...]
    edges: Sequence[Tensor]  # [e, ...]
    gathered: Sequence[Tensor]  # [e, ...]
    weights: Mapping[str, Tensor]

    def leaves(self) -> list[Tensor]:
        """All that gradients are wanted of, in the order of ``Inputs.tensors``."""
        return [*self.rows, *self.edges, *self.gathered, *self.weights.values()]


Formula = Callable[[Part], Tensor]
"""From a block to a row for each of its edges, ``[e, ...]``."""


def by_blocks(formula: Formula, listed: Listed, inputs: Inputs, width: int) -> Tensor:
    """The results for all edges, sorted by target.

    Args:
        formula: computes in the accumulation type of what it reads.
        listed: the edges.
        inputs: what the formula reads.
        width: how many numbers per edge its largest tensors have.
    """
    edges = max(BLOCK_NUMBERS // max(width, 1), 1)
    if listed.row.shape[0] <= edges or not plain_code():
        return _at_once(formula, listed, inputs)
    empty = inputs.holding([x.new_empty(0) for x in inputs.tensors()])  # so that only autograd keeps the tensors
    return _ByBlocks.apply(formula, listed, edges, empty, *inputs.tensors())


def _at_once(formula: Formula, listed: Listed, inputs: Inputs) -> Tensor:
    """All edges in one block, which autograd follows."""
    with torch.autocast(listed.row.device.type, enabled=False):
        made = inputs.holding([x.to(inputs.dtype()) for x in inputs.tensors()])
        gathered = [x.index_select(0, at) for x, at in made.gathered]
        return formula(Part(listed.row, made.rows, made.edges, gathered, made.weights))


def _part(inputs: Inputs, listed: Listed, block: Block, needs: Sequence[bool]) -> Part:
    """What the formula sees of a block, as tensors that begin a graph of autograd."""
    first, last, begin, end = block
    wanted, dtype = iter(needs), inputs.dtype()

    def leaf(x: Tensor) -> Tensor:
        return x.detach().to(dtype).requires_grad_(next(wanted))

    rows = [leaf(x[first:last]) for x in inputs.rows]
    edges = [leaf(x[begin:end]) for x in inputs.edges]
    gathered = [leaf(x.detach().index_select(0, at[begin:end])) for x, at in inputs.gathered]
    weights = {name: leaf(x) for name, x in inputs.weights.items()}
    return Part(listed.row[begin:end] - first, rows, edges, gathered, weights)


class _ByBlocks(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, formula: Formula, listed: Listed, edges: int, empty: Inputs, *tensors: Tensor
    ) -> Tensor:
        ctx.save_for_backward(*tensors)
        ctx.given = formula, listed, edges, empty
        inputs, found = empty.holding(tensors), None
        with torch.autocast(listed.row.device.type, enabled=False):
            for block in listed.blocks(edges):
                made = formula(_part(inputs, listed, block, [False] * len(tensors)))
                found = made.new_empty(listed.row.shape[0], *made.shape[1:]) if found is None else found
                found[block.begin : block.end] = made
        assert found is not None  # there are more edges than a block holds
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        tensors, needs = ctx.saved_tensors, ctx.needs_input_grad[4:]
        formula, listed, edges, empty = ctx.given
        inputs, none = empty.holding(tensors), (None,) * 4
        if torch.is_grad_enabled():  # a derivative of this one may follow
            # views, as one tensor may come twice, or be made of another
            wanted = [x.view_as(x) if need else x.detach() for x, need in zip(tensors, needs, strict=True)]
            found = _at_once(formula, listed, empty.holding(wanted))
            return *none, *_gradients(found, wanted, grad, create_graph=True)
        dtype = inputs.dtype()
        totals = [
            x.new_zeros(x.shape, dtype=dtype) if n else x.new_empty(0) for x, n in zip(tensors, needs, strict=True)
        ]
        held = inputs.holding(totals)
        with torch.enable_grad(), torch.autocast(listed.row.device.type, enabled=False):
            for block in listed.blocks(edges):
                part = _part(inputs, listed, block, needs)
                _add(held, _gradients(formula(part), part.leaves(), grad[block.begin : block.end]), block)
        return *none, *(x.to(y.dtype) if n else None for x, y, n in zip(totals, tensors, needs, strict=True))


def _add(totals: Inputs, found: Sequence[Tensor | None], block: Block) -> None:
    """Add the gradients of a block to the totals of all."""
    grads = iter(found)
    for many, at in ((totals.rows, slice(block.first, block.last)), (totals.edges, slice(block.begin, block.end))):
        for total in many:
            if (grad := next(grads)) is not None:
                total[at] = grad
    for total, index in totals.gathered:
        if (grad := next(grads)) is not None:
            total.index_add_(0, index[block.begin : block.end], grad)
    for total in totals.weights.values():
        if (grad := next(grads)) is not None:
            total.add_(grad)


def _gradients(found: Tensor, leaves: Sequence[Tensor], grad: Tensor, **options: bool) -> list[Tensor | None]:
    """The gradient of every leaf, None for those that need none."""
    wanted = [x for x in leaves if x.requires_grad]
    made = iter(torch.autograd.grad(found, wanted, grad, **options))
    return [next(made) if x.requires_grad else None for x in leaves]
