"""A small attention kernel with two loops and an optional label term, to try the tool on."""

from __future__ import annotations

from collections.abc import Iterator

import triton
import triton.language as tl

from docs.kernels.configuration import Configuration


@triton.jit
def _tile(acc, top, total, q, k_ptr, v_ptr, bias, start, N, D: tl.constexpr, BLOCK: tl.constexpr):
    keys = start + tl.arange(0, BLOCK)
    at = keys[:, None] * D + tl.arange(0, D)[None, :]
    k = tl.load(k_ptr + at, mask=keys[:, None] < N, other=0.0)
    scores = tl.dot(q, tl.trans(k)) + bias
    higher = tl.maximum(top, tl.max(scores, 1))
    p = tl.exp2(scores - higher[:, None])
    shrink = tl.exp2(top - higher)
    total = total * shrink + tl.sum(p, 1)
    v = tl.load(v_ptr + at, mask=keys[:, None] < N, other=0.0)
    acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None])
    return acc, higher, total


@triton.jit
def toy_attention(
    q_ptr, k_ptr, v_ptr, table_ptr, ids_ptr, out_ptr, border, N, R: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, LABELS: tl.constexpr,
):  # fmt: skip
    """Tiles before ``border`` add one scalar per row; later tiles look up a label per pair."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    q = tl.load(q_ptr + rows[:, None] * D + tl.arange(0, D)[None, :])
    acc = tl.zeros([ROWS, D], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], -1e30, tl.float32)
    one = tl.zeros([ROWS], tl.float32)
    if LABELS:
        one = tl.load(table_ptr + rows * R)
    for start in range(0, border, BLOCK):
        bias = one[:, None] if LABELS else 0.0
        acc, top, total = _tile(acc, top, total, q, k_ptr, v_ptr, bias, start, N, D, BLOCK)
    for start in range(border, N, BLOCK):
        bias = 0.0
        if LABELS:
            keys = start + tl.arange(0, BLOCK)
            ids = tl.load(ids_ptr + rows[:, None] * N + keys[None, :])
            bias = tl.load(table_ptr + rows[:, None] * R + ids)
        acc, top, total = _tile(acc, top, total, q, k_ptr, v_ptr, bias, start, N, D, BLOCK)
    at = rows[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(out_ptr + at, (acc / total[:, None]).to(out_ptr.dtype.element_ty))


def configurations() -> Iterator[Configuration]:
    """The kernel without and with labels."""
    signature = {
        "q_ptr": "*bf16", "k_ptr": "*bf16", "v_ptr": "*bf16", "table_ptr": "*fp32", "ids_ptr": "*u8",
        "out_ptr": "*bf16", "border": "i32:16", "N": "i32:16",
    }  # fmt: skip
    constexprs = {"R": 32, "D": 64, "ROWS": 64, "BLOCK": 64}
    yield Configuration("toy", toy_attention, signature, constexprs | {"LABELS": False})
    yield Configuration("toy labels", toy_attention, signature, constexprs | {"LABELS": True}, baseline="toy")
