"""The gradient of an added mask over all pairs: a kernel of its own, so that others need no registers for it.

A program owns a tile of the gradient. It computes the gradients of the tile's scores again, in every batch row and head
that shares the numbers, and adds them up in registers. So there are no atomics, and nothing is held per batch row.

Letters: ``i`` query rows, ``j`` keys, ``C`` columns of labels; scores are in powers of two.
"""

# ruff: noqa: ANN001, ANN201, ANN202, ARG001 - only heuristics read PACKED

from __future__ import annotations

import triton
import triton.language as tl

from relgraph.impl.triton.attention_kernels import AS_THEY_ARE, FLAGS
from relgraph.impl.triton.attention_pieces import (
    FIELDS,
    LOG2E,
    NVIDIA,
    dot,
    dropped,
    fetch,
    fetch_ids,
    finished,
    load_rows,
    negated,
)


@triton.jit
def _entries(base, at):
    """The numbers of a mask at these offsets, below 2**30, in float32: one by one, as a load would choose a layout."""
    if NVIDIA and base.dtype.element_ty == tl.bfloat16:
        x = (_fetch_bits(base, at) << 16).to(tl.float32, bitcast=True)
    elif NVIDIA and base.dtype.element_ty == tl.float16:
        x = _fetch_bits(base, at).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    elif base.dtype.element_ty == tl.float32:
        x = fetch(base, at)
    else:
        x = tl.load(base + at).to(tl.float32)
    return x


@triton.jit
def _fetch_bits(base, at):
    """The 16 bits at these offsets, as int32."""
    return tl.inline_asm_elementwise(
        "{ .reg .b64 a; cvt.u64.u32 a, $2; add.s64 a, a, $1; ld.global.u16 $0, [a]; }",
        "=r,l,r", [base, at * 2], dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip


COUNTS = ("B", "groups_h", "own_blocks", "key_blocks", "each_b", "each_h")  # one kernel serves all of them


@triton.heuristics(FLAGS)
@triton.jit(do_not_specialize=(*AS_THEY_ARE, *COUNTS))
def backward_mask(
    q_ptr, k_ptr, v_ptr, do_ptr, bq_ptr, ck_ptr, dp_ptr, mask_ptr, keep_ptr, seed_ptr, lse_ptr, delta_ptr, dmask_ptr,
    blocks_ptr, key_blocks_ptr, table_ptr, columns_ptr, ids_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, mask_b, mask_h, mask_q, mask_k,
    B, H, N_q, N_k, num_blocks, own_blocks, key_blocks, groups_h, each_b, each_h,
    C, low, width, scale, threshold, boost, bend,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    GROUP: tl.constexpr, PARTS: tl.constexpr, SCORE: tl.constexpr, PACKED: tl.constexpr, PRECISION: tl.constexpr,
    APART: tl.constexpr, SUM_ROWS: tl.constexpr, DROPOUT: tl.constexpr, NEGATED: tl.constexpr,
):  # fmt: skip
    """The gradient in one block of query rows (all of them: ``SUM_ROWS``) and one of keys, of a group of heads.

    A group has ``each_b`` batch rows and ``each_h`` heads; ``APART`` says whether batch rows have maps of their own.
    """
    BAND: tl.constexpr = ids_ptr is None
    # which block of keys, block of query rows, group of batch rows and heads
    key_block = tl.program_id(0) % key_blocks
    own_block = tl.program_id(0) // key_blocks % own_blocks
    group = tl.program_id(0) // key_blocks // own_blocks
    first_b, first_h = group // groups_h * each_b, group % groups_h * each_h
    num_b, num_h = tl.minimum(B - first_b, each_b), tl.minimum(H - first_h, each_h)
    key_start, key_stop = tl.load(key_blocks_ptr + key_block * 3), tl.load(key_blocks_ptr + key_block * 3 + 1)
    rows_stop = tl.load(key_blocks_ptr + key_block * 3 + 2)
    if key_start >= key_stop:
        return
    wide = tl.full((), 1, tl.int64)  # positions times strides may pass 32 bits
    m, n = tl.arange(0, BM), tl.arange(0, BN)
    key = tl.minimum(n, key_stop - 1 - key_start)  # keys beyond the block read its last key
    total = tl.zeros([BM, BN], tl.float32)

    # the tiles to add up, of several maps or of all blocks of query rows
    row_blocks = num_blocks if SUM_ROWS else 1
    for number in range(0, row_blocks * num_b if APART else row_blocks):
        block, map_b = own_block + number % row_blocks, first_b + number // row_blocks
        map_block = map_b * num_blocks + block if APART else block
        line = blocks_ptr + map_block * FIELDS
        own_start, own_stop, other_stop = tl.load(line), tl.load(line + 1), tl.load(line + 2)
        shift, limit = tl.load(line + 3), tl.load(line + 4)
        # nothing attends from one graph to another, nor in tiles that no map has
        attended = (own_start < own_stop) & (key_stop <= other_stop) & (own_stop <= rows_stop)
        if BAND:
            attended &= key_start < own_stop + limit
        else:
            slot = tl.load(table_ptr + map_block * wide * key_blocks + key_block)
            attended &= slot != -1
        if attended:
            rows = own_start + m
            row_in = rows < own_stop
            row = tl.minimum(m, own_stop - 1 - own_start)  # rows beyond the block read its last row
            last = tl.where(row_in, tl.minimum(rows + limit, other_stop - 1), -1)
            # all batch rows and heads of the group that have this map
            for turn in tl.range(0, num_h if APART else num_b * num_h):
                b, h = (map_b + turn // num_h).to(tl.int64), (first_h + turn % num_h).to(tl.int64)
                lane = b * H + h
                first_row = lane * N_q + own_start
                own_c, other_c = first_row * C, (lane * N_k + key_start) * C
                # load query rows [BM, D], keys [BN, D], values [BN, DV], the output's gradient [BM, DV], lse and δ [BM]
                q = load_rows(q_ptr + b * q_b + h * q_h + own_start * wide * q_n, row, q_n, D, BD)
                factor = scale
                if NEGATED:
                    q, factor = negated(q), -scale
                k = load_rows(k_ptr + b * k_b + (h // GROUP) * k_h + key_start * wide * k_n, key, k_n, D, BD)
                v = load_rows(v_ptr + b * v_b + (h // GROUP) * v_h + key_start * wide * v_n, key, v_n, DV, BDV)
                do = load_rows(do_ptr + first_row * DV, row, DV, DV, BDV)
                lse = tl.load(lse_ptr + first_row + m, mask=row_in, other=float("-inf")) * LOG2E
                lse = tl.where(
                    lse == float("-inf"), float("inf"), lse
                )  # all weights of a row that sees nothing are zero
                delta = tl.load(delta_ptr + first_row + m, mask=row_in, other=0.0)
                s = dot(q, tl.trans(k), PRECISION) * factor
                dp = dot(do, tl.trans(v), PRECISION)
                # labels: columns [BM, BN]; gather B, dP and C
                for part in tl.static_range(PARTS):
                    if BAND:
                        attends = n[None, :] <= (last - key_start)[:, None]
                        u = (n[None, :] - m[:, None]) + (key_start - own_start - shift - low)
                        column = tl.minimum(tl.maximum(u, -1), width) + 1
                    else:
                        if slot >= 0:
                            ids_tile = ids_ptr + (slot * wide * PARTS + part) * (BM * BN)
                            column = fetch_ids(ids_tile, m[:, None] * BN + n[None, :])
                        else:
                            column = tl.zeros([BM, BN], tl.int32) + tl.load(columns_ptr + (-2 - slot) * PARTS + part)
                        attends = column < C
                        column = tl.minimum(column, C - 1)
                    if bq_ptr is not None:
                        s += fetch(bq_ptr + own_c, row[:, None] * C + column) * LOG2E
                    if dp_ptr is not None:
                        dp += fetch(dp_ptr + own_c, row[:, None] * C + column)
                    if ck_ptr is not None:
                        s += fetch(ck_ptr + other_c, key[None, :] * C + column) * LOG2E
                if SCORE > 0:
                    s = finished(s, bend, SCORE)
                mask_at = mask_ptr + b * mask_b + h * mask_h + own_start * wide * mask_q + key_start * wide * mask_k
                s += _entries(mask_at, row[:, None] * mask_q + key[None, :] * mask_k) * LOG2E
                # weights and the gradient of the scores, to which the mask was added
                p = tl.exp2(tl.where(attends, s - lse[:, None], float("-inf")))
                if DROPOUT > 0:
                    pairs = (first_row + m)[:, None] * N_k + (key_start + n)[None, :]
                    kept = dropped(
                        seed_ptr, keep_ptr, b, h, rows, key_start, threshold, pairs, attends, BM, BN, DROPOUT
                    )
                    dp = tl.where(kept, dp * boost, 0.0)
                total += p * (dp - delta[:, None])

    # store
    key_in = key_start + n < key_stop
    if SUM_ROWS:
        tl.store(dmask_ptr + group * wide * N_k + key_start + n, tl.sum(total, 0), mask=key_in)
    else:
        line = blocks_ptr + own_block * FIELDS
        rows = tl.load(line) + m
        inside = (rows < tl.load(line + 1))[:, None] & key_in[None, :]
        at = dmask_ptr + (group * wide * N_q + rows)[:, None] * N_k + (key_start + n)[None, :]
        tl.store(at, total.to(dmask_ptr.dtype.element_ty), mask=inside)
