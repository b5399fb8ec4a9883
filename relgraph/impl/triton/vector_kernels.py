"""Vectors per query row that backward needs before its kernels start, in one launch instead of a dozen operators.

Letters: ``C`` columns of labels.
"""

# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl

ROWS = 16
"""Query rows of a program."""

SIZES = ("rows", "N_q", "C", "RUNS", "run_step")  # never constants: one kernel serves all lengths
CHUNK: tl.constexpr = tl.constexpr(32)  # columns that are read at once


@triton.jit(do_not_specialize=SIZES)
def row_vectors(
    o_ptr, do_ptr, sums_ptr, dp_ptr, bq_ptr, dlse_ptr, do_low_ptr, delta_ptr, bq_run_ptr, dp_run_ptr,
    rows, N_q, C, RUNS, run_step, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """δ, and B and dP of the columns of runs, ``[B, H, RUNS, N_q]``; all tensors are contiguous.

    δ_i = Σ_d dO[i, d]·O[i, d] + Σ_c dP[i, c]·P[i, c] - dlse[i], over a block of all ``rows`` query rows of all heads.
    ``do_low`` receives dO in the dtype of the query. Runs have every ``run_step``-th column.
    """
    wide = tl.full((), 1, tl.int64)  # rows times columns may pass 32 bits
    row = tl.program_id(0) * wide * BM + tl.arange(0, BM)
    inside = row < rows
    delta = tl.zeros([BM], tl.float32)
    if do_ptr is not None:
        d = tl.arange(0, BDV)[None, :]
        value_at, value_in = row[:, None] * DV + d, inside[:, None] & (d < DV)
        do = tl.load(do_ptr + value_at, mask=value_in, other=0.0)  # [BM, DV]
        delta += tl.sum(do * tl.load(o_ptr + value_at, mask=value_in, other=0.0), 1)
        if do_low_ptr is not None:
            tl.store(do_low_ptr + value_at, do, mask=value_in)
    if dp_ptr is not None:
        for first in range(0, C, CHUNK):
            c = first + tl.arange(0, CHUNK)[None, :]
            at, here = row[:, None] * C + c, inside[:, None] & (c < C)
            dp = tl.load(dp_ptr + at, mask=here, other=0.0)  # [BM, CHUNK]
            delta += tl.sum(dp * tl.load(sums_ptr + at, mask=here, other=0.0), 1)
    if dlse_ptr is not None:
        delta -= tl.load(dlse_ptr + row, mask=inside, other=0.0)
    tl.store(delta_ptr + row, delta, mask=inside)
    to = (row // N_q) * RUNS * N_q + row % N_q
    for number in range(0, RUNS):
        column = row * C + number * run_step
        if bq_run_ptr is not None:
            tl.store(bq_run_ptr + to + number * N_q, tl.load(bq_ptr + column, mask=inside, other=0.0), mask=inside)
        if dp_run_ptr is not None:
            tl.store(dp_run_ptr + to + number * N_q, tl.load(dp_ptr + column, mask=inside, other=0.0), mask=inside)
