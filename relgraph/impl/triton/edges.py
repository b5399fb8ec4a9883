"""Edges-only attention in Triton: kernels inside the primitive, and the terms of tables in plain torch.

B and C have R columns here: kernels recognise a pair without a label by its id. Masks and causal order become one
number per pair before a kernel starts. The log-sum-exp is to base 2 until it is returned, because a change of base
would round it, and backward could not compute the weights of large scores again.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relgraph.call import Answer, Call
from relgraph.impl import op
from relgraph.impl.listed import Pattern, added_to_pairs, earlier_twins, given_factor
from relgraph.impl.problem import Outputs, Problem
from relgraph.impl.triton.tables import Terms, near_rows, run, strides
from relgraph.impl.triton.tiling import edge_tiling
from relgraph.plan import LabelPlan, listed_pairs

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
            by_row, _ = _pairs_of(problem)
            kernel[(lse.numel(),)](
                **_arguments(problem, terms), **by_row.arguments(problem), o_ptr=output, lse_ptr=lse, p_ptr=sums
            )
    return terms.with_value_term(Outputs(output, lse, sums, None))


def _backward(problem: Problem, outputs: Outputs, incoming: Outputs) -> list[Tensor | None]:
    terms = Terms(problem)
    with torch.cuda.device_of(problem.query):
        return terms.gradients(partial(_gradients, problem, terms), outputs, incoming)


def _gradients(problem: Problem, terms: Terms, plain: Outputs, grads: Outputs) -> list[Tensor | None]:
    """The gradients of query, key, value, B and C."""
    from relgraph.impl.triton import edge_kernels

    query, key, value = problem.query, problem.key, problem.value
    by_row, by_key = _pairs_of(problem)
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value))
    delta = dq.new_empty(query.shape[:3], dtype=torch.float32)
    db, dc = (None if x is None else torch.empty_like(x) for x in (terms.by_query, terms.by_key))
    shared = {
        **_arguments(problem, terms),
        "lse_ptr": plain.lse, "delta_ptr": delta, "do_ptr": grads.output, "dp_ptr": grads.sums,
    }  # fmt: skip
    kernels: Any = edge_kernels
    if queries := delta.numel():
        kernels.by_row_kernel[(queries,)](
            **shared, **by_row.arguments(problem), o_ptr=plain.output, p_ptr=plain.sums, dlse_ptr=grads.lse,
            dq_ptr=dq, db_ptr=db,
        )  # fmt: skip
    if keys := dk.shape[:3].numel():
        kernels.by_key_kernel[(keys,)](
            **shared, **by_key.arguments(problem), pair_ptr=by_key.pair, dk_ptr=dk, dv_ptr=dv, dc_ptr=dc
        )
    return [dq, dk, dv, db, dc]


op.plug("triton edges", _forward, _backward, impl="triton", instead="impl='edges' or 'dense'", keeps_plain=True)


class KernelPairs(NamedTuple):
    """Listed pairs as a kernel reads them, int32, sorted by query or by key.

    Attributes:
        begin: ``[n + 1]`` where the pairs of each query (key) begin; these are numbered through batch rows if pairs
            differ.
        other: ``[P]`` key (query) of each pair, within its batch row.
        label: ``[P]``; -1 no label.
        again: ``[P]`` how many parallel edges come before each pair; None if there are none.
        pair: ``[P]`` index of each pair in the order by query.
    """

    begin: Tensor
    other: Tensor
    label: Tensor
    again: Tensor | None
    pair: Tensor

    def arguments(self, problem: Problem) -> dict[str, Any]:
        """What both kinds of kernels read, and their tiles."""
        degree = self.pair.shape[0] / max(self.begin.shape[0] - 1, 1)
        return {
            "begin_ptr": self.begin, "other_ptr": self.other, "label_ptr": self.label, "again_ptr": self.again,
            **edge_tiling(problem.query.shape[-1], problem.value.shape[-1], problem.columns, degree),
        }  # fmt: skip


def _arguments(problem: Problem, terms: Terms) -> dict[str, Any]:
    """What all three kernels read, by the names of their parameters."""
    query, key, value = map(near_rows, (problem.query, problem.key, problem.value))
    heads = query.shape[1]
    added, factor = added_to_pairs(problem), given_factor(problem)
    return {
        "q_ptr": query, "k_ptr": key, "v_ptr": value, "bq_ptr": terms.by_query, "ck_ptr": terms.by_key,
        "added_ptr": added, "factor_ptr": factor, "seed_ptr": problem.seed,
        **strides("q", query), **strides("k", key), **strides("v", value),
        "added_lane": _lane_stride(added), "factor_lane": _lane_stride(factor),
        "N_q": query.shape[2], "N_k": key.shape[2], "C": problem.columns,
        "scale": problem.scale, "drop": problem.dropout_p,
        "grow": 1.0 / (1.0 - problem.dropout_p) if problem.dropout_p < 1.0 else 0.0,
        "H": heads, "GROUP": heads // key.shape[1],
        "JOINT": problem.plan.listed.batch != 1, "PART": problem.seed is not None and problem.seed.numel() > 1,
        "enable_fp_fusion": True,
    }  # fmt: skip


def _lane_stride(x: Tensor | None) -> int:
    """0 where all lanes share the pairs' values."""
    return 0 if x is None or x.shape[0] == 1 else x.stride(0)


def _pairs_of(problem: Problem) -> tuple[KernelPairs, KernelPairs]:
    """The pairs by query and by key, made once for these labels."""
    return problem.memo.once(PAIRS, lambda: _pairs(problem.plan))


def _pairs(plan: LabelPlan) -> tuple[KernelPairs, KernelPairs]:
    csr = plan.listed
    batch, query, key = listed_pairs(plan, csr)
    pattern = Pattern.of(csr.row_ptr, csr.row, key + batch * plan.k_len, csr.batch * plan.k_len)
    again, place = earlier_twins(csr.row, key) if csr.parallel else None, torch.arange(key.shape[0], device=key.device)

    def ordered(begin: Tensor, other: Tensor, order: Tensor | slice) -> KernelPairs:
        made = begin, other[order], csr.ids[order], None if again is None else again[order], place[order]
        pairs: list[Any] = [None if x is None else x.to(torch.int32).contiguous() for x in made]
        return KernelPairs(*pairs)

    return ordered(csr.row_ptr, key, slice(None)), ordered(pattern.col_ptr, query, pattern.by_col)
