"""Flash attention that carries labels: forward, and backward by query rows and by keys.

A program owns a block of query rows (or of keys) and reads a tile map (``tile_map.py``): *runs* of tiles in which
every pair carries the same label, whose term is one number per row, and *mixed* tiles one by one. Mixed tiles gather
what labels add to the scores (B, C), a *step* of ``STEP`` keys (or rows) at a time, which needs fewer registers than a
whole tile. Sums by label (P, dB, dC) need no atomics, because a program owns all sums of its rows or keys. If labels
are a function of the distance (``BAND``), every label but the outer two occurs once per row, so that a sum is a copy.
If ids are written out, pairs are taken in the order of their labels, and a sum is the difference of two entries of a
running sum.

Letters in the kernels: ``i`` query rows, ``j`` keys, ``C`` columns of labels; scores are in powers of two.
"""

# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl

from relgraph.impl.triton.attention_pieces import (
    FIELDS,
    LN2,
    LOG2E,
    add_labels,
    add_row_sums,
    add_run,
    add_step,
    dot,
    dropped,
    faded,
    load_lse,
    load_rows,
    masked,
    no_sums,
    of_others,
    of_run,
    run_vector,
    store_sums,
)

AS_THEY_ARE = ("low", "width")  # never constants: a kernel made for a band of one distance spills registers
SIZES = ("rows", "N_q", "C", "RUNS", "run_step")  # nor these: one kernel serves all lengths
CHUNK: tl.constexpr = tl.constexpr(32)  # columns of a table that are read at once

ROWS = 16
"""Query rows of a program of ``row_vectors``."""


@triton.jit(do_not_specialize=AS_THEY_ARE)
def forward(
    q_ptr, k_ptr, v_ptr, bq_ptr, ck_ptr, ck_run_ptr, mask_ptr, keep_ptr, seed_ptr, o_ptr, lse_ptr, p_ptr,
    blocks_ptr, runs_ptr, tiles_ptr, ids_ptr, order_ptr, bounds_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, mask_b, mask_h, mask_q, mask_k,
    H, N_q, N_k, num_blocks, blocks_b, C, low, width, scale, threshold, boost,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    STEP: tl.constexpr, GROUP: tl.constexpr, PARTS: tl.constexpr, RP: tl.constexpr,
    PRECISION: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Output without its value term, log-sum-exp and P for one block of query rows of one head."""
    BAND: tl.constexpr = ids_ptr is None
    UPTO: tl.constexpr = q_ptr.dtype.element_ty != tl.float32  # half the work; exact to float32's rounding of rows
    # which block of query rows of which head
    lane = (tl.program_id(0) // num_blocks).to(tl.int64)
    # under causal order the last blocks take longest, so they start first
    block = num_blocks - 1 - tl.program_id(0) % num_blocks
    b, h = lane // H, lane % H
    line = blocks_ptr + (b * blocks_b + block) * FIELDS
    own_start, own_stop, other_stop = tl.load(line), tl.load(line + 1), tl.load(line + 2)
    if own_start >= own_stop:
        return
    shift, limit = tl.load(line + 3), tl.load(line + 4)
    wide = tl.full((), 1, tl.int64)  # positions times strides may pass 32 bits
    m, n, dv = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BDV)
    j = tl.arange(0, STEP)
    STEPS: tl.constexpr = BN // STEP
    rows = own_start + m
    row_in = rows < own_stop
    row = tl.minimum(m, own_stop - own_start - 1)  # rows beyond the block read its last row
    first_row = lane * N_q + own_start
    q_at = q_ptr + b * q_b + h * q_h + own_start.to(tl.int64) * q_n
    k_at = k_ptr + b * k_b + (h // GROUP) * k_h
    v_at = v_ptr + b * v_b + (h // GROUP) * v_h
    own_c, other_c = first_row * C, lane * N_k * C  # where columns of own rows begin, and those of the head's keys
    mask_own = b * mask_b + h * mask_h + rows.to(tl.int64) * mask_q
    dv_in = (dv < DV)[None, :]
    # load the query rows [BM, D] once
    q = load_rows(q_at, row, q_n, D, BD)
    last = tl.where(row_in, tl.minimum(rows + limit, other_stop - 1), -1)

    # maximum, total and weighted sum of values per row, updated tile by tile (online softmax)
    top = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, BDV], tl.float32)
    sums = no_sums(BM, RP, BAND)

    # runs: whole tiles in which every pair carries the same label, whose term is one number per row
    for run in range(tl.load(line + 5), tl.load(line + 6)):
        run_at = runs_ptr + run * (2 + PARTS)
        bias = of_run(bq_ptr, own_c + m * C, run_at, row_in, PARTS) * LOG2E
        run_k = run_vector(lane, run_at, C, BAND) * N_k
        before = top
        run_total = tl.zeros([BM], tl.float32)
        run_kept = tl.zeros([BM], tl.float32)
        for at in tl.range(tl.load(run_at), tl.load(run_at + 1), BN):
            # load keys [BN, D], score [BM, BN]
            k = load_rows(k_at + at * wide * k_n, n, k_n, D, BD)
            s = dot(q, tl.trans(k), PRECISION)
            # softmax
            if ck_ptr is not None or mask_ptr is not None:
                s = s * scale + bias[:, None]
                if ck_ptr is not None:
                    s += (of_others(ck_run_ptr, run_k, ck_ptr, other_c, run_at, at, n, wide, C, PARTS) * LOG2E)[None, :]
                s = masked(s, mask_ptr, mask_own[:, None] + (at + n)[None, :] * wide * mask_k, row_in[:, None])
                new_top = tl.maximum(top, tl.max(s, 1))
                safe = tl.where(new_top == float("-inf"), 0.0, new_top)
                p = tl.exp2(s - safe[:, None])
            else:  # the run's term shifts the whole row, at no cost per pair
                new_top = tl.maximum(top, tl.max(s, 1) * scale + bias)
                safe = tl.where(new_top == float("-inf"), 0.0, new_top)
                p = tl.exp2(s * scale - (safe - bias)[:, None])
            fade = tl.exp2(top - safe)
            run_total = run_total * fade + tl.sum(p, 1)
            # dropout
            if DROPOUT != "none":
                kept = dropped(
                    seed_ptr, keep_ptr, lane, H, N_q, N_k, rows, at, threshold, row_in[:, None], BM, BN, DROPOUT
                )  # fmt: skip
                p = tl.where(kept, p, 0.0)
                if p_ptr is not None:
                    run_kept = run_kept * fade + tl.sum(p, 1)
            # load values [BN, DV] and add their weighted sum
            v = load_rows(v_at + at * wide * v_n, n, v_n, DV, BDV)
            acc = dot(p.to(v.dtype), v, PRECISION, acc * fade[:, None])
            top = new_top
        fade = tl.exp2(before - tl.where(top == float("-inf"), 0.0, top))
        total = total * fade + run_total
        # P: the whole run adds to one column
        if p_ptr is not None:
            amount = run_kept if DROPOUT != "none" else run_total
            sums = add_run(faded(sums, fade, BAND), amount, run_at, PARTS, RP, BAND, UPTO)

    # mixed tiles: each pair has its own label
    for number in tl.range(tl.load(line + 7) * STEPS, tl.load(line + 8) * STEPS, num_stages=1):
        tile, step = tiles_ptr + number // STEPS * 2, number % STEPS
        at, slot = tl.load(tile) + step * STEP, tl.load(tile + 1).to(tl.int64)
        first_key = tl.minimum(at, other_stop - 1)  # keys beyond the graph read its last key
        key = tl.minimum(j, other_stop - 1 - first_key)
        # load keys [STEP, D], score [BM, STEP]
        k = load_rows(k_at + first_key * wide * k_n, key, k_n, D, BD)
        s = dot(q, tl.trans(k), PRECISION) * scale
        # labels: ids [BM, STEP]; gather B and C
        s, _, attends, u, column = add_labels(
            s, s, bq_ptr, None, ck_ptr, own_c, other_c + first_key * wide * C, row[:, None], key[None, :],
            m[:, None], j[None, :], (last - at)[:, None], at - own_start - shift - low, width,
            ids_ptr, slot * (PARTS * BM * BN) + step * STEP, C, BN, BM * BN, PARTS, BAND,
        )  # fmt: skip
        s = masked(s, mask_ptr, mask_own[:, None] + (first_key + key)[None, :] * wide * mask_k, row_in[:, None])
        s = tl.where(attends, s, float("-inf"))
        # softmax
        new_top = tl.maximum(top, tl.max(s, 1))
        safe = tl.where(new_top == float("-inf"), 0.0, new_top)
        p = tl.exp2(s - safe[:, None])
        fade = tl.exp2(top - safe)
        total = total * fade + tl.sum(p, 1)
        # dropout
        if DROPOUT != "none":
            kept = dropped(seed_ptr, keep_ptr, lane, H, N_q, N_k, rows, at, threshold, attends, BM, STEP, DROPOUT)
            p = tl.where(kept, p, 0.0)
            s = tl.where(kept, s, float("-inf"))
        # P: sum the weights of the step by label
        if p_ptr is not None:
            # of one pair per label the score is noted; it becomes a weight once the whole row is known
            sums = add_step(
                faded(sums, fade, BAND), p, s, p_ptr + own_c, row[:, None] * C + column, attends, u, width,
                order_ptr, bounds_ptr, slot, step, C, k.dtype, PARTS, BM, BN, STEP, RP, BAND, False, UPTO, PRECISION,
            )  # fmt: skip
        # load values [STEP, DV] and add their weighted sum
        v = load_rows(v_at + first_key * wide * v_n, key, v_n, DV, BDV)
        acc = dot(p.to(v.dtype), v, PRECISION, acc * fade[:, None])
        top = new_top

    # store: normalise, and write output, log-sum-exp and P
    seen = total != 0.0  # true of NaN, which stays NaN
    top = tl.where(seen, top, 0.0)
    share = boost / tl.where(seen, total, 1.0)
    o_at = o_ptr + first_row * DV + m[:, None] * DV + dv[None, :]
    tl.store(o_at, acc * share[:, None], mask=row_in[:, None] & dv_in)
    lse = tl.where(seen, (top + tl.log2(tl.where(seen, total, 1.0))) * LN2, float("-inf"))
    tl.store(lse_ptr + first_row + m, lse, mask=row_in)
    if p_ptr is not None:
        p_at = p_ptr + own_c + m * C
        store_sums(p_at, faded(sums, share, BAND), row_in, width, C, RP, BAND, UPTO)
        if BAND:
            tl.debug_barrier()  # other threads read the scores stored above
            for c in range(1, width + 1, CHUNK):
                columns = c + tl.arange(0, CHUNK)
                here = row_in[:, None] & (columns <= width)[None, :]
                stored = tl.load(p_at[:, None] + columns[None, :], mask=here, other=float("-inf"))
                weight = tl.exp2(stored - top[:, None]) * share[:, None]
                tl.store(p_at[:, None] + columns[None, :], weight, mask=here)


@triton.jit(do_not_specialize=AS_THEY_ARE)
def backward_rows(
    q_ptr, k_ptr, v_ptr, do_ptr, bq_ptr, ck_ptr, ck_run_ptr, dp_ptr, mask_ptr, keep_ptr, seed_ptr, lse_ptr, delta_ptr,
    dq_ptr, db_ptr, blocks_ptr, runs_ptr, tiles_ptr, ids_ptr, order_ptr, bounds_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, mask_b, mask_h, mask_q, mask_k,
    H, N_q, N_k, num_blocks, blocks_b, C, low, width, scale, threshold, boost, q_scale,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    STEP: tl.constexpr, GROUP: tl.constexpr, PARTS: tl.constexpr, RP: tl.constexpr,
    PRECISION: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Gradients of the query and of B for one block of query rows of one head."""
    BAND: tl.constexpr = ids_ptr is None
    UPTO: tl.constexpr = q_ptr.dtype.element_ty != tl.float32  # half the work; exact to float32's rounding of rows
    SUMMED: tl.constexpr = 16 if UPTO else 1
    # which block of query rows of which head
    lane = (tl.program_id(0) // num_blocks).to(tl.int64)
    block = num_blocks - 1 - tl.program_id(0) % num_blocks
    b, h = lane // H, lane % H
    line = blocks_ptr + (b * blocks_b + block) * FIELDS
    own_start, own_stop, other_stop = tl.load(line), tl.load(line + 1), tl.load(line + 2)
    if own_start >= own_stop:
        return
    shift, limit = tl.load(line + 3), tl.load(line + 4)
    wide = tl.full((), 1, tl.int64)  # positions times strides may pass 32 bits
    m, n, d = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BD)
    j = tl.arange(0, STEP)
    STEPS: tl.constexpr = BN // STEP
    rows = own_start + m
    row_in = rows < own_stop
    row = tl.minimum(m, own_stop - own_start - 1)  # rows beyond the block read its last row
    first_row = lane * N_q + own_start
    q_at = q_ptr + b * q_b + h * q_h + own_start.to(tl.int64) * q_n
    k_at = k_ptr + b * k_b + (h // GROUP) * k_h
    v_at = v_ptr + b * v_b + (h // GROUP) * v_h
    own_c, other_c = first_row * C, lane * N_k * C  # where columns of own rows begin, and those of the head's keys
    mask_own = b * mask_b + h * mask_h + rows.to(tl.int64) * mask_q
    d_in = (d < D)[None, :]
    # load query rows [BM, D], their output gradient [BM, DV], log-sum-exp and δ [BM]
    q = load_rows(q_at, row, q_n, D, BD)
    do = load_rows(do_ptr + first_row * DV, row, DV, DV, BDV)
    lse = load_lse(lse_ptr + first_row, m, row_in)
    delta = tl.load(delta_ptr + first_row + m, mask=row_in, other=0.0)
    last = tl.where(row_in, tl.minimum(rows + limit, other_stop - 1), -1)

    dq = tl.zeros([BM, BD], tl.float32)
    sums = no_sums(BM, RP, BAND)

    # runs: whole tiles in which every pair carries the same label, whose term is one number per row
    for run in range(tl.load(line + 5), tl.load(line + 6)):
        run_at = runs_ptr + run * (2 + PARTS)
        less = lse - of_run(bq_ptr, own_c + m * C, run_at, row_in, PARTS) * LOG2E
        more = of_run(dp_ptr, own_c + m * C, run_at, row_in, PARTS)
        run_k = run_vector(lane, run_at, C, BAND) * N_k
        rest = delta - more
        run_sum = tl.zeros([BM, SUMMED], tl.float32)
        for at in tl.range(tl.load(run_at), tl.load(run_at + 1), BN):
            # load keys [BN, D] and values [BN, DV]; weights [BM, BN] from scores and the log-sum-exp
            k = load_rows(k_at + at * wide * k_n, n, k_n, D, BD)
            v = load_rows(v_at + at * wide * v_n, n, v_n, DV, BDV)
            s = dot(q, tl.trans(k), PRECISION)
            s = s * scale - less[:, None]
            if ck_ptr is not None:
                s += (of_others(ck_run_ptr, run_k, ck_ptr, other_c, run_at, at, n, wide, C, PARTS) * LOG2E)[None, :]
            s = masked(s, mask_ptr, mask_own[:, None] + (at + n)[None, :] * wide * mask_k, row_in[:, None])
            p = tl.exp2(s)
            # gradient of the scores
            dp = dot(do, tl.trans(v), PRECISION)
            if DROPOUT != "none":
                kept = dropped(
                    seed_ptr, keep_ptr, lane, H, N_q, N_k, rows, at, threshold, row_in[:, None], BM, BN, DROPOUT
                )  # fmt: skip
                ds = p * (tl.where(kept, (dp + more[:, None]) * boost, 0.0) - delta[:, None])
            else:
                ds = p * (dp - rest[:, None])
            # sums by label (dB), and dq
            if bq_ptr is not None:
                run_sum = add_row_sums(run_sum, ds, k.dtype, PRECISION, BN, SUMMED)
            dq = dot(ds.to(k.dtype), k, PRECISION, dq)
        if bq_ptr is not None:
            amount = tl.max(run_sum, 1)
            sums = add_run(sums, amount, run_at, PARTS, RP, BAND, UPTO)

    # mixed tiles: each pair has its own label
    for number in tl.range(tl.load(line + 7) * STEPS, tl.load(line + 8) * STEPS, num_stages=1):
        tile, step = tiles_ptr + number // STEPS * 2, number % STEPS
        at, slot = tl.load(tile) + step * STEP, tl.load(tile + 1).to(tl.int64)
        first_key = tl.minimum(at, other_stop - 1)  # keys beyond the graph read its last key
        key = tl.minimum(j, other_stop - 1 - first_key)
        # load keys [STEP, D] and values [STEP, DV], score [BM, STEP]
        k = load_rows(k_at + first_key * wide * k_n, key, k_n, D, BD)
        v = load_rows(v_at + first_key * wide * v_n, key, v_n, DV, BDV)
        s = dot(q, tl.trans(k), PRECISION) * scale
        dp = dot(do, tl.trans(v), PRECISION)
        # labels: ids [BM, STEP]; gather B, dP and C
        s, dp, attends, u, column = add_labels(
            s, dp, bq_ptr, dp_ptr, ck_ptr, own_c, other_c + first_key * wide * C, row[:, None], key[None, :],
            m[:, None], j[None, :], (last - at)[:, None], at - own_start - shift - low, width,
            ids_ptr, slot * (PARTS * BM * BN) + step * STEP, C, BN, BM * BN, PARTS, BAND,
        )  # fmt: skip
        s = masked(s, mask_ptr, mask_own[:, None] + (first_key + key)[None, :] * wide * mask_k, row_in[:, None])
        # weights and the gradient of the scores
        p = tl.exp2(tl.where(attends, s - lse[:, None], float("-inf")))
        if DROPOUT != "none":
            kept = dropped(seed_ptr, keep_ptr, lane, H, N_q, N_k, rows, at, threshold, attends, BM, STEP, DROPOUT)
            dp = tl.where(kept, dp * boost, 0.0)
        ds = p * (dp - delta[:, None])
        # sums by label (dB), and dq
        if bq_ptr is not None:
            sums = add_step(
                sums, ds, ds, db_ptr + own_c, row[:, None] * C + column, attends, u, width,
                order_ptr, bounds_ptr, slot, step, C, k.dtype, PARTS, BM, BN, STEP, RP, BAND, False, UPTO, PRECISION,
            )  # fmt: skip
        dq = dot(ds.to(k.dtype), k, PRECISION, dq)

    # store
    dq_at = dq_ptr + first_row * D + m[:, None] * D + d[None, :]
    tl.store(dq_at, dq * q_scale, mask=row_in[:, None] & d_in)
    if bq_ptr is not None:
        store_sums(db_ptr + own_c + m * C, sums, row_in, width, C, RP, BAND, UPTO)


@triton.jit(do_not_specialize=AS_THEY_ARE)
def backward_keys(
    q_ptr, k_ptr, v_ptr, do_ptr, bq_ptr, bq_run_ptr, ck_ptr, dp_ptr, dp_run_ptr, mask_ptr, keep_ptr, seed_ptr,
    lse_ptr, delta_ptr, dk_ptr, dv_ptr, dc_ptr, blocks_ptr, runs_ptr, tiles_ptr, ids_ptr, order_ptr, bounds_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, mask_b, mask_h, mask_q, mask_k,
    H, N_q, N_k, num_blocks, blocks_b, C, low, width, scale, threshold, boost, k_scale,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    STEP: tl.constexpr, GROUP: tl.constexpr, PARTS: tl.constexpr, RP: tl.constexpr,
    PRECISION: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Gradients of key and value (all query heads that share them) and of C, for one block of keys.

    Tiles are transposed here, ``[BN, BM]``, so that weights and their gradients enter the products unchanged.
    """
    BAND: tl.constexpr = ids_ptr is None
    UPTO: tl.constexpr = q_ptr.dtype.element_ty != tl.float32
    # which block of keys of which key head
    kv_lane = (tl.program_id(0) // num_blocks).to(tl.int64)
    block = tl.program_id(0) % num_blocks
    kv_heads = H // GROUP
    b, kv_head = kv_lane // kv_heads, kv_lane % kv_heads
    line = blocks_ptr + (b * blocks_b + block) * FIELDS
    own_start, own_stop, other_stop = tl.load(line), tl.load(line + 1), tl.load(line + 2)
    if own_start >= own_stop:
        return
    shift, limit = tl.load(line + 3), tl.load(line + 4)
    wide = tl.full((), 1, tl.int64)  # positions times strides may pass 32 bits
    m, n, d, dv = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BD), tl.arange(0, BDV)
    i = tl.arange(0, STEP)
    STEPS: tl.constexpr = BM // STEP
    keys = own_start + n
    key_in = keys < own_stop
    key = tl.minimum(n, own_stop - own_start - 1)  # keys beyond the block read its last key
    d_in, dv_in = (d < D)[None, :], (dv < DV)[None, :]
    k_at = k_ptr + b * k_b + kv_head * k_h + own_start.to(tl.int64) * k_n
    v_at = v_ptr + b * v_b + kv_head * v_h + own_start.to(tl.int64) * v_n
    # load keys [BN, D] and values [BN, DV]; they stay in registers
    k = load_rows(k_at, key, k_n, D, BD)
    v = load_rows(v_at, key, v_n, DV, BDV)
    dk = tl.zeros([BN, BD], tl.float32)
    dvalue = tl.zeros([BN, BDV], tl.float32)

    # all query heads that share these keys
    for head in range(GROUP):
        h = kv_head * GROUP + head
        lane = b * H + h
        q_at = q_ptr + b * q_b + h * q_h
        do_at = do_ptr + lane * N_q * DV
        row_at = lane * N_q
        own_c = (lane * N_k + own_start) * C
        mask_own = b * mask_b + h * mask_h
        sums = no_sums(BN, RP, BAND)

        # runs: whole tiles in which every pair carries the same label, whose term is one number per row
        for run in range(tl.load(line + 5), tl.load(line + 6)):
            run_at = runs_ptr + run * (2 + PARTS)
            run_i = run_vector(lane, run_at, C, BAND) * N_q
            extra = of_run(ck_ptr, own_c + n * C, run_at, key_in, PARTS) * LOG2E
            run_sum = tl.zeros([BN], tl.float32)
            for at in tl.range(tl.load(run_at), tl.load(run_at + 1), BM):
                rows = at + m
                first = row_at + at
                # load query rows [BM, D], their output gradient [BM, DV]; weights [BN, BM] from scores and lse
                q = load_rows(q_at + at * wide * q_n, m, q_n, D, BD)
                do = load_rows(do_at + at * wide * DV, m, DV, DV, BDV)
                less = load_lse(lse_ptr + first, m, True)
                rest = tl.load(delta_ptr + first + m)
                if bq_ptr is not None:
                    less -= of_others(bq_run_ptr, run_i, bq_ptr, row_at * C, run_at, at, m, wide, C, PARTS) * LOG2E
                more = tl.zeros([BM], tl.float32)
                if dp_ptr is not None:
                    more = of_others(dp_run_ptr, run_i, dp_ptr, row_at * C, run_at, at, m, wide, C, PARTS)
                s = dot(k, tl.trans(q), PRECISION) * scale
                s -= less[None, :]
                if ck_ptr is not None:
                    s += extra[:, None]
                entries = mask_own + rows.to(tl.int64)[None, :] * mask_q + keys[:, None] * wide * mask_k
                s = masked(s, mask_ptr, entries, key_in[:, None])
                p = tl.exp2(s)
                # gradient of the scores
                dp = dot(v, tl.trans(do), PRECISION)
                if DROPOUT != "none":
                    kept = tl.trans(dropped(
                        seed_ptr, keep_ptr, lane, H, N_q, N_k, rows, own_start, threshold, key_in[None, :],
                        BM, BN, DROPOUT,
                    ))  # fmt: skip
                    ds = p * (tl.where(kept, (dp + more[None, :]) * boost, 0.0) - rest[None, :])
                    p = tl.where(kept, p, 0.0)
                else:
                    ds = p * (dp - (rest - more)[None, :])
                # dv and dk, and sums by label (dC)
                dvalue = dot(p.to(do.dtype), do, PRECISION, dvalue)
                dk = dot(ds.to(q.dtype), q, PRECISION, dk)
                if ck_ptr is not None:
                    run_sum += tl.sum(ds, 1)  # one more product here would spill
            if ck_ptr is not None:
                sums = add_run(sums, run_sum, run_at, PARTS, RP, BAND, UPTO)

        # mixed tiles: each pair has its own label
        for number in tl.range(tl.load(line + 7) * STEPS, tl.load(line + 8) * STEPS, num_stages=1):
            tile, step = tiles_ptr + number // STEPS * 2, number % STEPS
            at, slot = tl.load(tile) + step * STEP, tl.load(tile + 1).to(tl.int64)
            rows = at + i
            row_in = rows < other_stop
            first_row = tl.minimum(at, other_stop - 1)  # rows beyond the graph read its last row
            row = tl.minimum(i, other_stop - 1 - first_row)
            # load query rows [STEP, D] and their output gradient [STEP, DV], score [BN, STEP]
            q = load_rows(q_at + first_row * wide * q_n, row, q_n, D, BD)
            do = load_rows(do_at + first_row * wide * DV, row, DV, DV, BDV)
            less = load_lse(lse_ptr + row_at + at, i, row_in)
            rest = tl.load(delta_ptr + row_at + at + i, mask=row_in, other=0.0)
            s = dot(k, tl.trans(q), PRECISION) * scale
            dp = dot(v, tl.trans(do), PRECISION)
            # labels: ids [STEP, BN]; gather B, dP and C
            last = tl.where(row_in, tl.minimum(i + (at + limit - own_start), own_stop - own_start - 1), -1)
            s, dp, attends, u, column = add_labels(
                s, dp, bq_ptr, dp_ptr, ck_ptr, (row_at + first_row) * C, own_c, row[None, :], key[:, None],
                i[None, :], n[:, None], last[None, :], own_start - at - shift - low, width,
                ids_ptr, slot * (PARTS * BM * BN) + step * (STEP * BN), C, BN, BM * BN, PARTS, BAND,
            )  # fmt: skip
            entries = mask_own + (first_row + row).to(tl.int64)[None, :] * mask_q + keys[:, None] * wide * mask_k
            s = masked(s, mask_ptr, entries, key_in[:, None])
            # weights and the gradient of the scores
            p = tl.exp2(tl.where(attends, s - less[None, :], float("-inf")))
            if DROPOUT != "none":
                inside = row_in[:, None] & key_in[None, :]
                kept = tl.trans(dropped(
                    seed_ptr, keep_ptr, lane, H, N_q, N_k, rows, own_start, threshold, inside, STEP, BN, DROPOUT
                ))  # fmt: skip
                ds = p * (tl.where(kept, dp * boost, 0.0) - rest[None, :])
                p = tl.where(kept, p, 0.0)
            else:
                ds = p * (dp - rest[None, :])
            # dv and dk, and sums by label (dC)
            dvalue = dot(p.to(do.dtype), do, PRECISION, dvalue)
            dk = dot(ds.to(q.dtype), q, PRECISION, dk)
            if ck_ptr is not None:
                sums = add_step(
                    sums, ds, ds, dc_ptr + own_c, key[:, None] * C + column, attends, u, width,
                    order_ptr, bounds_ptr, slot, step, C, q.dtype, PARTS, BN, BM, STEP, RP, BAND, True, UPTO, PRECISION,
                )  # fmt: skip

        if ck_ptr is not None:
            store_sums(dc_ptr + own_c + n * C, sums, key_in, width, C, RP, BAND, UPTO)

    # store
    own = kv_lane * N_k + own_start
    tl.store(dk_ptr + own * D + n[:, None] * D + d[None, :], dk * k_scale, mask=key_in[:, None] & d_in)
    tl.store(dv_ptr + own * DV + n[:, None] * DV + dv[None, :], dvalue * boost, mask=key_in[:, None] & dv_in)


@triton.jit(do_not_specialize=SIZES)
def row_vectors(
    o_ptr, do_ptr, sums_ptr, dp_ptr, bq_ptr, dlse_ptr, do_low_ptr, delta_ptr, bq_run_ptr, dp_run_ptr,
    rows, N_q, C, RUNS, run_step, DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """δ, and B and dP of the columns of runs, ``[B, H, RUNS, N_q]``, which backward needs; all tensors are contiguous.

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
