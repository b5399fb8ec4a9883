"""A problem as the compiled kernels read it: structs filled from tensors."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from ctypes import c_int32, c_int64
from typing import Any

import torch
from torch import Tensor

from relgraph import score
from relgraph.impl.native import build
from relgraph.impl.native.check import check_plan, rows_of_tables
from relgraph.impl.native.structs import CPart, CProblem, CTensor
from relgraph.impl.problem import Problem
from relgraph.plan import DistanceIds, LabelPlan, Part, WrittenIds, encode

SCORES = 1 << 18
"""The target number of scores per block of rows: 1 MiB in float32, which stays in the second-level cache."""

MOST_ROWS, FEWEST_ROWS = 64, 8
"""Bounds on the rows of a block; both are even, because bfloat16 products take pairs of rows."""

PANEL, FEWEST_KEYS = 512, 512
"""Keys per panel. With fewer keys float32 uses no panels, because keys must be transposed before they enter panels."""

STEP = 64
"""Without panels oneDNN's product sums values in float32, for multiples of this many keys and whole blocks of rows.

It writes machine code for every shape that it meets, so the number of shapes must not grow with the number of keys;
BLAS computes the rest.
"""

FEWEST_QUERIES = {torch.float32: 96, torch.bfloat16: 24}
"""With fewer queries than this, BLAS is faster than panels, in bfloat16 after a conversion to float32."""

MOST_COLUMNS = 512
"""With more labels torch makes B, because a block's part of it would leave the cache.

Labels by distance are the exception, see LONG_TABLE.
"""

LONG_TABLE = 96
"""With more labels by distance a block multiplies only the rows of the table that it reads, instead of all of them."""

PAIRS_PER_NUMBER = 0.5
"""Biases of all pairs are written out if they are at most this many times the numbers of all queries.

They are written once for all batch rows that share their labels, H · N_q · N_k numbers, and again for their gradients.
"""

FARTHEST = 1 << 61
"""The bound on offsets: beyond it all keys are equally far, and sums of offsets and lengths fit into 64 bits."""


class KeepsAlive:
    """Tensors and numbers that a struct points to; they live as long as this object."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def address(self, x: Tensor) -> int:
        """Where the numbers of ``x`` are; it is kept from now on."""
        self._kept.append(x)
        return x.data_ptr()

    def forget(self, plan: LabelPlan) -> None:
        """Do not keep the plan's own tensors: this object goes with them, and problems hold the plan."""
        own = set(map(id, encode(plan)[0]))
        self._kept = [x for x in self._kept if id(x) not in own]

    def numbers_kept(self) -> list[Any]:
        """All that is kept but tensors."""
        return [x for x in self._kept if not isinstance(x, Tensor)]

    def long(self, x: Tensor) -> int:
        """The address of ``x`` as int64."""
        return self.address(as_long(x))

    def tensor(self, x: Tensor | None) -> ctypes.Structure:
        """The struct of ``[B, H, N, D]``, kept, whose last axis is dense; no data for None and for no numbers."""
        if x is None or x.numel() == 0:
            return CTensor()
        self._kept.append(x)
        batch, head, row, _ = x.stride()
        return CTensor(x.data_ptr(), batch, head, row)

    def numbers(self, numbers: Sequence[int], kind: type[c_int32 | c_int64] = c_int64) -> int:
        """The address of these numbers, written out."""
        array = (kind * len(numbers))(*numbers)
        self._kept.append(array)
        return ctypes.addressof(array)

    def offsets(self, offset: int | Tensor) -> tuple[int, int]:
        """Where the offsets of all batch rows or graphs are, and the step from one to the next; 0 if there is one."""
        if isinstance(offset, Tensor):
            return self.long(offset.reshape(-1).clamp(-FARTHEST, FARTHEST)), int(offset.numel() > 1)
        return self.numbers([min(max(offset, -FARTHEST), FARTHEST)]), 0


def as_long(x: Tensor) -> Tensor:
    """``x`` as dense int64; the same tensor if it is."""
    return x if x.dtype == torch.int64 and x.is_contiguous() else x.to(torch.int64).contiguous()


class PlanStructs(KeepsAlive):
    """Everything that depends only on the labels: their parts, and the rows of all graphs cut into blocks."""

    def __init__(self, plan: LabelPlan, batch: int) -> None:
        super().__init__()
        check_plan(plan, batch)
        if plan.q_ptr is None or plan.k_ptr is None:
            queries, keys = [plan.q_len] * batch, [plan.k_len] * batch
            order = range(batch)
        else:
            queries, keys = plan.q_ptr.diff().tolist(), plan.k_ptr.diff().tolist()
            # costly graphs first, so that no thread begins one when the others have finished
            order = sorted(range(len(queries)), key=lambda g: -queries[g] * keys[g])
        most_keys = max([1, *keys])
        rows = min(max(SCORES // most_keys // 2 * 2, FEWEST_ROWS), MOST_ROWS)
        if max([0, *queries]) <= FEWEST_ROWS:
            rows = FEWEST_ROWS  # for any number of keys
        found, ptr = [], [0]
        for graph in order:
            count = queries[graph]
            found += [(graph, first, min(rows, count - first)) for first in range(0, count, rows)]
            ptr.append(len(found))
        self.most_blocks = max((b - a for a, b in itertools.pairwise(ptr)), default=0)
        parts = (CPart * len(plan.parts))(*map(self._part, plan.parts, plan.starts))
        table = list(itertools.chain.from_iterable(found))
        self.filled = CProblem(
            num_parts=len(parts), parts=parts, blocks=self.numbers(table), num_blocks=len(found), block_rows=rows,
            block_ptr=self.numbers(ptr), runs=len(ptr) - 1, most_keys=most_keys, batch=batch,
            run_graphs=self.numbers([*order]),
            q_len=plan.q_len, k_len=plan.k_len, columns=plan.columns, label_rows=rows_of_tables(plan), shares=1,
        )  # fmt: skip
        if plan.q_ptr is not None and plan.k_ptr is not None:
            self.filled.graphs = len(queries)
            self.filled.q_ptr, self.filled.k_ptr = self.long(plan.q_ptr), self.long(plan.k_ptr)
        self.forget(plan)

    def _part(self, part: Part, first_column: int) -> ctypes.Structure:
        made = CPart(num_labels=part.num_labels, first_column=first_column, full=int(part.complete))
        made.offsets, made.offset_step = self.offsets(part.offset)
        if isinstance(part.ids, DistanceIds):
            made.first_distance, made.lookup_length = part.ids.first, len(part.ids.lookup)
            made.affine = int(_goes_up(part.ids.lookup[1:-1]))
            made.lookup = self.numbers(part.ids.lookup, c_int32)
        else:
            assert isinstance(part.ids, WrittenIds)
            ids = part.ids.ids.contiguous()
            made.ids, made.id_bytes = self.address(ids), ids.element_size()
            made.ids_step = ids[0].numel() if ids.dim() == 3 and ids.shape[0] > 1 else 0
            if part.ids.starts is not None:
                made.starts = self.long(part.ids.starts)
        if part.csr is not None:
            csr = part.csr
            made.row_ptr, made.col, made.listed = map(self.long, (csr.row_ptr, csr.col, csr.ids))
            made.role = self.address(csr.role.contiguous())
            made.list_step = csr.row_ptr.shape[0] // csr.batch if csr.batch > 1 else 0
        return made


def _goes_up(ids: Sequence[int]) -> bool:
    """Whether the ids go up one by one."""
    return all(id_ >= 0 and id_ == ids[0] + s for s, id_ in enumerate(ids))


def in_blocks(plan: LabelPlan) -> bool:
    """Whether blocks multiply queries by key tables: labels are few, or by distance, so that a block reads few."""
    return plan.columns <= MOST_COLUMNS or _by_distance_alone(plan)


def _by_distance_alone(plan: LabelPlan) -> bool:
    one = plan.parts[0]
    return len(plan.parts) == 1 and isinstance(one.ids, DistanceIds) and one.csr is None


_TERMS = ("by_query", "by_key", "label_keys", "label_values", "label_biases")
_MAPS = ("value_maps", "score_maps", "score_weights")
_OPERANDS = ("query", "key", "value", *_TERMS, *_MAPS, "vector_queries")


_ONE_ROW = ("label_biases", "score_weights")
"""Those without an axis of labels or queries."""


class _Form(KeepsAlive):
    """What all problems of one form share: a struct without addresses of operands, masks and outputs.

    Attributes:
        filled: the struct.
        layout: the part that follows from the labels.
        given: the place and the name of each operand that has elements.
    """

    def __init__(self, problem: Problem, operands: Sequence[Tensor | None], layout: PlanStructs, *, half: bool) -> None:
        super().__init__()
        self.layout = layout
        self.filled = struct = CProblem.from_buffer_copy(layout.filled)
        heads = problem.query.shape[1]
        struct.bytes, struct.half = problem.dtype.itemsize, int(half)
        struct.heads, struct.kv_heads = heads, problem.key.shape[1]
        struct.size, struct.value_size = problem.query.shape[3], problem.value.shape[3]
        struct.scale = problem.scale
        self.given: list[tuple[int, str]] = []
        for at, (name, x) in enumerate(zip(_OPERANDS, operands, strict=True)):
            if x is None or x.numel() == 0:
                continue
            self.given.append((at, name))
            shown = x if x.dim() == 4 else for_all_heads(x[..., None, :] if name in _ONE_ROW else x, heads)
            setattr(struct, name, CTensor(0, *shown.stride()[:3]))
        kind, struct.score_parameter = score.encode(problem.score)
        if problem.score_weights is None:
            struct.score_kind = int(kind) + 1
        else:
            struct.activation = int(kind) - len(score.NAMED)
        self._products(problem)

    def _products(self, problem: Problem) -> None:
        """Which products of torch the kernels use, and how they divide the keys for them."""
        struct, found = self.filled, build.kernels().found
        struct.parallel, struct.gemm = found.parallel, found.gemm[struct.bytes]
        few = few_queries(problem.plan, problem.query)
        single = struct.bytes == 4 and not struct.half and not few and found.blocked is not None
        if struct.half or single:
            struct.blocked, struct.blocked_half, struct.release = found.blocked, found.blocked_half, found.release
        if single:
            struct.step = STEP
        if struct.half or (single and struct.k_len >= FEWEST_KEYS):
            struct.panel = min(PANEL, max(-(-struct.k_len // 64), 1) * 64)
            struct.panels = -(-struct.k_len // struct.panel)


def may_need_panels(plan: LabelPlan, query: Tensor, *, any_keys: bool) -> bool:
    """Whether a problem in float32 is computed by panels, with its keys or with any number of them."""
    return query.dtype is torch.float32 and not few_queries(plan, query) and (any_keys or plan.k_len >= FEWEST_KEYS)


def few_queries(plan: LabelPlan, query: Tensor) -> bool:
    """Whether there are too few queries for products by panels."""
    return plan.q_ptr is not None or query.shape[2] < FEWEST_QUERIES.get(query.dtype, 0)


def _multiplies_half(problem: Problem) -> bool:
    """Whether the kernels multiply numbers in bfloat16; maps and activations take float32."""
    if any(getattr(problem, name) is not None for name in _MAPS):
        return False
    even = problem.query.shape[3] % 2 == 0 and problem.value.shape[3] % 2 == 0
    half = problem.query.dtype is torch.bfloat16 and even and not few_queries(problem.plan, problem.query)
    return half and build.kernels().found.blocked_half is not None


def for_all_heads(x: Tensor, heads: int) -> Tensor:
    """A table ``[R, size]``, which serves all heads, or ``[H, R, size]`` as ``[1, H, R, size]``."""
    return x.expand(1, heads, *x.shape[-2:])


class ProblemStructs(KeepsAlive):
    """A problem's struct without outputs, and the tensors that it points to.

    Attributes:
        struct: the struct.
        layout: the part that it shares with other problems of these labels.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        dtype, half = problem.dtype, _multiplies_half(problem)
        given, by_key = torch.bfloat16 if half else dtype, problem.by_key
        operands: list[Tensor | None] = [dense_rows(x, given) for x in (problem.query, problem.key, problem.value)]
        operands.append(None if problem.by_query is None else dense_rows(problem.by_query, dtype))
        operands.append(None if by_key is None else by_key.transpose(2, 3).contiguous())
        for x in (problem.factor_keys, problem.label_values, problem.label_biases):
            operands.append(None if x is None else x.contiguous())
        for x in (problem.value_maps, problem.score_maps):
            operands.append(None if x is None else x.contiguous().flatten(-2))
        operands.append(None if problem.score_weights is None else problem.score_weights.contiguous())
        operands.append(None if problem.vector_queries is None else dense_rows(problem.vector_queries, dtype))
        form = tuple([None if x is None else (x.shape, x.stride()) for x in operands])
        kernels = id(build.loaded())  # the struct has addresses of functions
        key = "native", kernels, half, dtype, problem.query.dtype, problem.scale, problem.score, form
        made: _Form = problem.memo.once(key, lambda: self._form(problem, operands, half=half))
        self.layout = made.layout
        self.struct = struct = CProblem.from_buffer_copy(made.filled)
        struct.threads = torch.get_num_threads()
        keys = problem.factor_keys
        if keys is not None and keys.numel() and problem.columns > LONG_TABLE and _by_distance_alone(problem.plan):
            struct.sliced = struct.parts[0].affine
        self._kept += operands
        for at, name in made.given:
            getattr(struct, name).data = operands[at].data_ptr()  # pyright: ignore[reportOptionalMemberAccess]
        if problem.label_keys is not None and problem.factor_keys is None:
            struct.added_keys = self.turned_table(problem.label_keys, problem.plan)
        if problem.vectors is not None:
            vectors = problem.vectors.index_select(0, order_of_vectors(problem.plan))  # each head reads them in order
            struct.vectors = self.address(vectors)
            struct.vector_count, struct.vector_size = vectors.shape
        if problem.mask is not None or problem.dropout_p > 0.0:
            self._masks(problem, dtype)
        if problem.causal is not None:
            struct.causal = 1
            struct.causal_offsets, struct.causal_step = self.offsets(problem.causal)

    def _form(self, problem: Problem, operands: Sequence[Tensor | None], *, half: bool) -> _Form:
        batch = problem.query.shape[0]
        layout = problem.memo.once(("native", batch), lambda: PlanStructs(problem.plan, batch))
        return _Form(problem, operands, layout, half=half)

    def turned_table(self, x: Tensor, plan: LabelPlan) -> ctypes.Structure:
        """A table's transpose, ``[size, width]``, its columns as the kernels read a row of numbers by label.

        Each part begins with the ids -2 and -1; the width is a multiple of 16.
        """
        width = plan.columns + len(plan.parts)
        turned = x.new_zeros(*x.shape[:-2], x.shape[-1], -(-width // 16) * 16)
        for number, (start, size) in enumerate(zip(plan.starts, plan.num_labels, strict=True)):
            at = start + number + 2
            turned[..., at : at + size] = x[..., start : start + size, :].transpose(-1, -2)
        return self.tensor(for_all_heads(turned, self.struct.heads))

    def _masks(self, problem: Problem, dtype: torch.dtype) -> None:
        struct, mask = self.struct, problem.mask
        if mask is not None:
            struct.mask_kind = 1 if mask.dtype == torch.bool else 2
            mask = mask if mask.dtype == torch.bool else mask.to(dtype)
            struct.mask, struct.mask_strides = self.address(mask), mask_strides(mask)
        struct.dropout_p = problem.dropout_p
        if problem.keep is not None and problem.dropout_p > 0.0:
            keep = problem.keep.to(dtype)
            struct.keep, struct.keep_strides = self.address(keep), mask_strides(keep)
        elif problem.dropout_p > 0.0:
            assert problem.seed is not None
            struct.seed, struct.origin[:] = int(problem.seed.reshape(-1)[0]), problem.origin


def order_of_vectors(plan: LabelPlan) -> Tensor:
    """The position of each listed pair among the edges as given."""
    csr = plan.parts[0].csr
    assert csr is not None
    return csr.order


def laid_out_as(x: Tensor, size: int, dtype: torch.dtype | None = None) -> Tensor:
    """Room for ``[B, H, N, size]``, in memory ``[B, N, H, size]`` if ``x`` has that order, as layers give it."""
    batch, heads, rows, _ = x.shape
    if heads > 1 and x.stride(1) < x.stride(2):
        return x.new_empty(batch, rows, heads, size, dtype=dtype).transpose(1, 2)
    return x.new_empty(batch, heads, rows, size, dtype=dtype)


def dense_rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` in ``dtype``, its rows dense and not overlapping."""
    x = x.to(dtype)
    # not contiguous(): torch calls one row contiguous whatever its stride, by which the kernels step
    return x if reads_as_it_is(x) else x.clone(memory_format=torch.contiguous_format)


def reads_as_it_is(x: Tensor) -> bool:
    """Whether the kernels can read this tensor: ``[B, H, N, D]`` with dense rows, or a dense table."""
    if x.dim() < 4:
        return x.is_contiguous()
    return x.stride(-1) == 1 and x.stride(-2) >= x.shape[-1]


def mask_strides(x: Tensor) -> ctypes.Array[c_int64]:
    """Strides by which ``x`` broadcasts to four dimensions."""
    return (c_int64 * 4)(*(0 if n == 1 else step for n, step in zip(x.shape, x.stride(), strict=True)))
