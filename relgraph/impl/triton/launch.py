"""Launches of the kernels over all pairs: strides, tile maps and outputs, by the names of the kernels' parameters."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from relgraph.impl.problem import Outputs, Problem, with_origin
from relgraph.impl.triton import attention_kernels as attention
from relgraph.impl.triton import vector_kernels
from relgraph.impl.triton.limits import uses_tf32
from relgraph.impl.triton.tables import Terms, whole_outputs
from relgraph.impl.triton.tile_map import TileMap, tile_map
from relgraph.impl.triton.tiling import Tiling, capability, product_size, tiling
from relgraph.impl.triton.virtual import virtual_of

LOG2E = 1.4426950408889634

FARTHEST_ROW = 1 << 23
"""From this stride on, rows are copied: 128 of them pass 2**30 elements."""


class _Launch:
    """What all three kernels read."""

    def __init__(self, problem: Problem, terms: Terms) -> None:
        self.problem, self.terms = problem, terms
        self.affine = virtual_of(problem.plan) is not None
        query, key, value = (_near_rows(x) for x in (problem.query, problem.key, problem.value))
        if problem.scale < 0:
            query = -query
        self.query, self.value = query, value
        self.batch, self.heads, q_len, size = query.shape
        self.kv_heads, k_len, value_size = key.shape[1], key.shape[2], value.shape[3]
        mask = problem.mask
        if mask is not None and mask.dtype == torch.bool:
            mask = mask.view(torch.uint8)
        of_mask = (0, 0, 0, 0)
        if mask is not None:
            of_mask = tuple(s if n > 1 else 0 for s, n in zip(mask.stride(), mask.shape, strict=True))
        drops = problem.dropout_p > 0.0
        keep = problem.keep if drops else None
        if keep is not None:
            keep = keep.to(torch.float32).expand(self.batch, self.heads, q_len, k_len).contiguous()
        seed = problem.seed if drops else None
        if seed is not None and seed.numel() == 1 and problem.plan.q_ptr is not None:
            seed = with_origin(seed, (0, 0, 0, 0))
        self.shared: dict[str, Any] = {
            "q_ptr": query, "k_ptr": key, "v_ptr": value, "bq_ptr": terms.by_query, "ck_ptr": terms.by_key,
            "mask_ptr": mask, "keep_ptr": keep, "seed_ptr": seed,
            **_strides("q", query.stride()[:3]), **_strides("k", key.stride()[:3]), **_strides("v", value.stride()[:3]),
            "mask_b": of_mask[0], "mask_h": of_mask[1], "mask_q": of_mask[2], "mask_k": of_mask[3],
            "H": self.heads, "N_q": q_len, "N_k": k_len, "C": problem.columns,
            "scale": abs(problem.scale) * LOG2E,
            "threshold": round(problem.dropout_p * (1 << 24)),
            "boost": 1.0 / (1.0 - problem.dropout_p) if problem.dropout_p < 1.0 else 0.0,
            "D": size, "DV": value_size, "BD": product_size(size), "BDV": product_size(value_size),
            "RP": product_size(problem.columns - 1),
            "GROUP": self.heads // self.kv_heads,
            "PRECISION": "tf32" if uses_tf32(query.dtype) else "ieee",
            "enable_fp_fusion": True,
        }  # fmt: skip

    def tiles(self, kernel: str, *, sort: bool, transposed: bool = False) -> tuple[dict[str, Any], TileMap]:
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
        """C by the columns of runs, ``[B, H, 2 or columns, N_k]``; None with several parts."""
        table = self.terms.by_key
        if table is None or tiles.parts > 1:
            return None
        if tiles.band is not None:
            last = tiles.band[1] + 1
            table = table[..., : last + 1 : last]
        return table.transpose(-1, -2).contiguous()


def _strides(name: str, strides: tuple[int, ...]) -> dict[str, int]:
    batch, head, row = strides
    return {f"{name}_b": batch, f"{name}_h": head, f"{name}_n": row}


def _near_rows(x: Tensor) -> Tensor:
    """``x`` with contiguous rows, so near to each other that offsets within a tile fit 32 bits."""
    return x if (x.stride(-1) == 1 or x.shape[-1] == 1) and x.stride(-2) < FARTHEST_ROW else x.contiguous()


def _is_empty(problem: Problem) -> bool:
    return 0 in (*problem.query.shape[:3], problem.key.shape[2])


def forward(problem: Problem, terms: Terms) -> Outputs:
    """Output, log-sum-exp, and P (None where not needed), float32."""
    query = problem.query
    rows = query.shape[:3]
    output = query.new_empty(*rows, problem.value.shape[3], dtype=torch.float32)
    lse, sums = output.new_empty(rows), output.new_empty(*rows, problem.columns) if problem.need_sums else None
    if _is_empty(problem):
        sums = None if sums is None else sums.zero_()
        return terms.with_value_term(Outputs(output.zero_(), lse.fill_(float("-inf")), sums, None))
    launch = _Launch(problem, terms)
    of_tiles, tiles = launch.tiles("forward", sort=sums is not None)
    if sums is not None:  # scores by distance are noted here before they become weights
        sums.fill_(0.0 if tiles.band is None else float("-inf"))
    kernel: Any = attention.forward  # pyright does not know the launch syntax
    with torch.cuda.device_of(query):
        kernel[launch.grid(tiles, launch.heads)](
            ck_run_ptr=launch.keys_of_runs(tiles),
            o_ptr=output,
            lse_ptr=lse,
            p_ptr=sums,
            **launch.shared,
            **of_tiles,
        )
    if sums is not None and tiles.band is None:
        sums.clamp_(min=0.0)  # rounding can make a difference of running sums negative
    return terms.with_value_term(Outputs(output, lse, sums, None))


def backward(problem: Problem, terms: Terms, outputs: Outputs, incoming: Outputs) -> list[Tensor | None]:
    """Gradients of query, key, value, B, C and of the tables."""
    outputs = whole_outputs(outputs)
    plain, incoming = terms.without_value_term(outputs), terms.whole_incoming(incoming)
    return terms.gradients(_backward(problem, terms, plain, incoming), outputs, incoming)


def _backward(problem: Problem, terms: Terms, outputs: Outputs, incoming: Outputs) -> list[Tensor | None]:
    query, key, value = problem.query, problem.key, problem.value
    dq, dk, dv = (x.new_empty(x.shape) for x in (query, key, value))
    db, dc = (None if x is None else torch.zeros_like(x) for x in (terms.by_query, terms.by_key))
    if _is_empty(problem):
        return [dq.zero_(), dk.zero_(), dv.zero_(), db, dc]
    launch = _Launch(problem, terms)
    of_rows, rows = launch.tiles("backward_rows", sort=db is not None)
    of_keys, keys = launch.tiles("backward_keys", sort=dc is not None, transposed=True)
    by_row, by_key = cast(Any, attention.backward_rows), cast(Any, attention.backward_keys)
    with torch.cuda.device_of(query):
        do, delta, bq_runs, dp_runs = _row_vectors(launch, outputs, incoming, keys)
        shared = {
            **launch.shared, "do_ptr": do, "dp_ptr": incoming.sums, "lse_ptr": outputs.lse, "delta_ptr": delta,
        }  # fmt: skip
        by_row[launch.grid(rows, launch.heads)](
            ck_run_ptr=launch.keys_of_runs(rows), dq_ptr=dq, db_ptr=db, q_scale=problem.scale, **shared,
            **of_rows,
        )  # fmt: skip
        by_key[launch.grid(keys, launch.kv_heads)](
            bq_run_ptr=bq_runs, dp_run_ptr=dp_runs, dk_ptr=dk, dv_ptr=dv, dc_ptr=dc, k_scale=abs(problem.scale),
            **shared, **of_keys,
        )  # fmt: skip
    return [dq, dk, dv, db, dc]


def _row_vectors(
    launch: _Launch, outputs: Outputs, incoming: Outputs, keys: TileMap
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """What both kernels of backward read per query row; incoming gradients are float32 and contiguous.

    Returns:
        The gradient of the output in the dtype of the query; δ, ``[B, H, N_q]``; B and dP by the columns of runs,
        ``[B, H, 2 or columns, N_q]``, None with several parts.
    """
    columns, wanted, lse = launch.problem.columns, launch.query.dtype, outputs.lse
    runs = 0 if keys.parts > 1 else columns if keys.band is None else 2
    given, by_query = incoming.output, launch.terms.by_query
    do = given
    if given is None:
        do = launch.query.new_zeros(outputs.output.shape)
    elif given.dtype != wanted:
        do = torch.empty_like(given, dtype=wanted)
    assert do is not None
    delta, (batch, heads, q_len) = torch.empty_like(lse), lse.shape
    bq_runs, dp_runs = (
        None if x is None or runs == 0 else lse.new_empty(batch, heads, runs, q_len) for x in (by_query, incoming.sums)
    )
    rows = batch * heads * q_len
    kernel: Any = vector_kernels.row_vectors
    kernel[(-(-rows // vector_kernels.ROWS),)](
        o_ptr=outputs.output, do_ptr=given, sums_ptr=outputs.sums, dp_ptr=incoming.sums, bq_ptr=by_query,
        dlse_ptr=incoming.lse, do_low_ptr=None if given is None or do is given else do, delta_ptr=delta,
        bq_run_ptr=bq_runs, dp_run_ptr=dp_runs, rows=rows, N_q=q_len, C=columns, RUNS=runs,
        run_step=1 if keys.band is None else columns - 1,
        DV=launch.value.shape[3], BDV=product_size(launch.value.shape[3]), BM=vector_kernels.ROWS,
        num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
    return do, delta, bq_runs, dp_runs
