"""Gather all keys and values on every process, then let its own rows attend as usual.

Groups of heads take turns, so backward holds the gradients of all keys for one group at a time, and sends them home
before the next group.

Source: Grattafiori et al. 2024, "The Llama 3 Herd of Models", section 3.3.2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from relgraph.call import Answer, Drawn, Given, check_call, cut_given
from relgraph.call.offset import offsets_of
from relgraph.distributed.collectives import gather
from relgraph.distributed.context.whole import Whole
from relgraph.distributed.layout import Run
from relgraph.distributed.parts import part_of
from relgraph.functional.attention import answer_to
from relgraph.functional.region import entered
from relgraph.labels import Labels
from relgraph.labels.borders import positions_before

GROUPS = 2
"""The number of groups of heads. With more groups backward holds less, but a GPU has less work at a time."""


def answer(given: Given, whole: Whole) -> Answer:
    """The answer for the rows of this process."""
    by_heads = []
    for first, part in _groups(given, packed=whole.packed):
        # of this process [B, h, n_k, D], of all [B, h, N_k, D]; packed [n_k, h, D] and [N_k, h, D]
        key, value = (gather(x, whole.keys, whole.axis, whole.group) for x in (part["key"], part["value"]))
        by_rows, at = [], 0
        for rows in whole.queries.runs(whole.rank):
            own = at, at + rows[1] - rows[0]  # where the shard has these rows
            by_rows.append(_of_run({**part, "key": key, "value": value}, whole, own, rows, first))
            at = own[1]
        by_heads.append(_tied(_joined(by_rows, 2), key, value))  # [B, h, n_q, D_v], packed or not
    return _joined(by_heads, 1)


def _groups(given: Given, *, packed: bool) -> list[tuple[int, dict[str, Any]]]:
    """The arguments of each group of heads, and which head of the queries is its first."""
    heads, kv_heads = given["query"].shape[1], given["key"].shape[1]
    count = min(GROUPS, kv_heads)
    if count < 2:
        return [(0, dict(given))]
    found = []
    for part in torch.arange(kv_heads).chunk(count):
        kv = range(int(part[0]), int(part[-1]) + 1)
        of_query = range(kv.start * heads // kv_heads, kv.stop * heads // kv_heads)
        found.append((of_query.start, cut_given(given, {"H": of_query, "H_kv": kv}, packed=packed)))
    return found


def _of_run(given: Given, whole: Whole, own: Run, rows: Run, first_head: int) -> Answer:
    """Attention of one run of rows, ``own`` in the shard and ``rows`` in the whole, to the keys that it may see."""
    offset = _offset(given, whole, rows[0])
    seen = whole.keys.length
    if given.get("is_causal") and not whole.packed and isinstance(offset, int):
        seen = min(max(rows[1] - rows[0] + offset, 1), seen)
    of_pairs = {name: given.get(name) for name in ("query", "row_scores", "attn_mask")}
    cut = {
        **given, **cut_given(of_pairs, {"N_q": range(*own), "N_k": range(seen)}, packed=whole.packed),
        "key": given["key"].narrow(whole.axis, 0, seen), "value": given["value"].narrow(whole.axis, 0, seen),
        "labels": _labels(whole, own if whole.of_own_rows else rows, seen), "q_offset": offset, "drawn": None,
    }  # fmt: skip
    with entered(None):
        call = check_call(cut)
        if whole.seed is not None:
            larger = given.get("drawn") or Drawn()
            origin = (larger.batch, larger.head + first_head, rows[0], 0)
            call = replace(call, dropout_seed=whole.seed, dropout_origin=origin)
        return answer_to(call, given.get("impl"))


def _labels(whole: Whole, rows: Run, seen: int) -> Labels | None:
    """The labels of these rows and of the first ``seen`` keys, the same object each time."""
    if whole.labels is None:
        return None
    return part_of(whole.labels, ("rows", *rows, seen), lambda labels: labels.rows(*rows).cols(0, seen))


def _offset(given: Given, whole: Whole, row: int) -> int | Tensor | None:
    """The position of this row among the keys; None if nothing needs it."""
    base = given.get("q_offset")
    if base is None:
        base = next((offset for offset in offsets_of(whole.labels) if offset is not None), None)
    if base is None and not given.get("is_causal"):
        return None
    base = 0 if base is None else base
    labels = whole.labels
    if labels is None or labels.q_ptr is None:
        base = base.to(torch.int64) if isinstance(base, Tensor) else base
        return base + row
    return base + positions_before(labels.q_ptr, row)


class _Tied(torch.autograd.Function):
    """Outputs as they are; backward adds a gradient of zero to what they were made from."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.sources = [(x.shape, x.dtype) for x in tensors[count:]]
        ctx.set_materialize_grads(False)
        return tuple(x.view_as(x) for x in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        some = next(x for x in grads if x is not None)
        return (None, *grads, *(some.new_zeros((), dtype=dtype).expand(shape) for shape, dtype in ctx.sources))


def _tied(answer: Answer, key: Tensor, value: Tensor) -> Answer:
    """The answer, whose backward always reaches all keys and values, whose gradients processes exchange.

    An implementation may find that a gradient is zero, and pass nothing on; with other rows another process may not
    find it, and would wait for this one.
    """
    if not (key.requires_grad or value.requires_grad):
        return answer
    output, lse, *mass = _Tied.apply(
        2 + len(answer.mass or ()), answer.output, answer.lse, *(answer.mass or ()), key, value
    )
    return Answer(output, lse, None if answer.mass is None else tuple(mass))


def _joined(parts: list[Answer], axis: int) -> Answer:
    """Join several answers, ``[B, H, n, ...]``, along an axis."""
    if len(parts) == 1:
        return parts[0]
    output, lse = (torch.cat([getattr(part, name) for part in parts], axis) for name in ("output", "lse"))
    mass = None
    if parts[0].mass is not None:
        mass = tuple(torch.cat(each, axis) for each in zip(*(part.mass or () for part in parts), strict=True))
    return Answer(output, lse, mass)
