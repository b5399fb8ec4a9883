"""Code that the kernels over all pairs share: dropout, products, masks, label terms, sums by label.

Letters: ``i`` query rows, ``j`` keys, ``C`` columns of labels; scores are in powers of two.

The compiler chooses a layout for each load and store of a tile, and moves the softmax around it into that layout; sums
of rows then cross all lanes of a warp. So on NVIDIA's GPUs a line of PTX, which takes any layout, reads and writes one
number per pair.
"""

# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

import torch
import triton
import triton.language as tl

from relgraph.impl.triton.limits import interpreted

INTERPRETED: tl.constexpr = tl.constexpr(interpreted())
NVIDIA: tl.constexpr = tl.constexpr(torch.version.hip is None and not interpreted())
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
FIELDS: tl.constexpr = tl.constexpr(9)
_FETCH_8, _FETCH_16 = (
    tl.constexpr(f"{{ .reg .b64 a; cvt.u64.u32 a, $2; add.s64 a, a, $1; ld.global.{kind} $0, [a]; }}")
    for kind in ("u8", "u16")
)


@triton.jit
def load_rows(base, row, stride, D: tl.constexpr, BD: tl.constexpr):
    """Rows of D numbers, [len(row), BD], zeros beyond D."""
    d = tl.arange(0, BD)[None, :]
    at = base + row[:, None] * stride + d
    # a mask takes registers even where it is true throughout
    return tl.load(at) if D == BD else tl.load(at, mask=d < D, other=0.0)


@triton.jit
def load_lse(lse_at, row, inside):
    """Log-sum-exp of rows in powers of two; inf where a row sees nothing, so that all its weights are zero."""
    lse = tl.load(lse_at + row, mask=inside, other=float("-inf")) * LOG2E
    return tl.where(lse == float("-inf"), float("inf"), lse)


@triton.jit
def fetch(base, at):
    """The float32 numbers at these offsets, below 2**30 and not negative."""
    if NVIDIA:
        x = tl.inline_asm_elementwise(
            "{ .reg .b64 a; cvt.u64.u32 a, $2; add.s64 a, a, $1; ld.global.f32 $0, [a]; }",
            "=f,l,r", [base, at * 4], dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        x = tl.load(base + at)
    return x


@triton.jit
def put(base, at, x, here):
    """Store float32 numbers at these offsets."""
    if NVIDIA:
        tl.inline_asm_elementwise(
            "{ .reg .pred p; .reg .b64 a; cvt.u64.u32 a, $2; add.s64 a, a, $1; setp.ne.b32 p, $4, 0;"
            " @p st.global.f32 [a], $3; mov.b32 $0, 0; }",
            "=r,l,r,f,r", [base, at * 4, x, here.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        tl.store(base + at, x, mask=here)


@triton.jit
def fetch_ids(base, at):
    """The integers of 8, 16 or 32 bits at these offsets, none negative, as int32."""
    BYTES: tl.constexpr = base.dtype.element_ty.primitive_bitwidth // 8
    if NVIDIA and BYTES < 4:
        x = tl.inline_asm_elementwise(
            _FETCH_8 if BYTES == 1 else _FETCH_16,
            "=r,l,r", [base, at * BYTES], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        x = tl.load(base + at).to(tl.int32)
    return x


@triton.jit
def dropped(
    seed_ptr, keep_ptr, lane, H, N_q, N_k, i, at, threshold, inside, X: tl.constexpr, Y: tl.constexpr,
    DROPOUT: tl.constexpr,
):  # fmt: skip
    """Which pairs dropout keeps, [X, Y], of query rows ``i`` and the keys from ``at``: as given, or drawn.

    Numbers are drawn by a counter (group of four keys, query, head, batch row) of the whole problem, so that a part of
    it draws the same (``"part"``: the seed has four more numbers, where the part begins). A tile of a part or of a
    packed batch may begin inside a group of four.
    """
    if DROPOUT == "given":
        pairs = (lane * N_q + i)[:, None] * N_k + (at + tl.arange(0, Y))[None, :]
        kept = tl.load(keep_ptr + pairs, mask=inside, other=0.0) != 0.0
    else:
        seed = tl.load(seed_ptr)
        b, h = lane // H, lane % H
        if DROPOUT == "part":
            b += tl.load(seed_ptr + 1)
            h += tl.load(seed_ptr + 2)
            i = (i + tl.load(seed_ptr + 3)).to(tl.int32)
            at = (at + tl.load(seed_ptr + 4)).to(tl.int32)
        b, h = b.to(tl.int32), h.to(tl.int32)
        if DROPOUT == "part" and at % 4 != 0:
            key = at + tl.arange(0, Y)[None, :]
            zero = tl.zeros([X, Y], dtype=tl.int32)
            r0, r1, r2, r3 = tl.philox(seed, zero + key // 4, zero + i[:, None], zero + h, zero + b)
            bits = tl.where(key % 4 < 2, tl.where(key % 4 == 0, r0, r1), tl.where(key % 4 == 2, r2, r3))
        else:
            group = at // 4 + tl.arange(0, Y // 4)
            zero = tl.zeros([X, Y // 4], dtype=tl.int32)
            r0, r1, r2, r3 = tl.philox(seed, zero + group[None, :], zero + i[:, None], zero + h, zero + b)
            bits = tl.join(tl.join(r0, r2), tl.join(r1, r3)).reshape(X, Y)
        kept = (bits.to(tl.uint32) >> 8).to(tl.int32) >= threshold
    return kept


@triton.jit
def dot(a, b, PRECISION: tl.constexpr, to=None):
    """The product of two tiles, in float32, added ``to`` a third."""
    if INTERPRETED:  # the interpreter reads the bits of bfloat16 as integers
        product = tl.dot(a.to(tl.float32), b.to(tl.float32), to)
    else:
        product = tl.dot(a, b, to, input_precision=PRECISION)
    return product


@triton.jit
def add_row_sums(sums, x, dtype: tl.constexpr, PRECISION: tl.constexpr, Y: tl.constexpr, SUMMED: tl.constexpr):
    """Row sums of ``x`` [X, Y] added to each column of ``sums`` [X, SUMMED]."""
    if SUMMED > 1:  # a product takes far fewer instructions than a sum of registers
        sums = dot(x.to(dtype), tl.full([Y, SUMMED], 1.0, dtype), PRECISION, sums)
    else:
        sums += tl.sum(x, 1)[:, None]
    return sums


@triton.jit
def masked(s, mask_ptr, at, inside):
    """Scores under the mask, if there is one: of bytes, where 1 attends, or of floats, which are added."""
    if mask_ptr is not None:
        entry = tl.load(mask_ptr + at, mask=inside, other=0)
        if entry.dtype == tl.uint8:
            s = tl.where(entry != 0, s, float("-inf"))
        else:
            s += entry.to(tl.float32) * LOG2E
    return s


@triton.jit
def of_run(table_ptr, at, run_at, inside, PARTS: tl.constexpr):
    """Table entries of a run's columns in rows that begin at these offsets, summed over the parts; 0 if no table."""
    term = tl.zeros(at.shape, tl.float32)
    if table_ptr is not None:
        for part in tl.static_range(PARTS):
            term += tl.load(table_ptr + at + tl.load(run_at + 2 + part), mask=inside, other=0.0)
    return term


@triton.jit
def run_vector(lane, run_at, C, BAND: tl.constexpr):
    """The vector for a run of this head, in the order of ``of_runs`` of the launch."""
    column = tl.load(run_at + 2)
    return lane * 2 + tl.minimum(column, 1) if BAND else lane * C + column


@triton.jit
def of_others(run_ptr, vector, table_ptr, table_at, run_at, at, n, wide, C, PARTS: tl.constexpr):
    """Table entries of a tile's other side in a run; contiguous if there is one part."""
    if PARTS == 1:
        entries = tl.load(run_ptr + vector + (at + n))
    else:
        entries = of_run(table_ptr, table_at + (at + n) * wide * C, run_at, n >= 0, PARTS)
    return entries


@triton.jit
def add_labels(
    s, dp, bq_ptr, dp_ptr, ck_ptr, row_c, key_c, row, key, i, j, last, apart, width, ids_ptr, ids_at, C,
    BN: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """Scores and gradients of weights of a step of a mixed tile, with what labels add to them.

    Rows and keys are counted from the first of the step, ``apart`` is the distance of these two from the first of the
    band, and their columns begin at ``row_c`` and ``key_c``. Row ``i`` and key ``j``, which may lie beyond the graph,
    read tables at ``row`` and ``key``. A row sees keys up to ``last``.

    Returns:
        Scores; gradients; which pairs attend; distances from the first of the band; columns (of the last part).
    """
    for part in tl.static_range(PARTS):
        if BAND:
            attends = j <= last
            u = (j - i) + apart
            column = tl.minimum(tl.maximum(u, -1), width) + 1
        else:
            u = fetch_ids(ids_ptr + ids_at + part * TILE, i * BN + j)
            attends = u < C
            column = tl.minimum(u, C - 1)
        if bq_ptr is not None:
            s += fetch(bq_ptr + row_c, row * C + column) * LOG2E
        if dp_ptr is not None:
            dp += fetch(dp_ptr + row_c, row * C + column)
        if ck_ptr is not None:
            s += fetch(ck_ptr + key_c, key * C + column) * LOG2E
    return s, dp, attends, u, column


@triton.jit
def no_sums(X: tl.constexpr, RP: tl.constexpr, BAND: tl.constexpr):
    """Sums by label of X rows, all zero: of the columns left and right of a band, and of all written-out columns."""
    return tl.zeros([X], tl.float32), tl.zeros([X], tl.float32), tl.zeros([X, 1 if BAND else RP], tl.float32)


@triton.jit
def faded(sums, fade, BAND: tl.constexpr):
    """Sums by label times a number per row."""
    low, high, written = sums
    if BAND:
        low *= fade
        high *= fade
    else:
        written *= fade[:, None]
    return low, high, written


@triton.jit
def _by_column(
    x, order_at, bounds_at, C, dtype: tl.constexpr, X: tl.constexpr, Y: tl.constexpr, LINE: tl.constexpr,
    RP: tl.constexpr, TRANSPOSED: tl.constexpr, UPTO: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sums of each row of ``x`` [X, Y] by column, [X, RP] (``UPTO``: of all columns up to each).

    Order and bounds sort the pairs of a row by column; they are transposed if ``TRANSPOSED``. A line of the order has
    ``LINE`` entries.
    """
    m, n, r = tl.arange(0, X)[:, None], tl.arange(0, Y)[None, :], tl.arange(0, RP)[None, :]
    here = r < C - 1  # the last column, pairs without a label, is never read
    if TRANSPOSED:
        order = tl.load(order_at + (n * X + m)).to(tl.int32)
        first_at = r * X + m
    else:
        order = fetch_ids(order_at, m * LINE + n)
        first_at = m * (C + 1) + r
    sorted_x = tl.gather(x, order, 1)
    if UPTO:  # a product with ones on and above the diagonal is a running sum, at half precision
        upto = tl.where(tl.arange(0, Y)[:, None] <= tl.arange(0, Y)[None, :], 1.0, 0.0)
        running = dot(sorted_x.to(dtype), upto.to(dtype), PRECISION)
    else:
        running = tl.cumsum(sorted_x, 1)
    last = fetch_ids(bounds_at, tl.where(here, first_at + (X if TRANSPOSED else 1), 0))
    sums = tl.where(here & (last > 0), tl.gather(running, tl.maximum(last - 1, 0), 1), 0.0)
    if not UPTO:
        first = fetch_ids(bounds_at, tl.where(here, first_at, 0))
        sums -= tl.where(here & (first > 0), tl.gather(running, tl.maximum(first - 1, 0), 1), 0.0)
    return sums


@triton.jit
def add_run(sums, amount, run_at, PARTS: tl.constexpr, RP: tl.constexpr, BAND: tl.constexpr, UPTO: tl.constexpr):
    """Sums by label with a run's amount [X] added to its columns."""
    low, high, written = sums
    if BAND:
        left = tl.load(run_at + 2) == 0
        low += tl.where(left, amount, 0.0)
        high += tl.where(left, 0.0, amount)
    else:
        r = tl.arange(0, RP)
        for part in tl.static_range(PARTS):
            column = tl.load(run_at + 2 + part)
            here = r >= column if UPTO else r == column
            written += tl.where(here[None, :], amount[:, None], 0.0)
    return low, high, written


@triton.jit
def add_step(
    sums, x, noted, to, at, attends, u, width, order_ptr, bounds_ptr, slot, step, C, dtype: tl.constexpr,
    PARTS: tl.constexpr, X: tl.constexpr, LINE: tl.constexpr, Y: tl.constexpr, RP: tl.constexpr,
    BAND: tl.constexpr, TRANSPOSED: tl.constexpr, UPTO: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sums by label with one step of a mixed tile, ``x`` [X, Y], added; a tile has ``LINE // Y`` steps.

    Inside a band each label occurs once per row: what is ``noted`` of it goes to the table ``to``, entry ``at``.
    """
    low, high, written = sums
    if BAND:
        low += tl.sum(tl.where(u < 0, x, 0.0), 1)
        high += tl.sum(tl.where(u >= width, x, 0.0), 1)
        inside = u.to(tl.uint32, bitcast=True) < tl.full((), width, tl.uint32)
        put(to, at, noted, attends & inside)
    else:
        for part in tl.static_range(PARTS):
            tile = slot * PARTS + part
            order = order_ptr + tile * (X * LINE) + step * (Y * X if TRANSPOSED else Y)
            bounds = bounds_ptr + (tile * (LINE // Y) + step) * X * (C + 1)
            written += _by_column(x, order, bounds, C, dtype, X, Y, LINE, RP, TRANSPOSED, UPTO, PRECISION)
    return low, high, written


@triton.jit
def store_sums(table_at, sums, inside, width, C, RP: tl.constexpr, BAND: tl.constexpr, UPTO: tl.constexpr):
    """Store sums by label; with ``UPTO`` as differences of neighbouring columns."""
    low, high, written = sums
    if BAND:
        tl.store(table_at, low, mask=inside)
        tl.store(table_at + width + 1, high, mask=inside)
    else:
        r = tl.arange(0, RP)
        at = table_at[:, None] + r[None, :]
        here = inside[:, None] & (r < C - 1)[None, :]
        tl.store(at, written, mask=here)
        if UPTO:
            tl.debug_barrier()  # other threads wrote what is read here, and read what is written next
            before = tl.load(at - 1, mask=here & (r > 0)[None, :], other=0.0)
            tl.debug_barrier()
            tl.store(at, written - before, mask=here)
