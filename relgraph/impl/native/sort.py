"""Listed pairs sorted by the compiled kernels of ``sort.cpp``: one call in place of ten operators."""

from __future__ import annotations

import torch
from torch import Tensor

from relgraph.impl.native import build
from relgraph.impl.native.problem import as_long
from relgraph.impl.op import unwatched
from relgraph.plan import FIRST, SortedPairs


def sort_pairs(row: Tensor, col: Tensor, ids: Tensor, rows: int, keys: int) -> SortedPairs | None:
    """The pairs in the order that torch's operators give; None if torch's operators must sort them.

    Args:
        row: ``[P]``, the query row of each pair, below ``rows``.
        col: ``[P]``, the key of each pair, below ``keys``.
        ids: ``[P]``, the label of each pair.
        rows: the number of rows.
        keys: the number of keys.

    Returns:
        The pairs, or None while something traces torch's operators, for rows or keys out of range, and if no call has
        loaded the kernels yet, because labels are no reason to compile them.
    """
    kernels = build.loaded()
    if kernels is None or not unwatched((row, col, ids)):
        return None
    row, col, ids, count = as_long(row), as_long(col), as_long(ids), row.shape[0]
    row_ptr, role = (
        torch.empty(rows + 1, dtype=torch.int64, device="cpu"),
        torch.empty(count, dtype=torch.int8, device="cpu"),
    )
    of_row, of_col, of_ids, order = (torch.empty(count, dtype=torch.int64, device="cpu") for _ in range(4))
    made = SortedPairs(row_ptr, of_row, of_col, of_ids, order, role)
    room = torch.empty(count + max(rows, keys) + 1, dtype=torch.int64, device="cpu")
    done = kernels.library.relgraph_sort_pairs(
        count, rows, keys, row.data_ptr(), col.data_ptr(), ids.data_ptr(), made.row.data_ptr(), made.col.data_ptr(),
        made.ids.data_ptr(), made.order.data_ptr(), FIRST, made.role.data_ptr(), made.row_ptr.data_ptr(),
        room.data_ptr(),
    )  # fmt: skip
    return made if done else None
