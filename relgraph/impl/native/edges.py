"""Edges-only attention by the compiled kernels of ``edges.cpp``.

The kernels read a table's row for every pair together with its key and value. With 20 pairs per query and 20 labels
this costs less than a product with all labels, and no tensor has queries · labels numbers. Only row scores and biases
use B, with R columns, and label mass is summed by label: the kernels recognise a pair without a label by its id.

Maps of values and of bilinear scores are multiplied once for each label that occurs among the pairs of a query. No
tensor has pairs · D numbers, nor has one for additive scores, whose activations are computed again in backward.
"""

from __future__ import annotations

import ctypes
from ctypes import c_void_p
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from relgraph.call import Answer, Call, Gates, Tables, accumulation_dtype
from relgraph.impl import op
from relgraph.impl.eager.edges import outputs as outputs_in_torch
from relgraph.impl.listed import added_to_pairs, given_factor, gradient_of_mask
from relgraph.impl.native import build
from relgraph.impl.native.check import check_listed, check_plan, check_rows
from relgraph.impl.native.problem import KeepsAlive, as_long
from relgraph.impl.native.sort import sort_pairs
from relgraph.impl.native.structs import CEdges, CPairs, CTensor
from relgraph.impl.problem import Outputs, Problem
from relgraph.impl.terms import free_maps, split_batched
from relgraph.plan import SORTERS, LabelPlan
from relgraph.score import NAMED, encode

KERNELS = "native edges"
WORDS = 1 << 32
"""Random numbers are below this."""


PAIRS_A_TASK = 4096
"""A task has at least about this many pairs ..."""

PAIRS_A_LABEL = 16
"""... and this many per label (or per row of its map), because each task allocates gradients of the tables and maps."""

TASKS_A_THREAD = 2
"""The number of tasks per thread to aim at, if heads and batch rows are fewer."""

MOST_PARTS = 1 << 24
"""The most numbers in separate gradients of keys and values of all tasks (64 MiB in float32)."""

MOST_PACKED = 1 << 22
"""Up to this many numbers (16 MiB in float32), the keys and values of one head are packed together for a task. More
rows fit into no cache, whether they are packed or not."""

_AXES = {
    "label_keys": 2, "label_values": 2, "label_queries": 2, "key_gates": 2, "value_gates": 2, "value_maps": 3,
    "score_maps": 3, "score_weights": 1, "vector_maps": 2,
}  # fmt: skip
"""What is learned for each head, in the order of a problem, and how many axes it has if all heads share it."""


def attend_listed(call: Call) -> Answer:
    """Attention over listed pairs; see :mod:`relgraph.impl.eager.edges` for its meaning."""
    dtype = accumulation_dtype(call.query.dtype)
    if call.query.dtype != dtype:
        call = replace(call, query=call.query.to(dtype), key=call.key.to(dtype), value=call.value.to(dtype))
    edge, ((inside,), (outside,)) = call.edge, split_batched(call.tables)
    wide, terms = _terms(call, inside)
    by_query, values = _by_query(call, inside, outside), outside.value
    labeled = call.need_mass or by_query is not None or values is not None
    columns = call.plan.num_labels[0] if labeled else 0
    output, lse, sums, mass, _ = op.run(
        wide, KERNELS, columns=columns, need_sums=values is not None, by_query=by_query, **terms
    )
    if edge is not None and edge.value is not None:
        output, of_vectors = output.split([call.value.shape[-1], edge.attr.shape[1]], -1)
        output = output + of_vectors @ edge.value.to(dtype).transpose(-1, -2)
    if values is not None:
        output = output + sums @ values.to(dtype)
    return Answer(output, lse, (mass if call.dropout_p > 0.0 else sums,) if call.need_mass else None)


def _terms(call: Call, tables: Tables) -> tuple[Call, dict[str, Any]]:
    """The tables by name, and the call with edge vectors as further elements of keys: q·(W_k e) = (W_kᵀ q)·e."""
    edge, dtype, score = call.edge, call.query.dtype, call.score
    terms: dict[str, Any] = {}
    for name, table in (("label_keys", tables.key), ("label_values", tables.value), ("label_queries", tables.query)):
        terms[name] = None if table is None else table.to(dtype)
    if call.gates is not None:
        terms |= gates_of(call.gates, dtype)
    if call.value_map is not None:
        terms["value_maps"] = free_maps(call.value_map, dtype)
    if score.replaces_dot:
        terms["score_maps" if score.by_label else "score_weights"] = score.weight.to(dtype)
    if edge is None:
        return call, terms
    terms["vectors"] = edge.attr.to(dtype)
    terms["vectors_in_score"], terms["vectors_in_value"] = edge.key is not None, edge.value is not None
    if edge.key is None:
        return call, terms
    if score.additive:  # inside the activation
        terms |= {"vectors_in_score": False, "vector_maps": edge.key.to(dtype).mT}
        return call, terms
    return replace(call, query=torch.cat([call.query, call.query @ edge.key.to(dtype)], -1)), terms


def gates_of(gates: Gates, dtype: torch.dtype) -> dict[str, Any]:
    """The gates as a problem has them."""
    named = zip(("key_gates", "value_gates"), gates, strict=True)
    return {name: None if gate is None else gate.to(dtype) for name, gate in named}


def _by_query(call: Call, inside: Tables, outside: Tables) -> Tensor | None:
    """B without key tables that the kernels add, ``[B, H, N_q, R]``: scores by row, biases, and batched key tables."""
    query = call.query
    terms = []
    if inside.rows is not None:
        terms.append(inside.rows.to(query.dtype))
    if outside.key is not None:
        terms.append(query @ (outside.key.to(query.dtype) * call.scale).transpose(-1, -2))
    bias = inside.bias if outside.bias is None else outside.bias
    if bias is not None:
        terms.append(bias.to(query.dtype)[..., None, :].expand(*query.shape[:3], -1))
    return sum(terms[1:], terms[0]) if terms else None


class _Listed:
    """Listed pairs as the kernels read them, kept with the labels."""

    def __init__(self, plan: LabelPlan) -> None:
        csr = plan.listed
        check_rows(plan, csr)
        own, rows = csr.batch != 1, csr.row_ptr.shape[0] - 1
        if max(csr.col.shape[0], rows, plan.k_len) >= 1 << 31:
            raise NotImplementedError(f"impl='native' takes less than 2³¹ listed pairs, got {csr.col.shape[0]}")
        given = [as_long(x) for x in (csr.row_ptr, csr.col, csr.ids, csr.order)]
        self.own, self.count = own, csr.col.shape[0]
        narrow = torch.empty(2, self.count, dtype=torch.int32, device="cpu")
        col, ids = (narrow.data_ptr() + 4 * self.count * n for n in range(2))
        self.kept = None if given[0] is csr.row_ptr else given[0], narrow  # problems hold the pairs
        self.struct = CPairs(int(own), self.count, rows, given[0].data_ptr(), col, ids)
        self.pointer = ctypes.pointer(self.struct)
        addresses = (x.data_ptr() for x in given[1:])
        self.longest: int = build.kernels().library.relgraph_edges_prepare(
            self.pointer, *addresses, plan.k_len, plan.parts[0].num_labels
        )
        if self.longest < 0:
            check_plan(plan, csr.batch)  # raises an error that names what does not fit


class EdgeStructs(KeepsAlive):
    """A problem as the kernels read it, and the tensors that it points to."""

    def __init__(self, problem: Problem, *, backward: bool = False) -> None:
        super().__init__()
        kernels, dtype = build.kernels(), problem.dtype
        pairs: _Listed = problem.memo.once(KERNELS, lambda: _Listed(problem.plan))
        self.problem, self.pairs, self.library = problem, pairs, kernels.library
        query, key, value = problem.query, problem.key, problem.value
        self.empty = pairs.count == 0 or 0 in query.shape[:2]  # no pair in any head of a batch row
        batch, heads, q_len, _ = query.shape
        _, kv_heads, k_len, size = key.shape
        threads = torch.get_num_threads()
        self.num_lanes = heads * (1 if pairs.own else batch)
        self.struct = struct = CEdges(
            8 if dtype == torch.float64 else 4, batch, heads, kv_heads, q_len, k_len, size, value.shape[-1],
            problem.columns, 0, pairs.pointer, self.rows_of(query), self.rows_of(key), self.rows_of(value),
        )  # fmt: skip
        if problem.by_query is not None:
            struct.by_query = self.rows_of(problem.by_query)
        if problem.vectors is not None:
            self.fill_vectors(problem.vectors, size)
        self.fill_tables()
        self.fill_added()
        self.fill_score()
        struct.longest, struct.threads, struct.parallel = pairs.longest, threads, kernels.found.parallel
        self.cut()
        struct.workspace_numbers = kernels.library.relgraph_edges_room(ctypes.byref(struct), int(backward))
        struct.workspace = self.address(
            torch.empty(struct.threads * struct.workspace_numbers, dtype=dtype, device="cpu")
        )

    def cut(self) -> None:
        """Cut the work into tasks: heads of batch rows, in stretches of queries if they are fewer than threads."""
        struct, pairs = self.struct, self.pairs
        head = struct.k_len * (struct.size + struct.value_size)  # numbers in its keys and values
        heads = max(struct.batch * struct.kv_heads, 1)  # of all batch rows
        struct.packed, struct.stretches = int(head <= MOST_PACKED), 1
        if struct.threads > 1:
            wanted = -(-TASKS_A_THREAD * struct.threads // heads)
            pairs_of_row = pairs.count // (max(struct.batch, 1) if pairs.own else 1)
            maps = [x.shape[-1] for x in (self.problem.value_maps, self.problem.score_maps) if x is not None]
            most = 1 + pairs_of_row // max(PAIRS_A_TASK, PAIRS_A_LABEL * struct.labels * max(maps, default=1))
            struct.stretches = min(wanted, most, 1 + MOST_PARTS // max(heads * head, 1))
        if not self.problem.vectors_gradient:  # the pass over their gradients cuts its work by threads
            struct.threads = min(struct.threads, heads * struct.stretches)

    def rows(self, width: int) -> Tensor:
        """An empty tensor ``[B, H, N, width]``, with heads next to each other in memory as graph layers use them."""
        batch, heads, length = self.problem.query.shape[:3]
        return torch.empty(batch, length, heads, width, dtype=self.problem.dtype, device="cpu").transpose(1, 2)

    def like(self, x: Tensor) -> Tensor:
        """An empty gradient of queries, keys or values, with their layout in memory if their rows are dense."""
        made = torch.empty_like(x)  # dense rows need not stay so where rows of x overlap
        return made if made.stride(-1) == 1 else torch.empty(x.shape, dtype=self.problem.dtype, device="cpu")

    def fill_tables(self) -> None:
        """The tables that the kernels add."""
        problem, struct = self.problem, self.struct
        struct.labels = problem.plan.parts[0].num_labels
        struct.label_keys = self.table(problem.label_keys)
        struct.label_values = self.table(problem.label_values)
        if problem.label_queries is not None:
            struct.label_queries = self.table(problem.label_queries)
        if problem.key_gates is not None or problem.value_gates is not None:
            struct.key_gates, struct.value_gates = self.table(problem.key_gates), self.table(problem.value_gates)

    def fill_score(self) -> None:
        """The score and the maps; each kind of maps also transposed."""
        problem, struct = self.problem, self.struct
        struct.scale, (kind, struct.score_parameter) = problem.scale, encode(problem.score)
        if problem.score_weights is None:
            struct.score_kind = int(kind) + 1
        else:
            struct.activation = int(kind) - len(NAMED)
            struct.score_weights = self.table(problem.score_weights[..., None, :])
            struct.vector_maps = self.table(None if problem.vector_maps is None else problem.vector_maps.contiguous())
        for name in ("value_maps", "score_maps"):
            maps = getattr(problem, name)
            if maps is not None:
                setattr(struct, name, self.table(maps.contiguous().flatten(-2)))
                setattr(struct, f"turned_{name}", self.table(maps.mT.contiguous().flatten(-2)))

    def fill_vectors(self, given: Tensor, size: int) -> None:
        """Edge vectors, and the numbers of queries that they are multiplied by."""
        problem, struct = self.problem, self.struct
        vectors = given.index_select(0, problem.plan.listed.order)  # each head reads them all, so in order
        struct.attr, struct.attr_stride, struct.edge_size = self.address(vectors), vectors.shape[1], vectors.shape[1]
        if problem.vectors_in_score:
            struct.edge_query = self.rows_of(problem.query[..., size:])

    def fill_added(self) -> None:
        """Masks, causal order and dropout."""
        problem, struct = self.problem, self.struct
        if self.empty:
            return
        if problem.mask is not None or problem.causal is not None:
            struct.added, struct.added_step = self.lanes(added_to_pairs(problem))
        if problem.dropout_p == 0.0:
            return
        if problem.keep is not None:
            struct.factor, struct.factor_step = self.lanes(given_factor(problem))
            return
        assert problem.seed is not None
        struct.seed, struct.origin[:] = int(problem.seed.reshape(-1)[0]), problem.origin
        struct.threshold = int(problem.dropout_p * WORDS)
        struct.kept_factor = 1.0 / (1.0 - problem.dropout_p)

    def empty_sums(self, needed: bool) -> Tensor:
        """Room for sums by label, or for weights by pair."""
        problem, dtype = self.problem, self.problem.dtype
        if not needed:
            return torch.empty(0, dtype=dtype, device="cpu")
        return torch.empty(*problem.query.shape[:3], problem.columns, dtype=dtype, device="cpu")

    def point_to(self, output: Tensor | None, sums: Tensor | None, mass: Tensor | None) -> None:
        """The outputs of forward, or their gradients."""
        problem, struct = self.problem, self.struct
        struct.output = self.rows_of(output)
        if output is not None and problem.vectors_in_value:
            struct.edge_sums = self.rows_of(output[..., struct.value_size :])
        if sums is not None:
            struct.sums = self.rows_of(sums)
        if mass is not None:
            struct.mass = self.rows_of(mass)

    def rows_of(self, x: Tensor | None) -> ctypes.Structure:
        """The struct of a tensor ``[B, H, N, size]``, whose rows are made dense; no data without one."""
        if x is None:
            return CTensor()
        return self.tensor(x if x.stride(3) == 1 else x.contiguous())

    def table(self, x: Tensor | None) -> ctypes.Structure:
        """The struct of a table ``[R, size]``, which serves all heads, or ``[H, R, size]``; no data without one."""
        if x is None or x.numel() == 0:
            return CTensor()
        x = x if x.stride(-1) == 1 else x.contiguous()
        return CTensor(self.address(x), 0, x.stride(0) if x.dim() == 3 else 0, x.stride(-2))

    def lanes(self, x: Tensor | None) -> tuple[int | None, int]:
        """A tensor ``[L or 1, P]`` and the step from one lane to the next."""
        if x is None:
            return None, 0
        return self.address(x), x.stride(0) if x.shape[0] > 1 else 0


def _forward(problem: Problem) -> Outputs:
    filled = EdgeStructs(problem)
    struct, rows, dtype = filled.struct, problem.query.shape[:3], problem.dtype
    width = struct.value_size
    output = filled.rows(width + (struct.edge_size if problem.vectors_in_value else 0))
    lse = torch.empty(rows, dtype=dtype, device="cpu")
    sums, mass = filled.empty_sums(problem.need_sums), filled.empty_sums(problem.need_mass)
    if filled.empty:
        return Outputs(output.zero_(), lse.fill_(float("-inf")), sums.zero_(), mass.zero_())
    filled.point_to(output, sums if problem.need_sums else None, mass if problem.need_mass else None)
    struct.lse = lse.data_ptr()
    filled.library.relgraph_edges_forward(ctypes.byref(struct))
    return Outputs(output, lse, sums, mass)


def _backward(problem: Problem, _: Outputs, incoming: Outputs) -> list[Tensor | None]:
    """The gradients. Weights are computed again, so backward needs no outputs."""
    filled = EdgeStructs(problem, backward=True)
    struct, dtype, pairs, size = filled.struct, problem.dtype, filled.pairs, problem.key.shape[-1]
    filled.point_to(*(None if x is None else x.to(dtype) for x in (incoming.output, incoming.sums, incoming.mass)))
    if incoming.lse is not None:
        struct.lse = filled.address(incoming.lse.contiguous())
    dq, dk, dv = (filled.like(x) for x in (problem.query, problem.key, problem.value))  # dq: [B, H, N_q, D + F]
    struct.dq, struct.dk, struct.dv = map(filled.rows_of, (dq, dk, dv))
    db = None if problem.by_query is None else torch.empty(problem.by_query.shape, dtype=dtype, device="cpu")
    struct.d_by_query = filled.rows_of(db)
    if problem.vectors_in_score:
        struct.d_edge_query = filled.rows_of(dq[..., size:])
    d_vectors = None
    if problem.vectors_gradient and problem.vectors is not None:
        d_vectors = torch.empty(problem.vectors.shape, dtype=dtype, device="cpu")
        struct.d_attr = filled.address(d_vectors)
        struct.noted = filled.address(torch.empty(filled.num_lanes, pairs.count, 2, dtype=dtype, device="cpu"))
    d_added = None
    if problem.mask_gradient:
        d_added = torch.empty(filled.num_lanes, pairs.count, dtype=dtype, device="cpu")
        struct.d_added = filled.address(d_added)
    learned = {}
    for name, axes in _AXES.items():
        x = getattr(problem, name)
        if x is not None:
            # [H, R, D], also of what all heads share, which is summed below
            learned[name] = made = torch.empty(struct.heads, *x.shape[-axes:], dtype=dtype, device="cpu")
            setattr(struct, f"d_{name}", CTensor(filled.address(made), 0, made.stride(0), 0))
    if learned:
        numbers = struct.batch * struct.stretches * sum(made.numel() for made in learned.values())
        struct.label_parts = filled.address(torch.empty(numbers, dtype=dtype, device="cpu"))
    if struct.stretches > 1:
        parts = struct.stretches - 1, struct.batch, struct.kv_heads, struct.k_len, size + struct.value_size
        struct.key_parts = filled.address(torch.empty(parts, dtype=dtype, device="cpu"))
    if filled.empty:
        for made in (dq, dk, dv, db, *learned.values(), d_vectors, d_added):
            if made is not None:
                made.zero_()
    else:
        filled.library.relgraph_edges_backward(ctypes.byref(struct))
    of_learned = [
        made.sum(0) if getattr(problem, name).dim() == _AXES[name] else made for name, made in learned.items()
    ]
    if d_vectors is not None:
        d_vectors = torch.empty_like(d_vectors).index_copy_(0, problem.plan.listed.order, d_vectors)
    d_mask = None if d_added is None else gradient_of_mask(problem, d_added)
    return [dq, dk, dv, db, *of_learned, d_vectors, d_mask]


def _twin(problem: Problem) -> Outputs:
    """The same in plain torch, with the same dropout."""
    if problem.dropout_p == 0.0:
        return outputs_in_torch(problem, None)
    if problem.keep is not None:
        return outputs_in_torch(problem, given_factor(problem))
    filled = EdgeStructs(problem)
    factors = torch.empty(filled.num_lanes, filled.pairs.count, dtype=problem.dtype, device="cpu")
    filled.library.relgraph_edges_factors(ctypes.byref(filled.struct), c_void_p(factors.data_ptr()))
    return outputs_in_torch(problem, factors)


op.plug(
    KERNELS, _forward, _backward, impl="native", instead="impl='edges' or 'dense'", twin=_twin,
    check=check_listed,
)  # fmt: skip
SORTERS["cpu"] = sort_pairs
