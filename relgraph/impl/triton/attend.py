"""Fused attention in Triton: kernels inside the primitive, and the terms of tables in plain torch.

If labels are a function of the distance, tables are first laid out by distance (*virtual* columns): a label that
several distances share then has several rows, and the kernels find a pair's column by subtraction.
"""

from __future__ import annotations

import torch
from torch import Tensor

from relgraph.call import Answer, Call, Tables
from relgraph.impl import op
from relgraph.impl.problem import Outputs, Problem
from relgraph.impl.terms import split_batched, split_mass, with_zero_row
from relgraph.impl.triton import capture
from relgraph.impl.triton.edges import attend_listed
from relgraph.impl.triton.limits import kernels
from relgraph.impl.triton.outer import Outer
from relgraph.impl.triton.tables import Terms, joined
from relgraph.impl.triton.virtual import Virtual, virtual_of
from relgraph.labels.memory import Memory
from relgraph.plan import NOT_ATTENDING


def attend(call: Call) -> Answer:
    """Attention by kernels; see the module."""
    if call.plan.edges_only:
        return attend_listed(call)
    sizes, by_distance = call.plan.num_labels, virtual_of(call.plan)
    inside, outside = split_batched(call.tables)
    if by_distance is not None:
        tables, columns = _laid_out(inside[0], by_distance, sizes[0]), by_distance.width + 2
        outer = Outer(call, (_laid_out(outside[0], by_distance, sizes[0]),), (columns,), columns)
    else:
        heads = call.query.shape[1]
        key, value, query = (joined(list(kind), sizes, heads) for kind in list(zip(*inside, strict=True))[:3])
        bias, rows = (joined(list(kind), sizes, heads, -1) for kind in list(zip(*inside, strict=True))[3:])
        tables, columns = Tables(key, value, query, bias, rows), call.plan.columns
        outer = Outer(call, outside, sizes, columns)
    output, lse, sums, mass, _ = op.run(
        call, kernels("triton", call.query), columns=columns, need_sums=tables.value is not None or outer.has_values,
        seed_device=call.query.device, recorded=by_distance is not None,
        by_query=outer.by_query(_rows(tables.rows, columns)), by_key=outer.by_key(),
        label_keys=tables.key, label_values=tables.value, label_queries=tables.query, label_biases=tables.bias,
    )  # fmt: skip
    output = outer.with_value_term(output, sums)
    if not call.need_mass:
        return Answer(output, lse)
    mass = mass if call.dropout_p > 0.0 else sums
    found = split_mass(mass, sizes) if by_distance is None else (_mass_by_label(mass, by_distance, sizes[0]),)
    return Answer(output, lse, found)


def _rows(rows: Tensor | None, columns: int) -> Tensor | None:
    """Given scores by row, with a number for every column."""
    if rows is None:
        return None
    return rows.float() if rows.shape[-1] == columns else with_zero_row(rows.float(), -1)


def _forward(problem: Problem) -> Outputs:
    from relgraph.impl.triton import launch

    return launch.forward(problem, _terms(problem))


def _backward(problem: Problem, outputs: Outputs, incoming: Outputs) -> list[Tensor | None]:
    from relgraph.impl.triton import launch

    return launch.backward(problem, _terms(problem), outputs, incoming)


op.plug(
    "triton", _forward, _backward, impl="triton", instead="impl='dense' or 'reference'", direct=True, keeps_plain=True
)


def _terms(problem: Problem) -> Terms:
    by_distance = virtual_of(problem.plan)
    if by_distance is None or NOT_ATTENDING not in by_distance.columns:
        return Terms(problem)
    columns = _constant(by_distance.columns, problem.query.device)
    return Terms(problem, columns == NOT_ATTENDING)


def _laid_out(tables: Tables, labels: Virtual, num_labels: int) -> Tables:
    """Tables with a row for every virtual column; zeros where a pair has no label."""
    if labels.columns == tuple(range(num_labels)) or all(table is None for table in tables):
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


_constants = Memory()
_recorded: dict[tuple[tuple[int, ...], torch.device], Tensor] = {}  # replays of a CUDA graph read them, so they stay


def _constant(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """These numbers as a tensor; cached, because copying them to a GPU synchronizes."""
    if torch.compiler.is_compiling():
        return torch.tensor(numbers, device=device)
    found = _constants.once((numbers, device), lambda: torch.tensor(numbers, device=device))
    if capture.is_recording(device):
        _recorded[numbers, device] = found
    return found


def _mass_by_label(mass: Tensor, labels: Virtual, num_labels: int) -> Tensor:
    """Masses by virtual column, ``[B, H, N, width + 2]``, summed to masses by label."""
    if labels.columns == tuple(range(num_labels)):
        return mass
    owner = _constant(labels.columns, mass.device)
    return mass @ (owner[:, None] == torch.arange(num_labels, device=mass.device)).to(mass.dtype)
