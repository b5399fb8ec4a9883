"""Attention by compiled kernels inside the primitive. They take tables; torch makes C, and B where they cannot."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from relgraph.call import Answer, Call, accumulation_dtype
from relgraph.call.call import EdgeVectors
from relgraph.impl import op
from relgraph.impl.eager import dense
from relgraph.impl.native import build
from relgraph.impl.native.check import check_tensors
from relgraph.impl.native.edges import attend_listed
from relgraph.impl.native.problem import (
    PAIRS_PER_NUMBER,
    ProblemStructs,
    dense_rows,
    in_blocks,
    laid_out_as,
)
from relgraph.impl.problem import Outputs, Problem
from relgraph.impl.terms import answer, free_maps, repeat_heads, score_tables, with_zero_row
from relgraph.plan import plain
from relgraph.score import DOT


def attend(call: Call) -> Answer:
    """Attention by kernels; see the module."""
    if call.plan.edges_only:
        return attend_listed(call)
    dtype, sizes = accumulation_dtype(call.query.dtype), call.plan.num_labels
    terms: dict[str, Any] = {**_score_terms(call, dtype), "by_key": _query_tables(call, dtype)}
    if call.value_map is not None:
        terms["value_maps"] = free_maps(call.value_map, dtype)
    if call.gates is not None:  # maps with a diagonal only
        for name, gate in zip(("score_maps", "value_maps"), call.gates, strict=True):
            terms |= {} if gate is None else {name: torch.diag_embed(gate.to(dtype))}
    if call.edge is not None:
        terms |= _vector_terms(call, call.edge, dtype)
    outside, values = (), None
    if any("value" in tables.batched for tables in call.tables):  # the kernels add tables of all batch rows
        outside = call.tables
    else:
        values = _table(call, [part.value for part in call.tables], call.value.shape[-1:])
    need_sums = bool(outside) or values is not None
    outputs = op.run(call, "native", columns=call.plan.columns, need_sums=need_sums, label_values=values, **terms)
    if call.edge is not None and call.edge.value is not None:
        output, of_vectors = outputs.output.split([call.value.shape[-1], call.edge.attr.shape[1]], -1)
        outputs = outputs._replace(output=output + of_vectors @ call.edge.value.to(dtype).mT)
    return answer(call, outputs, outside, sizes)


def _vector_terms(call: Call, edge: EdgeVectors, dtype: torch.dtype) -> dict[str, Any]:
    """The vectors of listed pairs, and what meets them in the score: q·(W_k x) = (W_kᵀ q)·x."""
    queries = None if edge.key is None else call.query.to(dtype) @ edge.key.to(dtype)
    return {
        "vectors": edge.attr.to(dtype), "vector_queries": queries, "vectors_in_value": edge.value is not None
    }  # fmt: skip


def _score_terms(call: Call, dtype: torch.dtype) -> dict[str, Tensor | None]:
    """What labels add to scores by query: tables that the kernels multiply, or B."""
    tables, score = call.tables, call.score
    if score.additive:
        rest = replace(call, score=DOT, tables=tuple(part._replace(key=None) for part in tables))
        keys = _table(call, [part.key for part in tables], call.query.shape[-1:])
        return {**_score_terms(rest, dtype), "score_weights": score.weight.to(dtype), "label_keys": keys}
    if score.by_label:
        return {**_score_terms(replace(call, score=DOT), dtype), "score_maps": score.weight.to(dtype)}
    keys = [part.key for part in tables]
    by_row = any(part.rows is not None or "key" in part.batched or "bias" in part.batched for part in tables)
    if by_row or (not in_blocks(call.plan) and any(key is not None for key in keys)):
        return {"by_query": score_tables(call.query, tables, call.plan.num_labels, call.scale, dtype)}
    biases = [part.bias for part in tables]
    return {"label_keys": _table(call, keys, call.query.shape[-1:]), "label_biases": _table(call, biases, ())}


def _table(call: Call, given: Sequence[Tensor | None], size: Sequence[int]) -> Tensor | None:
    """The tables of all parts as one, ``[rows, *size]`` or ``[H, rows, *size]``; None if no part has one.

    Each part's labels are followed by a row of zeros, for pairs without a label; one part has only its labels.
    """
    dtype = accumulation_dtype(call.query.dtype)
    if len(given) == 1:
        return None if given[0] is None else given[0].to(dtype)
    if all(table is None for table in given):
        return None
    axis = -1 - len(size)
    per_head = any(table is not None and table.dim() == 2 + len(size) for table in given)
    joined = []
    for table, labels in zip(given, call.plan.num_labels, strict=True):
        if table is None:
            rows = call.query.new_zeros(labels + 1, *size, dtype=dtype)
        else:
            rows = with_zero_row(table.to(dtype), axis)
        joined.append(rows.expand(call.query.shape[1], *rows.shape[axis:]) if per_head else rows)
    return torch.cat(joined, axis)


def _query_tables(call: Call, dtype: torch.dtype) -> Tensor | None:
    """C as :func:`~relgraph.impl.terms.query_tables` gives it; in memory all keys of a label follow each other."""
    tables = [part.query for part in call.tables]
    if all(table is None for table in tables):
        return None
    key = repeat_heads(call.key.to(dtype), call.query.shape[1]).transpose(2, 3)
    columns = []
    for table, size in zip(tables, call.plan.num_labels, strict=True):
        if table is None:
            columns.append(key.new_zeros(*key.shape[:2], size + 1, key.shape[3]))
        else:
            columns.append(with_zero_row(table.to(dtype)) * call.scale @ key)
    return (columns[0] if len(columns) == 1 else torch.cat(columns, 2)).transpose(2, 3)


def _forward(problem: Problem) -> Outputs:
    run = _Run(problem)
    dtype, rows = problem.dtype, problem.query.shape[:3]
    width = problem.value.shape[3]
    more = problem.vectors.shape[-1] if problem.vectors is not None and problem.vectors_in_value else 0
    output = laid_out_as(problem.query, width + more, dtype)
    lse = torch.empty(rows, dtype=dtype, device="cpu")
    sums, mass = (
        laid_out_as(problem.query, problem.columns, dtype) if needed else torch.empty(0, dtype=dtype, device="cpu")
        for needed in (problem.need_sums, problem.need_mass)
    )
    struct, held = run.struct, run.held
    struct.output, struct.sums, struct.mass = map(held.tensor, (output[..., :width], sums, mass))
    struct.vector_sums = held.tensor(output[..., width:])
    struct.lse = held.address(lse)
    run.start("forward")
    return Outputs(output, lse, sums, mass)


def _backward(problem: Problem, outputs: Outputs, incoming: Outputs) -> list[Tensor | None]:
    run = _Run(problem)
    dtype, (batch, heads) = problem.dtype, problem.query.shape[:2]
    struct, held = run.struct, run.held
    splits = run.cut_tasks()
    dq = laid_out_as(problem.query, problem.query.shape[3], dtype)
    # dk, dv: [splits, B, H_kv, N_k, D]; dc: [splits, B, H, columns, N_k]
    if splits == 1:
        dk, dv = (laid_out_as(x, x.shape[3], dtype)[None] for x in (problem.key, problem.value))
    else:
        dk, dv = (torch.empty(splits, *x.shape, dtype=dtype, device="cpu") for x in (problem.key, problem.value))
    db = dc = None
    if problem.by_query is not None or (problem.factor_keys is not None and not struct.sliced):
        db = laid_out_as(problem.query, problem.columns, dtype)
    if problem.by_key is not None:
        dc = torch.empty(splits, batch, heads, problem.columns, problem.key.shape[2], dtype=dtype, device="cpu")
    struct.dq, struct.d_by_query = held.tensor(dq), held.tensor(db)
    struct.dk, struct.dv, struct.d_by_key = (held.tensor(None if x is None else x[0]) for x in (dk, dv, dc))
    struct.dk_split, struct.dv_split = dk[0].numel(), dv[0].numel()
    struct.d_by_key_split = 0 if dc is None else dc[0].numel()
    keys, biases, of_keys, by_label = problem.factor_keys, problem.label_biases, None, None
    learned = _Learned(problem)
    learned.make_room(run)
    if keys is not None and struct.sliced:
        of_keys = torch.zeros(run.slots() * splits, heads, *keys.shape[-2:], dtype=dtype, device="cpu")
        struct.d_label_keys = held.tensor(of_keys)
    if biases is not None and (keys is None or struct.sliced):
        if struct.pair_biases.data:
            pairs = torch.zeros(struct.shares, heads, struct.q_len, struct.k_len, dtype=dtype, device="cpu")
            struct.d_pair_biases = held.tensor(pairs)
        groups = (1, heads, 1) if struct.pair_biases.data else (run.slots(), heads, splits)  # then one axis of columns
        by_label = torch.zeros(*groups, problem.columns, dtype=dtype, device="cpu")
        struct.d_label_biases = held.tensor(by_label)
    vectors = _Vectors(problem)
    outputs, incoming = vectors.make_room(run, outputs, incoming)
    half = torch.bfloat16 if struct.half else dtype
    for name, kind in (("output", half), ("sums", dtype), ("mass", dtype)):
        grad, given = getattr(incoming, name), getattr(outputs, name)
        if grad is not None:
            setattr(struct, name, held.tensor(dense_rows(grad, kind)))
            setattr(struct, f"given_{name}", held.tensor(dense_rows(given, given.dtype)))  # hooks may have turned it
    struct.is_backward = 1
    values, of_values = problem.label_values, None
    if values is not None:
        struct.turned_label_values = held.turned_table(values, problem.plan)
        if incoming.output is None:
            of_values = torch.zeros_like(values)
        else:
            struct.d_output = held.tensor(dense_rows(incoming.output, dtype))
            of_values = of_table(outputs.sums, incoming.output.to(dtype), values)
    if incoming.lse is not None:
        struct.d_lse = held.address(incoming.lse.to(dtype).contiguous())
    of_mask = run.room_of_mask()
    run.start("backward")
    grads = [(dq, problem.query), (_joined(dk), problem.key), (_joined(dv), problem.value)]
    by_key = None if dc is None else _joined(dc).transpose(2, 3)  # [B, H, N_k, columns]
    if keys is not None and db is not None:
        of_keys = of_table(db, problem.query.to(dtype), keys).mul_(problem.scale)
        by_label, db = None if biases is None else db, None
    elif of_keys is not None and keys is not None:
        of_keys = of_keys.sum((0, 1)) if keys.dim() == 2 else _joined(of_keys)
    summed = None if biases is None or by_label is None else of_biases(by_label, biases)
    if of_mask is not None and problem.mask is not None:
        of_mask = _joined(of_mask).sum_to_size(problem.mask.shape).to(problem.mask.dtype)
    more = learned.gradients(problem.scale)
    of_tables = [more.get("label_keys", of_keys), of_values, None, summed]
    of_maps = [*(more.get(name) for name in _MAPS), *vectors.gradients()]
    return [*(grad.to(x.dtype) for grad, x in grads), db, by_key, *of_tables, *of_maps, of_mask]


_MAPS = ("value_maps", "score_maps", "score_weights")


class _Learned:
    """The gradients of what replaces the dot product and maps values: the kernels sum them for each slot and split.

    Attributes:
        given: these tensors by name.
        sums: ``[slots · splits, H, rows, numbers]`` for each. That of a^K has a row for each number of a vector.
    """

    def __init__(self, problem: Problem) -> None:
        self.given: dict[str, Tensor] = {}
        self.sums: dict[str, Tensor] = {}
        names = [*_MAPS, *["label_keys"] * (problem.factor_keys is None)]
        for name in names:
            if getattr(problem, name) is not None:
                self.given[name] = getattr(problem, name)

    def make_room(self, run: _Run) -> None:
        """Zeros for the sums, whose addresses the struct gets."""
        struct = run.struct
        for name, x in self.given.items():
            if name == "label_keys":
                rows, numbers, field = struct.size, struct.columns, "d_added_keys"
            elif name == "score_weights":
                rows, numbers, field = 1, struct.size, "d_score_weights"
            else:
                rows, numbers, field = x.shape[-3], x.shape[-1] ** 2, f"d_{name}"
            shape = run.slots() * struct.splits, struct.heads, rows, numbers
            self.sums[name] = sums = torch.zeros(shape, dtype=run.dtype, device="cpu")
            setattr(struct, field, run.held.tensor(sums))

    def gradients(self, scale: float) -> dict[str, Tensor]:
        """The gradient of each tensor."""
        found = {}
        for name, x in self.given.items():
            total = self.sums[name].sum(0)
            if name == "label_keys":
                total = total.mT[:, : x.shape[-2]]
            own = total.shape[0], *x.shape[-3 if name.endswith("maps") else -2 if name == "label_keys" else -1 :]
            total = total.reshape(own)
            if x.dim() < total.dim():  # all heads share it
                total = total.sum(0)
            found[name] = total if name == "value_maps" else total.mul_(scale)
        return found


class _Vectors:
    """The gradients of the vectors of listed pairs, and of what meets them in the score; each None if there is none."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.of_queries: Tensor | None = None
        self.of_vectors: Tensor | None = None

    def make_room(self, run: _Run, outputs: Outputs, incoming: Outputs) -> tuple[Outputs, Outputs]:
        """Room for the gradients; returns the outputs and their gradients without the sums of vectors."""
        problem, struct, held = self.problem, run.struct, run.held
        vectors, queries, width = problem.vectors, problem.vector_queries, problem.value.shape[3]
        if vectors is None:
            return outputs, incoming
        if queries is not None:
            self.of_queries = laid_out_as(queries, queries.shape[3], run.dtype)
            struct.d_vector_queries = held.tensor(self.of_queries)
        if problem.vectors_gradient:
            self.of_vectors = vectors.new_zeros(vectors.shape)
            struct.d_vectors = held.address(self.of_vectors)
            lanes = 1 if struct.parts[0].list_step else struct.batch
            noted = vectors.new_zeros(lanes * struct.heads * vectors.shape[0], 2)
            struct.noted = held.address(noted)
        if not problem.vectors_in_value:
            return outputs, incoming
        if incoming.output is not None:
            struct.vector_sums = held.tensor(dense_rows(incoming.output[..., width:], run.dtype))
            struct.given_vector_sums = held.tensor(dense_rows(outputs.output[..., width:], run.dtype))
            incoming = incoming._replace(output=incoming.output[..., :width])
        return outputs._replace(output=outputs.output[..., :width]), incoming

    def gradients(self) -> list[Tensor | None]:
        """That of the queries, then that of the vectors in the order in which they were given."""
        found = self.of_vectors
        if found is not None:
            found = torch.empty_like(found).index_copy_(0, self.problem.plan.listed.order, found)
        return [self.of_queries, found]


def _twin(problem: Problem) -> Outputs:
    """The result of forward in plain torch, with the dropout of the kernels."""
    if problem.dropout_p > 0.0 and problem.keep is None:
        problem = replace(problem, keep=_kept(problem))
    return dense.outputs(replace(problem, seed=None))


def _kept(problem: Problem) -> Tensor:
    """Which weights the kernels keep: they weigh all keys alike, and each key's value is a direction of its own."""
    (batch, heads, q_len, _), k_len = problem.query.shape, problem.key.shape[2]
    terms = (
        "by_query", "by_key", "label_keys", "label_values", "label_biases", "mask", "causal", "score",
        "vector_queries", "vectors", *_MAPS,
    )  # fmt: skip
    query = problem.query.new_zeros(batch, heads, q_len, 1, dtype=problem.dtype)
    each = torch.eye(k_len, dtype=problem.dtype, device="cpu").expand(batch, 1, -1, -1)
    alike = replace(
        problem, **dict.fromkeys(terms), query=query, key=each[..., :1] * 0, value=each, need_sums=False,
        need_mass=False, vectors_in_value=False, plan=plain(q_len, k_len), columns=1, plan_key=None,
    )  # fmt: skip
    with torch.no_grad():
        return _forward(alike).output != 0


op.plug(
    "native", _forward, _backward, impl="native", instead="impl='dense' or 'reference'", twin=_twin,
    check=check_tensors,
)  # fmt: skip


def of_table(numbers: Tensor, of: Tensor, table: Tensor) -> Tensor:
    """The gradient of a table, whose rows ``numbers`` ``[B, H, N, R]`` multiply, from that of the product."""
    if table.dim() == 2:
        if numbers.stride(1) < numbers.stride(2):  # in the order of memory, so that nothing is copied
            numbers, of = numbers.transpose(1, 2), of.transpose(1, 2)
        return torch.mm(numbers.flatten(0, 2).t(), of.flatten(0, 2)).narrow(0, 0, table.shape[0])
    numbers = numbers[..., : table.shape[-2]]
    by_head = numbers.transpose(0, 1).flatten(1, 2).transpose(1, 2)
    return by_head @ of.transpose(0, 1).flatten(1, 2)


def of_biases(by_label: Tensor, biases: Tensor) -> Tensor:
    """The gradient of biases ``[R]`` or ``[H, R]`` from ``[B, H, N, R]``, that of each query."""
    return by_label.sum((0, 2) if biases.dim() == 2 else (0, 1, 2))[..., : biases.shape[-1]]


def splits_of(struct: Any, tasks: int, most_blocks: int) -> int:
    """Into how many parts backward cuts each graph's blocks, and with them its tasks, so that all threads have work."""
    if tasks >= 4 * struct.threads or tasks % struct.threads == 0:
        return 1
    return max(1, min(struct.threads, most_blocks))


def _joined(splits: Tensor) -> Tensor:
    """The sum over splits; the same tensor if there is one."""
    return splits[0] if splits.shape[0] == 1 else splits.sum(0)


class _Run:
    """One pass of the kernels over a problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.held = ProblemStructs(problem)
        self.struct: ctypes.Structure = self.held.struct
        self.dtype = problem.dtype
        struct = self.struct
        shared = problem.label_biases is not None and problem.factor_keys is None
        if shared and self._can_share() and self._room_for_pairs() >= 1:
            pairs = torch.empty(1, struct.heads, struct.q_len, struct.k_len, dtype=problem.dtype, device="cpu")
            struct.pair_biases = self.held.tensor(pairs)

    def _can_share(self) -> bool:
        """Whether there are several batch rows, all with the same labels."""
        parts = self.held.layout.filled.parts
        same = all(
            not (part.offset_step or part.ids_step or part.list_step)
            for part in parts[: self.struct.num_parts]
        )  # fmt: skip
        return self.struct.batch > 1 and not self.struct.graphs and same

    def _room_for_pairs(self) -> int:
        """How many times the biases of all pairs fit into the memory that they may take."""
        struct = self.struct
        return int(PAIRS_PER_NUMBER * struct.batch * struct.size) // max(struct.k_len, 1)

    def cut_tasks(self) -> int:
        """Decide which tasks backward has, and return the number of splits.

        What adds to the same gradients of pairs is one task, cut into shares; else runs are cut into splits.
        """
        struct, mask = self.struct, self._mask_of_pairs()
        of_biases, threads, struct.shares = bool(struct.pair_biases.data), struct.threads, 1
        shared = of_biases or (mask is not None and mask.shape[0] < struct.batch)
        summed = struct.sliced or any(getattr(self.problem, name) is not None for name in _MAPS)
        struct.shared_runs = int(shared or summed)
        struct.shared_heads = int(mask is not None and mask.shape[1] < struct.heads)
        if not (shared or struct.shared_heads or self.problem.mask_gradient):
            struct.splits = splits_of(struct, struct.runs * struct.kv_heads, self.held.layout.most_blocks)
            if summed and struct.kv_heads < 4 * threads and struct.kv_heads % threads:
                struct.shares = max(1, min(threads, struct.runs))
            return struct.splits
        if not (struct.shared_runs or struct.shared_heads):
            struct.splits = splits_of(struct, struct.runs * struct.kv_heads, self.held.layout.most_blocks)
            return struct.splits
        runs, heads = struct.runs if struct.shared_runs else 1, struct.kv_heads if struct.shared_heads else 1
        tasks = struct.runs // max(runs, 1) * (struct.kv_heads // heads)
        # as few that all threads have the same work, or at least four tasks
        even = min(threads // math.gcd(tasks, threads), -(-4 * threads // max(tasks, 1)))
        most = self._room_for_pairs() if of_biases else runs * heads
        struct.splits, struct.shares = 1, max(1, min(even, runs * heads, most))
        return 1

    def slots(self) -> int:
        """How many gradients of labels there are: one for each share, or for each run."""
        return self.struct.shares if self.struct.shared_runs else self.struct.runs

    def _mask_of_pairs(self) -> Tensor | None:
        """The mask, if it has a number per query and key and needs a gradient."""
        mask = self.problem.mask if self.problem.mask_gradient else None
        return None if mask is None or 1 in mask.shape[2:] else mask

    def room_of_mask(self) -> Tensor | None:
        """Zeros for the gradient of the mask, with a first axis to sum over; None if it needs none."""
        problem, struct = self.problem, self.struct
        if not problem.mask_gradient or problem.mask is None:
            return None
        shape, rooms = [struct.batch, struct.heads, *problem.mask.shape[2:]], 1
        if self._mask_of_pairs() is not None:
            shape, rooms = [*problem.mask.shape], struct.shares
        elif shape[3] == 1:
            shape[2] = struct.q_len
        else:
            rooms = struct.splits
        made = torch.zeros(rooms, *shape, dtype=problem.dtype, device="cpu")
        struct.d_mask, struct.d_mask_key = self.held.tensor(made[0]), int(shape[3] > 1)
        for axis, at in (("batch", 0), ("head", 1), ("row", 2)):
            if shape[at] == 1:
                setattr(struct.d_mask, axis, 0)
        struct.d_mask_room = made[0].numel() if rooms > 1 else 0
        return made

    def start(self, direction: str) -> None:
        """Run forward or backward; outputs are in the struct."""
        struct, held = self.struct, self.held
        dtype = torch.float64 if struct.bytes == 8 else torch.float32
        if struct.panels:
            names = (
                ("turned_keys", "value_rows")
                if direction == "forward"
                else ("turned_keys", "turned_values", "key_rows")
            )
            for name in names:
                size = struct.value_size if "value" in name else struct.size
                numbers = struct.batch * struct.kv_heads * struct.panels * struct.panel * (size + size % 2)
                room = torch.empty(numbers, dtype=torch.bfloat16 if struct.half else dtype, device="cpu")
                setattr(struct, name, held.address(room))
        library = build.kernels().library
        struct.workspace_numbers = library.relgraph_workspace(ctypes.byref(struct))
        struct.workspace = held.address(
            torch.empty(struct.threads * struct.workspace_numbers, dtype=dtype, device="cpu")
        )
        getattr(library, f"relgraph_{direction}")(ctypes.byref(struct))
