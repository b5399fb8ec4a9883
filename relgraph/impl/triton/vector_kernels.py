"""Vectors per query row that backward needs before its kernels start, in one launch instead of a dozen operators.

Letters: ``C`` columns of labels; scores are in powers of two, as in :mod:`relgraph.impl.triton.attention_kernels`.
"""

# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl

from relgraph.impl.triton.attention_pieces import LOG2E

ROWS = 16
"""Query rows of a program."""

SIZES = ("rows", "N_q", "C", "VECTORS", "run_step")  # never constants: one kernel serves all lengths
CHUNK: tl.constexpr = tl.constexpr(32)  # columns that are read at once


@triton.jit(do_not_specialize=SIZES)
def row_vectors(
    o_ptr, do_ptr, sums_ptr, dp_ptr, bq_ptr, lse_ptr, dlse_ptr, do_low_ptr, delta_ptr, less_ptr, rest_ptr,
    rows, N_q, C, VECTORS, run_step, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """δ, and the vectors of :func:`relgraph.impl.triton.attention_kernels.backward_keys`; all tensors are contiguous.

    δ_i = Σ_d dO[i, d]·O[i, d] + Σ_c dP[i, c]·P[i, c] - dlse[i], over a block of all ``rows`` query rows of all heads.
    ``do_low`` receives dO in the dtype of the query. Runs have every ``run_step``-th column.
    """
    wide = tl.full((), 1, tl.int64)  # rows times columns may pass 32 bits
    row = tl.program_id(0) * wide * BM + tl.arange(0, BM)
    inside = row < rows
    lse = tl.load(lse_ptr + row, mask=inside, other=0.0)
    # a row that sees nothing has -inf here; inf in its place makes all its weights zero
    less = tl.where(lse == float("-inf"), float("inf"), lse * LOG2E)
    delta = tl.zeros([BM], tl.float32)
    if do_ptr is not None:
        d = tl.arange(0, BDV)[None, :]
        value_at, value_in = row[:, None] * DV + d, inside[:, None] & (d < DV)
        do = tl.load(do_ptr + value_at, mask=value_in, other=0.0)
        delta += tl.sum(do * tl.load(o_ptr + value_at, mask=value_in, other=0.0), 1)
        if do_low_ptr is not None:
            tl.store(do_low_ptr + value_at, do, mask=value_in)
    if dp_ptr is not None:
        for first in range(0, C, CHUNK):
            c = first + tl.arange(0, CHUNK)[None, :]
            at, here = row[:, None] * C + c, inside[:, None] & (c < C)
            dp = tl.load(dp_ptr + at, mask=here, other=0.0)
            delta += tl.sum(dp * tl.load(sums_ptr + at, mask=here, other=0.0), 1)
    if dlse_ptr is not None:
        delta -= tl.load(dlse_ptr + row, mask=inside, other=0.0)
    tl.store(delta_ptr + row, delta, mask=inside)

    # lse and δ, and both minus what the column of each run adds
    vector = (row // N_q) * VECTORS * N_q + row % N_q
    tl.store(less_ptr + vector, less, mask=inside)
    tl.store(rest_ptr + vector, delta, mask=inside)
    for number in range(1, VECTORS):
        column = (number - 1) * run_step
        run_less, run_rest = less, delta
        if bq_ptr is not None:
            run_less -= tl.load(bq_ptr + row * C + column, mask=inside, other=0.0) * LOG2E
        if dp_ptr is not None:
            run_rest -= tl.load(dp_ptr + row * C + column, mask=inside, other=0.0)
        tl.store(less_ptr + vector + number * N_q, run_less, mask=inside)
        tl.store(rest_ptr + vector + number * N_q, run_rest, mask=inside)
