"""Edges-only attention in Triton: kernels inside the primitive, and the terms of tables in plain torch.

B and C have R columns here: kernels recognise a pair without a label by its id. Masks and causal order become one
number per pair before a kernel starts. The log-sum-exp is to base 2 until it is returned, because a change of base
would round it, and backward could not compute the weights of large scores again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from relgraph.call import Answer, Call
from relgraph.impl import op
from relgraph.impl.listed import Pattern, added_to_pairs, earlier_twins, given_factor
from relgraph.impl.problem import Outputs, Problem
from relgraph.impl.terms import split_batched
from relgraph.impl.triton import capture
from relgraph.impl.triton.limits import kernels
from relgraph.impl.triton.outer import Outer
from relgraph.impl.triton.tables import Terms, whole_outputs
from relgraph.labels.memory import Memory
from relgraph.plan import Csr, listed_pairs

LN_2 = 0.6931471805599453

PAIRS = "triton pairs"
"""The name under which the pairs of the kernels are kept with the labels."""


def attend_listed(call: Call) -> Answer:
    """Attention over listed pairs; see :mod:`relgraph.impl.eager.edges` for its meaning."""
    (tables,), outside = split_batched(call.tables)
    labeled = call.need_mass or any(table is not None for table in call.tables[0])
    columns = call.plan.num_labels[0] if labeled else 0
    outer = Outer(call, outside, call.plan.num_labels, columns)
    rows = None if tables.rows is None else tables.rows.float()
    output, lse, sums, mass, _ = op.run(
        call, kernels("triton edges", call.query), outer.by_query(rows), outer.by_key(), columns=columns,
        need_sums=tables.value is not None or outer.has_values, seed_device=call.query.device,
        extras=op.Extras(tables.key, tables.value, tables.query, tables.bias),
    )  # fmt: skip
    output = outer.with_value_term(output, sums)
    masses = (mass if call.dropout_p > 0.0 else sums,) if call.need_mass else None
    return Answer(output, lse * LN_2, masses)


def _forward(problem: Problem) -> Outputs:
    from relgraph.impl.triton import edge_kernels

    terms = Terms(problem)
    return terms.with_value_term(edge_kernels.forward(_edge_problem(problem, terms)))


def _backward(problem: Problem, outputs: Outputs, incoming: Outputs) -> list[Tensor | None]:
    from relgraph.impl.triton import edge_kernels

    terms = Terms(problem)
    outputs = whole_outputs(outputs)
    plain = terms.without_value_term(outputs)
    grads = terms.whole_incoming(incoming)
    found = edge_kernels.backward(_edge_problem(problem, terms), plain, grads)
    return terms.gradients(found, outputs, grads)


op.plug(
    "triton edges", _forward, _backward, impl="triton", instead="impl='edges' or 'dense'", direct=True, keeps_plain=True
)


def _edge_problem(problem: Problem, terms: Terms) -> Any:
    """The problem as kernels take it."""
    from relgraph.impl.triton import edge_kernels

    csr = _csr(problem)
    # a CUDA graph computes this at each replay, when the pairs may differ
    memo = Memory() if capture.is_recording(problem.query.device) else problem.memo
    pairs = memo.once(PAIRS, lambda: edge_kernels.KernelPairs(*_pairs(problem, csr)))
    rows = *map(_dense_rows, (problem.query, problem.key, problem.value)), terms.by_query, terms.by_key
    return edge_kernels.EdgeProblem(
        problem, rows, pairs, csr.batch != 1, added_to_pairs(problem), given_factor(problem)
    )  # fmt: skip


def _dense_rows(x: Tensor | None) -> Tensor | None:
    """``x`` with its last dimension laid out densely, as the kernels read it."""
    return x if x is None or x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _csr(problem: Problem) -> Csr:
    csr = problem.plan.parts[0].csr
    assert csr is not None
    return csr


def _pairs(problem: Problem, csr: Csr) -> list[Any]:
    """The pairs by query and by key, int32, in the order of :class:`~relgraph.impl.triton.edge_kernels.KernelPairs`."""
    plan = problem.plan
    batch, _, _ = listed_pairs(plan, csr)
    pattern = Pattern.of(csr.row_ptr, csr.row, csr.col + batch * plan.k_len, csr.batch * plan.k_len)
    row_by_key = pattern.row_by_col % max(plan.q_len, 1)
    made = (csr.row_ptr, csr.col, csr.ids, pattern.col_ptr, row_by_key, csr.ids[pattern.by_col], pattern.by_col)
    pairs = [x.to(torch.int32).contiguous() for x in made]
    if not csr.parallel:
        return [*pairs, None, None]
    again = earlier_twins(csr.row, csr.col)
    return [*pairs, again, again[pattern.by_col].contiguous()]
