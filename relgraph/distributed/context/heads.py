"""Ulysses: every process gets all rows of some heads, and gives the results back by rows.

Source: Jacobs et al. 2023, "DeepSpeed Ulysses".
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from relgraph.arguments import check
from relgraph.call import Answer, Given, cut_given, map_given
from relgraph.distributed.collectives import gather, rows_to_heads
from relgraph.distributed.context.slices import Whole, attend_part
from relgraph.distributed.layout import Layout


def answer(given: Given, whole: Whole) -> Answer:
    """The answer for the rows of this process."""
    axis, heads, queries, keys, group = whole.axis, 1, whole.queries, whole.keys, whole.group
    mine = given["query"].shape[heads] // queries.processes
    first = whole.rank * mine

    def all_rows(names: tuple[str, str], layout: Layout) -> dict[str, Any]:
        """All rows of this process's heads, of the arguments of these names."""
        own_rows = {name: given.get(name) for name in names}
        return map_given(own_rows, lambda _, x: rows_to_heads(x, layout, axis, heads, group))

    mask = given.get("attn_mask")
    if mask is not None and whole.own_mask:
        mask = gather(mask, queries, mask.dim() - 2, group)
    by_heads = {name: x for name, x in given.items() if name not in ("query", "key", "value", "row_scores")}
    own = cut_given(by_heads | {"attn_mask": mask}, {"H": range(first, first + mine)}, packed=whole.packed)
    own |= all_rows(("query", "row_scores"), queries)
    key, value = all_rows(("key", "value"), keys).values()
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
