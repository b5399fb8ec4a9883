"""Launches of the kernels over all pairs: strides, tile maps and outputs, by the names of the kernels' parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from relgraph import score
from relgraph.impl.problem import Outputs, Problem
from relgraph.impl.triton import attention_kernels as attention
from relgraph.impl.triton import mask_kernel, vector_kernels
from relgraph.impl.triton.limits import uses_tf32
from relgraph.impl.triton.tables import Terms, whole_outputs
from relgraph.impl.triton.tile_map import TileMap, tile_map
from relgraph.impl.triton.tiling import Tiling, capability, product_size, tiling
from relgraph.impl.triton.virtual import virtual_of

LOG2E = 1.4426950408889634

PROGRAMS = 256
"""So many programs at least add up the gradient of a mask, if there is as much to add: their tiles bound its memory."""

FARTHEST_ROW = 1 << 23
"""From this stride on, rows are copied: 128 of them pass 2**30 elements."""


class _Launch:
    """What all three kernels read."""

    def __init__(self, problem: Problem, terms: Terms) -> None:
        self.problem, self.terms = problem, terms
        self.affine = virtual_of(problem.plan) is not None
        query, key, value = (_near_rows(x) for x in (problem.query, problem.key, problem.value))
        self.query, self.value = query, value
        self.batch, self.heads, q_len, size = query.shape
        self.kv_heads, k_len, value_size = key.shape[1], key.shape[2], value.shape[3]
        mask = problem.mask
        if mask is not None and mask.dtype == torch.bool:
            mask = mask.view(torch.uint8)
        if mask is not None and problem.mask_gradient and max(mask.stride()[2:]) >= FARTHEST_ROW:
            mask = mask.contiguous()
        of_mask = (0, 0, 0, 0)
        if mask is not None:
            of_mask = tuple(s if n > 1 else 0 for s, n in zip(mask.stride(), mask.shape, strict=True))
        drops = problem.dropout_p > 0.0
        keep = problem.keep if drops else None
        if keep is not None:
            keep = keep.to(torch.float32).expand(self.batch, self.heads, q_len, k_len).contiguous()
        named, bend = score.encode(problem.score)
        self.shared: dict[str, Any] = {
            "q_ptr": query, "k_ptr": key, "v_ptr": value, "bq_ptr": terms.by_query, "ck_ptr": terms.by_key,
            "mask_ptr": mask, "keep_ptr": keep, "seed_ptr": problem.seed if drops else None,
            **_strides("q", query.stride()[:3]), **_strides("k", key.stride()[:3]), **_strides("v", value.stride()[:3]),
            "mask_b": of_mask[0], "mask_h": of_mask[1], "mask_q": of_mask[2], "mask_k": of_mask[3],
            "H": self.heads, "N_q": q_len, "N_k": k_len, "C": problem.columns,
            "scale": problem.scale * LOG2E,
            "threshold": round(problem.dropout_p * (1 << 24)),
            "boost": 1.0 / (1.0 - problem.dropout_p) if problem.dropout_p < 1.0 else 0.0,
            "bend": bend,
            "SCORE": 1 + int(named),  # 0 is none
            "D": size, "DV": value_size, "BD": product_size(size), "BDV": product_size(value_size),
            "RP": product_size(problem.columns - 1),
            "GROUP": self.heads // self.kv_heads,
            "PACKED": drops and problem.plan.q_ptr is not None,  # without dropout the kernels are the same
            "PRECISION": "tf32" if uses_tf32(query.dtype) else "ieee",
            "enable_fp_fusion": True,
        }  # fmt: skip

    def tiles(
        self, kernel: str, *, sort: bool, transposed: bool = False, by_place: bool = False
    ) -> tuple[dict[str, Any], TileMap]:
        """The tiles of a kernel: its arguments, and the map; ``sort`` for sums by label of written-out ids."""
        problem, query = self.problem, self.query
        size, value_size = query.shape[3], self.value.shape[3]
        chosen: Tiling = tiling(
            kernel, size, value_size, query.dtype, capability(query.device), by_distance=self.affine
        )
        step = chosen.step if sort and not self.affine else 0
        tiles = tile_map(
            problem.plan,
            chosen.rows,
            chosen.keys,
            batch=self.batch,
            causal=problem.causal,
            device=query.device,
            transposed=transposed,
            sort=0 if transposed else step,
            sort_transposed=step if transposed else 0,
            by_place=by_place,
            memo=problem.memo,
        )
        blocks = tiles.blocks.shape[1]
        low, width = (0, 0) if tiles.band is None else tiles.band
        return {
            "blocks_ptr": tiles.blocks, "runs_ptr": tiles.runs, "tiles_ptr": tiles.tiles, "ids_ptr": tiles.ids,
            "order_ptr": tiles.order_t if transposed else tiles.order,
            "bounds_ptr": tiles.bounds_t if transposed else tiles.bounds,
            "num_blocks": blocks, "blocks_b": blocks if tiles.blocks.shape[0] > 1 else 0,
            "low": low, "width": width, "PARTS": tiles.parts,
            "BM": chosen.rows, "BN": chosen.keys, "STEP": chosen.step,
            "num_warps": chosen.warps, "num_stages": chosen.stages,
        }, tiles  # fmt: skip

    def grid(self, tiles: TileMap, heads: int) -> tuple[int]:
        """Number of programs: blocks times heads times batch rows."""
        return (tiles.blocks.shape[1] * self.batch * heads,)

    def keys_of_runs(self, tiles: TileMap) -> Tensor | None:
        """C by the columns of runs, ``[B, H, 2 or columns, N_k]``, in powers of two; None with several parts."""
        table = self.terms.by_key
        if table is None or tiles.parts > 1:
            return None
        if tiles.band is not None:
            last = tiles.band[1] + 1
            table = table[..., : last + 1 : last]
        return (table.transpose(-1, -2) * LOG2E).contiguous()


def _strides(name: str, strides: tuple[int, ...]) -> dict[str, int]:
    batch, head, row = strides
    return {f"{name}_b": batch, f"{name}_h": head, f"{name}_n": row}


def _near_rows(x: Tensor) -> Tensor:
    """``x`` with contiguous rows, so near to each other that offsets within a tile fit 32 bits."""
    return x if (x.stride(-1) == 1 or x.shape[-1] == 1) and x.stride(-2) < FARTHEST_ROW else x.contiguous()


def _is_empty(problem: Problem) -> bool:
    return 0 in (*problem.query.shape[:3], problem.key.shape[2])


def forward(problem: Problem, terms: Terms) -> Outputs:
    """Output, log-sum-exp, and P after and before dropout (None where not needed), float32."""
    output, lse, sums = _forward(problem, terms)
    # kernels sum once per pass, so mass before dropout needs a second pass
    mass = _forward(_without_dropout(problem), terms)[2] if problem.need_mass else None
    return terms.with_value_term(Outputs(output, lse, sums, mass))


def backward(problem: Problem, terms: Terms, outputs: Outputs, incoming: Outputs) -> list[Tensor | None]:
    """Gradients of query, key, value, B, C, of the tables and of the mask."""
    outputs = whole_outputs(outputs)
    plain, incoming = terms.without_value_term(outputs), terms.whole_incoming(incoming)
    grads = _backward(problem, terms, plain, incoming)
    if incoming.mass is not None:
        of_mass = Outputs(None, None, incoming.mass, None)
        more = _backward(_without_dropout(problem), terms, plain._replace(sums=outputs.mass), of_mass)
        grads = [one if one is None or other is None else one + other for one, other in zip(grads, more, strict=True)]
    *grads, of_mask = grads
    return [*terms.gradients(grads, outputs, incoming), of_mask]


def _without_dropout(problem: Problem) -> Problem:
    return replace(problem, keep=None, seed=None, dropout_p=0.0, need_sums=True, need_mass=False)


def _forward(problem: Problem, terms: Terms) -> tuple[Tensor, Tensor, Tensor | None]:
    query = problem.query
    rows = query.shape[:3]
    output = query.new_empty(*rows, problem.value.shape[3], dtype=torch.float32)
    lse, sums = output.new_empty(rows), output.new_empty(*rows, problem.columns) if problem.need_sums else None
    if _is_empty(problem):
        return output.zero_(), lse.fill_(float("-inf")), None if sums is None else sums.zero_()
    launch = _Launch(problem, terms)
    of_tiles, tiles = launch.tiles("forward", sort=sums is not None)
    if sums is not None:  # scores by distance are noted here before they become weights
        sums.fill_(0.0 if tiles.band is None else float("-inf"))
    kernel: Any = attention.forward  # pyright does not know the launch syntax
    with torch.cuda.device_of(query):
        kernel[launch.grid(tiles, launch.heads)](
            ck_run_ptr=launch.keys_of_runs(tiles), o_ptr=output, lse_ptr=lse, p_ptr=sums, **launch.shared, **of_tiles
        )
    if sums is not None and tiles.band is None:
        sums.clamp_(min=0.0)  # rounding can make a difference of running sums negative
    return output, lse, sums


def _backward(problem: Problem, terms: Terms, outputs: Outputs, incoming: Outputs) -> list[Tensor | None]:
    query, key, value = problem.query, problem.key, problem.value
    dq, dk, dv = (x.new_empty(x.shape) for x in (query, key, value))
    db, dc = (None if x is None else torch.zeros_like(x) for x in (terms.by_query, terms.by_key))
    if _is_empty(problem):
        of_mask = torch.zeros_like(problem.mask) if problem.mask_gradient and problem.mask is not None else None
        return [dq.zero_(), dk.zero_(), dv.zero_(), db, dc, of_mask]
    launch = _Launch(problem, terms)
    of_rows, rows = launch.tiles("backward_rows", sort=db is not None)
    of_keys, keys = launch.tiles("backward_keys", sort=dc is not None, transposed=True)
    by_row, by_key = cast(Any, attention.backward_rows), cast(Any, attention.backward_keys)
    with torch.cuda.device_of(query):
        do, delta, less, rest = _row_vectors(launch, outputs, incoming, keys)
        shared = {**launch.shared, "do_ptr": do, "dp_ptr": incoming.sums}
        by_row[launch.grid(rows, launch.heads)](
            ck_run_ptr=launch.keys_of_runs(rows), lse_ptr=outputs.lse, delta_ptr=delta, dq_ptr=dq, db_ptr=db,
            q_scale=problem.scale, **shared, **of_rows,
        )  # fmt: skip
        by_key[launch.grid(keys, launch.kv_heads)](
            less_ptr=less, rest_ptr=rest, dk_ptr=dk, dv_ptr=dv, dc_ptr=dc,
            k_scale=problem.scale, VECTORS=less.shape[2], **shared, **of_keys,
        )  # fmt: skip
        of_mask = _of_mask(launch, outputs, incoming, do, delta) if problem.mask_gradient else None
    return [dq, dk, dv, db, dc, of_mask]


def _of_mask(launch: _Launch, outputs: Outputs, incoming: Outputs, do: Tensor, delta: Tensor) -> Tensor:
    """The gradient of an added mask, from the gradient of the output in the dtype of the query and δ."""
    mask, q_len, k_len = launch.problem.mask, launch.query.shape[2], launch.problem.key.shape[2]
    assert mask is not None
    if mask.shape[3] == 1 < k_len:  # a number for a whole row cancels out of its weights
        grad = torch.zeros_like(outputs.lse) if incoming.lse is None else incoming.lse
        grad = grad.masked_fill(outputs.lse == float("-inf"), 0.0)[..., None]
        return grad.sum_to_size(mask.shape).to(mask.dtype)
    of_tiles, tiles = launch.tiles("backward_mask", sort=False, by_place=True)
    assert tiles.key_blocks is not None
    sum_rows = mask.shape[2] == 1 < q_len
    own_blocks, key_blocks = 1 if sum_rows else tiles.blocks.shape[1], tiles.key_blocks.shape[0]
    all_lanes = launch.batch, launch.heads
    each = (1, 1) if sum_rows else _lanes_of_program(mask.shape, all_lanes, own_blocks * key_blocks)
    groups = tuple(-(-count // own) for count, own in zip(all_lanes, each, strict=True))
    shape = (*groups, 1 if sum_rows else q_len, k_len)
    found = mask.new_empty(shape, dtype=mask.dtype if shape == mask.shape else torch.float32)
    others = ("RP", "runs_ptr", "tiles_ptr", "order_ptr", "bounds_ptr", "blocks_b", "STEP")  # those of other kernels
    shared = {name: x for name, x in {**launch.shared, **of_tiles}.items() if name not in others}
    kernel: Any = mask_kernel.backward_mask
    kernel[(own_blocks * key_blocks * groups[0] * groups[1],)](
        do_ptr=do, dp_ptr=incoming.sums, lse_ptr=outputs.lse, delta_ptr=delta, dmask_ptr=found,
        key_blocks_ptr=tiles.key_blocks, table_ptr=tiles.table, columns_ptr=tiles.columns,
        B=launch.batch, own_blocks=own_blocks, key_blocks=key_blocks, groups_h=groups[1], each_b=each[0],
        each_h=each[1], APART=tiles.blocks.shape[0] > 1, SUM_ROWS=sum_rows, **shared,
    )  # fmt: skip
    return found if found.shape == mask.shape else found.sum_to_size(mask.shape).to(mask.dtype)


def _lanes_of_program(mask: Sequence[int], lanes: tuple[int, int], tiles: int) -> list[int]:
    """How many batch rows and heads a program adds up: those that share the mask, or fewer for more programs."""
    each, wanted = [], -(-PROGRAMS // (tiles * mask[0] * mask[1]))
    for count, own in zip(lanes, mask, strict=False):
        groups = count if own > 1 else min(count, wanted)
        each.append(-(-count // groups))
        if own == 1:
            wanted = -(-wanted // groups)
    return each


def _row_vectors(
    launch: _Launch, outputs: Outputs, incoming: Outputs, keys: TileMap
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Vectors per query row that both kernels of backward read; incoming gradients are float32 and contiguous.

    Returns:
        The gradient of the output in the dtype of the query, contiguous; δ, ``[B, H, 1, N_q]``; log-sum-exp in powers
        of two (inf on a row that sees nothing), then the same minus B of a run of each column,
        ``[B, H, 1 + columns of runs, N_q]``; δ, then the same minus dP of a run of each column. Runs by distance have
        the first or the last column, others any. If anything else happens to a score there are no vectors of runs, and
        each run reads its terms.
    """
    problem, columns = launch.problem, launch.problem.columns
    plain = keys.parts == 1 and problem.dropout_p == 0.0 and problem.score is None
    count = 1 if not plain else 1 + columns if keys.band is None else 3
    batch, heads, q_len = launch.query.shape[:3]
    delta, less, rest = (outputs.lse.new_empty(batch, heads, n, q_len) for n in (1, count, count))
    given, wanted = incoming.output, launch.query.dtype
    if given is None:
        grad = launch.query.new_zeros(outputs.output.shape)
    else:
        grad = given if given.dtype == wanted else torch.empty_like(given, dtype=wanted)
    kernel: Any = vector_kernels.row_vectors
    rows = batch * heads * q_len
    kernel[(-(-rows // vector_kernels.ROWS),)](
        o_ptr=outputs.output, do_ptr=given, sums_ptr=outputs.sums, dp_ptr=incoming.sums, bq_ptr=launch.terms.by_query,
        lse_ptr=outputs.lse, dlse_ptr=incoming.lse, do_low_ptr=None if given is None or grad is given else grad,
        delta_ptr=delta, less_ptr=less, rest_ptr=rest, rows=rows, N_q=q_len, C=columns, VECTORS=count,
        run_step=1 if keys.band is None else columns - 1,
        DV=problem.value.shape[3], BDV=product_size(problem.value.shape[3]), BM=vector_kernels.ROWS,
        num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
    return grad, delta, less, rest
