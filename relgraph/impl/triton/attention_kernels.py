"""Flash attention that carries labels: forward, and backward by query rows and by keys.

A program owns a block of query rows (or of keys) and reads a tile map (``tile_map.py``): *runs* of tiles in which
every pair carries the same label, whose term is one number per row, and *mixed* tiles one by one. Mixed tiles gather
what labels add to the scores (B, C). Sums by label (P, dB, dC) need no atomics, because a program owns all sums of its
rows or keys. If labels are a function of the distance (``BAND``), every label but the outer two occurs once per row, so
that a sum is a copy. If ids are written out, pairs are taken in the order of their labels, and a sum is the difference
of two entries of a running sum.

Letters in the kernels: ``i`` query rows, ``j`` keys, ``C`` columns of labels; scores are in powers of two.
"""

# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
FIELDS: tl.constexpr = tl.constexpr(9)
AS_THEY_ARE = ("low", "width")  # never constants: a kernel made for a band of one distance spills registers
CHUNK: tl.constexpr = tl.constexpr(32)  # columns of a band that are normalised at once


@triton.jit
def _kept(seed, lane, i, at, threshold, BM: tl.constexpr, BN: tl.constexpr):
    """Which pairs dropout keeps, [BM, BN], by a counter that four keys share."""
    group = at // 4 + tl.arange(0, BN // 4)
    zero = tl.zeros([BM, BN // 4], dtype=tl.int32)
    r0, r1, r2, r3 = tl.philox(seed, zero + group[None, :], zero + i[:, None], zero + lane, zero)
    bits = tl.join(tl.join(r0, r2), tl.join(r1, r3)).reshape(BM, BN)
    return (bits.to(tl.uint32) >> 8).to(tl.int32) >= threshold


@triton.jit
def _dot(a, b, PRECISION: tl.constexpr):
    """The product of two tiles, in float32."""
    if PRECISION == "upcast":  # Triton's interpreter reads the bits of bfloat16 as integers
        product = tl.dot(a.to(tl.float32), b.to(tl.float32))
    else:
        product = tl.dot(a, b, input_precision=PRECISION)
    return product


@triton.jit
def _add_dot(a, b, to, PRECISION: tl.constexpr):
    """``to`` plus the product of two tiles."""
    if PRECISION == "upcast":
        product = tl.dot(a.to(tl.float32), b.to(tl.float32), to)
    else:
        product = tl.dot(a, b, to, input_precision=PRECISION)
    return product


@triton.jit
def _add_row_sums(sums, x, dtype: tl.constexpr, PRECISION: tl.constexpr, Y: tl.constexpr, SUMMED: tl.constexpr):
    """Row sums of ``x`` [X, Y] added to each column of ``sums`` [X, SUMMED]."""
    if SUMMED > 1:  # a product takes far fewer instructions than a sum of registers
        sums = _add_dot(x.to(dtype), tl.full([Y, SUMMED], 1.0, dtype), sums, PRECISION)
    else:
        sums += tl.sum(x, 1)[:, None]
    return sums


@triton.jit
def _dropped(seed, lane, i, at, threshold, keep_at, inside, BM: tl.constexpr, BN: tl.constexpr, DROPOUT: tl.constexpr):
    """Which pairs dropout keeps: drawn (1), or read from a given mask (2)."""
    if DROPOUT == 1:
        kept = _kept(seed, lane.to(tl.int32), i, at, threshold, BM, BN)
    else:
        kept = tl.load(keep_at, mask=inside, other=0.0) != 0.0
    return kept


@triton.jit
def _masked(s, entries_at, inside, MASK: tl.constexpr):
    """Scores under the mask at ``entries_at``; MASK 1: True attends, 2: added."""
    entry = tl.load(entries_at, mask=inside, other=0)
    if MASK == 1:
        s = tl.where(entry != 0, s, float("-inf"))
    else:
        s += entry.to(tl.float32) * LOG2E
    return s


@triton.jit
def _of_run(table_at, run_at, inside, PARTS: tl.constexpr):
    """Table entries of a run's columns in these rows, summed over the parts."""
    term = tl.load(table_at + tl.load(run_at + 2), mask=inside, other=0.0)
    for part in tl.static_range(1, PARTS):
        term += tl.load(table_at + tl.load(run_at + 2 + part), mask=inside, other=0.0)
    return term


@triton.jit
def _run_vector(lane, run_at, C, BAND: tl.constexpr):
    """The vector of :func:`relgraph.impl.triton.launch.of_runs` for a run of this head."""
    column = tl.load(run_at + 2)
    return lane * 2 + tl.minimum(column, 1) if BAND else lane * C + column


@triton.jit
def _keys_of_run(ck_run, ck_at, run_at, at, n, wide, C, PARTS: tl.constexpr):
    """C of a tile's keys in a run, in powers of two; contiguous if there is one part."""
    if PARTS == 1:
        entries = tl.load(ck_run + (at + n))
    else:
        entries = _of_run(ck_at + (at + n) * wide * C, run_at, n >= 0, PARTS) * LOG2E
    return entries


@triton.jit
def _in_band(u, width):
    """Whether a distance, counted from the first of the band, is in the band."""
    return u.to(tl.uint32, bitcast=True) < tl.full((), width, tl.uint32)


@triton.jit
def _by_distance(u, table_at, low_edge, high_edge, inside, width):
    """The entry of each pair in a table by distance; ``u`` counts from the first distance of the band."""
    edge = tl.where(u < 0, low_edge, high_edge)
    return tl.load(table_at + (u + 1), mask=inside & _in_band(u, width), other=edge)


@triton.jit
def _by_id(column, table_at, inside):
    """The entry of each pair in a table with one column per label."""
    return tl.load(table_at + column, mask=inside, other=0.0)


@triton.jit
def _by_column(
    x, order_at, bounds_at, C, X: tl.constexpr, Y: tl.constexpr, RP: tl.constexpr, TRANSPOSED: tl.constexpr,
    UPTO: tl.constexpr,
):  # fmt: skip
    """Sums of each row of ``x`` [X, Y] by column, [X, RP] (``UPTO``: of all columns up to each).

    Order and bounds sort the pairs of a row by column; they are transposed if ``TRANSPOSED``.
    """
    m, n, r = tl.arange(0, X)[:, None], tl.arange(0, Y)[None, :], tl.arange(0, RP)[None, :]
    if TRANSPOSED:
        order = tl.load(order_at + n * X + m).to(tl.int32)
        bounds_at += r * X + m
        step = X
    else:
        order = tl.load(order_at + m * Y + n).to(tl.int32)
        bounds_at += m * (C + 1) + r
        step = 1
    running = tl.cumsum(tl.gather(x, order, 1), 1)
    here = r < C - 1  # the last column, pairs without a label, is never read
    last = tl.load(bounds_at + step, mask=here, other=0).to(tl.int32)
    sums = tl.where(last > 0, tl.gather(running, tl.maximum(last - 1, 0), 1), 0.0)
    if not UPTO:
        first = tl.load(bounds_at, mask=here, other=0).to(tl.int32)
        sums -= tl.where(first > 0, tl.gather(running, tl.maximum(first - 1, 0), 1), 0.0)
    return sums


@triton.jit
def _add_run(sums, amount, run_at, PARTS: tl.constexpr, RP: tl.constexpr, UPTO: tl.constexpr):
    """Sums by column [X, RP] with a run's amount [X] added to its columns."""
    r = tl.arange(0, RP)
    for part in tl.static_range(PARTS):
        column = tl.load(run_at + 2 + part)
        here = r >= column if UPTO else r == column
        sums += tl.where(here[None, :], amount[:, None], 0.0)
    return sums


@triton.jit
def _add_tile(
    sums, x, order_ptr, bounds_ptr, slot, C,
    PARTS: tl.constexpr, X: tl.constexpr, Y: tl.constexpr, RP: tl.constexpr, TRANSPOSED: tl.constexpr,
    UPTO: tl.constexpr,
):  # fmt: skip
    """Sums by column [X, RP] with a mixed tile's pairs ``x`` [X, Y] added."""
    for part in tl.static_range(PARTS):
        at = slot * PARTS + part
        sums += _by_column(x, order_ptr + at * (X * Y), bounds_ptr + at * X * (C + 1), C, X, Y, RP, TRANSPOSED, UPTO)
    return sums


@triton.jit
def _store_sums(table_at, sums, inside, C, RP: tl.constexpr, UPTO: tl.constexpr):
    """Store sums by column; with ``UPTO`` as differences of neighbouring columns."""
    r = tl.arange(0, RP)
    at = table_at[:, None] + r[None, :]
    here = inside[:, None] & (r < C - 1)[None, :]
    tl.store(at, sums, mask=here)
    if UPTO:
        tl.debug_barrier()  # other threads wrote what is read here, and read what is written next
        before = tl.load(at - 1, mask=here & (r > 0)[None, :], other=0.0)
        tl.debug_barrier()
        tl.store(at, sums - before, mask=here)


@triton.jit(do_not_specialize=AS_THEY_ARE)
def forward(
    q_ptr, k_ptr, v_ptr, bq_ptr, ck_ptr, ck_run_ptr, mask_ptr, keep_ptr, seed_ptr, o_ptr, lse_ptr, p_ptr,
    blocks_ptr, runs_ptr, tiles_ptr, ids_ptr, order_ptr, bounds_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, mask_b, mask_h, mask_q, mask_k,
    H, GROUP, N_q, N_k, num_blocks, blocks_b, C, low, width, scale, sign, threshold, boost,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    PARTS: tl.constexpr, RP: tl.constexpr, UPTO: tl.constexpr, BAND: tl.constexpr,
    HAS_BQ: tl.constexpr, HAS_CK: tl.constexpr,
    NEED_P: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
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
    m, n, d, dv = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BD), tl.arange(0, BDV)
    rows = own_start + m
    row_in = rows < own_stop
    first_row = lane * N_q + own_start
    q_at = q_ptr + b * q_b + h * q_h + own_start.to(tl.int64) * q_n
    k_at = k_ptr + b * k_b + (h // GROUP) * k_h
    v_at = v_ptr + b * v_b + (h // GROUP) * v_h
    bq_at = bq_ptr + first_row * C + m * C
    p_at = p_ptr + first_row * C + m * C
    ck_at = ck_ptr + lane * N_k * C
    mask_at = mask_ptr + b * mask_b + h * mask_h + rows.to(tl.int64) * mask_q
    keep_at = keep_ptr + (first_row + m) * N_k
    d_in, dv_in = (d < D)[None, :], (dv < DV)[None, :]
    # load the query rows; they stay in registers
    q = tl.load(q_at + m[:, None] * q_n + d[None, :], mask=row_in[:, None] & d_in, other=0.0)
    q = (q.to(tl.float32) * sign).to(q_ptr.dtype.element_ty)
    seed = tl.load(seed_ptr) if DROPOUT == 1 else 0
    last = tl.where(row_in, tl.minimum(rows + limit, other_stop - 1), -1)
    first_key = rows + (shift + low)
    if HAS_BQ and BAND:
        bq_low = tl.load(bq_at, mask=row_in, other=0.0)
        bq_high = tl.load(bq_at + width + 1, mask=row_in, other=0.0)

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
            bias = _of_run(bq_at, run_at, row_in, PARTS) * LOG2E
        ck_run = ck_run_ptr + _run_vector(lane, run_at, C, BAND) * N_k
        before = top
        run_total = tl.zeros([BM], tl.float32)
        run_kept = tl.zeros([BM], tl.float32)
        for at in tl.range(tl.load(run_at), tl.load(run_at + 1), BN):
            # load keys, score
            k = tl.load(k_at + at * wide * k_n + n[:, None] * k_n + d[None, :], mask=d_in, other=0.0)
            s = _dot(q, tl.trans(k), PRECISION)
            # softmax
            if HAS_CK or MASK > 0:
                s = s * scale
                if HAS_CK:
                    s += _keys_of_run(ck_run, ck_at, run_at, at, n, wide, C, PARTS)[None, :]
                if MASK > 0:
                    s = _masked(s, mask_at[:, None] + (at + n)[None, :] * wide * mask_k, row_in[:, None], MASK)
                new_top = tl.maximum(top, tl.max(s, 1) + bias)
                safe = tl.where(new_top == float("-inf"), 0.0, new_top)
                p = tl.exp2(s - (safe - bias)[:, None])
            else:  # the run's term shifts the whole row, at no cost per pair
                new_top = tl.maximum(top, tl.max(s, 1) * scale + bias)
                safe = tl.where(new_top == float("-inf"), 0.0, new_top)
                p = tl.exp2(s * scale - (safe - bias)[:, None])
            fade = tl.exp2(top - safe)
            run_total = run_total * fade + tl.sum(p, 1)
            # dropout
            if DROPOUT > 0:
                pairs = keep_at[:, None] + (at + n)[None, :]
                kept = _dropped(seed, lane, rows, at, threshold, pairs, row_in[:, None], BM, BN, DROPOUT)
                p = tl.where(kept, p, 0.0)
                if NEED_P:
                    run_kept = run_kept * fade + tl.sum(p, 1)
            # weighted sum of values
            v = tl.load(v_at + at * wide * v_n + n[:, None] * v_n + dv[None, :], mask=dv_in, other=0.0)
            acc = _add_dot(p.to(v.dtype), v, acc * fade[:, None], PRECISION)
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
                sums = _add_run(sums * fade[:, None], amount, run_at, PARTS, RP, UPTO)

    # mixed tiles: each pair has its own label
    for tile in tl.range(tl.load(line + 7), tl.load(line + 8), num_stages=1):
        at, slot = tl.load(tiles_ptr + tile * 2), tl.load(tiles_ptr + tile * 2 + 1).to(tl.int64)
        keys = at + n
        key_in = keys < other_stop
        k_in = key_in[:, None] & d_in
        # load keys, score
        k = tl.load(k_at + at * wide * k_n + n[:, None] * k_n + d[None, :], mask=k_in, other=0.0)
        s = _dot(q, tl.trans(k), PRECISION) * scale
        # labels: gather B and C
        if BAND:
            attends = keys[None, :] <= last[:, None]
            u = keys[None, :] - first_key[:, None]
            if HAS_BQ:
                s += _by_distance(u, bq_at[:, None], bq_low[:, None], bq_high[:, None], attends, width) * LOG2E
            if HAS_CK:
                ck_key = ck_at + keys * wide * C
                ck_low = tl.load(ck_key, mask=key_in, other=0.0)
                ck_high = tl.load(ck_key + width + 1, mask=key_in, other=0.0)
                s += _by_distance(u, ck_key[None, :], ck_low[None, :], ck_high[None, :], attends, width) * LOG2E
        else:
            for part in tl.static_range(PARTS):
                column = tl.load(ids_ptr + (slot * PARTS + part) * (BM * BN) + m[:, None] * BN + n[None, :])
                column = column.to(tl.int32)
                attends = column < C
                if HAS_BQ:
                    s += _by_id(column, bq_at[:, None], attends) * LOG2E
                if HAS_CK:
                    s += _by_id(column, ck_at + keys[None, :] * wide * C, attends) * LOG2E
        if MASK > 0:
            s = _masked(s, mask_at[:, None] + keys[None, :] * wide * mask_k, row_in[:, None] & key_in[None, :], MASK)
        s = tl.where(attends, s, float("-inf"))
        # softmax
        new_top = tl.maximum(top, tl.max(s, 1))
        safe = tl.where(new_top == float("-inf"), 0.0, new_top)
        p = tl.exp2(s - safe[:, None])
        fade = tl.exp2(top - safe)
        total = total * fade + tl.sum(p, 1)
        # dropout
        if DROPOUT > 0:
            pairs = keep_at[:, None] + keys[None, :]
            kept = _dropped(seed, lane, rows, at, threshold, pairs, attends, BM, BN, DROPOUT)
            p = tl.where(kept, p, 0.0)
            s = tl.where(kept, s, float("-inf"))
        # P: sum the weights of the tile by label
        if NEED_P:
            if BAND:
                low_sum = low_sum * fade + tl.sum(tl.where(u < 0, p, 0.0), 1)
                high_sum = high_sum * fade + tl.sum(tl.where(u >= width, p, 0.0), 1)
                # one pair per label: store its score; it becomes a weight once the whole row is known
                tl.store(p_at[:, None] + (u + 1), s, mask=attends & _in_band(u, width))
            else:
                sums = _add_tile(
                    sums * fade[:, None], p, order_ptr, bounds_ptr, slot, C, PARTS, BM, BN, RP, False, UPTO
                )
        # weighted sum of values
        v_in = key_in[:, None] & dv_in
        v = tl.load(v_at + at * wide * v_n + n[:, None] * v_n + dv[None, :], mask=v_in, other=0.0)
        acc = _add_dot(p.to(v.dtype), v, acc * fade[:, None], PRECISION)
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
            _store_sums(p_at, sums * share[:, None], row_in, C, RP, UPTO)


@triton.jit(do_not_specialize=AS_THEY_ARE)
def backward_rows(
    q_ptr, k_ptr, v_ptr, do_ptr, bq_ptr, ck_ptr, ck_run_ptr, dp_ptr, mask_ptr, keep_ptr, seed_ptr, lse_ptr, delta_ptr,
    dq_ptr, db_ptr, blocks_ptr, runs_ptr, tiles_ptr, ids_ptr, order_ptr, bounds_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, mask_b, mask_h, mask_q, mask_k,
    H, GROUP, N_q, N_k, num_blocks, blocks_b, C, low, width, scale, sign, threshold, boost, q_scale,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    PARTS: tl.constexpr, RP: tl.constexpr, UPTO: tl.constexpr, BAND: tl.constexpr,
    HAS_BQ: tl.constexpr, HAS_CK: tl.constexpr,
    HAS_DP: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, SUMMED: tl.constexpr,
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
    m, n, d, dv = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BD), tl.arange(0, BDV)
    rows = own_start + m
    row_in = rows < own_stop
    first_row = lane * N_q + own_start
    q_at = q_ptr + b * q_b + h * q_h + own_start.to(tl.int64) * q_n
    k_at = k_ptr + b * k_b + (h // GROUP) * k_h
    v_at = v_ptr + b * v_b + (h // GROUP) * v_h
    bq_at = bq_ptr + first_row * C + m * C
    dp_at = dp_ptr + first_row * C + m * C
    db_at = db_ptr + first_row * C + m * C
    ck_at = ck_ptr + lane * N_k * C
    mask_at = mask_ptr + b * mask_b + h * mask_h + rows.to(tl.int64) * mask_q
    keep_at = keep_ptr + (first_row + m) * N_k
    d_in, dv_in = (d < D)[None, :], (dv < DV)[None, :]
    # load query rows, their output gradient, log-sum-exp and δ
    q = tl.load(q_at + m[:, None] * q_n + d[None, :], mask=row_in[:, None] & d_in, other=0.0)
    q = (q.to(tl.float32) * sign).to(q_ptr.dtype.element_ty)
    do = tl.load(do_ptr + first_row * DV + m[:, None] * DV + dv[None, :], mask=row_in[:, None] & dv_in, other=0.0)
    lse = tl.load(lse_ptr + first_row + m, mask=row_in, other=float("-inf")) * LOG2E
    lse = tl.where(lse == float("-inf"), float("inf"), lse)  # all weights of a row that sees nothing are zero
    delta = tl.load(delta_ptr + first_row + m, mask=row_in, other=0.0)
    seed = tl.load(seed_ptr) if DROPOUT == 1 else 0
    last = tl.where(row_in, tl.minimum(rows + limit, other_stop - 1), -1)
    first_key = rows + (shift + low)
    if BAND:
        if HAS_BQ:
            bq_low = tl.load(bq_at, mask=row_in, other=0.0)
            bq_high = tl.load(bq_at + width + 1, mask=row_in, other=0.0)
        if HAS_DP:
            dp_low = tl.load(dp_at, mask=row_in, other=0.0)
            dp_high = tl.load(dp_at + width + 1, mask=row_in, other=0.0)

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
        less = lse
        more = tl.zeros([BM], tl.float32)
        if HAS_BQ:
            less -= _of_run(bq_at, run_at, row_in, PARTS) * LOG2E
        if HAS_DP:
            more += _of_run(dp_at, run_at, row_in, PARTS)
        ck_run = ck_run_ptr + _run_vector(lane, run_at, C, BAND) * N_k
        rest = delta - more
        run_sum = tl.zeros([BM, SUMMED], tl.float32)
        for at in tl.range(tl.load(run_at), tl.load(run_at + 1), BN):
            # load keys and values; weights from scores and the log-sum-exp
            k = tl.load(k_at + at * wide * k_n + n[:, None] * k_n + d[None, :], mask=d_in, other=0.0)
            v = tl.load(v_at + at * wide * v_n + n[:, None] * v_n + dv[None, :], mask=dv_in, other=0.0)
            s = _dot(q, tl.trans(k), PRECISION)
            s = s * scale - less[:, None]
            if HAS_CK:
                s += _keys_of_run(ck_run, ck_at, run_at, at, n, wide, C, PARTS)[None, :]
            if MASK > 0:
                s = _masked(s, mask_at[:, None] + (at + n)[None, :] * wide * mask_k, row_in[:, None], MASK)
            p = tl.exp2(s)
            # gradient of the scores
            dp = _dot(do, tl.trans(v), PRECISION)
            if DROPOUT > 0:
                pairs = keep_at[:, None] + (at + n)[None, :]
                kept = _dropped(seed, lane, rows, at, threshold, pairs, row_in[:, None], BM, BN, DROPOUT)
                ds = p * (tl.where(kept, (dp + more[:, None]) * boost, 0.0) - delta[:, None])
            else:
                ds = p * (dp - rest[:, None])
            # sums by label (dB), and dq
            if HAS_BQ:
                run_sum = _add_row_sums(run_sum, ds, k.dtype, PRECISION, BN, SUMMED)
            dq = _add_dot(ds.to(k.dtype), k, dq, PRECISION)
        if HAS_BQ:
            amount = tl.max(run_sum, 1)
            if BAND:
                column = tl.load(run_at + 2)
                low_sum += tl.where(column == 0, amount, 0.0)
                high_sum += tl.where(column == 0, 0.0, amount)
            else:
                sums = _add_run(sums, amount, run_at, PARTS, RP, UPTO)

    # mixed tiles: each pair has its own label
    for tile in tl.range(tl.load(line + 7), tl.load(line + 8), num_stages=1):
        at, slot = tl.load(tiles_ptr + tile * 2), tl.load(tiles_ptr + tile * 2 + 1).to(tl.int64)
        keys = at + n
        key_in = keys < other_stop
        # load keys and values, score
        k = tl.load(k_at + at * wide * k_n + n[:, None] * k_n + d[None, :], mask=key_in[:, None] & d_in, other=0.0)
        v = tl.load(v_at + at * wide * v_n + n[:, None] * v_n + dv[None, :], mask=key_in[:, None] & dv_in, other=0.0)
        s = _dot(q, tl.trans(k), PRECISION) * scale - lse[:, None]
        dp = _dot(do, tl.trans(v), PRECISION)
        # labels: gather B, dP and C
        if BAND:
            attends = keys[None, :] <= last[:, None]
            u = keys[None, :] - first_key[:, None]
            if HAS_BQ:
                s += _by_distance(u, bq_at[:, None], bq_low[:, None], bq_high[:, None], attends, width) * LOG2E
            if HAS_DP:
                dp += _by_distance(u, dp_at[:, None], dp_low[:, None], dp_high[:, None], attends, width)
            if HAS_CK:
                ck_key = ck_at + keys * wide * C
                ck_low = tl.load(ck_key, mask=key_in, other=0.0)
                ck_high = tl.load(ck_key + width + 1, mask=key_in, other=0.0)
                s += _by_distance(u, ck_key[None, :], ck_low[None, :], ck_high[None, :], attends, width) * LOG2E
        else:
            for part in tl.static_range(PARTS):
                column = tl.load(ids_ptr + (slot * PARTS + part) * (BM * BN) + m[:, None] * BN + n[None, :])
                column = column.to(tl.int32)
                attends = column < C
                if HAS_BQ:
                    s += _by_id(column, bq_at[:, None], attends) * LOG2E
                if HAS_DP:
                    dp += _by_id(column, dp_at[:, None], attends)
                if HAS_CK:
                    s += _by_id(column, ck_at + keys[None, :] * wide * C, attends) * LOG2E
        if MASK > 0:
            s = _masked(s, mask_at[:, None] + keys[None, :] * wide * mask_k, row_in[:, None] & key_in[None, :], MASK)
        # weights and the gradient of the scores
        p = tl.exp2(tl.where(attends, s, float("-inf")))
        if DROPOUT > 0:
            pairs = keep_at[:, None] + keys[None, :]
            kept = _dropped(seed, lane, rows, at, threshold, pairs, attends, BM, BN, DROPOUT)
            dp = tl.where(kept, dp * boost, 0.0)
        # sums by label (dB), and dq
        ds = p * (dp - delta[:, None])
        if HAS_BQ:
            if BAND:
                low_sum += tl.sum(tl.where(u < 0, ds, 0.0), 1)
                high_sum += tl.sum(tl.where(u >= width, ds, 0.0), 1)
                tl.store(db_at[:, None] + (u + 1), ds, mask=attends & _in_band(u, width))
            else:
                sums = _add_tile(sums, ds, order_ptr, bounds_ptr, slot, C, PARTS, BM, BN, RP, False, UPTO)
        dq = _add_dot(ds.to(k.dtype), k, dq, PRECISION)

    # store
    dq_at = dq_ptr + first_row * D + m[:, None] * D + d[None, :]
    tl.store(dq_at, dq * q_scale, mask=row_in[:, None] & d_in)
    if HAS_BQ:
        if BAND:
            tl.store(db_at, low_sum, mask=row_in)
            tl.store(db_at + width + 1, high_sum, mask=row_in)
        else:
            _store_sums(db_at, sums, row_in, C, RP, UPTO)


@triton.jit(do_not_specialize=AS_THEY_ARE)
def backward_keys(
    q_ptr, k_ptr, v_ptr, do_ptr, bq_ptr, ck_ptr, dp_ptr, mask_ptr, keep_ptr, seed_ptr, less_ptr, rest_ptr,
    dk_ptr, dv_ptr, dc_ptr, blocks_ptr, runs_ptr, tiles_ptr, ids_ptr, order_ptr, bounds_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, mask_b, mask_h, mask_q, mask_k,
    H, GROUP, N_q, N_k, num_blocks, blocks_b, C, low, width, scale, sign, threshold, boost, k_scale, VECTORS,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    PARTS: tl.constexpr, RP: tl.constexpr, UPTO: tl.constexpr, BAND: tl.constexpr,
    HAS_BQ: tl.constexpr, HAS_CK: tl.constexpr,
    HAS_DP: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, FOLDED: tl.constexpr,
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
    keys = own_start + n
    key_in = keys < own_stop
    d_in, dv_in = (d < D)[None, :], (dv < DV)[None, :]
    k_at = k_ptr + b * k_b + kv_head * k_h + own_start.to(tl.int64) * k_n
    v_at = v_ptr + b * v_b + kv_head * v_h + own_start.to(tl.int64) * v_n
    # load keys and values; they stay in registers
    k = tl.load(k_at + n[:, None] * k_n + d[None, :], mask=key_in[:, None] & d_in, other=0.0)
    k = (k.to(tl.float32) * sign).to(k_ptr.dtype.element_ty)
    v = tl.load(v_at + n[:, None] * v_n + dv[None, :], mask=key_in[:, None] & dv_in, other=0.0)
    seed = tl.load(seed_ptr) if DROPOUT == 1 else 0
    dk = tl.zeros([BN, BD], tl.float32)
    dvalue = tl.zeros([BN, BDV], tl.float32)

    # all query heads that share these keys
    for head in range(GROUP):
        h = kv_head * GROUP + head
        lane = b * H + h
        q_at = q_ptr + b * q_b + h * q_h
        do_at = do_ptr + lane * N_q * DV
        row_at = lane * N_q
        ck_at = ck_ptr + (lane * N_k + own_start) * C + n * C
        dc_at = dc_ptr + (lane * N_k + own_start) * C + n * C
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
                extra = _of_run(ck_at, run_at, key_in, PARTS) * LOG2E
            run_sum = tl.zeros([BN], tl.float32)
            for at in tl.range(tl.load(run_at), tl.load(run_at + 1), BM):
                rows = at + m
                first = row_at + at
                # load query rows; weights from scores and the log-sum-exp
                q = tl.load(q_at + at * wide * q_n + m[:, None] * q_n + d[None, :], mask=d_in, other=0.0)
                do = tl.load(do_at + at * wide * DV + m[:, None] * DV + dv[None, :], mask=dv_in, other=0.0)
                less = tl.load(less_ptr + vector + at + m)
                rest = tl.load(rest_ptr + vector + at + m)
                more = tl.zeros([BM], tl.float32)
                if not FOLDED:
                    if HAS_BQ:
                        less -= _of_run(bq_ptr + first * C + m * C, run_at, m >= 0, PARTS) * LOG2E
                    if HAS_DP:
                        more += _of_run(dp_ptr + first * C + m * C, run_at, m >= 0, PARTS)
                s = _dot(k, tl.trans(q), PRECISION) * scale - less[None, :]
                if HAS_CK:
                    s += extra[:, None]
                if MASK > 0:
                    entries = mask_at + rows.to(tl.int64)[None, :] * mask_q + keys[:, None] * wide * mask_k
                    s = _masked(s, entries, key_in[:, None], MASK)
                p = tl.exp2(s)
                # gradient of the scores
                dp = _dot(v, tl.trans(do), PRECISION)
                if DROPOUT > 0:
                    pairs = keep_at + rows.to(tl.int64)[:, None] * N_k + keys[None, :]
                    kept = _dropped(seed, lane, rows, own_start, threshold, pairs, key_in[None, :], BM, BN, DROPOUT)
                    kept = tl.trans(kept)
                    ds = p * (tl.where(kept, (dp + more[None, :]) * boost, 0.0) - rest[None, :])
                    p = tl.where(kept, p, 0.0)
                else:
                    ds = p * (dp - (rest - more)[None, :])
                # dv and dk, and sums by label (dC)
                dvalue = _add_dot(p.to(do.dtype), do, dvalue, PRECISION)
                dk = _add_dot(ds.to(q.dtype), q, dk, PRECISION)
                if HAS_CK:
                    run_sum += tl.sum(ds, 1)  # one more product here would spill
            if HAS_CK:
                if BAND:
                    column = tl.load(run_at + 2)
                    low_sum += tl.where(column == 0, run_sum, 0.0)
                    high_sum += tl.where(column == 0, 0.0, run_sum)
                else:
                    sums = _add_run(sums, run_sum, run_at, PARTS, RP, UPTO)

        # mixed tiles: each pair has its own label
        for tile in tl.range(tl.load(line + 7), tl.load(line + 8), num_stages=1):
            at, slot = tl.load(tiles_ptr + tile * 2), tl.load(tiles_ptr + tile * 2 + 1).to(tl.int64)
            rows = at + m
            row_in = rows < other_stop
            first = row_at + at
            # load query rows, score
            q = tl.load(q_at + at * wide * q_n + m[:, None] * q_n + d[None, :], mask=row_in[:, None] & d_in, other=0.0)
            do = tl.load(
                do_at + at * wide * DV + m[:, None] * DV + dv[None, :], mask=row_in[:, None] & dv_in, other=0.0
            )
            less = tl.load(less_ptr + row_at * VECTORS + at + m, mask=row_in, other=float("inf"))
            rest = tl.load(rest_ptr + row_at * VECTORS + at + m, mask=row_in, other=0.0)
            s = _dot(k, tl.trans(q), PRECISION) * scale - less[None, :]
            dp = _dot(v, tl.trans(do), PRECISION)
            # labels: gather B, dP and C
            if BAND:
                attends = keys[:, None] <= tl.where(row_in, tl.minimum(rows + limit, own_stop - 1), -1)[None, :]
                u = keys[:, None] - (rows + (shift + low))[None, :]
                if HAS_BQ:
                    bq_at = bq_ptr + (first + m) * C
                    bq_low = tl.load(bq_at, mask=row_in, other=0.0)
                    bq_high = tl.load(bq_at + width + 1, mask=row_in, other=0.0)
                    s += _by_distance(u, bq_at[None, :], bq_low[None, :], bq_high[None, :], attends, width) * LOG2E
                if HAS_DP:
                    dp_at = dp_ptr + (first + m) * C
                    dp_low = tl.load(dp_at, mask=row_in, other=0.0)
                    dp_high = tl.load(dp_at + width + 1, mask=row_in, other=0.0)
                    dp += _by_distance(u, dp_at[None, :], dp_low[None, :], dp_high[None, :], attends, width)
                if HAS_CK:
                    ck_low = tl.load(ck_at, mask=key_in, other=0.0)
                    ck_high = tl.load(ck_at + width + 1, mask=key_in, other=0.0)
                    s += _by_distance(u, ck_at[:, None], ck_low[:, None], ck_high[:, None], attends, width) * LOG2E
            else:
                for part in tl.static_range(PARTS):
                    column = tl.load(ids_ptr + (slot * PARTS + part) * (BM * BN) + m[None, :] * BN + n[:, None])
                    column = column.to(tl.int32)
                    attends = column < C
                    if HAS_BQ:
                        s += _by_id(column, bq_ptr + (first + m)[None, :] * C, attends) * LOG2E
                    if HAS_DP:
                        dp += _by_id(column, dp_ptr + (first + m)[None, :] * C, attends)
                    if HAS_CK:
                        s += _by_id(column, ck_at[:, None], attends) * LOG2E
            if MASK > 0:
                entries = mask_at + rows.to(tl.int64)[None, :] * mask_q + keys[:, None] * wide * mask_k
                s = _masked(s, entries, key_in[:, None] & row_in[None, :], MASK)
            # weights and the gradient of the scores
            p = tl.exp2(tl.where(attends, s, float("-inf")))
            if DROPOUT > 0:
                pairs = keep_at + rows.to(tl.int64)[:, None] * N_k + keys[None, :]
                inside = row_in[:, None] & key_in[None, :]
                kept = tl.trans(_dropped(seed, lane, rows, own_start, threshold, pairs, inside, BM, BN, DROPOUT))
                ds = p * (tl.where(kept, dp * boost, 0.0) - rest[None, :])
                p = tl.where(kept, p, 0.0)
            else:
                ds = p * (dp - rest[None, :])
            # dv and dk, and sums by label (dC)
            dvalue = _add_dot(p.to(do.dtype), do, dvalue, PRECISION)
            dk = _add_dot(ds.to(q.dtype), q, dk, PRECISION)
            if HAS_CK:
                if BAND:
                    low_sum += tl.sum(tl.where(u < 0, ds, 0.0), 1)
                    high_sum += tl.sum(tl.where(u >= width, ds, 0.0), 1)
                    tl.store(dc_at[:, None] + (u + 1), ds, mask=attends & _in_band(u, width))
                else:
                    sums = _add_tile(sums, ds, order_ptr, bounds_ptr, slot, C, PARTS, BN, BM, RP, True, UPTO)

        if HAS_CK:
            if BAND:
                tl.store(dc_at, low_sum, mask=key_in)
                tl.store(dc_at + width + 1, high_sum, mask=key_in)
            else:
                _store_sums(dc_at, sums, key_in, C, RP, UPTO)

    # store
    own = kv_lane * N_k + own_start
    tl.store(dk_ptr + own * D + n[:, None] * D + d[None, :], dk * k_scale, mask=key_in[:, None] & d_in)
    tl.store(dv_ptr + own * DV + n[:, None] * DV + dv[None, :], dvalue * boost, mask=key_in[:, None] & dv_in)
