"""Sums and products by label over rows that are sorted by label; no atomics, so that results repeat bit for bit.

    map_rows       the map of each row's label times the row
    map_gradients  Σ_s d_s x_sᵀ over the rows s of a tile
    gate_gradients Σ_p n_p · (a_i ⊙ b_j) over the pairs p = (i, j) of a tile
    sum_rows       sums of listed rows: of tiles by label, or of labeled keys by key

A *tile* is a run of rows with one label, of a bounded length. Its sums are stored, and ``sum_rows`` adds those of each
label in order. A *lane* is one head (of one batch row, if batch rows share their pairs). All sums are float32.
"""

# ruff: noqa: ANN001, ANN201, ANN202
# pyright: reportOperatorIssue=false, reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _of_lane(lane, number, length, batch_step, head_step, row_step, H: tl.constexpr, GROUP: tl.constexpr,
             JOINT: tl.constexpr):  # fmt: skip
    """Where the numbered rows of a lane are in ``[B, H / GROUP, length, ...]``; joint lanes number all batch rows."""
    batch = number // length if JOINT else lane // H
    head = lane if JOINT else lane % H
    return batch * batch_step + head // GROUP * head_step + (number - batch * length if JOINT else number) * row_step


@triton.jit
def map_rows_kernel(
    x_ptr, maps_ptr, number_ptr, label_ptr, start_ptr, end_ptr, out_ptr, x_b, x_h, x_n, maps_h, maps_o, maps_i,
    LANES, LENGTH, ROWS_OUT, R, D: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, STEP: tl.constexpr,
    TILE: tl.constexpr, H: tl.constexpr, JOINT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile in one lane, BLOCK numbers of its rows: W[l]·x_s. A row without a label, l = R, stays as it is."""
    program = tl.program_id(0)
    block = program % BLOCKS
    lane = (program // BLOCKS % LANES).to(tl.int64)
    tile = program // BLOCKS // LANES
    label = tl.load(label_ptr + tile).to(tl.int64)
    s = tl.load(start_ptr + tile) + tl.arange(0, TILE)
    live = s < tl.load(end_ptr + tile)
    number = s
    if number_ptr is not None:
        number = tl.load(number_ptr + s, mask=live, other=0)
    at = _of_lane(lane, number.to(tl.int64), LENGTH, x_b, x_h, x_n, H, 1, JOINT)
    maps_ptr += lane % H * maps_h + label * (D * D)
    size, diagonal = tl.where(label < R, D, 0), tl.where(label < R, 0.0, 1.0)
    o = block * BLOCK + tl.arange(0, BLOCK)
    out = tl.zeros((TILE, BLOCK), tl.float32)
    for start in range(0, D, STEP):
        i = start + tl.arange(0, STEP)
        # load rows [TILE, STEP] and the map, transposed [STEP, BLOCK]
        x = tl.load(x_ptr + at[:, None] + i[None, :], mask=live[:, None] & (i < D)[None, :], other=0.0)
        inside = (i < size)[:, None] & (o < D)[None, :]
        w = tl.load(maps_ptr + i[:, None] * maps_i + o[None, :] * maps_o, mask=inside, other=0.0).to(tl.float32)
        w += tl.where(i[:, None] == o[None, :], diagonal, 0.0)
        out = tl.dot(x.to(tl.float32), w, out, input_precision=PRECISION)
    at = (lane * ROWS_OUT + s) * D
    tl.store(out_ptr + at[:, None] + o[None, :], out, mask=live[:, None] & (o < D)[None, :])


@triton.jit
def map_gradients_kernel(
    d_ptr, x_ptr, number_ptr, start_ptr, end_ptr, out_ptr, x_b, x_h, x_n, LANES, LENGTH, ROWS_IN, TILES,
    D: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, STEP: tl.constexpr, H: tl.constexpr,
    JOINT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile in one lane, a block of Σ_s d_s x_sᵀ ``[BLOCK, BLOCK]``."""
    program = tl.program_id(0)
    block = program % (BLOCKS * BLOCKS)
    lane = (program // (BLOCKS * BLOCKS) % LANES).to(tl.int64)
    tile = program // (BLOCKS * BLOCKS) // LANES
    start, end = tl.load(start_ptr + tile), tl.load(end_ptr + tile)
    o = block // BLOCKS * BLOCK + tl.arange(0, BLOCK)
    i = block % BLOCKS * BLOCK + tl.arange(0, BLOCK)
    out = tl.zeros((BLOCK, BLOCK), tl.float32)
    while start < end:
        s = start + tl.arange(0, STEP)
        live = s < end
        number = tl.load(number_ptr + s, mask=live, other=0).to(tl.int64)
        at = _of_lane(lane, number, LENGTH, x_b, x_h, x_n, H, 1, JOINT)
        # load rows [STEP, BLOCK] and gradients, transposed [BLOCK, STEP]
        x = tl.load(x_ptr + at[:, None] + i[None, :], mask=live[:, None] & (i < D)[None, :], other=0.0)
        at = (lane * ROWS_IN + s) * D
        d = tl.load(d_ptr + at[None, :] + o[:, None], mask=live[None, :] & (o < D)[:, None], other=0.0)
        out = tl.dot(d, x.to(tl.float32), out, input_precision=PRECISION)
        start += STEP
    at = (lane * TILES + tile) * (D * D)
    inside = (o < D)[:, None] & (i < D)[None, :]
    tl.store(out_ptr + at + o[:, None] * D + i[None, :], out, mask=inside)


@triton.jit
def gate_gradients_kernel(
    noted_ptr, a_ptr, b_ptr, pair_ptr, query_ptr, key_ptr, start_ptr, end_ptr, out_ptr,
    a_b, a_h, a_n, b_b, b_h, b_n, LANES, N_q, N_k, PAIRS, TILES, D: tl.constexpr, BLOCK: tl.constexpr,
    STEP: tl.constexpr, H: tl.constexpr, GROUP: tl.constexpr, JOINT: tl.constexpr,
):  # fmt: skip
    """One tile in one lane, Σ_p n_p · (a_i ⊙ b_j) ``[D]``, in STEP slots that are added at the end."""
    program = tl.program_id(0)
    lane, tile = (program % LANES).to(tl.int64), program // LANES
    start, end = tl.load(start_ptr + tile), tl.load(end_ptr + tile)
    d = tl.arange(0, BLOCK)
    out = tl.zeros((STEP, BLOCK), tl.float32)
    while start < end:
        place = start + tl.arange(0, STEP)
        live = place < end
        inside = live[:, None] & (d < D)[None, :]
        pair = tl.load(pair_ptr + place, mask=live, other=0)
        noted = tl.load(noted_ptr + lane * PAIRS + pair, mask=live, other=0.0)
        # load rows of queries and of keys [STEP, D]
        number = tl.load(query_ptr + place, mask=live, other=0).to(tl.int64)
        at = _of_lane(lane, number, N_q, a_b, a_h, a_n, H, 1, JOINT)
        a = tl.load(a_ptr + at[:, None] + d[None, :], mask=inside, other=0.0).to(tl.float32)
        number = tl.load(key_ptr + place, mask=live, other=0).to(tl.int64)
        at = _of_lane(lane, number, N_k, b_b, b_h, b_n, H, GROUP, JOINT)
        b = tl.load(b_ptr + at[:, None] + d[None, :], mask=inside, other=0.0).to(tl.float32)
        out += noted[:, None] * a * b
        start += STEP
    tl.store(out_ptr + (lane * TILES + tile) * D + d, tl.sum(out, 0), mask=d < D)


@triton.jit
def sum_rows_kernel(
    rows_ptr, begin_ptr, list_ptr, out_ptr, SUMS, ROWS_IN, WIDTH, BLOCKS, BLOCK: tl.constexpr, STEP: tl.constexpr
):  # fmt: skip
    """One sum in one lane: BLOCK numbers of the rows ``begin[n]`` to ``begin[n + 1]``, of the list if there is one."""
    program = tl.program_id(0)
    block, n = program % BLOCKS, program // BLOCKS % SUMS
    lane = (program // BLOCKS // SUMS).to(tl.int64)
    start, end = tl.load(begin_ptr + n), tl.load(begin_ptr + n + 1)
    w = block * BLOCK + tl.arange(0, BLOCK)
    out = tl.zeros((STEP, BLOCK), tl.float32)
    while start < end:
        row = start + tl.arange(0, STEP)
        live = row < end
        if list_ptr is not None:
            row = tl.load(list_ptr + row, mask=live, other=0)
        at = (lane * ROWS_IN + row) * WIDTH
        inside = live[:, None] & (w < WIDTH)[None, :]
        out += tl.load(rows_ptr + at[:, None] + w[None, :], mask=inside, other=0.0)
        start += STEP
    tl.store(out_ptr + (lane * SUMS + n) * WIDTH + w, tl.sum(out, 0), mask=w < WIDTH)
