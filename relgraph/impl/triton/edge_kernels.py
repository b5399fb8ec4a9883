"""Edges-only attention on a GPU: three kernels over the listed pairs; none stores anything per pair.

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

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from relgraph import score
from relgraph.impl.problem import Outputs, Problem
from relgraph.impl.triton.attention_pieces import finished, slope

LOG2_E = tl.constexpr(1.4426950408889634)


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
    return batch.to(tl.int64), head.to(tl.int64), position.to(tl.int64), number, lane


@triton.jit
def _finished_scores(scores, BY_QUERY, query_at, BY_KEY, key_at, label, bend, SCORE: tl.constexpr):
    """Scores to base 2 plus the terms of labels, and the named function of them."""
    if BY_QUERY is not None:
        scores += tl.load(BY_QUERY + query_at + label, mask=label >= 0, other=0.0) * LOG2_E
    if BY_KEY is not None:
        scores += tl.load(BY_KEY + key_at + label, mask=label >= 0, other=0.0) * LOG2_E
    return finished(scores, bend, SCORE)


@triton.jit
def _hidden(scores, ADDED, pair_at, live):
    """Scores under masks; -inf in empty slots."""
    if ADDED is not None:
        added = tl.load(ADDED + pair_at, mask=live, other=0.0)
        scores = tl.where(added == float("-inf"), added, scores + added * LOG2_E)  # hides NaN too
    return tl.where(live, scores, float("-inf"))


@triton.jit
def _kept(FACTOR, factor_at, SEED, AGAIN, place, batch, head, query, key, live, drop, grow, ANYWHERE: tl.constexpr):
    """The dropout factor of each pair's weight; one of query and key is one number.

    A draw gives the numbers of four heads. Of parallel edges, the n-th has n in the generator's key: a sequence of its
    own. ``ANYWHERE``: the seed has four more numbers, where a part of a larger problem begins.
    """
    kept = tl.full(live.shape, 1.0, tl.float32)
    if FACTOR is not None:
        kept = tl.load(FACTOR + factor_at, mask=live, other=0.0)
    if SEED is not None:
        nothing = tl.zeros(live.shape, tl.int32)
        if ANYWHERE:
            batch += tl.load(SEED + 1)
            head += tl.load(SEED + 2)
            query += tl.load(SEED + 3)
            key += tl.load(SEED + 4)
        seed = tl.load(SEED) + nothing
        if AGAIN is not None:
            seed = seed ^ tl.load(AGAIN + place, mask=live, other=0)
        at = nothing + key.to(tl.int32), nothing + query.to(tl.int32)
        r0, r1, r2, r3 = tl.philox(seed, at[0], at[1], nothing + (head // 4).to(tl.int32), nothing + batch.to(tl.int32))
        bits = tl.where(head % 4 < 2, tl.where(head % 4 == 0, r0, r1), tl.where(head % 4 == 2, r2, r3))
        threshold = tl.minimum(tl.full((), drop, tl.float32) * 4294967296.0, 4294967040.0)  # below 2**32
        kept = tl.where(bits.to(tl.uint32) >= threshold.to(tl.uint32), grow, 0.0)
    return kept


@triton.jit
def _score_gradient(weight, product, kept, SUMS_GRAD, MASS_GRAD, at, label, delta):
    """The score's gradient ds = α (dα - δ), where dα = kept · (do·v + dP[l]) + dM[l]."""
    if SUMS_GRAD is not None:
        product += tl.load(SUMS_GRAD + at + label, mask=label >= 0, other=0.0)
    product *= kept
    if MASS_GRAD is not None:
        product += tl.load(MASS_GRAD + at + label, mask=label >= 0, other=0.0)
    return weight * (product - delta)


@triton.jit
def _by_label(x, label, columns):
    """``[E, RP]``: each pair's value in the column of its label."""
    return tl.where(label[:, None] == columns[None, :], x[:, None], 0.0)


@triton.jit
def forward_kernel(
    Q, K, V, BY_QUERY, BY_KEY, ADDED, FACTOR, SEED, ROW_PTR, COL, LABEL, AGAIN,
    OUT, LSE, SUMS, MASS,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    bq_batch, bq_head, bq_row, bk_batch, bk_head, bk_row, added_lane, factor_lane,
    q_len, labels, scale, drop, grow, bend,
    D: tl.constexpr, DV: tl.constexpr, DP: tl.constexpr, VP: tl.constexpr, RP: tl.constexpr,
    E: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, JOINT: tl.constexpr,
    SCORE: tl.constexpr, ANYWHERE: tl.constexpr,
):  # fmt: skip
    """One query in one lane: E softmaxes side by side over its pairs, joined at the end."""
    batch, head, i, number, lane = _place(tl.program_id(0), q_len, HEADS, JOINT)
    first, end = tl.load(ROW_PTR + number), tl.load(ROW_PTR + number + 1)
    d, w, r = tl.arange(0, DP), tl.arange(0, VP), tl.arange(0, RP)
    # load the query
    q = tl.load(Q + batch * q_batch + head * q_head + i * q_row + d, mask=d < D, other=0.0).to(tl.float32)
    q *= scale * LOG2_E
    K += batch * k_batch + head // GROUP * k_head
    V += batch * v_batch + head // GROUP * v_head

    # one online softmax per slot
    top = tl.full((E,), float("-inf"), tl.float32)
    total = tl.zeros((E,), tl.float32)
    out = tl.zeros((E, VP), tl.float32)
    if SUMS is not None:
        sums = tl.zeros((E, RP), tl.float32)
    if MASS is not None:
        mass = tl.zeros((E, RP), tl.float32)
    # no range here: Triton 3.6 cannot interpret one whose ends are tensors, where numpy is new
    start = first
    while start < end:
        pair = start + tl.arange(0, E)
        live = pair < end
        col = tl.load(COL + pair, mask=live, other=0).to(tl.int64)
        label = tl.load(LABEL + pair, mask=live, other=-1)
        inside = live[:, None] & (d < D)[None, :]
        # load
        k = tl.load(K + col[:, None] * k_row + d[None, :], mask=inside, other=0.0).to(tl.float32)
        inside = live[:, None] & (w < DV)[None, :]
        v = tl.load(V + col[:, None] * v_row + w[None, :], mask=inside, other=0.0).to(tl.float32)
        # scores, with B, C and masks
        query_at = batch * bq_batch + head * bq_head + i * bq_row
        key_at = batch * bk_batch + head * bk_head + col * bk_row
        pair_at = lane.to(tl.int64) * added_lane + pair
        scores = tl.sum(q[None, :] * k, 1)
        scores = _finished_scores(scores, BY_QUERY, query_at, BY_KEY, key_at, label, bend, SCORE)
        scores = _hidden(scores, ADDED, pair_at, live)
        # softmax
        higher = tl.maximum(top, scores)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        shrink = tl.exp2(top - base)
        weight = tl.exp2(scores - base)
        top = higher
        total = total * shrink + weight
        # dropout, weighted sum of values, sums by label
        factor_at = lane.to(tl.int64) * factor_lane + pair
        kept = _kept(FACTOR, factor_at, SEED, AGAIN, pair, batch, head, i, col, live, drop, grow, ANYWHERE)
        kept *= weight
        out = out * shrink[:, None] + kept[:, None] * v
        if SUMS is not None:
            sums = sums * shrink[:, None] + _by_label(kept, label, r)
        if MASS is not None:
            mass = mass * shrink[:, None] + _by_label(weight, label, r)
        start += E

    # join the slots, normalise, store
    highest = tl.max(top, 0)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    share = tl.exp2(top - base)
    whole = tl.sum(total * share, 0)
    seen = whole != 0.0  # true of NaN, which stays NaN
    whole = tl.where(seen, whole, 1.0)
    share /= whole
    row = (batch * HEADS + head) * q_len + i
    tl.store(LSE + row, tl.where(seen, base + tl.log2(whole), float("-inf")))
    tl.store(OUT + row * DV + w, tl.sum(out * share[:, None], 0), mask=w < DV)
    if SUMS is not None:
        tl.store(SUMS + row * labels + r, tl.sum(sums * share[:, None], 0), mask=r < labels)
    if MASS is not None:
        tl.store(MASS + row * labels + r, tl.sum(mass * share[:, None], 0), mask=r < labels)


@triton.jit
def by_row_kernel(
    Q, K, V, BY_QUERY, BY_KEY, ADDED, FACTOR, SEED, ROW_PTR, COL, LABEL, AGAIN,
    OUT, LSE, SUMS, MASS, OUT_GRAD, LSE_GRAD, SUMS_GRAD, MASS_GRAD, Q_GRAD, BY_QUERY_GRAD, DELTA,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    bq_batch, bq_head, bq_row, bk_batch, bk_head, bk_row, do_batch, do_head, do_row,
    added_lane, factor_lane, q_len, labels, scale, drop, grow, bend,
    D: tl.constexpr, DV: tl.constexpr, DP: tl.constexpr, VP: tl.constexpr, RP: tl.constexpr,
    E: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, JOINT: tl.constexpr,
    SCORE: tl.constexpr, ANYWHERE: tl.constexpr,
):  # fmt: skip
    """One query in one lane: δ_i for the other pass, and the gradients of the query and of its row of B."""
    batch, head, i, number, lane = _place(tl.program_id(0), q_len, HEADS, JOINT)
    first, end = tl.load(ROW_PTR + number), tl.load(ROW_PTR + number + 1)
    d, w, r = tl.arange(0, DP), tl.arange(0, VP), tl.arange(0, RP)
    # load the query and its log-sum-exp
    q = tl.load(Q + batch * q_batch + head * q_head + i * q_row + d, mask=d < D, other=0.0).to(tl.float32)
    q *= scale * LOG2_E
    K += batch * k_batch + head // GROUP * k_head
    V += batch * v_batch + head // GROUP * v_head
    row = (batch * HEADS + head) * q_len + i
    lse = tl.load(LSE + row)
    lse = tl.where(lse == float("-inf"), 0.0, lse)

    # δ: output gradient times output, and the same for sums and log-sum-exp
    delta = 0.0
    if OUT_GRAD is not None:
        do = tl.load(OUT_GRAD + batch * do_batch + head * do_head + i * do_row + w, mask=w < DV, other=0.0)
        delta += tl.sum(do * tl.load(OUT + row * DV + w, mask=w < DV, other=0.0), 0)
    at = row * labels + r
    if SUMS_GRAD is not None:
        grad = tl.load(SUMS_GRAD + at, mask=r < labels, other=0.0)
        delta += tl.sum(grad * tl.load(SUMS + at, mask=r < labels, other=0.0), 0)
    if MASS_GRAD is not None:
        grad = tl.load(MASS_GRAD + at, mask=r < labels, other=0.0)
        delta += tl.sum(grad * tl.load(MASS + at, mask=r < labels, other=0.0), 0)
    if LSE_GRAD is not None:
        delta -= tl.load(LSE_GRAD + row) * LOG2_E  # the base-2 lse grows by α · log2 e with a score to base e
    tl.store(DELTA + row, delta)

    dq = tl.zeros((E, DP), tl.float32)
    if BY_QUERY_GRAD is not None:
        db = tl.zeros((E, RP), tl.float32)
    start = first
    while start < end:
        pair = start + tl.arange(0, E)
        live = pair < end
        col = tl.load(COL + pair, mask=live, other=0).to(tl.int64)
        label = tl.load(LABEL + pair, mask=live, other=-1)
        inside = live[:, None] & (d < D)[None, :]
        # load
        k = tl.load(K + col[:, None] * k_row + d[None, :], mask=inside, other=0.0).to(tl.float32)
        # scores, with B, C and masks
        query_at = batch * bq_batch + head * bq_head + i * bq_row
        key_at = batch * bk_batch + head * bk_head + col * bk_row
        pair_at = lane.to(tl.int64) * added_lane + pair
        scores = tl.sum(q[None, :] * k, 1)
        scores = _finished_scores(scores, BY_QUERY, query_at, BY_KEY, key_at, label, bend, SCORE)
        bent = slope(scores, bend, SCORE) if SCORE > 0 else 1.0
        scores = _hidden(scores, ADDED, pair_at, live)
        # gradient of the scores
        product = tl.zeros((E,), tl.float32)
        if OUT_GRAD is not None:
            inside = live[:, None] & (w < DV)[None, :]
            v = tl.load(V + col[:, None] * v_row + w[None, :], mask=inside, other=0.0).to(tl.float32)
            product = tl.sum(do[None, :] * v, 1)
        factor_at = lane.to(tl.int64) * factor_lane + pair
        kept = _kept(FACTOR, factor_at, SEED, AGAIN, pair, batch, head, i, col, live, drop, grow, ANYWHERE)
        ds = _score_gradient(tl.exp2(scores - lse), product, kept, SUMS_GRAD, MASS_GRAD, row * labels, label, delta)
        ds *= bent
        # dq, and sums by label (dB)
        dq += ds[:, None] * k
        if BY_QUERY_GRAD is not None:
            db += _by_label(ds, label, r)
        start += E

    # store
    tl.store(Q_GRAD + row * D + d, (tl.sum(dq, 0) * scale).to(Q_GRAD.dtype.element_ty), mask=d < D)
    if BY_QUERY_GRAD is not None:
        tl.store(BY_QUERY_GRAD + row * labels + r, tl.sum(db, 0), mask=r < labels)


@triton.jit
def by_key_kernel(
    Q, K, V, BY_QUERY, BY_KEY, ADDED, FACTOR, SEED, COL_PTR, ROW, LABEL, PAIR, AGAIN,
    LSE, DELTA, OUT_GRAD, SUMS_GRAD, MASS_GRAD, K_GRAD, V_GRAD, BY_KEY_GRAD,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    bq_batch, bq_head, bq_row, bk_batch, bk_head, bk_row, do_batch, do_head, do_row,
    added_lane, factor_lane, q_len, k_len, labels, scale, drop, grow, bend,
    D: tl.constexpr, DV: tl.constexpr, DP: tl.constexpr, VP: tl.constexpr, RP: tl.constexpr,
    E: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, JOINT: tl.constexpr,
    SCORE: tl.constexpr, ANYWHERE: tl.constexpr,
):  # fmt: skip
    """One key in one key lane, over the query heads that share it: gradients of key, value and of its rows of C."""
    batch, key_head, j, number, key_lane = _place(tl.program_id(0), k_len, HEADS // GROUP, JOINT)
    first, end = tl.load(COL_PTR + number), tl.load(COL_PTR + number + 1)
    d, w, r = tl.arange(0, DP), tl.arange(0, VP), tl.arange(0, RP)
    # load the key and its value
    k = tl.load(K + batch * k_batch + key_head * k_head + j * k_row + d, mask=d < D, other=0.0).to(tl.float32)
    if OUT_GRAD is not None:
        v = tl.load(V + batch * v_batch + key_head * v_head + j * v_row + w, mask=w < DV, other=0.0).to(tl.float32)

    dk = tl.zeros((E, DP), tl.float32)
    dv = tl.zeros((E, VP), tl.float32)
    for member in range(GROUP):
        head = key_head * GROUP + member
        lane = key_lane * GROUP + member
        if BY_KEY_GRAD is not None:
            dc = tl.zeros((E, RP), tl.float32)
        start = first
        while start < end:
            place = start + tl.arange(0, E)
            live = place < end
            i = tl.load(ROW + place, mask=live, other=0).to(tl.int64)
            label = tl.load(LABEL + place, mask=live, other=-1)
            pair = tl.load(PAIR + place, mask=live, other=0)
            row = (batch * HEADS + head) * q_len + i
            q_at = batch * q_batch + head * q_head + i * q_row
            inside = live[:, None] & (d < D)[None, :]
            # load
            q = tl.load(Q + q_at[:, None] + d[None, :], mask=inside, other=0.0).to(tl.float32)
            # scores, with B, C and masks
            query_at = batch * bq_batch + head * bq_head + i * bq_row
            key_at = batch * bk_batch + head * bk_head + j * bk_row
            pair_at = lane.to(tl.int64) * added_lane + pair
            # rounded as in the forward pass, because rounding errors of large scores must cancel against lse
            terms = (q * (scale * LOG2_E)) * k[None, :]
            scores = _finished_scores(tl.sum(terms, 1), BY_QUERY, query_at, BY_KEY, key_at, label, bend, SCORE)
            if SCORE > 0:
                bent = tl.where(live, slope(scores, bend, SCORE), 0.0)  # an empty slot of an infinite key has NaN
            scores = _hidden(scores, ADDED, pair_at, live)
            lse = tl.load(LSE + row, mask=live, other=0.0)
            lse = tl.where(lse == float("-inf"), 0.0, lse)
            # weights, gradients of the value and of the scores
            weight = tl.exp2(scores - lse)
            factor_at = lane.to(tl.int64) * factor_lane + pair
            kept = _kept(FACTOR, factor_at, SEED, AGAIN, place, batch, head, i, j, live, drop, grow, ANYWHERE)
            product = tl.zeros((E,), tl.float32)
            if OUT_GRAD is not None:
                do_at = batch * do_batch + head * do_head + i * do_row
                inside = live[:, None] & (w < DV)[None, :]
                do = tl.load(OUT_GRAD + do_at[:, None] + w[None, :], mask=inside, other=0.0)
                product = tl.sum(do * v[None, :], 1)
                dv += (weight * kept)[:, None] * do
            delta = tl.load(DELTA + row, mask=live, other=0.0)
            ds = _score_gradient(weight, product, kept, SUMS_GRAD, MASS_GRAD, row * labels, label, delta)
            if SCORE > 0:
                ds *= bent
            # dk, and sums by label (dC)
            dk += ds[:, None] * q
            if BY_KEY_GRAD is not None:
                dc += _by_label(ds, label, r)
            start += E
        if BY_KEY_GRAD is not None:
            c_row = (batch * HEADS + head) * k_len + j
            tl.store(BY_KEY_GRAD + c_row * labels + r, tl.sum(dc, 0), mask=r < labels)

    # store
    row = (batch * (HEADS // GROUP) + key_head) * k_len + j
    tl.store(K_GRAD + row * D + d, (tl.sum(dk, 0) * scale).to(K_GRAD.dtype.element_ty), mask=d < D)
    tl.store(V_GRAD + row * DV + w, tl.sum(dv, 0).to(V_GRAD.dtype.element_ty), mask=w < DV)


NUMBERS_A_THREAD = 16
"""Numbers of a tile per thread. More of them let fewer programs run at once and make the final sums slower."""


class KernelPairs(NamedTuple):
    """Listed pairs as the kernels read them, int32: by row, then sorted by key.

    Attributes:
        row_ptr: ``[n + 1]`` where each row's pairs begin; rows are numbered through batch rows if their pairs differ.
        col: ``[P]`` key of each pair, within its batch row.
        label: ``[P]``; -1 no label.
        col_ptr: ``[m + 1]`` where each key's pairs begin, once sorted by key.
        row: ``[P]`` query of each pair in that order, within its batch row.
        label_by_key: ``[P]`` labels in that order.
        pair: ``[P]`` index of each of them in row order.
        again: ``[P]`` how many parallel edges come before each pair, in row order; None if there are none.
        again_by_key: ``[P]`` the same in the order by key.
    """

    row_ptr: Tensor
    col: Tensor
    label: Tensor
    col_ptr: Tensor
    row: Tensor
    label_by_key: Tensor
    pair: Tensor
    again: Tensor | None
    again_by_key: Tensor | None


@dataclass(frozen=True, eq=False)
class EdgeProblem:
    """A problem as the launchers read it.

    Attributes:
        problem: the problem.
        rows: query, key, value, B and C with dense rows.
        pairs: the listed pairs.
        joint: whether pairs differ between batch rows.
        added: ``[L or 1, P]`` float32 added to the scores (-inf hides a pair), or None.
        factor: ``[L or 1, P]`` float32 that dropout multiplies the weights by, or None.
    """

    problem: Problem
    rows: tuple[Tensor | None, ...]
    pairs: KernelPairs
    joint: bool
    added: Tensor | None
    factor: Tensor | None

    def tensors(self) -> list[Tensor | None]:
        """All but the pairs, in the kernels' order."""
        return [*self.rows, self.added, self.factor, self.problem.seed]

    def strides(self) -> list[int]:
        """Of the five tensors with rows, batch row, head and row each."""
        return [stride for x in self.rows for stride in _strides(x)]

    def numbers(self, *lengths: int) -> list[Any]:
        """Lane strides, counts and factors, in the kernels' order."""
        x = self.problem
        grow = 1.0 / (1.0 - x.dropout_p) if x.dropout_p < 1.0 else 0.0
        bend = score.encode(x.score)[1]
        return [
            _lane_stride(self.added),
            _lane_stride(self.factor),
            *lengths,
            x.columns,
            x.scale,
            x.dropout_p,
            grow,
            bend,
        ]

    def options(self, rows: int) -> dict[str, Any]:
        """The constants of a kernel whose pairs are spread over ``rows`` programs per lane."""
        x = self.problem
        heads, kv_heads = x.query.shape[1], x.key.shape[1]
        degree = self.pairs.col.shape[0] / max(rows, 1)
        sizes = tiles(x.query.shape[-1], x.value.shape[-1], x.columns, degree)
        kinds = {"SCORE": 1 + int(score.encode(x.score)[0]), "ANYWHERE": x.seed is not None and x.seed.numel() > 1}
        lanes = {"HEADS": heads, "GROUP": heads // kv_heads, "JOINT": self.joint}
        return {**sizes, **lanes, **kinds, "enable_fp_fusion": True}


def tiles(size: int, value_size: int, labels: int, degree: float) -> dict[str, int]:
    """Tile sizes and warps for head sizes D and D_v, R labels and ``degree`` pairs per program."""
    DP, VP, RP = (max(1 << (x - 1).bit_length(), 8) if x else 8 for x in (size, value_size, labels))
    E = 8 if degree <= 32 else 16 if degree <= 128 else 32
    warps = E * max(DP, VP, RP // 2) // (32 * NUMBERS_A_THREAD)
    return {"D": size, "DV": value_size, "DP": DP, "VP": VP, "RP": RP, "E": E, "num_warps": min(max(warps, 1), 8)}


def forward(edges: EdgeProblem) -> Outputs:
    """Output, log-sum-exp to base 2, sums after and before dropout; float32, and None for sums that are not needed."""
    x = edges.problem
    shape = x.query.shape[:3]
    out = x.query.new_empty(*shape, x.value.shape[-1], dtype=torch.float32)
    lse = out.new_empty(shape)
    sums, mass = (out.new_empty(*shape, x.columns) if n else None for n in (x.need_sums, x.need_mass))
    if lse.numel():
        with torch.cuda.device_of(x.query):
            forward_kernel[(lse.numel(),)](
                *edges.tensors(), *edges.pairs[:3], edges.pairs.again, out, lse, sums, mass,
                *edges.strides(), *edges.numbers(shape[2]), **edges.options(edges.pairs.row_ptr.shape[0] - 1),
            )  # fmt: skip
    return Outputs(out, lse, sums, mass)


def backward(edges: EdgeProblem, outputs: Outputs, grads: Outputs) -> list[Tensor | None]:
    """Gradients of query, key, value (their dtypes), and of B and C (float32, dense) where there are any."""
    x, pairs = edges.problem, edges.pairs
    (batch, heads, q_len), k_len = x.query.shape[:3], x.key.shape[2]
    dq, dk, dv = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x.query, x.key, x.value))
    delta = dq.new_empty(batch, heads, q_len, dtype=torch.float32)
    *_, by_query, by_key = edges.rows
    db = None if by_query is None else delta.new_empty(batch, heads, q_len, x.columns)
    dc = None if by_key is None else delta.new_empty(batch, heads, k_len, x.columns)
    strides = [*edges.strides(), *_strides(grads.output)]
    queries, keys = delta.numel(), batch * x.key.shape[1] * k_len
    with torch.cuda.device_of(x.query):
        if queries:
            by_row_kernel[(queries,)](
                *edges.tensors(), *pairs[:3], pairs.again, *outputs[:4], *grads[:4], dq, db, delta,
                *strides, *edges.numbers(q_len), **edges.options(pairs.row_ptr.shape[0] - 1),
            )  # fmt: skip
        if keys:
            by_key_kernel[(keys,)](
                *edges.tensors(), *pairs[3:7], pairs.again_by_key,
                outputs.lse, delta, grads.output, grads.sums, grads.mass, dk, dv, dc,
                *strides, *edges.numbers(q_len, k_len), **edges.options(pairs.col_ptr.shape[0] - 1),
            )  # fmt: skip
    return [dq, dk, dv, db, dc]


def _strides(x: Tensor | None) -> tuple[int, int, int]:
    return (0, 0, 0) if x is None else (x.stride(0), x.stride(1), x.stride(2))


def _lane_stride(x: Tensor | None) -> int:
    """0 where all lanes share the pairs' numbers."""
    return 0 if x is None or x.shape[0] == 1 else x.stride(0)
