"""Fused attention in Triton: kernels inside the primitive, and the terms of tables in plain torch.

If labels are a function of the distance, tables are first reordered by distance (*virtual* columns): a label that
several distances share then has several rows, and the kernels find a pair's column by subtraction.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from relgraph.call import Answer, Call, Tables
from relgraph.impl import op
from relgraph.impl.problem import Outputs, Problem
from relgraph.impl.terms import split_mass, with_zero_row
from relgraph.impl.triton.edges import attend_listed
from relgraph.impl.triton.tables import Terms, joined, run
from relgraph.impl.triton.virtual import Virtual, constant, virtual_of
from relgraph.plan import NOT_ATTENDING


def attend(call: Call) -> Answer:
    """Attention by kernels; see the module."""
    if call.plan.edges_only:
        return attend_listed(call)
    sizes, by_distance = call.plan.num_labels, virtual_of(call.plan)
    if by_distance is not None:
        tables, columns = _by_column(call.tables[0], by_distance, sizes[0]), by_distance.width + 2
    else:
        kinds, heads = list(zip(*call.tables, strict=True)), call.query.shape[1]
        tables = Tables(*(joined(kind, sizes, heads, -2 if n < 3 else -1) for n, kind in enumerate(kinds)))
        columns = call.plan.columns
    output, lse, sums, *_ = run(call, "triton", tables, columns)
    if not call.need_mass:
        return Answer(output, lse)
    found = split_mass(sums, sizes) if by_distance is None else (_mass_by_label(sums, by_distance, sizes[0]),)
    return Answer(output, lse, found)


def _forward(problem: Problem) -> Outputs:
    from relgraph.impl.triton import launch

    return launch.forward(problem, Terms(problem, _dead(problem)))


def _backward(problem: Problem, outputs: Outputs, incoming: Outputs) -> list[Tensor | None]:
    from relgraph.impl.triton import launch

    terms = Terms(problem, _dead(problem))
    return terms.gradients(partial(launch.backward, problem, terms), outputs, incoming)


op.plug("triton", _forward, _backward, impl="triton", instead="impl='dense' or 'reference'", keeps_plain=True)


def _dead(problem: Problem) -> Tensor | None:
    """Which columns are of pairs that do not attend, if there are any."""
    by_distance = virtual_of(problem.plan)
    if by_distance is None or NOT_ATTENDING not in by_distance.columns:
        return None
    return constant(by_distance.columns, problem.query.device) == NOT_ATTENDING


def _by_column(tables: Tables, labels: Virtual, num_labels: int) -> Tables:
    """Tables with a row for every virtual column; zeros where a pair has no label."""
    if labels.columns == tuple(range(num_labels)) or all(table is None for table in tables):
        return tables
    rows = tuple(num_labels if column == NOT_ATTENDING else column for column in labels.columns)

    def reordered(table: Tensor | None, dim: int) -> Tensor | None:
        if table is None:
            return None
        return with_zero_row(table, dim).index_select(dim, constant(rows, table.device))

    return Tables(*(reordered(table, -2 if n < 3 else -1) for n, table in enumerate(tables)))


def _mass_by_label(mass: Tensor, labels: Virtual, num_labels: int) -> Tensor:
    """Masses by virtual column, ``[B, H, N, width + 2]``, summed to masses by label."""
    if labels.columns == tuple(range(num_labels)):
        return mass
    owner = constant(labels.columns, mass.device)
    return mass @ (owner[:, None] == torch.arange(num_labels, device=mass.device)).to(mass.dtype)
