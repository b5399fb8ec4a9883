"""Launches of the kernels over all pairs: strides, tile maps and outputs, by the names of the kernels' parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from relgraph.impl.problem import Outputs, Problem, with_origin
from relgraph.impl.triton import attention_kernels
from relgraph.impl.triton.limits import uses_tf32
from relgraph.impl.triton.tables import Terms, near_rows, strides
from relgraph.impl.triton.tile_map import tile_map
from relgraph.impl.triton.tiling import capability, product_size, tiling
from relgraph.impl.triton.virtual import virtual_of

KERNELS: Any = attention_kernels  # pyright does not know the launch syntax
LOG2E = 1.4426950408889634


class _Launch:
    """What all three kernels read."""

    def __init__(self, problem: Problem, terms: Terms) -> None:
        self.problem, self.terms = problem, terms
        self.band = virtual_of(problem.plan)
        # B, C and dP are laid out anew for the columns of runs: only the outer two of a band; none with several parts
        self.run_step = 1 if self.band is None else problem.columns - 1
        self.runs = 0 if len(problem.plan.parts) > 1 else problem.columns if self.band is None else 2
        query, key, value = map(near_rows, (problem.query, problem.key, problem.value))
        if problem.scale < 0:
            query = -query
        self.query, self.value = query, value
        self.batch, self.heads, q_len, size = query.shape
        self.kv_heads, k_len, value_size = key.shape[1], key.shape[2], value.shape[3]
        mask = problem.mask
        if mask is not None and mask.dtype == torch.bool:
            mask = mask.view(torch.uint8)
        of_mask = (0,) * 4 if mask is None else mask.expand(self.batch, self.heads, q_len, k_len).stride()
        drops = problem.dropout_p > 0.0
        keep = problem.keep if drops else None
        if keep is not None:
            keep = keep.to(torch.float32).expand(self.batch, self.heads, q_len, k_len).contiguous()
        seed = problem.seed if drops else None
        if seed is not None and seed.numel() == 1 and problem.plan.q_ptr is not None:
            seed = with_origin(seed, (0, 0, 0, 0))
        drawn = "none" if seed is None else "drawn" if seed.numel() == 1 else "part"
        self.shared: dict[str, Any] = {
            "q_ptr": query, "k_ptr": key, "v_ptr": value, "bq_ptr": terms.by_query, "ck_ptr": terms.by_key,
            "mask_ptr": mask, "keep_ptr": keep, "seed_ptr": seed,
            **strides("q", query), **strides("k", key), **strides("v", value),
            **dict(zip(("mask_b", "mask_h", "mask_q", "mask_k"), of_mask, strict=True)),
            "low": 0 if self.band is None else self.band.low, "width": 0 if self.band is None else self.band.width,
            "H": self.heads, "N_q": q_len, "N_k": k_len, "C": problem.columns,
            "scale": abs(problem.scale) * LOG2E,
            "threshold": round(problem.dropout_p * (1 << 24)),
            "boost": 1.0 / (1.0 - problem.dropout_p) if problem.dropout_p < 1.0 else 0.0,
            "D": size, "DV": value_size, "BD": product_size(size), "BDV": product_size(value_size),
            "RP": product_size(problem.columns - 1),
            "GROUP": self.heads // self.kv_heads, "PARTS": len(problem.plan.parts),
            "DROPOUT": drawn if keep is None else "given",
            "PRECISION": "tf32" if uses_tf32(query.dtype) else "ieee",
            "enable_fp_fusion": True,
        }  # fmt: skip

    def tiles(self, kernel: str, *, sort: bool, transposed: bool = False) -> tuple[dict[str, Any], tuple[int]]:
        """The tiles of a kernel as arguments, and its programs; ``sort`` for sums by label of written-out ids."""
        problem, query = self.problem, self.query
        size, value_size = query.shape[3], self.value.shape[3]
        by_distance = self.band is not None
        chosen = tiling(kernel, size, value_size, query.dtype, capability(query.device), by_distance=by_distance)
        tiles = tile_map(
            problem.plan, chosen.rows, chosen.keys, causal=problem.causal, device=query.device, memo=problem.memo,
            transposed=transposed, sort=chosen.step if sort and not by_distance else 0,
        )  # fmt: skip
        blocks = tiles.blocks.shape[1]
        return {
            "blocks_ptr": tiles.blocks, "runs_ptr": tiles.runs, "tiles_ptr": tiles.tiles, "ids_ptr": tiles.ids,
            "order_ptr": tiles.order, "bounds_ptr": tiles.bounds,
            "num_blocks": blocks, "blocks_b": blocks if tiles.blocks.shape[0] > 1 else 0,
            "BM": chosen.rows, "BN": chosen.keys, "STEP": chosen.step,
            "num_warps": chosen.warps, "num_stages": chosen.stages,
        }, (blocks * self.batch * (self.kv_heads if transposed else self.heads),)  # fmt: skip

    def keys_of_runs(self) -> Tensor | None:
        """C by the columns of runs, ``[B, H, runs, N_k]``."""
        table = self.terms.by_key
        return None if table is None or not self.runs else table[..., :: self.run_step].transpose(-1, -2).contiguous()


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
    of_tiles, programs = launch.tiles("forward", sort=sums is not None)
    if sums is not None:  # scores by distance are noted here before they become weights
        sums.fill_(0.0 if launch.band is None else float("-inf"))
    with torch.cuda.device_of(query):
        KERNELS.forward[programs](
            ck_run_ptr=launch.keys_of_runs(), o_ptr=output, lse_ptr=lse, p_ptr=sums, **launch.shared, **of_tiles,
        )  # fmt: skip
    if sums is not None and launch.band is None:
        sums.clamp_(min=0.0)  # rounding can make a difference of running sums negative
    return terms.with_value_term(Outputs(output, lse, sums, None))


def backward(problem: Problem, terms: Terms, outputs: Outputs, incoming: Outputs) -> list[Tensor | None]:
    """Gradients of query, key, value, B and C."""
    query, key, value = problem.query, problem.key, problem.value
    dq, dk, dv = (x.new_empty(x.shape) for x in (query, key, value))
    db, dc = (None if x is None else torch.zeros_like(x) for x in (terms.by_query, terms.by_key))
    if _is_empty(problem):
        return [dq.zero_(), dk.zero_(), dv.zero_(), db, dc]
    launch = _Launch(problem, terms)
    of_rows, rows = launch.tiles("backward_rows", sort=db is not None)
    of_keys, keys = launch.tiles("backward_keys", sort=dc is not None, transposed=True)
    with torch.cuda.device_of(query):
        do, delta, bq_runs, dp_runs = _row_vectors(launch, outputs, incoming)
        shared = {
            **launch.shared, "do_ptr": do, "dp_ptr": incoming.sums, "lse_ptr": outputs.lse, "delta_ptr": delta,
        }  # fmt: skip
        KERNELS.backward_rows[rows](
            ck_run_ptr=launch.keys_of_runs(), dq_ptr=dq, db_ptr=db, q_scale=problem.scale, **shared, **of_rows
        )
        KERNELS.backward_keys[keys](
            bq_run_ptr=bq_runs, dp_run_ptr=dp_runs, dk_ptr=dk, dv_ptr=dv, dc_ptr=dc, k_scale=abs(problem.scale),
            **shared, **of_keys,
        )  # fmt: skip
    return [dq, dk, dv, db, dc]


def _row_vectors(
    launch: _Launch, outputs: Outputs, incoming: Outputs
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """What both kernels of backward read per query row; incoming gradients are float32 and contiguous.

    Returns:
        The gradient of the output in the dtype of the query; δ, ``[B, H, N_q]``; B and dP by the columns of runs,
        ``[B, H, runs, N_q]``.
    """
    wanted, lse, runs = launch.query.dtype, outputs.lse, launch.runs
    given, by_query = incoming.output, launch.terms.by_query
    if given is None:
        do = launch.query.new_zeros(outputs.output.shape)
    else:
        do = given if given.dtype == wanted else torch.empty_like(given, dtype=wanted)
    delta, (batch, heads, q_len) = torch.empty_like(lse), lse.shape
    bq_runs, dp_runs = (
        None if x is None or runs == 0 else lse.new_empty(batch, heads, runs, q_len) for x in (by_query, incoming.sums)
    )
    rows = batch * heads * q_len
    KERNELS.row_vectors[(-(-rows // KERNELS.ROWS),)](
        o_ptr=outputs.output, do_ptr=given, sums_ptr=outputs.sums, dp_ptr=incoming.sums, bq_ptr=by_query,
        dlse_ptr=incoming.lse, do_low_ptr=None if given is None or do is given else do, delta_ptr=delta,
        bq_run_ptr=bq_runs, dp_run_ptr=dp_runs, rows=rows, N_q=q_len, C=launch.problem.columns, RUNS=runs,
        run_step=launch.run_step,
        DV=launch.value.shape[3], BDV=product_size(launch.value.shape[3]), BM=KERNELS.ROWS,
        num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
    return do, delta, bq_runs, dp_runs
