"""Edges-only attention in Triton: kernels inside the primitive, and the terms of tables in plain torch.

B and C have R columns here: kernels recognise a pair without a label by its id. Masks and causal order become one
number per pair before a kernel starts. The log-sum-exp is to base 2 until it is returned, because a change of base
would round it, and backward could not compute the weights of large scores again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from relgraph.call import Answer, Call
from relgraph.impl import op
from relgraph.impl.listed import Pattern, added_to_pairs, earlier_twins, given_factor
from relgraph.impl.problem import Outputs, Problem
from relgraph.impl.triton.tables import Terms, run, whole_outputs
from relgraph.impl.triton.tiling import edge_tiling
from relgraph.plan import Csr, listed_pairs

LN_2 = 0.6931471805599453

PAIRS = "triton pairs"
"""The name under which the pairs of the kernels are kept with the labels."""


def attend_listed(call: Call) -> Answer:
    """Attention over listed pairs; see :mod:`relgraph.impl.eager.edges` for its meaning."""
    labeled = call.need_mass or any(table is not None for table in call.tables[0])
    output, lse, sums, *_ = run(call, "triton edges", call.tables[0], call.plan.num_labels[0] if labeled else 0)
    return Answer(output, lse * LN_2, (sums,) if call.need_mass else None)


def _forward(problem: Problem) -> Outputs:
    """Output, log-sum-exp to base 2, and sums by label or None; float32."""
    from relgraph.impl.triton import edge_kernels

    terms, shape = Terms(problem), problem.query.shape[:3]
    output = problem.query.new_empty(*shape, problem.value.shape[-1], dtype=torch.float32)
    lse = output.new_empty(shape)
    sums = output.new_empty(*shape, problem.columns) if problem.need_sums else None
    if lse.numel():
        kernel: Any = edge_kernels.forward_kernel  # pyright does not know the launch syntax
        with torch.cuda.device_of(problem.query):
            pairs = _pairs_of(problem)
            kernel[(lse.numel(),)](
                **_arguments(problem, terms), **pairs.by_row(problem), o_ptr=output, lse_ptr=lse, p_ptr=sums
            )
    return terms.with_value_term(Outputs(output, lse, sums, None))


def _backward(problem: Problem, outputs: Outputs, incoming: Outputs) -> list[Tensor | None]:
    terms, outputs = Terms(problem), whole_outputs(outputs)
    plain, grads = terms.without_value_term(outputs), terms.whole_incoming(incoming)
    with torch.cuda.device_of(problem.query):
        of_kernels = _gradients(problem, terms, plain, grads)
    return terms.gradients(of_kernels, outputs, grads)


def _gradients(problem: Problem, terms: Terms, plain: Outputs, grads: Outputs) -> list[Tensor | None]:
    """The gradients of query, key, value, B and C."""
    from relgraph.impl.triton import edge_kernels

    query, key, value = problem.query, problem.key, problem.value
    pairs = _pairs_of(problem)
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value))
    delta = dq.new_empty(query.shape[:3], dtype=torch.float32)
    db, dc = (None if x is None else torch.empty_like(x) for x in (terms.by_query, terms.by_key))
    shared = {
        **_arguments(problem, terms), **_strides("do", grads.output),
        "lse_ptr": plain.lse, "delta_ptr": delta, "do_ptr": grads.output, "dp_ptr": grads.sums,
    }  # fmt: skip
    by_row: Any = edge_kernels.by_row_kernel
    by_key: Any = edge_kernels.by_key_kernel
    if queries := delta.numel():
        by_row[(queries,)](
            **shared, **pairs.by_row(problem), o_ptr=plain.output, p_ptr=plain.sums, dlse_ptr=grads.lse,
            dq_ptr=dq, db_ptr=db,
        )  # fmt: skip
    if keys := dk.shape[:3].numel():
        by_key[(keys,)](**shared, **pairs.by_key(problem), N_k=key.shape[2], dk_ptr=dk, dv_ptr=dv, dc_ptr=dc)
    return [dq, dk, dv, db, dc]


op.plug("triton edges", _forward, _backward, impl="triton", instead="impl='edges' or 'dense'", keeps_plain=True)


class KernelPairs(NamedTuple):
    """Listed pairs as the kernels read them int32: by row, then sorted by key.

    Attributes:
        row_ptr: ``[n + 1]`` where each row's pairs begin; rows are numbered through batch rows if their pairs differ.
        col: ``[P]`` key of each pair, within its batch row.
        label: ``[P]``; -1 no label.
        col_ptr: ``[m + 1]`` where each key's pairs begin, once sorted by key.
        row: ``[P]`` query of each pair in that order, within its batch row.
        label_by_key: ``[P]`` labels in that order.
        pair: ``[P]`` index of each of them in row order.
        again: ``[P]`` how many parallel edges come before each pair, in row order; None if there are none.
        again_by_key: ``[P]`` the same in the order by key.
    """

    row_ptr: Tensor
    col: Tensor
    label: Tensor
    col_ptr: Tensor
    row: Tensor
    label_by_key: Tensor
    pair: Tensor
    again: Tensor | None
    again_by_key: Tensor | None

    def by_row(self, problem: Problem) -> dict[str, Any]:
        """What a kernel over queries reads, and its tiles."""
        tiles = self._tiles(problem, self.row_ptr)
        return {
            "begin_ptr": self.row_ptr, "col_ptr": self.col, "label_ptr": self.label, "again_ptr": self.again,
            **tiles,
        }  # fmt: skip

    def by_key(self, problem: Problem) -> dict[str, Any]:
        """What a kernel over keys reads, and its tiles."""
        return {
            "begin_ptr": self.col_ptr, "row_ptr": self.row, "label_ptr": self.label_by_key, "pair_ptr": self.pair,
            "again_ptr": self.again_by_key,
            **self._tiles(problem, self.col_ptr),
        }  # fmt: skip

    def _tiles(self, problem: Problem, begin: Tensor) -> dict[str, int]:
        degree = self.col.shape[0] / max(begin.shape[0] - 1, 1)
        return edge_tiling(problem.query.shape[-1], problem.value.shape[-1], problem.columns, degree)


def _arguments(problem: Problem, terms: Terms) -> dict[str, Any]:
    """What all three kernels read, by the names of their parameters."""
    query, key, value = map(_dense_rows, (problem.query, problem.key, problem.value))
    heads = query.shape[1]
    added, factor = added_to_pairs(problem), given_factor(problem)
    return {
        "q_ptr": query, "k_ptr": key, "v_ptr": value, "bq_ptr": terms.by_query, "ck_ptr": terms.by_key,
        "added_ptr": added, "factor_ptr": factor, "seed_ptr": problem.seed,
        **_strides("q", query), **_strides("k", key), **_strides("v", value),
        **_strides("bq", terms.by_query), **_strides("ck", terms.by_key),
        "added_lane": _lane_stride(added), "factor_lane": _lane_stride(factor),
        "N_q": query.shape[2], "C": problem.columns,
        "scale": problem.scale, "drop": problem.dropout_p,
        "grow": 1.0 / (1.0 - problem.dropout_p) if problem.dropout_p < 1.0 else 0.0,
        "H": heads, "GROUP": heads // key.shape[1],
        "JOINT": _csr(problem).batch != 1,
        "enable_fp_fusion": True,
    }  # fmt: skip


def _dense_rows(x: Tensor) -> Tensor:
    """``x`` with its last dimension laid out densely, as the kernels read it."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _strides(name: str, x: Tensor | None) -> dict[str, int]:
    """Strides of batch rows, heads and rows; 0 for a tensor that is not there, and where batch rows share all rows."""
    batch, head, row = (0, 0, 0) if x is None else x.stride()[:3]
    batch = 0 if x is None or x.shape[0] == 1 else batch
    return {f"{name}_b": batch, f"{name}_h": head, f"{name}_n": row}


def _lane_stride(x: Tensor | None) -> int:
    """0 where all lanes share the pairs' values."""
    return 0 if x is None or x.shape[0] == 1 else x.stride(0)


def _csr(problem: Problem) -> Csr:
    csr = problem.plan.parts[0].csr
    assert csr is not None
    return csr


def _pairs_of(problem: Problem) -> KernelPairs:
    """The pairs by query and by key, made once for these labels."""
    return problem.memo.once(PAIRS, lambda: _pairs(problem, _csr(problem)))


def _pairs(problem: Problem, csr: Csr) -> KernelPairs:
    plan = problem.plan
    batch, _, _ = listed_pairs(plan, csr)
    col, columns = csr.col + batch * plan.k_len, csr.batch * plan.k_len
    pattern = Pattern.of(csr.row_ptr, csr.row, col, columns)
    row_by_key = pattern.row_by_col % max(plan.q_len, 1)
    made = (csr.row_ptr, csr.col, csr.ids, pattern.col_ptr, row_by_key, csr.ids[pattern.by_col], pattern.by_col)
    pairs: list[Any] = [x.to(torch.int32).contiguous() for x in made]
    again: list[Any] = [None, None]
    if csr.parallel:
        of_pairs = earlier_twins(csr.row, csr.col)
        again = [of_pairs, of_pairs[pattern.by_col].contiguous()]
    return KernelPairs(*pairs, *again)
