"""Fused attention in Triton. Tables are handled in plain torch; the kernels run inside the primitive.

Where labels are a function of the distance, tables are laid out by distance first (*virtual* columns): a label that
several distances share then has several rows, and the kernels find a pair's column by subtraction.
"""

from __future__ import annotations

import torch
from torch import Tensor

from relgraph.impl import op
from relgraph.impl.call import Answer, Call, Outputs, Problem, Tables
from relgraph.impl.terms import answer, query_tables, score_tables
from relgraph.impl.triton.edges import attend_listed
from relgraph.impl.triton.limits import kernels
from relgraph.impl.triton.virtual import Virtual, is_affine, virtual
from relgraph.plan import NOT_ATTENDING

KEPT_CONSTANTS = 64
"""How many layouts of tables by distance are kept."""


def attend(call: Call) -> Answer:
    """Attention by kernels; see the module."""
    if call.plan.edges_only:
        return attend_listed(call)
    sizes, tables = call.plan.num_labels, call.tables
    by_distance = virtual(call.plan.parts[0]) if is_affine(call.plan) else None
    if by_distance is not None:
        sizes, tables = (by_distance.width + 2,), (_laid_out(tables[0], by_distance, sizes[0]),)
    by_query = score_tables(call.query.to(torch.float32), tables, sizes, call.scale)
    by_key = query_tables(call.key.to(torch.float32), call.query.shape[1], tables, sizes, call.scale)
    if by_distance is not None and NOT_ATTENDING in by_distance.columns:
        by_query = _without(call, by_query, by_distance)
    values = any(table.value is not None for table in tables)
    outputs = op.run(
        call, kernels("triton", call.query), by_query, by_key, columns=sum(sizes) + len(sizes), need_sums=values,
        seed_device=call.query.device,
    )  # fmt: skip
    found = answer(call, outputs, tables, sizes)
    if by_distance is None or found.mass is None:
        return found
    return found._replace(mass=(_mass_by_label(found.mass[0], by_distance, call.plan.num_labels[0]),))


def _forward(problem: Problem) -> Outputs:
    from relgraph.impl.triton import launch

    return launch.forward(problem)


def _backward(problem: Problem, outputs: Outputs, incoming: Outputs) -> list[Tensor | None]:
    from relgraph.impl.triton import launch

    return launch.backward(problem, outputs, incoming)


op.plug("triton", _forward, _backward, impl="triton", instead="impl='dense' or 'reference'")


def _laid_out(tables: Tables, labels: Virtual, num_labels: int) -> Tables:
    """Tables with a row for every virtual column; zeros where a pair has no label."""
    if labels.columns == tuple(range(num_labels)):
        return tables
    rows = tuple(num_labels if column == NOT_ATTENDING else column for column in labels.columns)

    def lay(table: Tensor | None, dim: int) -> Tensor | None:
        if table is None:
            return None
        zero = table.new_zeros([1 if d == table.dim() + dim else n for d, n in enumerate(table.shape)])
        return torch.cat([table, zero], dim).index_select(dim, _constant(rows, table.device))

    return Tables(
        lay(tables.key, -2), lay(tables.value, -2), lay(tables.query, -2), lay(tables.bias, -1), lay(tables.rows, -1)
    )


def _without(call: Call, by_query: Tensor | None, labels: Virtual) -> Tensor:
    """B with -inf in the columns of pairs that do not attend."""
    query, width = call.query, len(labels.columns) + 1
    if by_query is None:
        by_query = torch.zeros(*query.shape[:3], width, dtype=torch.float32, device=query.device)
    dead = _constant((*labels.columns, 0), query.device) == NOT_ATTENDING
    return by_query.masked_fill(dead, float("-inf"))


_constants: dict[tuple[tuple[int, ...], torch.device], Tensor] = {}


def _constant(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """These numbers as a tensor; cached, because copying them to a GPU synchronizes."""
    if torch.compiler.is_compiling():
        return torch.tensor(numbers, device=device)
    if (numbers, device) not in _constants:
        while len(_constants) >= KEPT_CONSTANTS:
            _constants.pop(next(iter(_constants)))
        with torch.inference_mode(False):
            _constants[numbers, device] = torch.tensor(numbers, device=device)
    return _constants[numbers, device]


def _mass_by_label(mass: Tensor, labels: Virtual, num_labels: int) -> Tensor:
    """Masses by virtual column, ``[..., width + 2]``, summed to masses by label."""
    if labels.columns == tuple(range(num_labels)):
        return mass
    owner = _constant(labels.columns, mass.device)
    return mass @ (owner[:, None] == torch.arange(num_labels, device=mass.device)).to(mass.dtype)
