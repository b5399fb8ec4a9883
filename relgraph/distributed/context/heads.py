"""Ulysses: every process gets all rows of some heads, and gives the results back by rows.

Source: Jacobs et al. 2023, "DeepSpeed Ulysses".
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from relgraph.arguments import check
from relgraph.call import Answer, Given
from relgraph.distributed.collectives import gather, rows_to_heads
from relgraph.distributed.context.slices import Whole, attend_part, cut_heads


def answer(given: Given, whole: Whole) -> Answer:
    """The answer for the rows of this process."""
    axis, heads, queries, keys, group = whole.axis, 1, whole.queries, whole.keys, whole.group
    mine = given["query"].shape[heads] // queries.processes
    first = whole.rank * mine

    def rows_of(x: Any) -> Any:
        """All rows of this process's heads, of ``[B, H, n, ...]`` or of each tensor of a tuple."""
        if isinstance(x, (tuple, list)):
            return tuple(rows_of(each) for each in x)
        return None if x is None else rows_to_heads(x, queries, axis, heads, group)

    mask = given.get("attn_mask")
    if mask is not None and whole.own_mask:
        mask = gather(mask, queries, mask.dim() - 2, group)
    own = cut_heads({**given, "attn_mask": mask}, first, mine, packed=whole.packed)
    own["query"] = rows_to_heads(given["query"], queries, axis, heads, group)
    own["row_scores"] = rows_of(given.get("row_scores"))
    key, value = (rows_to_heads(given[name], keys, axis, heads, group) for name in ("key", "value"))
    every = 0, queries.length
    found = attend_part(own, whole, every, every, (0, keys.length), key, value, first)

    def back(x: Tensor) -> Tensor:
        return rows_to_heads(x, queries, 2, 1, group, back=True)  # an answer is [B, H, N, ...], packed or not

    mass = None if found.mass is None else tuple(map(back, found.mass))
    output = found.output.to(given["query"].dtype)  # the caller's dtype, so that half types travel as half types
    return Answer(back(output), back(found.lse[..., None])[..., 0], mass)


def check_heads(given: Given, processes: int) -> None:
    """Raise ValueError unless the processes divide the heads of queries and keys."""
    for name in ("query", "key"):
        heads = check.tensor(name, given[name]).shape[1]
        if heads % processes:
            raise ValueError(
                f"{name} must have a multiple of {processes} heads for method='ulysses', which gives each of the "
                f"{processes} processes as many, got {heads}: take method='ring' or 'allgather'"
            )
