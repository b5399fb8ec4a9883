"""Edges-only attention in Triton: kernels inside the primitive, and the terms of tables in plain torch.

B and C have R columns here: kernels recognise a pair without a label by its id. Masks and causal order become one
number per pair before a kernel starts. The log-sum-exp is to base 2 until it is returned, because a change of base
would round it, and backward could not compute the weights of large scores again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from relgraph import score
from relgraph.call import Answer, Call
from relgraph.impl import op
from relgraph.impl.listed import Pattern, added_to_pairs, earlier_twins, given_factor, gradient_of_mask
from relgraph.impl.problem import Outputs, Problem
from relgraph.impl.terms import free_maps, split_batched
from relgraph.impl.triton.labeled_keys import LabeledKeys, Mapped, PairsByLabel, gate_gradient
from relgraph.impl.triton.limits import is_recording, kernels
from relgraph.impl.triton.tables import Terms, run, whole_outputs
from relgraph.impl.triton.tiling import edge_tiling
from relgraph.labels.memory import Memory
from relgraph.plan import Csr, listed_pairs

LN_2 = 0.6931471805599453

PAIRS = "triton pairs"
"""The name under which the pairs of the kernels are kept with the labels."""


def attend_listed(call: Call) -> Answer:
    """Attention over listed pairs; see :mod:`relgraph.impl.eager.edges` for its meaning."""
    (tables,), outside = split_batched(call.tables)
    labeled = call.need_mass or any(table is not None for table in call.tables[0])
    sizes = call.plan.num_labels
    name, columns = kernels("triton edges", call.query), sizes[0] if labeled else 0
    output, lse, _, mass = run(call, name, tables, outside, sizes, columns, **_maps(call))
    return Answer(output, lse * LN_2, (mass,) if call.need_mass else None)


def _maps(call: Call) -> dict[str, Any]:
    """Gates and maps by their names in the problem."""
    maps, gates, score = call.value_map, call.gates, call.score
    return {
        "key_gates": None if gates is None else gates.key,
        "value_gates": None if gates is None else gates.value,
        "value_maps": None if maps is None else free_maps(maps, torch.float32),
        "score_maps": score.weight if score.by_label else None,
    }


def _forward(problem: Problem) -> Outputs:
    """Output, log-sum-exp to base 2, sums after and before dropout; float32, and None for sums that are not needed."""
    from relgraph.impl.triton import edge_kernels

    terms, shape = Terms(problem), problem.query.shape[:3]
    output = problem.query.new_empty(*shape, problem.value.shape[-1], dtype=torch.float32)
    lse = output.new_empty(shape)
    sums = output.new_empty(*shape, problem.columns) if problem.need_sums else None
    mass = output.new_empty(*shape, problem.columns) if problem.need_mass else None
    if lse.numel():
        kernel: Any = edge_kernels.forward_kernel  # pyright does not know the launch syntax
        with torch.cuda.device_of(problem.query):
            pairs, mapped = _pairs_of(problem)
            kernel[(lse.numel(),)](
                **_arguments(problem, terms, mapped), **pairs.by_row(problem),
                o_ptr=output, lse_ptr=lse, p_ptr=sums, mass_ptr=mass,
            )  # fmt: skip
    return terms.with_value_term(Outputs(output, lse, sums, mass))


def _backward(problem: Problem, outputs: Outputs, incoming: Outputs) -> list[Tensor | None]:
    terms, outputs = Terms(problem), whole_outputs(outputs)
    plain, grads = terms.without_value_term(outputs), terms.whole_incoming(incoming)
    with torch.cuda.device_of(problem.query):
        of_kernels, of_maps = _gradients(problem, terms, plain, grads)
    return [*terms.gradients(of_kernels, outputs, grads), *of_maps]


def _gradients(
    problem: Problem, terms: Terms, plain: Outputs, grads: Outputs
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """The gradients of query, key, value, B, C, and those of gates, maps and the mask in their order in a problem."""
    from relgraph.impl.triton import edge_kernels

    query, key, value = problem.query, problem.key, problem.value
    pairs, mapped = _pairs_of(problem)
    dq = torch.empty_like(query, memory_format=torch.contiguous_format)
    if mapped is None:
        dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (key, value))
    else:
        dk, dv = (mapped.empty(x.shape[-1]) for x in (key, value))
    delta = dq.new_empty(query.shape[:3], dtype=torch.float32)
    db = None if terms.by_query is None else torch.empty_like(terms.by_query)
    dc = None if terms.by_key is None else (torch.empty_like if mapped is None else torch.zeros_like)(terms.by_key)
    count, gates = pairs.col.shape[0], (problem.key_gates, problem.value_gates)
    lanes = query.shape[1] * (1 if _csr(problem).batch != 1 else query.shape[0])
    noted = [None if gate is None else delta.new_zeros(lanes, count) for gate in gates]
    added = delta.new_empty(lanes, count) if problem.mask_gradient else None
    stored = any(x is not None for x in (*noted, added))
    shared = {
        **_arguments(problem, terms, mapped), **_strides("do", grads.output),
        "lse_ptr": plain.lse, "delta_ptr": delta, "do_ptr": grads.output, "dp_ptr": grads.sums,
        "dmass_ptr": grads.mass,
    }  # fmt: skip
    by_row: Any = edge_kernels.by_row_kernel
    by_key: Any = edge_kernels.by_key_kernel
    if queries := delta.numel():
        by_row[(queries,)](
            **shared, **pairs.by_row(problem), o_ptr=plain.output, p_ptr=plain.sums, mass_ptr=plain.mass,
            dlse_ptr=grads.lse, dq_ptr=dq, db_ptr=db, ds_ptr=noted[0], kept_ptr=noted[1], dadded_ptr=added,
            N_p=count if stored else 0,
        )  # fmt: skip
    if keys := dk.shape[:3].numel():
        by_key[(keys,)](
            **shared, **pairs.by_key(problem), N_k=key.shape[2], N_own=dk.shape[2], dk_ptr=dk, dv_ptr=dv, dc_ptr=dc
        )  # fmt: skip
    of_maps = _gate_gradients(problem, noted, grads.output)
    if mapped is not None:
        (dk, dv), more = mapped.gradients(dk, dv)
        of_maps += more
    if added is not None:
        of_maps.append(gradient_of_mask(problem, added))
    return [dq, dk, dv, db, dc], of_maps


def _gate_gradients(problem: Problem, noted: list[Tensor | None], incoming: Tensor | None) -> list[Tensor | None]:
    """The gradients of the gates that are given, from the numbers that the pass by row noted."""
    given = zip(
        noted, (problem.query, incoming), (problem.key, problem.value), (problem.key_gates, problem.value_gates),
        strict=True,
    )  # fmt: skip
    csr, found = _csr(problem), []
    for of_pairs, a, b, gate in given:
        if gate is None or of_pairs is None:
            continue
        if a is None:
            found.append(torch.zeros_like(gate))
            continue
        by_label = _memo(problem).once("triton pairs by label", lambda: PairsByLabel.of(problem.plan, csr))
        found.append(
            gate_gradient(problem, by_label, of_pairs, _dense_rows(a), _dense_rows(b), gate, joint=csr.batch != 1)
        )
    return found


op.plug(
    "triton edges", _forward, _backward, impl="triton", instead="impl='edges' or 'dense'", direct=True, keeps_plain=True
)


class KernelPairs(NamedTuple):
    """Listed pairs as the kernels read them, int32: by row, then sorted by key, or by labeled key with maps.

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
        labeled: the labeled keys of maps; else None.
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
    labeled: LabeledKeys | None = None

    def by_row(self, problem: Problem) -> dict[str, Any]:
        """What a kernel over queries reads, and its tiles."""
        tiles = self._tiles(problem, self.row_ptr)
        return {
            "begin_ptr": self.row_ptr, "col_ptr": self.col, "label_ptr": self.label, "again_ptr": self.again,
            "at_ptr": None if self.labeled is None else self.labeled.of_pair, **tiles,
        }  # fmt: skip

    def by_key(self, problem: Problem) -> dict[str, Any]:
        """What a kernel over keys reads, and its tiles."""
        return {
            "begin_ptr": self.col_ptr, "row_ptr": self.row, "label_ptr": self.label_by_key, "pair_ptr": self.pair,
            "again_ptr": self.again_by_key, "key_ptr": None if self.labeled is None else self.labeled.key,
            **self._tiles(problem, self.col_ptr),
        }  # fmt: skip

    def _tiles(self, problem: Problem, begin: Tensor) -> dict[str, int]:
        degree = self.col.shape[0] / max(begin.shape[0] - 1, 1)
        return edge_tiling(problem.query.shape[-1], problem.value.shape[-1], problem.columns, degree)


def _arguments(problem: Problem, terms: Terms, mapped: Mapped | None) -> dict[str, Any]:
    """What all three kernels read, by the names of their parameters."""
    key, value = (problem.key, problem.value) if mapped is None else (mapped.key, mapped.value)
    query, key, value = map(_dense_rows, (problem.query, key, value))
    heads = query.shape[1]
    key_gates, value_gates = (None if x is None else x.contiguous() for x in (problem.key_gates, problem.value_gates))
    added, factor = added_to_pairs(problem), given_factor(problem)
    named, bend = score.encode(problem.score)
    return {
        "q_ptr": query, "k_ptr": key, "v_ptr": value, "bq_ptr": terms.by_query, "ck_ptr": terms.by_key,
        "kg_ptr": key_gates, "vg_ptr": value_gates, "added_ptr": added, "factor_ptr": factor, "seed_ptr": problem.seed,
        **_strides("q", query), **_strides("k", key), **_strides("v", value),
        **_strides("bq", terms.by_query), **_strides("ck", terms.by_key),
        "added_lane": _lane_stride(added), "factor_lane": _lane_stride(factor),
        "kg_h": _head_stride(key_gates), "vg_h": _head_stride(value_gates),
        "MAPS_K": problem.score_maps is not None, "MAPS_V": problem.value_maps is not None,
        "N_q": query.shape[2], "C": problem.columns,
        "scale": problem.scale, "drop": problem.dropout_p, "bend": bend,
        "grow": 1.0 / (1.0 - problem.dropout_p) if problem.dropout_p < 1.0 else 0.0,
        "H": heads, "GROUP": heads // (key.shape[1] if mapped is None else mapped.heads),
        "JOINT": _csr(problem).batch != 1,
        "SCORE": 1 + int(named), "enable_fp_fusion": True,
    }  # fmt: skip


def _dense_rows(x: Tensor) -> Tensor:
    """``x`` with its last dimension laid out densely, as the kernels read it."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _strides(name: str, x: Tensor | None) -> dict[str, int]:
    """Strides of batch rows, heads and rows; 0 for a tensor that is not there, and where batch rows share all rows."""
    batch, head, row = (0, 0, 0) if x is None else x.stride()[:3]
    batch = 0 if x is None or x.shape[0] == 1 else batch
    return {f"{name}_b": batch, f"{name}_h": head, f"{name}_n": row}


def _head_stride(x: Tensor | None) -> int:
    """0 where all heads share a gate."""
    return x.stride(0) if x is not None and x.dim() == 3 else 0


def _lane_stride(x: Tensor | None) -> int:
    """0 where all lanes share the pairs' values."""
    return 0 if x is None or x.shape[0] == 1 else x.stride(0)


def _csr(problem: Problem) -> Csr:
    csr = problem.plan.parts[0].csr
    assert csr is not None
    return csr


def _memo(problem: Problem) -> Memory:
    """What is kept with these labels; a CUDA graph computes it at each replay, when the pairs may differ."""
    return Memory() if is_recording(problem.query.device) else problem.memo


def _pairs_of(problem: Problem) -> tuple[KernelPairs, Mapped | None]:
    """The pairs by query and by key, made once for these labels; and with maps, what they make of keys and values."""
    with_maps = problem.score_maps is not None or problem.value_maps is not None
    pairs = _memo(problem).once(
        f"{PAIRS} with maps" if with_maps else PAIRS, lambda: _pairs(problem, _csr(problem), with_maps)
    )
    return pairs, Mapped(problem, pairs.labeled, joint=_csr(problem).batch != 1) if pairs.labeled else None


def _pairs(problem: Problem, csr: Csr, with_maps: bool) -> KernelPairs:
    plan = problem.plan
    batch, _, _ = listed_pairs(plan, csr)
    col, columns, labeled = csr.col + batch * plan.k_len, csr.batch * plan.k_len, None
    if with_maps:
        labeled = LabeledKeys.of(csr, col, columns, plan.num_labels[0])
        col, columns = labeled.of_pair.long(), labeled.key.shape[0]
    pattern = Pattern.of(csr.row_ptr, csr.row, col, columns)
    row_by_key = pattern.row_by_col % max(plan.q_len, 1)
    made = (csr.row_ptr, csr.col, csr.ids, pattern.col_ptr, row_by_key, csr.ids[pattern.by_col], pattern.by_col)
    pairs: list[Any] = [x.to(torch.int32).contiguous() for x in made]
    again: list[Any] = [None, None]
    if csr.parallel:
        of_pairs = earlier_twins(csr.row, csr.col)
        again = [of_pairs, of_pairs[pattern.by_col].contiguous()]
    return KernelPairs(*pairs, *again, labeled=labeled)
