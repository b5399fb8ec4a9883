"""Launches of the kernels over all pairs: strides, tile maps and outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from relgraph import score
from relgraph.impl.problem import Outputs, Problem
from relgraph.impl.triton import attention_kernels as attention
from relgraph.impl.triton import vector_kernels
from relgraph.impl.triton.limits import interpreted
from relgraph.impl.triton.tables import Terms, whole_outputs
from relgraph.impl.triton.tile_map import TileMap, tile_map
from relgraph.impl.triton.tiling import Tiling, capability, product_size, tiling
from relgraph.impl.triton.virtual import virtual_of

LOG2E = 1.4426950408889634

FARTHEST_ROW = 1 << 23
"""From this stride on, rows are copied: 128 of them pass 2**30 numbers."""


class _Launch:
    """The arguments that all three kernels share."""

    def __init__(self, problem: Problem, terms: Terms) -> None:
        self.problem, self.columns = problem, problem.columns
        query, key, value = (_rows(x) for x in (problem.query, problem.key, problem.value))
        self.query, self.key, self.value = query, key, value
        self.by_query, self.by_key = terms.by_query, terms.by_key
        self.batch, self.heads, self.q_len, self.size = query.shape
        self.kv_heads, self.k_len, self.value_size = key.shape[1], key.shape[2], value.shape[3]
        self.affine = virtual_of(problem.plan) is not None
        mask = problem.mask
        if mask is not None and mask.dtype == torch.bool:
            mask = mask.view(torch.uint8)
        self.mask = mask
        self.keep = None
        if problem.keep is not None:
            pairs = (self.batch, self.heads, self.q_len, self.k_len)
            self.keep = problem.keep.to(torch.float32).expand(pairs).contiguous()

    def tiling(self, kernel: str) -> Tiling:
        """The tiles of a kernel."""
        query = self.query
        known = capability(query.device)
        return tiling(kernel, self.size, self.value_size, query.dtype, known, by_distance=self.affine)

    def map(self, tiles: Tiling, *, transposed: bool, sort: bool) -> TileMap:
        """The tile map, made once for these labels; ``sort`` for sums by label of written-out ids."""
        problem = self.problem
        step = tiles.step if sort and not self.affine else 0
        return tile_map(
            problem.plan,
            tiles.rows,
            tiles.keys,
            batch=self.batch,
            causal=problem.causal,
            device=problem.query.device,
            transposed=transposed,
            sort=0 if transposed else step,
            sort_transposed=step if transposed else 0,
            memo=problem.memo,
        )

    def numbers(self, tiles: TileMap) -> tuple[Any, ...]:
        """Strides, sizes and factors, in the order of the kernels' arguments up to ``bend``."""
        problem, query, key, value = self.problem, self.query, self.key, self.value
        mask = (0, 0, 0, 0)
        if self.mask is not None:
            mask = tuple(s if n > 1 else 0 for s, n in zip(self.mask.stride(), self.mask.shape, strict=True))
        blocks = tiles.blocks.shape[1]
        low, width = (0, 0) if tiles.band is None else tiles.band
        return (
            *query.stride()[:3],
            *key.stride()[:3],
            *value.stride()[:3],
            *mask,
            self.heads,
            self.q_len,
            self.k_len,
            blocks,
            blocks if tiles.blocks.shape[0] > 1 else 0,
            self.columns,
            low,
            width,
            abs(problem.scale) * LOG2E,
            round(problem.dropout_p * (1 << 24)),
            1.0 / (1.0 - problem.dropout_p) if problem.dropout_p < 1.0 else 0.0,
            score.encode(problem.score)[1],
        )

    def constants(self, tiling: Tiling, tiles: TileMap) -> dict[str, Any]:
        """The compile-time constants of a kernel."""
        problem = self.problem
        return {
            "D": self.size,
            "DV": self.value_size,
            "BD": product_size(self.size),
            "BDV": product_size(self.value_size),
            "BM": tiling.rows,
            "BN": tiling.keys,
            "STEP": tiling.step,
            "GROUP": self.heads // self.kv_heads,
            "PARTS": tiles.parts,
            "RP": product_size(self.columns - 1),
            "UPTO": self.query.dtype != torch.float32,  # half the work, and exact to float32's rounding of whole rows
            "BAND": tiles.band is not None,
            "HAS_BQ": self.by_query is not None,
            "HAS_CK": self.by_key is not None,
            "MASK": 0 if self.mask is None else 1 if self.mask.dtype == torch.uint8 else 2,
            "DROPOUT": self.dropout(),
            "SCORE": 1 + int(score.encode(problem.score)[0]),  # 0 is none
            "NEGATED": problem.scale < 0,
            "NVIDIA": self.query.device.type == "cuda" and torch.version.hip is None,
            "PRECISION": precision(self.query.dtype),
            "num_warps": tiling.warps,
            "num_stages": tiling.stages,
            "enable_fp_fusion": True,
        }

    def dropout(self) -> int:
        """0 without, 1 drawn, 2 given, 3 drawn for a packed batch, 4 for a part; see ``attention_pieces``."""
        problem = self.problem
        if problem.dropout_p == 0.0:
            return 0
        if problem.keep is not None:
            return 2
        assert problem.seed is not None
        if problem.seed.numel() > 1:
            return 4
        return 1 if problem.plan.q_ptr is None else 3

    def keys_of_runs(self, tiles: TileMap) -> Tensor | None:
        """C by the columns of runs, in powers of two."""
        return None if self.by_key is None or tiles.parts > 1 else (of_runs(self.by_key, tiles) * LOG2E).contiguous()

    def given(self, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        """The tensors; a placeholder that is not read for those that are None."""
        return tuple(self.query if tensor is None else tensor for tensor in tensors)

    def grid(self, tiles: TileMap, *, transposed: bool = False) -> tuple[int]:
        """Number of programs: blocks times heads times batch rows."""
        return (tiles.blocks.shape[1] * self.batch * (self.kv_heads if transposed else self.heads),)


def precision(dtype: torch.dtype) -> str:
    """Precision of products: float32 is exact unless ``torch.set_float32_matmul_precision`` says otherwise."""
    if dtype == torch.bfloat16 and interpreted():
        return "upcast"
    return "tf32" if dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest" else "ieee"


def _rows(x: Tensor) -> Tensor:
    """``x`` with contiguous rows, so near to each other that offsets within a tile fit 32 bits."""
    return x if (x.stride(-1) == 1 or x.shape[-1] == 1) and x.stride(-2) < FARTHEST_ROW else x.contiguous()


def _pointers(tiles: TileMap, *, transposed: bool) -> tuple[Tensor, ...]:
    order = (tiles.order_t, tiles.bounds_t) if transposed else (tiles.order, tiles.bounds)
    return tiles.blocks, tiles.runs, tiles.tiles, tiles.ids, *order


def _is_empty(problem: Problem) -> bool:
    return 0 in (*problem.query.shape[:3], problem.key.shape[2])


def forward(problem: Problem, terms: Terms) -> Outputs:
    """Output, log-sum-exp, and P after and before dropout (None where not needed), float32."""
    output, lse, sums = _forward(problem, terms)
    # kernels sum once per pass, so mass before dropout needs a second pass
    mass = _forward(_without_dropout(problem), terms)[2] if problem.need_mass else None
    return terms.with_value_term(Outputs(output, lse, sums, mass))


def backward(problem: Problem, terms: Terms, outputs: Outputs, incoming: Outputs) -> list[Tensor | None]:
    """Gradients of query, key, value, B, C and of the tables."""
    outputs = whole_outputs(outputs)
    plain, incoming = terms.without_value_term(outputs), terms.whole_incoming(incoming)
    grads = _backward(problem, terms, plain, incoming)
    if incoming.mass is not None:
        of_mass = Outputs(None, None, incoming.mass, None)
        more = _backward(_without_dropout(problem), terms, plain._replace(sums=outputs.mass), of_mass)
        grads = [one if one is None or other is None else one + other for one, other in zip(grads, more, strict=True)]
    return terms.gradients(grads, outputs, incoming)


def _without_dropout(problem: Problem) -> Problem:
    return replace(problem, keep=None, seed=None, dropout_p=0.0, need_sums=True, need_mass=False)


def _forward(problem: Problem, terms: Terms) -> tuple[Tensor, Tensor, Tensor | None]:
    query, columns = problem.query, problem.columns
    rows = query.shape[:3]
    output = query.new_empty(*rows, problem.value.shape[3], dtype=torch.float32)
    lse, sums = output.new_empty(rows), output.new_empty(*rows, columns) if problem.need_sums else None
    if _is_empty(problem):
        return output.zero_(), lse.fill_(float("-inf")), None if sums is None else sums.zero_()
    launch = _Launch(problem, terms)
    tiling = launch.tiling("forward")
    tiles = launch.map(tiling, transposed=False, sort=sums is not None)
    if sums is not None:  # scores by distance are noted here before they become weights
        sums.fill_(0.0 if tiles.band is None else float("-inf"))
    kernel: Any = attention.forward  # pyright does not know the launch syntax
    with torch.cuda.device_of(query):
        kernel[launch.grid(tiles)](
            launch.query, launch.key, launch.value, *launch.given(launch.by_query, launch.by_key),
            *launch.given(launch.keys_of_runs(tiles), launch.mask, launch.keep, problem.seed),
            output, lse, *launch.given(sums), *_pointers(tiles, transposed=False), *launch.numbers(tiles),
            **launch.constants(tiling, tiles), NEED_P=sums is not None,
        )  # fmt: skip
    if sums is not None and tiles.band is None:
        sums.clamp_(min=0.0)  # rounding can make a difference of running sums negative
    return output, lse, sums


def _backward(problem: Problem, terms: Terms, outputs: Outputs, incoming: Outputs) -> list[Tensor | None]:
    query, key, value = problem.query, problem.key, problem.value
    dq, dk, dv = (x.new_empty(x.shape) for x in (query, key, value))
    db, dc = (None if x is None else torch.zeros_like(x) for x in (terms.by_query, terms.by_key))
    if _is_empty(problem):
        return [dq.zero_(), dk.zero_(), dv.zero_(), db, dc]
    launch = _Launch(problem, terms)
    by_rows, by_keys = launch.tiling("backward_rows"), launch.tiling("backward_keys")
    rows = launch.map(by_rows, transposed=False, sort=db is not None)
    keys = launch.map(by_keys, transposed=True, sort=dc is not None)
    folded = keys.parts == 1 and problem.dropout_p == 0.0 and problem.score is None
    with torch.cuda.device_of(query):
        vectors = _row_vectors(launch, outputs, incoming, by_distance=keys.band is not None, folded=folded)
        inputs = launch.query, launch.key, launch.value, vectors.grad, *launch.given(launch.by_query, launch.by_key)
        given = launch.given(incoming.sums, launch.mask, launch.keep, problem.seed)
        shared = {"HAS_DP": incoming.sums is not None}
        by_row, by_key = cast(Any, attention.backward_rows), cast(Any, attention.backward_keys)
        by_row[launch.grid(rows)](
            *inputs, *launch.given(launch.keys_of_runs(rows)), *given, outputs.lse, vectors.delta, dq,
            *launch.given(db), *_pointers(rows, transposed=False), *launch.numbers(rows), problem.scale,
            **launch.constants(by_rows, rows), **shared, SUMMED=1 if query.dtype == torch.float32 else 16,
        )  # fmt: skip
        by_key[launch.grid(keys, transposed=True)](
            *inputs, *given, vectors.less, vectors.rest, dk, dv, *launch.given(dc), *_pointers(keys, transposed=True),
            *launch.numbers(keys), problem.scale, vectors.less.shape[2], **launch.constants(by_keys, keys), **shared,
            FOLDED=folded,
        )  # fmt: skip
    return [dq, dk, dv, db, dc]


class _RowVectors(NamedTuple):
    """The vectors per query row that both kernels of backward read.

    Attributes:
        grad: the gradient of the output in the dtype of the query, contiguous.
        delta: δ, ``[B, H, 1, N_q]``.
        less: log-sum-exp in powers of two (inf on a row that sees nothing), then the same minus B of a run of each
            column, ``[B, H, 1 + columns of runs, N_q]``.
        rest: δ, then the same minus dP of a run of each column; of the same shape.
    """

    grad: Tensor
    delta: Tensor
    less: Tensor
    rest: Tensor


def _row_vectors(
    launch: _Launch, outputs: Outputs, incoming: Outputs, *, by_distance: bool, folded: bool
) -> _RowVectors:
    """The vectors, made in one launch; the gradients that come in are float32 and contiguous.

    If labels are a function of the distance, runs have the first or the last column; otherwise any. Without ``folded``
    the vectors hold no label terms, and each run reads them.
    """
    batch, heads, q_len, columns = launch.batch, launch.heads, launch.q_len, launch.columns
    count = 1 if not folded else 3 if by_distance else 1 + columns
    delta, less, rest = (outputs.lse.new_empty(batch, heads, n, q_len) for n in (1, count, count))
    given, wanted = incoming.output, launch.query.dtype
    if given is None:
        grad = launch.query.new_zeros(outputs.output.shape)
    else:
        grad = given if given.dtype == wanted else torch.empty_like(given, dtype=wanted)
    kernel: Any = vector_kernels.row_vectors
    rows = batch * heads * q_len
    sums = None if incoming.sums is None else outputs.sums
    kernel[(-(-rows // vector_kernels.ROWS),)](
        *launch.given(outputs.output, given, sums, incoming.sums, launch.by_query, outputs.lse, incoming.lse),
        grad, delta, less, rest, rows, q_len, columns, count,
        DV=launch.value_size, BDV=product_size(launch.value_size), BM=vector_kernels.ROWS, BAND=by_distance,
        FOLDED=folded, HAS_DO=given is not None, HAS_DP=sums is not None, HAS_BQ=launch.by_query is not None,
        HAS_DLSE=incoming.lse is not None, LOWER=given is not None and grad is not given, num_warps=4,
        enable_fp_fusion=True,
    )  # fmt: skip
    return _RowVectors(grad, delta, less, rest)


def of_runs(table: Tensor, tiles: TileMap) -> Tensor:
    """The columns of a table ``[B, H, N, columns]`` that runs have, along N: ``[B, H, 2 or columns, N]``."""
    if tiles.band is not None:
        last = tiles.band[1] + 1
        table = table[..., : last + 1 : last]
    return table.transpose(-1, -2)
