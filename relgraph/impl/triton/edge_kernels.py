"""Edges-only attention on a GPU: three kernels over the listed pairs. Nothing is stored per pair.

    forward     one program per (query, lane): its pairs in runs of E; output, log-sum-exp, sums by label
    by row      one program per (query, lane): α again from the log-sum-exp; gradients of the query and of B
    by key      one program per (key, key lane): the pairs sorted by key; gradients of key, value and of C

A *lane* is one head (of one batch row, if batch rows share their pairs). One program owns each sum, in E slots that are
added at its end. So there are no atomics, and results repeat bit for bit. Philox draws which weights dropout keeps from
(seed, batch row, head, query, key) and which of parallel edges it is: the same in all three kernels, and in a part of a
larger problem.

Shapes: query ``[B, H, N_q, D]``, key ``[B, H_kv, N_k, D]``, value ``[B, H_kv, N_k, D_v]``; B (by_query)
``[B, H, N_q, R]`` and C (by_key) ``[B, H, N_k, R]``.
"""

# ruff: noqa: ANN001, ANN201, ANN202
# pyright: reportPossiblyUnboundVariable=false, reportOperatorIssue=false, reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl

from relgraph.impl.triton.attention_pieces import LOG2E


@triton.jit
def _place(program, length, H: tl.constexpr, JOINT: tl.constexpr):
    """Batch row, head and position of a program; its index in the list of first pairs; its lane.

    Heads vary fastest, so that neighbouring programs read the same pairs.
    """
    head = program % H
    number = program // H
    batch = number // length
    position = number - batch * length
    if not JOINT:
        number = position
    lane = head if JOINT else batch * H + head
    return batch.to(tl.int64), head.to(tl.int64), position.to(tl.int64), number, lane.to(tl.int64)


@triton.jit
def _scores(products, bq_ptr, ck_ptr, added_ptr, row_c, key_c, pair_at, label, live):
    """Scores to base 2 with B, C and masks, -inf in empty slots."""
    if bq_ptr is not None:
        products += tl.load(bq_ptr + row_c + label, mask=label >= 0, other=0.0) * LOG2E
    if ck_ptr is not None:
        products += tl.load(ck_ptr + key_c + label, mask=label >= 0, other=0.0) * LOG2E
    if added_ptr is not None:
        added = tl.load(added_ptr + pair_at, mask=live, other=0.0)
        products = tl.where(added == float("-inf"), added, products + added * LOG2E)  # hides NaN too
    return tl.where(live, products, float("-inf"))


@triton.jit
def _kept(
    factor_ptr, factor_at, seed_ptr, again_ptr, place, batch, head, query, key, live, drop, grow, PART: tl.constexpr
):  # fmt: skip
    """The dropout factor of each pair's weight; one of query and key is one number.

    A draw gives the numbers of four heads. Of parallel edges, the n-th has n in the generator's key: a sequence of its
    own. ``PART``: the problem is part of a larger one, and the seed has four more numbers, where it begins.
    """
    kept = tl.full(live.shape, 1.0, tl.float32)
    if factor_ptr is not None:
        kept = tl.load(factor_ptr + factor_at, mask=live, other=0.0)
    if seed_ptr is not None:
        nothing = tl.zeros(live.shape, tl.int32)
        if PART:
            batch += tl.load(seed_ptr + 1)
            head += tl.load(seed_ptr + 2)
            query += tl.load(seed_ptr + 3)
            key += tl.load(seed_ptr + 4)
        seed = tl.load(seed_ptr) + nothing
        if again_ptr is not None:
            seed = seed ^ tl.load(again_ptr + place, mask=live, other=0)
        at = nothing + key.to(tl.int32), nothing + query.to(tl.int32)
        r0, r1, r2, r3 = tl.philox(seed, at[0], at[1], nothing + (head // 4).to(tl.int32), nothing + batch.to(tl.int32))
        bits = tl.where(head % 4 < 2, tl.where(head % 4 == 0, r0, r1), tl.where(head % 4 == 2, r2, r3))
        threshold = tl.minimum(tl.full((), drop, tl.float32) * 4294967296.0, 4294967040.0)  # below 2**32
        kept = tl.where(bits.to(tl.uint32) >= threshold.to(tl.uint32), grow, 0.0)
    return kept


@triton.jit
def _rows(x_ptr, at, x_n, d, live, WIDTH: tl.constexpr):
    """Rows of keys or values, ``[E, WIDTH]`` rounded up."""
    inside = live[:, None] & (d < WIDTH)[None, :]
    return tl.load(x_ptr + at[:, None] * x_n + d[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _score_gradient(weight, product, kept, dp_ptr, at, label, delta):
    """The score's gradient ds = α (dα - δ), where dα = kept · (do·v + dP[l])."""
    if dp_ptr is not None:
        product += tl.load(dp_ptr + at + label, mask=label >= 0, other=0.0)
    return weight * (product * kept - delta)


@triton.jit
def _by_label(x, label, columns):
    """``[E, RP]``: each pair's value in the column of its label."""
    return tl.where(label[:, None] == columns[None, :], x[:, None], 0.0)


@triton.jit
def forward_kernel(
    q_ptr, k_ptr, v_ptr, bq_ptr, ck_ptr, added_ptr, factor_ptr, seed_ptr, begin_ptr, other_ptr, label_ptr, again_ptr,
    o_ptr, lse_ptr, p_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, added_lane, factor_lane, N_q, N_k, C, scale, drop, grow,
    D: tl.constexpr, DV: tl.constexpr, DP: tl.constexpr, VP: tl.constexpr, RP: tl.constexpr, E: tl.constexpr,
    H: tl.constexpr, GROUP: tl.constexpr, JOINT: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """One query in one lane: E softmaxes side by side over its pairs, joined at the end."""
    batch, head, i, number, lane = _place(tl.program_id(0), N_q, H, JOINT)
    first, end = tl.load(begin_ptr + number), tl.load(begin_ptr + number + 1)
    d, w, r = tl.arange(0, DP), tl.arange(0, VP), tl.arange(0, RP)
    # load the query [D]
    q = tl.load(q_ptr + batch * q_b + head * q_h + i * q_n + d, mask=d < D, other=0.0).to(tl.float32)
    q *= scale * LOG2E
    k_ptr += batch * k_b + head // GROUP * k_h
    v_ptr += batch * v_b + head // GROUP * v_h
    row, first_key = (batch * H + head) * N_q + i, (batch * H + head) * N_k

    # one online softmax per slot
    top = tl.full((E,), float("-inf"), tl.float32)
    total = tl.zeros((E,), tl.float32)
    out = tl.zeros((E, VP), tl.float32)
    if p_ptr is not None:
        sums = tl.zeros((E, RP), tl.float32)
    # no range here: Triton 3.6 cannot interpret one whose ends are tensors, where numpy is new
    start = first
    while start < end:
        pair = start + tl.arange(0, E)
        live = pair < end
        col = tl.load(other_ptr + pair, mask=live, other=0).to(tl.int64)
        label = tl.load(label_ptr + pair, mask=live, other=-1)
        # load keys [E, D] and values [E, DV]
        k = _rows(k_ptr, col, k_n, d, live, D)
        v = _rows(v_ptr, col, v_n, w, live, DV)
        # scores, with B, C and masks
        scores = _scores(
            tl.sum(q[None, :] * k, 1), bq_ptr, ck_ptr, added_ptr, row * C, (first_key + col) * C,
            lane * added_lane + pair, label, live,
        )  # fmt: skip
        # softmax
        higher = tl.maximum(top, scores)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        shrink = tl.exp2(top - base)
        weight = tl.exp2(scores - base)
        top = higher
        total = total * shrink + weight
        # dropout, weighted sum of values, sums by label
        factor_at = lane * factor_lane + pair
        kept = _kept(factor_ptr, factor_at, seed_ptr, again_ptr, pair, batch, head, i, col, live, drop, grow, PART)
        kept *= weight
        out = out * shrink[:, None] + kept[:, None] * v
        if p_ptr is not None:
            sums = sums * shrink[:, None] + _by_label(kept, label, r)
        start += E

    # join the slots, normalise, store
    highest = tl.max(top, 0)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    share = tl.exp2(top - base)
    whole = tl.sum(total * share, 0)
    seen = whole != 0.0  # true of NaN, which stays NaN
    whole = tl.where(seen, whole, 1.0)
    share /= whole
    tl.store(lse_ptr + row, tl.where(seen, base + tl.log2(whole), float("-inf")))
    tl.store(o_ptr + row * DV + w, tl.sum(out * share[:, None], 0), mask=w < DV)
    if p_ptr is not None:
        tl.store(p_ptr + row * C + r, tl.sum(sums * share[:, None], 0), mask=r < C)


@triton.jit
def by_row_kernel(
    q_ptr, k_ptr, v_ptr, bq_ptr, ck_ptr, added_ptr, factor_ptr, seed_ptr, begin_ptr, other_ptr, label_ptr, again_ptr,
    o_ptr, lse_ptr, p_ptr, do_ptr, dlse_ptr, dp_ptr, dq_ptr, db_ptr, delta_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, added_lane, factor_lane, N_q, N_k, C, scale, drop, grow,
    D: tl.constexpr, DV: tl.constexpr, DP: tl.constexpr, VP: tl.constexpr, RP: tl.constexpr, E: tl.constexpr,
    H: tl.constexpr, GROUP: tl.constexpr, JOINT: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """One query in one lane: δ_i for the other pass, and the gradients of the query and of its row of B."""
    batch, head, i, number, lane = _place(tl.program_id(0), N_q, H, JOINT)
    first, end = tl.load(begin_ptr + number), tl.load(begin_ptr + number + 1)
    d, w, r = tl.arange(0, DP), tl.arange(0, VP), tl.arange(0, RP)
    # load the query [D] and its log-sum-exp
    q = tl.load(q_ptr + batch * q_b + head * q_h + i * q_n + d, mask=d < D, other=0.0).to(tl.float32)
    q *= scale * LOG2E
    k_ptr += batch * k_b + head // GROUP * k_h
    v_ptr += batch * v_b + head // GROUP * v_h
    row, first_key = (batch * H + head) * N_q + i, (batch * H + head) * N_k
    lse = tl.load(lse_ptr + row)
    lse = tl.where(lse == float("-inf"), 0.0, lse)

    # δ: output gradient times output [DV], and the same for sums [RP] and log-sum-exp
    delta = 0.0
    if do_ptr is not None:
        do = tl.load(do_ptr + row * DV + w, mask=w < DV, other=0.0)
        delta += tl.sum(do * tl.load(o_ptr + row * DV + w, mask=w < DV, other=0.0), 0)
    at = row * C + r
    if dp_ptr is not None:
        grad = tl.load(dp_ptr + at, mask=r < C, other=0.0)
        delta += tl.sum(grad * tl.load(p_ptr + at, mask=r < C, other=0.0), 0)
    if dlse_ptr is not None:
        delta -= tl.load(dlse_ptr + row) * LOG2E  # the base-2 lse grows by α · log2 e with a score to base e
    tl.store(delta_ptr + row, delta)

    dq = tl.zeros((E, DP), tl.float32)
    if db_ptr is not None:
        db = tl.zeros((E, RP), tl.float32)
    start = first
    while start < end:
        pair = start + tl.arange(0, E)
        live = pair < end
        col = tl.load(other_ptr + pair, mask=live, other=0).to(tl.int64)
        label = tl.load(label_ptr + pair, mask=live, other=-1)
        # load keys [E, D]
        k = _rows(k_ptr, col, k_n, d, live, D)
        # scores, with B, C and masks
        scores = _scores(
            tl.sum(q[None, :] * k, 1), bq_ptr, ck_ptr, added_ptr, row * C, (first_key + col) * C,
            lane * added_lane + pair, label, live,
        )  # fmt: skip
        # gradient of the scores
        product = tl.zeros((E,), tl.float32)
        if do_ptr is not None:
            v = _rows(v_ptr, col, v_n, w, live, DV)
            product = tl.sum(do[None, :] * v, 1)
        factor_at = lane * factor_lane + pair
        kept = _kept(factor_ptr, factor_at, seed_ptr, again_ptr, pair, batch, head, i, col, live, drop, grow, PART)
        weight = tl.exp2(scores - lse)
        ds = _score_gradient(weight, product, kept, dp_ptr, row * C, label, delta)
        # dq, and sums by label (dB)
        dq += ds[:, None] * k
        if db_ptr is not None:
            db += _by_label(ds, label, r)
        start += E

    # store
    tl.store(dq_ptr + row * D + d, (tl.sum(dq, 0) * scale).to(dq_ptr.dtype.element_ty), mask=d < D)
    if db_ptr is not None:
        tl.store(db_ptr + row * C + r, tl.sum(db, 0), mask=r < C)


@triton.jit
def by_key_kernel(
    q_ptr, k_ptr, v_ptr, bq_ptr, ck_ptr, added_ptr, factor_ptr, seed_ptr, begin_ptr, other_ptr, label_ptr, again_ptr,
    pair_ptr, lse_ptr, delta_ptr, do_ptr, dp_ptr, dk_ptr, dv_ptr, dc_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, added_lane, factor_lane, N_q, N_k, C, scale, drop, grow,
    D: tl.constexpr, DV: tl.constexpr, DP: tl.constexpr, VP: tl.constexpr, RP: tl.constexpr, E: tl.constexpr,
    H: tl.constexpr, GROUP: tl.constexpr, JOINT: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """One key in one key lane, over the query heads that share it: gradients of key, value and of its rows of C."""
    batch, key_head, j, number, key_lane = _place(tl.program_id(0), N_k, H // GROUP, JOINT)
    into = (batch * (H // GROUP) + key_head) * N_k + j
    first, end = tl.load(begin_ptr + number), tl.load(begin_ptr + number + 1)
    d, w, r = tl.arange(0, DP), tl.arange(0, VP), tl.arange(0, RP)
    # load the key [D] and its value [DV]
    at = batch * k_b + key_head * k_h + j * k_n
    k = tl.load(k_ptr + at + d, mask=d < D, other=0.0).to(tl.float32)
    if do_ptr is not None:
        at = batch * v_b + key_head * v_h + j * v_n
        v = tl.load(v_ptr + at + w, mask=w < DV, other=0.0).to(tl.float32)

    dk = tl.zeros((E, DP), tl.float32)
    dv = tl.zeros((E, VP), tl.float32)
    for member in range(GROUP):
        head = key_head * GROUP + member
        lane = key_lane * GROUP + member
        key_c = ((batch * H + head) * N_k + j) * C
        if dc_ptr is not None:
            dc = tl.zeros((E, RP), tl.float32)
        start = first
        while start < end:
            place = start + tl.arange(0, E)
            live = place < end
            i = tl.load(other_ptr + place, mask=live, other=0).to(tl.int64)
            label = tl.load(label_ptr + place, mask=live, other=-1)
            pair = tl.load(pair_ptr + place, mask=live, other=0)
            row = (batch * H + head) * N_q + i
            # load queries [E, D]
            q = _rows(q_ptr + batch * q_b + head * q_h, i, q_n, d, live, D)
            # scores, with B, C and masks
            # rounded as in the forward pass, because rounding errors of large scores must cancel against lse
            terms = q * (scale * LOG2E) * k[None, :]
            scores = _scores(
                tl.sum(terms, 1), bq_ptr, ck_ptr, added_ptr, row * C, key_c, lane * added_lane + pair, label, live
            )  # fmt: skip
            lse = tl.load(lse_ptr + row, mask=live, other=0.0)
            lse = tl.where(lse == float("-inf"), 0.0, lse)
            # weights, gradients of the value and of the scores
            weight = tl.exp2(scores - lse)
            factor_at = lane * factor_lane + pair
            kept = _kept(factor_ptr, factor_at, seed_ptr, again_ptr, place, batch, head, i, j, live, drop, grow, PART)
            product = tl.zeros((E,), tl.float32)
            if do_ptr is not None:
                do = _rows(do_ptr, row, DV, w, live, DV)
                product = tl.sum(do * v[None, :], 1)
                dv += (weight * kept)[:, None] * do
            delta = tl.load(delta_ptr + row, mask=live, other=0.0)
            ds = _score_gradient(weight, product, kept, dp_ptr, row * C, label, delta)
            # dk, and sums by label (dC)
            dk += ds[:, None] * q
            if dc_ptr is not None:
                dc += _by_label(ds, label, r)
            start += E
        if dc_ptr is not None:
            tl.store(dc_ptr + key_c + r, tl.sum(dc, 0), mask=r < C)

    # store
    tl.store(dk_ptr + into * D + d, (tl.sum(dk, 0) * scale).to(dk_ptr.dtype.element_ty), mask=d < D)
    tl.store(dv_ptr + into * DV + w, tl.sum(dv, 0).to(dv_ptr.dtype.element_ty), mask=w < DV)
