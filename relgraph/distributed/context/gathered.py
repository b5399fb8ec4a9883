"""All keys and values on every process, for its own rows: one gather, then attention as usual."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed

from relgraph.distributed.collectives import gather
from relgraph.distributed.context.slices import Run, Whole, attend_part, cut_offset, positions_of
from relgraph.distributed.layout import Layout
from relgraph.functional.region import Arguments
from relgraph.impl.call import Answer


def attend(
    given: Arguments, whole: Whole, queries: Layout, keys: Layout, group: Any, seed: Tensor | None, impl: str | None
) -> Answer:
    """The answer for the rows of this process."""
    joined = gather(torch.cat([given.key, given.value], -1), keys, whole.axis, group)
    key, value = joined.split([given.key.shape[-1], given.value.shape[-1]], -1)
    parts = []
    for own, rows in positions_of(queries.runs[distributed.get_rank(group)]):
        seen = _seen(given, whole, rows)
        near_key, near_value = (x.narrow(whole.axis, 0, seen[1]) for x in (key, value))
        parts.append(attend_part(given, whole, own, rows, seen, near_key, near_value, (seed, 0), impl))
    if len(parts) == 1:
        return parts[0]
    mass = tuple(torch.cat(each, 2) for each in zip(*(part.mass or () for part in parts), strict=True))
    output, lse = (torch.cat([getattr(part, name) for part in parts], 2) for name in ("output", "lse"))
    return Answer(output, lse, mass if given.need_mass else None)


def _seen(given: Arguments, whole: Whole, rows: Run) -> Run:
    """The keys up to the last one that these rows may see."""
    offset = cut_offset(given, whole, rows, (0, whole.k_len))
    if not given.is_causal or whole.packed or not isinstance(offset, int):
        return 0, whole.k_len
    return 0, min(max(rows[1] - rows[0] + offset, 1), whole.k_len)
