"""Cut some query rows, of one graph or of some batch rows, or some graphs out of a plan, as a new plan."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from relgraph.labels.ragged import block_starts
from relgraph.plan.parts import Csr, FunctionIds, LabelPlan, Part, WrittenIds


def cut(plan: LabelPlan, batch: range, rows: range, keys: range, graph: int | None, skipped: int) -> LabelPlan:
    """The plan of query rows ``rows`` and keys ``keys``, both counted through all graphs, without borders.

    Ids by function are written out.

    Args:
        plan: the plan.
        batch: batch rows; one of them if listed pairs differ between batch rows.
        rows: query rows, of one graph when packed.
        keys: all keys, or those of the graph.
        graph: the graph when packed, else None.
        skipped: how many rows of the graph or batch row come before these.
    """
    parts = tuple(_part(plan, part, batch, rows, keys, graph, skipped) for part in plan.parts)
    return LabelPlan(len(rows), len(keys), len(batch) if plan.batch > 1 else 1, parts)


def cut_graphs(plan: LabelPlan, graphs: range, rows: range, keys: range) -> LabelPlan:
    """The plan of some graphs, whose query rows and keys these are; ids by function are written out."""
    assert plan.q_ptr is not None and plan.k_ptr is not None
    q_ptr, k_ptr = (
        ptr[graphs.start : graphs.stop + 1] - at.start for ptr, at in ((plan.q_ptr, rows), (plan.k_ptr, keys))
    )  # [graphs + 1]
    parts: list[Part] = []
    for part in plan.parts:
        ids = part.ids
        if isinstance(ids, WrittenIds):
            assert ids.starts is not None
            starts = ids.starts[graphs.start : graphs.stop + 1]
            first, last = starts[[0, -1]].tolist()
            ids = WrittenIds(ids.ids[first:last], ids.full, starts - first)
        elif isinstance(ids, FunctionIds):
            some = FunctionIds(
                ids.fn, [x[rows.start : rows.stop] for x in ids.queries], [x[keys.start : keys.stop] for x in ids.keys],
                ids.dtype, ids.full,
            )  # fmt: skip
            ids = WrittenIds(some.written(q_ptr, k_ptr), ids.full, block_starts(q_ptr, k_ptr))
        offset = offset_of_graphs(part.offset, graphs)
        parts.append(replace(part, offset=offset, ids=ids, csr=_csr(plan, part.csr, range(1), rows, keys)))
    return LabelPlan(len(rows), len(keys), 1, tuple(parts), q_ptr, k_ptr)


def offset_of_graphs(offset: int | Tensor, graphs: range) -> int | Tensor:
    """The key positions of the first query rows of these graphs."""
    if isinstance(offset, Tensor) and offset.dim() == 1 and offset.shape[0] > 1:
        return offset[graphs.start : graphs.stop]
    return offset


def offset_of_rows(offset: int | Tensor, batch: range, graph: int | None, skipped: int) -> int | Tensor:
    """The key position of the first of these rows; ``skipped`` rows of their graph or batch row come before it."""
    if isinstance(offset, Tensor) and offset.dim() == 1 and offset.shape[0] > 1:
        offset = offset[batch.start : batch.stop] if graph is None else offset[graph]
    return offset.to(torch.int64) + skipped if isinstance(offset, Tensor) else offset + skipped


def _part(plan: LabelPlan, part: Part, batch: range, rows: range, keys: range, graph: int | None, skipped: int) -> Part:
    offset = offset_of_rows(part.offset, batch, graph, skipped)
    ids = part.ids
    if isinstance(ids, WrittenIds):
        ids = WrittenIds(written_block(ids, batch, rows, keys, graph, skipped), ids.full)
    elif isinstance(ids, FunctionIds):
        ids = WrittenIds(ids.block(batch, rows, keys), ids.full)
    elif isinstance(offset, Tensor) and offset.dim() == 1 and offset.shape[0] == 1:
        offset = offset[0]
    return replace(part, offset=offset, ids=ids, csr=_csr(plan, part.csr, batch, rows, keys))


def written_block(
    ids: WrittenIds,
    batch: range,
    rows: range,
    keys: range,
    graph: int | None,
    skipped: int = 0,
    start: int | None = None,
) -> Tensor:
    """The written-out ids of these rows, ``[batch or 1, rows, keys]``; arguments as in :func:`cut`.

    ``skipped`` rows of the graph come before these. ``start`` is where its ids begin, if that is known, because reading
    it makes the host wait for a GPU.
    """
    if graph is None:
        own = ids.ids[batch.start : batch.stop] if ids.ids.shape[0] > 1 else ids.ids
        return own[:, rows.start : rows.stop]
    assert ids.starts is not None
    begin = (int(ids.starts[graph]) if start is None else start) + skipped * len(keys)
    return ids.ids[begin : begin + len(rows) * len(keys)].view(1, len(rows), len(keys))


def _csr(plan: LabelPlan, csr: Csr | None, batch: range, rows: range, keys: range) -> Csr | None:
    if csr is None:
        return None
    corner = (batch.start if csr.batch > 1 else 0) * plan.q_len + rows.start
    row_ptr = csr.row_ptr[corner : corner + len(rows) + 1]
    begin, end = row_ptr[[0, -1]].tolist()
    here = slice(begin, end)
    return Csr(
        row_ptr - begin, csr.row[here] - corner, csr.col[here] - keys.start, csr.ids[here], csr.role[here],
        csr.order[here], 1, csr.parallel,
    )  # fmt: skip
