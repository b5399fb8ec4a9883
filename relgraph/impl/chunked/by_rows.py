"""Scores and value maps that the primitive does not know: some query rows at a time by ``dense``, again in backward.

torch differentiates each block, and its checkpoints recompute it in backward. So any function that torch can
differentiate may act on the scores, and memory grows with the number of keys, not with the number of pairs.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from relgraph.impl import dense
from relgraph.impl.call import Answer, Call, Tables
from relgraph.impl.chunked.parts import Unit, units
from relgraph.plan import cut, offset_of_rows
from relgraph.score import Additive, Named

BLOCK_NUMBERS = 1 << 20
"""Scores per block; with additive scores numbers, D for each pair. 4 MiB in float32."""


def needed(call: Call) -> bool:
    """Whether the primitive does not know the call's score, its maps of values or its edge vectors."""
    named = call.score is None or isinstance(call.score, Named)
    return not named or call.value_map is not None or call.edge is not None


def attend(call: Call) -> Answer:
    """Attention block by block of query rows."""
    query, k_len = call.query, call.plan.k_len
    a_pair = query.shape[-1] if isinstance(call.score, Additive) else 1
    rows = max(BLOCK_NUMBERS // max(query.shape[1] * k_len * a_pair, 1), 1)
    blocks = [
        (unit, range(first, min(first + rows, unit.queries.stop)))
        for unit in units(call.plan, query.shape[0], max(rows // max(call.plan.q_len, 1), 1))
        for first in range(unit.queries.start, unit.queries.stop, rows)
    ]
    answers = [_block(call, unit, some) for unit, some in blocks]
    if not answers:
        return dense.attend(call)
    fields = zip(*answers, strict=True)
    output, lse = (_joined(call, blocks, next(fields)) for _ in range(2))
    mass = [_joined(call, blocks, part) for part in zip(*next(fields), strict=True)] if call.need_mass else None
    return Answer(output, lse, None if mass is None else tuple(mass))


def _joined(call: Call, blocks: list[tuple[Unit, range]], pieces: tuple[Tensor, ...]) -> Tensor:
    """``[B, H, N_q, ...]`` from the pieces of all blocks."""
    if call.plan.q_ptr is not None:
        return torch.cat(pieces, 2)
    by_batch: dict[int, list[Tensor]] = {}
    for (unit, _), piece in zip(blocks, pieces, strict=True):
        by_batch.setdefault(unit.batch.start, []).append(piece)
    return torch.cat([torch.cat(own, 2) for own in by_batch.values()])


def _block(call: Call, unit: Unit, rows: range) -> Answer:
    mine = _cut(call, unit, rows)
    if not torch.is_grad_enabled():
        return dense.attend(mine)
    return checkpoint(dense.attend, mine, use_reentrant=False, preserve_rng_state=call.dropout_p > 0.0)


def _cut(call: Call, unit: Unit, rows: range) -> Call:
    """The same call for some rows of a unit."""
    batch, keys = unit.batch, unit.keys
    at = slice(batch.start, batch.stop)
    queries, seen = slice(rows.start, rows.stop), slice(keys.start, keys.stop)

    def pairs(x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        return x[
            tuple(s if n > 1 else slice(None) for s, n in zip((at, slice(None), queries, seen), x.shape, strict=True))
        ]

    def own(tables: Tables) -> Tables:
        return tables if tables.rows is None else tables._replace(rows=tables.rows[at, :, queries])

    return replace(
        call,
        query=call.query[at, :, queries],
        key=call.key[at, :, seen],
        value=call.value[at, :, seen],
        plan=cut(call.plan, batch, rows, keys, unit.graph),
        tables=tuple(map(own, call.tables)),
        mask=pairs(call.mask),
        keep=pairs(call.keep),
        q_offset=offset_of_rows(call.q_offset, batch, unit.graph, rows.start - unit.queries.start),
    )
