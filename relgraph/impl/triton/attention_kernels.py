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
    add_dot,
    add_row_sums,
    add_run,
    add_step,
    dot,
    dropped,
    fetch,
    fetch_ids,
    finished,
    in_band,
    keys_of_run,
    load_rows,
    masked,
    negated,
    of_run,
    put,
    run_vector,
    slope,
    store_sums,
)

AS_THEY_ARE = ("low", "width")  # never constants: a kernel made for a band of one distance spills registers
CHUNK: tl.constexpr = tl.constexpr(32)  # columns of a band that are normalised at once


@triton.jit(do_not_specialize=AS_THEY_ARE)
def forward(
    q_ptr, k_ptr, v_ptr, bq_ptr, ck_ptr, ck_run_ptr, mask_ptr, keep_ptr, seed_ptr, o_ptr, lse_ptr, p_ptr,
    blocks_ptr, runs_ptr, tiles_ptr, ids_ptr, order_ptr, bounds_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, mask_b, mask_h, mask_q, mask_k,
    H, N_q, N_k, num_blocks, blocks_b, C, low, width, scale, threshold, boost, bend,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    STEP: tl.constexpr, GROUP: tl.constexpr, PARTS: tl.constexpr, RP: tl.constexpr, UPTO: tl.constexpr,
    BAND: tl.constexpr, HAS_BQ: tl.constexpr, HAS_CK: tl.constexpr, NEGATED: tl.constexpr, SCORE: tl.constexpr,
    NVIDIA: tl.constexpr, NEED_P: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Output without its value term, log-sum-exp and P for one block of query rows of one head."""
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
    bq_block = bq_ptr + first_row * C
    bq_at = bq_block + m * C
    p_block = p_ptr + first_row * C
    p_at = p_block + m * C
    ck_at = ck_ptr + lane * N_k * C
    mask_at = mask_ptr + b * mask_b + h * mask_h + rows.to(tl.int64) * mask_q
    keep_at = keep_ptr + (first_row + m) * N_k
    dv_in = (dv < DV)[None, :]
    # load the query rows once
    q = load_rows(q_at, row, q_n, D, BD)
    if NEGATED:
        q = negated(q)
    last = tl.where(row_in, tl.minimum(rows + limit, other_stop - 1), -1)

    # maximum, total and weighted sum of values per row, updated tile by tile (online softmax)
    top = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, BDV], tl.float32)
    if NEED_P:
        if BAND:
            low_sum = tl.zeros([BM], tl.float32)
            high_sum = tl.zeros([BM], tl.float32)
        else:
            sums = tl.zeros([BM, RP], tl.float32)

    # runs: whole tiles in which every pair carries the same label, whose term is one number per row
    for run in range(tl.load(line + 5), tl.load(line + 6)):
        run_at = runs_ptr + run * (2 + PARTS)
        bias = tl.zeros([BM], tl.float32)
        if HAS_BQ:
            bias = of_run(bq_at, run_at, row_in, PARTS) * LOG2E
        ck_run = ck_run_ptr + run_vector(lane, run_at, C, BAND) * N_k
        before = top
        run_total = tl.zeros([BM], tl.float32)
        run_kept = tl.zeros([BM], tl.float32)
        for at in tl.range(tl.load(run_at), tl.load(run_at + 1), BN):
            # load keys, score
            k = load_rows(k_at + at * wide * k_n, n, k_n, D, BD)
            s = dot(q, tl.trans(k), PRECISION)
            # softmax
            if HAS_CK or MASK > 0 or SCORE > 0:
                s = s * scale + bias[:, None]
                if HAS_CK:
                    s += keys_of_run(ck_run, ck_at, run_at, at, n, wide, C, PARTS)[None, :]
                if SCORE > 0:
                    s = finished(s, bend, SCORE)
                if MASK > 0:
                    s = masked(s, mask_at[:, None] + (at + n)[None, :] * wide * mask_k, row_in[:, None], MASK)
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
            if DROPOUT > 0:
                pairs = keep_at[:, None] + (at + n)[None, :]
                kept = dropped(seed_ptr, b, h, rows, at, threshold, pairs, row_in[:, None], BM, BN, DROPOUT)
                p = tl.where(kept, p, 0.0)
                if NEED_P:
                    run_kept = run_kept * fade + tl.sum(p, 1)
            # weighted sum of values
            v = load_rows(v_at + at * wide * v_n, n, v_n, DV, BDV)
            acc = add_dot(p.to(v.dtype), v, acc * fade[:, None], PRECISION)
            top = new_top
        fade = tl.exp2(before - tl.where(top == float("-inf"), 0.0, top))
        total = total * fade + run_total
        # P: the whole run adds to one column
        if NEED_P:
            amount = run_kept if DROPOUT > 0 else run_total
            if BAND:
                column = tl.load(run_at + 2)
                low_sum = low_sum * fade + tl.where(column == 0, amount, 0.0)
                high_sum = high_sum * fade + tl.where(column == 0, 0.0, amount)
            else:
                sums = add_run(sums * fade[:, None], amount, run_at, PARTS, RP, UPTO)

    # mixed tiles: each pair has its own label
    for number in tl.range(tl.load(line + 7) * STEPS, tl.load(line + 8) * STEPS, num_stages=1):
        tile, step = tiles_ptr + number // STEPS * 2, number % STEPS
        at, slot = tl.load(tile) + step * STEP, tl.load(tile + 1).to(tl.int64)
        first_key = tl.minimum(at, other_stop - 1)  # keys beyond the graph read its last key
        key = tl.minimum(j, other_stop - 1 - first_key)
        # load keys, score
        k = load_rows(k_at + first_key * wide * k_n, key, k_n, D, BD)
        s = dot(q, tl.trans(k), PRECISION) * scale
        # labels: gather B and C
        ck_step = ck_at + first_key * wide * C
        if BAND:
            attends = j[None, :] <= (last - at)[:, None]
            u = (j[None, :] - m[:, None]) + (at - own_start - shift - low)
            column = tl.minimum(tl.maximum(u, -1), width) + 1
            if HAS_BQ:
                s += fetch(bq_block, row[:, None] * C + column, NVIDIA) * LOG2E
            if HAS_CK:
                s += fetch(ck_step, key[None, :] * C + column, NVIDIA) * LOG2E
        else:
            for part in tl.static_range(PARTS):
                ids_step = ids_ptr + (slot * PARTS + part) * (BM * BN) + step * STEP
                column = fetch_ids(ids_step, m[:, None] * BN + j[None, :], NVIDIA)
                attends = column < C
                column = tl.minimum(column, C - 1)
                if HAS_BQ:
                    s += fetch(bq_block, row[:, None] * C + column, NVIDIA) * LOG2E
                if HAS_CK:
                    s += fetch(ck_step, key[None, :] * C + column, NVIDIA) * LOG2E
        if SCORE > 0:
            s = finished(s, bend, SCORE)
        if MASK > 0:
            s = masked(s, mask_at[:, None] + (first_key + key)[None, :] * wide * mask_k, row_in[:, None], MASK)
        s = tl.where(attends, s, float("-inf"))
        # softmax
        new_top = tl.maximum(top, tl.max(s, 1))
        safe = tl.where(new_top == float("-inf"), 0.0, new_top)
        p = tl.exp2(s - safe[:, None])
        fade = tl.exp2(top - safe)
        total = total * fade + tl.sum(p, 1)
        # dropout
        if DROPOUT > 0:
            pairs = keep_at[:, None] + (at + j)[None, :]
            kept = dropped(seed_ptr, b, h, rows, at, threshold, pairs, attends, BM, STEP, DROPOUT)
            p = tl.where(kept, p, 0.0)
            s = tl.where(kept, s, float("-inf"))
        # P: sum the weights of the step by label
        if NEED_P:
            if BAND:
                low_sum = low_sum * fade + tl.sum(tl.where(u < 0, p, 0.0), 1)
                high_sum = high_sum * fade + tl.sum(tl.where(u >= width, p, 0.0), 1)
                # one pair per label: store its score; it becomes a weight once the whole row is known
                put(p_block, row[:, None] * C + column, s, attends & in_band(u, width), NVIDIA)
            else:
                sums = add_step(
                    sums * fade[:, None], p, order_ptr, bounds_ptr, slot, step, C, k.dtype, PARTS, BM, BN, STEP, RP,
                    False, UPTO, PRECISION, NVIDIA,
                )  # fmt: skip
        # weighted sum of values
        v = load_rows(v_at + first_key * wide * v_n, key, v_n, DV, BDV)
        acc = add_dot(p.to(v.dtype), v, acc * fade[:, None], PRECISION)
        top = new_top

    # store: normalise, and write output, log-sum-exp and P
    seen = total != 0.0  # true of NaN, which stays NaN
    top = tl.where(seen, top, 0.0)
    share = boost / tl.where(seen, total, 1.0)
    o_at = o_ptr + first_row * DV + m[:, None] * DV + dv[None, :]
    tl.store(o_at, acc * share[:, None], mask=row_in[:, None] & dv_in)
    lse = tl.where(seen, (top + tl.log2(tl.where(seen, total, 1.0))) * LN2, float("-inf"))
    tl.store(lse_ptr + first_row + m, lse, mask=row_in)
    if NEED_P:
        if BAND:
            tl.store(p_at, low_sum * share, mask=row_in)
            tl.store(p_at + width + 1, high_sum * share, mask=row_in)
            tl.debug_barrier()  # other threads read the scores stored above
            for c in range(1, width + 1, CHUNK):
                columns = c + tl.arange(0, CHUNK)
                here = row_in[:, None] & (columns <= width)[None, :]
                stored = tl.load(p_at[:, None] + columns[None, :], mask=here, other=float("-inf"))
                weight = tl.exp2(stored - top[:, None]) * share[:, None]
                tl.store(p_at[:, None] + columns[None, :], weight, mask=here)
        else:
            store_sums(p_at, sums * share[:, None], row_in, C, RP, UPTO)


@triton.jit(do_not_specialize=AS_THEY_ARE)
def backward_rows(
    q_ptr, k_ptr, v_ptr, do_ptr, bq_ptr, ck_ptr, ck_run_ptr, dp_ptr, mask_ptr, keep_ptr, seed_ptr, lse_ptr, delta_ptr,
    dq_ptr, db_ptr, blocks_ptr, runs_ptr, tiles_ptr, ids_ptr, order_ptr, bounds_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, mask_b, mask_h, mask_q, mask_k,
    H, N_q, N_k, num_blocks, blocks_b, C, low, width, scale, threshold, boost, bend, q_scale,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    STEP: tl.constexpr, GROUP: tl.constexpr, PARTS: tl.constexpr, RP: tl.constexpr, UPTO: tl.constexpr,
    BAND: tl.constexpr, HAS_BQ: tl.constexpr, HAS_CK: tl.constexpr, NEGATED: tl.constexpr, SCORE: tl.constexpr,
    NVIDIA: tl.constexpr, HAS_DP: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    SUMMED: tl.constexpr,
):  # fmt: skip
    """Gradients of the query and of B for one block of query rows of one head."""
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
    bq_block, dp_block, db_block = bq_ptr + first_row * C, dp_ptr + first_row * C, db_ptr + first_row * C
    bq_at, dp_at, db_at = bq_block + m * C, dp_block + m * C, db_block + m * C
    ck_at = ck_ptr + lane * N_k * C
    mask_at = mask_ptr + b * mask_b + h * mask_h + rows.to(tl.int64) * mask_q
    keep_at = keep_ptr + (first_row + m) * N_k
    d_in = (d < D)[None, :]
    # load query rows, their output gradient, log-sum-exp and δ
    q = load_rows(q_at, row, q_n, D, BD)
    if NEGATED:
        q = negated(q)
    do = load_rows(do_ptr + first_row * DV, row, DV, DV, BDV)
    lse = tl.load(lse_ptr + first_row + m, mask=row_in, other=float("-inf")) * LOG2E
    lse = tl.where(lse == float("-inf"), float("inf"), lse)  # all weights of a row that sees nothing are zero
    delta = tl.load(delta_ptr + first_row + m, mask=row_in, other=0.0)
    last = tl.where(row_in, tl.minimum(rows + limit, other_stop - 1), -1)

    dq = tl.zeros([BM, BD], tl.float32)
    if HAS_BQ:
        if BAND:
            low_sum = tl.zeros([BM], tl.float32)
            high_sum = tl.zeros([BM], tl.float32)
        else:
            sums = tl.zeros([BM, RP], tl.float32)

    # runs: whole tiles in which every pair carries the same label, whose term is one number per row
    for run in range(tl.load(line + 5), tl.load(line + 6)):
        run_at = runs_ptr + run * (2 + PARTS)
        term = tl.zeros([BM], tl.float32)
        more = tl.zeros([BM], tl.float32)
        if HAS_BQ:
            term += of_run(bq_at, run_at, row_in, PARTS) * LOG2E
        if HAS_DP:
            more += of_run(dp_at, run_at, row_in, PARTS)
        ck_run = ck_run_ptr + run_vector(lane, run_at, C, BAND) * N_k
        less = lse - term
        rest = delta - more
        run_sum = tl.zeros([BM, SUMMED], tl.float32)
        for at in tl.range(tl.load(run_at), tl.load(run_at + 1), BN):
            # load keys and values; weights from scores and the log-sum-exp
            k = load_rows(k_at + at * wide * k_n, n, k_n, D, BD)
            v = load_rows(v_at + at * wide * v_n, n, v_n, DV, BDV)
            s = dot(q, tl.trans(k), PRECISION)
            s = s * scale + term[:, None] if SCORE > 0 else s * scale - less[:, None]
            if HAS_CK:
                s += keys_of_run(ck_run, ck_at, run_at, at, n, wide, C, PARTS)[None, :]
            if SCORE > 0:
                s = finished(s, bend, SCORE)
                bent = slope(s, bend, SCORE)
                s -= lse[:, None]
            if MASK > 0:
                s = masked(s, mask_at[:, None] + (at + n)[None, :] * wide * mask_k, row_in[:, None], MASK)
            p = tl.exp2(s)
            # gradient of the scores
            dp = dot(do, tl.trans(v), PRECISION)
            if DROPOUT > 0:
                pairs = keep_at[:, None] + (at + n)[None, :]
                kept = dropped(seed_ptr, b, h, rows, at, threshold, pairs, row_in[:, None], BM, BN, DROPOUT)
                ds = p * (tl.where(kept, (dp + more[:, None]) * boost, 0.0) - delta[:, None])
            else:
                ds = p * (dp - rest[:, None])
            if SCORE > 0:
                ds *= bent
            # sums by label (dB), and dq
            if HAS_BQ:
                run_sum = add_row_sums(run_sum, ds, k.dtype, PRECISION, BN, SUMMED)
            dq = add_dot(ds.to(k.dtype), k, dq, PRECISION)
        if HAS_BQ:
            amount = tl.max(run_sum, 1)
            if BAND:
                column = tl.load(run_at + 2)
                low_sum += tl.where(column == 0, amount, 0.0)
                high_sum += tl.where(column == 0, 0.0, amount)
            else:
                sums = add_run(sums, amount, run_at, PARTS, RP, UPTO)

    # mixed tiles: each pair has its own label
    for number in tl.range(tl.load(line + 7) * STEPS, tl.load(line + 8) * STEPS, num_stages=1):
        tile, step = tiles_ptr + number // STEPS * 2, number % STEPS
        at, slot = tl.load(tile) + step * STEP, tl.load(tile + 1).to(tl.int64)
        first_key = tl.minimum(at, other_stop - 1)  # keys beyond the graph read its last key
        key = tl.minimum(j, other_stop - 1 - first_key)
        # load keys and values, score
        k = load_rows(k_at + first_key * wide * k_n, key, k_n, D, BD)
        v = load_rows(v_at + first_key * wide * v_n, key, v_n, DV, BDV)
        s = dot(q, tl.trans(k), PRECISION) * scale
        dp = dot(do, tl.trans(v), PRECISION)
        # labels: gather B, dP and C
        ck_step = ck_at + first_key * wide * C
        if BAND:
            attends = j[None, :] <= (last - at)[:, None]
            u = (j[None, :] - m[:, None]) + (at - own_start - shift - low)
            column = tl.minimum(tl.maximum(u, -1), width) + 1
            if HAS_BQ:
                s += fetch(bq_block, row[:, None] * C + column, NVIDIA) * LOG2E
            if HAS_DP:
                dp += fetch(dp_block, row[:, None] * C + column, NVIDIA)
            if HAS_CK:
                s += fetch(ck_step, key[None, :] * C + column, NVIDIA) * LOG2E
        else:
            for part in tl.static_range(PARTS):
                ids_step = ids_ptr + (slot * PARTS + part) * (BM * BN) + step * STEP
                column = fetch_ids(ids_step, m[:, None] * BN + j[None, :], NVIDIA)
                attends = column < C
                column = tl.minimum(column, C - 1)
                if HAS_BQ:
                    s += fetch(bq_block, row[:, None] * C + column, NVIDIA) * LOG2E
                if HAS_DP:
                    dp += fetch(dp_block, row[:, None] * C + column, NVIDIA)
                if HAS_CK:
                    s += fetch(ck_step, key[None, :] * C + column, NVIDIA) * LOG2E
        if SCORE > 0:
            s = finished(s, bend, SCORE)
            bent = slope(s, bend, SCORE)
        if MASK > 0:
            s = masked(s, mask_at[:, None] + (first_key + key)[None, :] * wide * mask_k, row_in[:, None], MASK)
        # weights and the gradient of the scores
        p = tl.exp2(tl.where(attends, s - lse[:, None], float("-inf")))
        if DROPOUT > 0:
            pairs = keep_at[:, None] + (at + j)[None, :]
            kept = dropped(seed_ptr, b, h, rows, at, threshold, pairs, attends, BM, STEP, DROPOUT)
            dp = tl.where(kept, dp * boost, 0.0)
        ds = p * (dp - delta[:, None])
        if SCORE > 0:
            ds *= bent
        # sums by label (dB), and dq
        if HAS_BQ:
            if BAND:
                low_sum += tl.sum(tl.where(u < 0, ds, 0.0), 1)
                high_sum += tl.sum(tl.where(u >= width, ds, 0.0), 1)
                put(db_block, row[:, None] * C + column, ds, attends & in_band(u, width), NVIDIA)
            else:
                sums = add_step(
                    sums, ds, order_ptr, bounds_ptr, slot, step, C, k.dtype, PARTS, BM, BN, STEP, RP,
                    False, UPTO, PRECISION, NVIDIA,
                )  # fmt: skip
        dq = add_dot(ds.to(k.dtype), k, dq, PRECISION)

    # store
    dq_at = dq_ptr + first_row * D + m[:, None] * D + d[None, :]
    tl.store(dq_at, dq * q_scale, mask=row_in[:, None] & d_in)
    if HAS_BQ:
        if BAND:
            tl.store(db_at, low_sum, mask=row_in)
            tl.store(db_at + width + 1, high_sum, mask=row_in)
        else:
            store_sums(db_at, sums, row_in, C, RP, UPTO)


@triton.jit(do_not_specialize=AS_THEY_ARE)
def backward_keys(
    q_ptr, k_ptr, v_ptr, do_ptr, bq_ptr, ck_ptr, dp_ptr, mask_ptr, keep_ptr, seed_ptr, less_ptr, rest_ptr,
    dk_ptr, dv_ptr, dc_ptr, blocks_ptr, runs_ptr, tiles_ptr, ids_ptr, order_ptr, bounds_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, mask_b, mask_h, mask_q, mask_k,
    H, N_q, N_k, num_blocks, blocks_b, C, low, width, scale, threshold, boost, bend, k_scale, VECTORS,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    STEP: tl.constexpr, GROUP: tl.constexpr, PARTS: tl.constexpr, RP: tl.constexpr, UPTO: tl.constexpr,
    BAND: tl.constexpr, HAS_BQ: tl.constexpr, HAS_CK: tl.constexpr, NEGATED: tl.constexpr, SCORE: tl.constexpr,
    NVIDIA: tl.constexpr, HAS_DP: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    FOLDED: tl.constexpr,
):  # fmt: skip
    """Gradients of key and value (all query heads that share them) and of C, for one block of keys.

    Tiles are transposed here, ``[BN, BM]``, so that weights and their gradients enter the products unchanged. ``less``
    and ``rest`` ``[B, H, 1 + columns of runs, N_q]`` hold lse (in powers of two, inf on a row that sees nothing) and δ,
    and both minus each column's B and dP (``FOLDED``), so that labels cost nothing in a run.
    """
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
    # load keys and values; they stay in registers
    k = load_rows(k_at, key, k_n, D, BD)
    if NEGATED:
        k = negated(k)
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
        ck_block, dc_block = ck_ptr + (lane * N_k + own_start) * C, dc_ptr + (lane * N_k + own_start) * C
        ck_at, dc_at = ck_block + n * C, dc_block + n * C
        mask_at = mask_ptr + b * mask_b + h * mask_h
        keep_at = keep_ptr + lane * N_q * N_k
        if HAS_CK:
            if BAND:
                low_sum = tl.zeros([BN], tl.float32)
                high_sum = tl.zeros([BN], tl.float32)
            else:
                sums = tl.zeros([BN, RP], tl.float32)

        # runs: whole tiles in which every pair carries the same label, whose term is one number per row
        for run in range(tl.load(line + 5), tl.load(line + 6)):
            run_at = runs_ptr + run * (2 + PARTS)
            vector = row_at * VECTORS
            if FOLDED:
                column = tl.load(run_at + 2)
                vector += (1 + (tl.minimum(column, 1) if BAND else column)) * N_q
            extra = tl.zeros([BN], tl.float32)
            if HAS_CK:
                extra = of_run(ck_at, run_at, key_in, PARTS) * LOG2E
            run_sum = tl.zeros([BN], tl.float32)
            for at in tl.range(tl.load(run_at), tl.load(run_at + 1), BM):
                rows = at + m
                first = row_at + at
                # load query rows; weights from scores and the log-sum-exp
                q = load_rows(q_at + at * wide * q_n, m, q_n, D, BD)
                do = load_rows(do_at + at * wide * DV, m, DV, DV, BDV)
                less = tl.load(less_ptr + vector + at + m)
                rest = tl.load(rest_ptr + vector + at + m)
                term = tl.zeros([BM], tl.float32)
                more = tl.zeros([BM], tl.float32)
                if not FOLDED:
                    if HAS_BQ:
                        term += of_run(bq_ptr + first * C + m * C, run_at, m >= 0, PARTS) * LOG2E
                    if HAS_DP:
                        more += of_run(dp_ptr + first * C + m * C, run_at, m >= 0, PARTS)
                s = dot(k, tl.trans(q), PRECISION) * scale
                if SCORE > 0:
                    s += term[None, :]
                else:
                    s -= (less - term)[None, :]
                if HAS_CK:
                    s += extra[:, None]
                if SCORE > 0:
                    s = finished(s, bend, SCORE)
                    bent = slope(s, bend, SCORE)
                    s -= less[None, :]
                if MASK > 0:
                    entries = mask_at + rows.to(tl.int64)[None, :] * mask_q + keys[:, None] * wide * mask_k
                    s = masked(s, entries, key_in[:, None], MASK)
                p = tl.exp2(s)
                # gradient of the scores
                dp = dot(v, tl.trans(do), PRECISION)
                if DROPOUT > 0:
                    pairs = keep_at + rows.to(tl.int64)[:, None] * N_k + keys[None, :]
                    kept = dropped(seed_ptr, b, h, rows, own_start, threshold, pairs, key_in[None, :], BM, BN, DROPOUT)
                    kept = tl.trans(kept)
                    ds = p * (tl.where(kept, (dp + more[None, :]) * boost, 0.0) - rest[None, :])
                    p = tl.where(kept, p, 0.0)
                else:
                    ds = p * (dp - (rest - more)[None, :])
                if SCORE > 0:
                    ds *= bent
                # dv and dk, and sums by label (dC)
                dvalue = add_dot(p.to(do.dtype), do, dvalue, PRECISION)
                dk = add_dot(ds.to(q.dtype), q, dk, PRECISION)
                if HAS_CK:
                    run_sum += tl.sum(ds, 1)  # one more product here would spill
            if HAS_CK:
                if BAND:
                    column = tl.load(run_at + 2)
                    low_sum += tl.where(column == 0, run_sum, 0.0)
                    high_sum += tl.where(column == 0, 0.0, run_sum)
                else:
                    sums = add_run(sums, run_sum, run_at, PARTS, RP, UPTO)

        # mixed tiles: each pair has its own label
        for number in tl.range(tl.load(line + 7) * STEPS, tl.load(line + 8) * STEPS, num_stages=1):
            tile, step = tiles_ptr + number // STEPS * 2, number % STEPS
            at, slot = tl.load(tile) + step * STEP, tl.load(tile + 1).to(tl.int64)
            rows = at + i
            row_in = rows < other_stop
            first_row = tl.minimum(at, other_stop - 1)  # rows beyond the graph read its last row
            row = tl.minimum(i, other_stop - 1 - first_row)
            # load query rows, score
            q = load_rows(q_at + first_row * wide * q_n, row, q_n, D, BD)
            do = load_rows(do_at + first_row * wide * DV, row, DV, DV, BDV)
            less = tl.load(less_ptr + row_at * VECTORS + at + i, mask=row_in, other=float("inf"))
            rest = tl.load(rest_ptr + row_at * VECTORS + at + i, mask=row_in, other=0.0)
            s = dot(k, tl.trans(q), PRECISION) * scale
            dp = dot(v, tl.trans(do), PRECISION)
            # labels: gather B, dP and C
            bq_step, dp_step = bq_ptr + (row_at + first_row) * C, dp_ptr + (row_at + first_row) * C
            if BAND:
                seen = tl.where(row_in, tl.minimum(i + (at + limit - own_start), own_stop - own_start - 1), -1)
                attends = n[:, None] <= seen[None, :]
                u = (n[:, None] - i[None, :]) + (own_start - at - shift - low)
                column = tl.minimum(tl.maximum(u, -1), width) + 1
                if HAS_BQ:
                    s += fetch(bq_step, row[None, :] * C + column, NVIDIA) * LOG2E
                if HAS_DP:
                    dp += fetch(dp_step, row[None, :] * C + column, NVIDIA)
                if HAS_CK:
                    s += fetch(ck_block, key[:, None] * C + column, NVIDIA) * LOG2E
            else:
                for part in tl.static_range(PARTS):
                    ids_step = ids_ptr + (slot * PARTS + part) * (BM * BN) + step * (STEP * BN)
                    column = fetch_ids(ids_step, i[None, :] * BN + n[:, None], NVIDIA)
                    attends = column < C
                    column = tl.minimum(column, C - 1)
                    if HAS_BQ:
                        s += fetch(bq_step, row[None, :] * C + column, NVIDIA) * LOG2E
                    if HAS_DP:
                        dp += fetch(dp_step, row[None, :] * C + column, NVIDIA)
                    if HAS_CK:
                        s += fetch(ck_block, key[:, None] * C + column, NVIDIA) * LOG2E
            if SCORE > 0:
                s = finished(s, bend, SCORE)
                bent = slope(s, bend, SCORE)
            if MASK > 0:
                entries = mask_at + (first_row + row).to(tl.int64)[None, :] * mask_q + keys[:, None] * wide * mask_k
                s = masked(s, entries, key_in[:, None], MASK)
            # weights and the gradient of the scores
            p = tl.exp2(tl.where(attends, s - less[None, :], float("-inf")))
            if DROPOUT > 0:
                pairs = keep_at + rows.to(tl.int64)[:, None] * N_k + keys[None, :]
                inside = row_in[:, None] & key_in[None, :]
                kept = dropped(seed_ptr, b, h, rows, own_start, threshold, pairs, inside, STEP, BN, DROPOUT)
                kept = tl.trans(kept)
                ds = p * (tl.where(kept, dp * boost, 0.0) - rest[None, :])
                p = tl.where(kept, p, 0.0)
            else:
                ds = p * (dp - rest[None, :])
            if SCORE > 0:
                ds *= bent
            # dv and dk, and sums by label (dC)
            dvalue = add_dot(p.to(do.dtype), do, dvalue, PRECISION)
            dk = add_dot(ds.to(q.dtype), q, dk, PRECISION)
            if HAS_CK:
                if BAND:
                    low_sum += tl.sum(tl.where(u < 0, ds, 0.0), 1)
                    high_sum += tl.sum(tl.where(u >= width, ds, 0.0), 1)
                    put(dc_block, key[:, None] * C + column, ds, attends & in_band(u, width), NVIDIA)
                else:
                    sums = add_step(
                        sums, ds, order_ptr, bounds_ptr, slot, step, C, q.dtype, PARTS, BN, BM, STEP, RP,
                        True, UPTO, PRECISION, NVIDIA,
                    )  # fmt: skip

        if HAS_CK:
            if BAND:
                tl.store(dc_at, low_sum, mask=key_in)
                tl.store(dc_at + width + 1, high_sum, mask=key_in)
            else:
                store_sums(dc_at, sums, key_in, C, RP, UPTO)

    # store
    own = kv_lane * N_k + own_start
    tl.store(dk_ptr + own * D + n[:, None] * D + d[None, :], dk * k_scale, mask=key_in[:, None] & d_in)
    tl.store(dv_ptr + own * DV + n[:, None] * DV + dv[None, :], dvalue * boost, mask=key_in[:, None] & dv_in)
