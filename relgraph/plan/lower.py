"""From labels to plans: one lowering per kind of labels, run once and kept on the labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relgraph.labels import (
    NOT_ATTENDING,
    UNLABELED,
    BlockLabels,
    DenseLabels,
    DistanceLabels,
    EdgeLabels,
    FunctionLabels,
    Labels,
)
from relgraph.labels.alike import common_batch
from relgraph.labels.contents import Contents
from relgraph.labels.function import FunctionIds
from relgraph.labels.memory import makes_plain, plainly
from relgraph.plan.parts import DEAD, EXTRA, FIRST, Csr, DistanceIds, LabelPlan, Part, WrittenIds

MANY = 1 << 14
"""From this number of listed pairs on, a change to a narrower type saves more time in sorting than it costs."""


class SortedPairs(NamedTuple):
    """Listed pairs sorted by query row, then by key: fields of :class:`~relgraph.plan.Csr`."""

    row_ptr: Tensor
    row: Tensor
    col: Tensor
    ids: Tensor
    order: Tensor
    role: Tensor


SORTERS: dict[str, Callable[[Tensor, Tensor, Tensor, int, int], SortedPairs | None]] = {}
"""For each kind of device, a function that sorts rows, keys and ids of pairs like torch's operators but faster, or
returns None if it cannot. Modules that import this one register it here."""


def lower(labels: Labels) -> LabelPlan:
    """The plan of ``labels``, computed once and kept on them until the contents of their tensors change.

    Raises:
        ValueError: tensors that were changed to what the constructor refuses.
    """
    known = labels._plan
    if known is not None and (not known.source.tensors or (makes_plain() and known.source.same())):
        return known
    if not makes_plain():
        return _lower(labels, None)
    source = labels._contents()
    if known is not None:
        if source.shapes != known.source.shapes:
            raise ValueError(f"labels must keep the shapes of their tensors, got changed ones in {labels!r}")
        for one in (labels, *labels._held()) if str(labels.device) == "cpu" else ():  # a GPU would have to wait
            if isinstance(one, Labels):
                plainly(one._check_again)
        vars(labels).pop("_plan", None)
    return vars(labels).setdefault("_plan", plainly(lambda: _lower(labels, source)))


def _lower(labels: Labels, source: Contents | None) -> LabelPlan:
    lowered = tuple(_lower_part(part) for part in labels._summands)
    by_function = any(isinstance(part.ids, FunctionIds) for part in lowered)
    ptrs = labels.q_ptr, labels.k_ptr
    return LabelPlan(labels.q_len, labels.k_len, labels.batch_size, lowered, *ptrs, by_function, source)


def plain(q_len: int, k_len: int) -> LabelPlan:
    """The plan without labels: every pair attends."""
    return LabelPlan(q_len, k_len, 1, (Part(0, 0, DistanceIds(0, (UNLABELED,))),))


def _lower_part(labels: Labels) -> Part:
    if type(labels) not in _LOWERINGS:
        raise TypeError(f"labels must be one of the kinds of relgraph.labels, got {type(labels).__name__}")
    return _LOWERINGS[type(labels)](labels)


def _lower_distance(labels: DistanceLabels) -> Part:
    lookup, first, stop = labels.lookup, 0, len(labels.lookup)
    while stop > 1 and lookup[stop - 2] == lookup[-1]:
        stop -= 1
    while first < stop - 1 and lookup[first + 1] == lookup[0]:
        first += 1
    ids = DistanceIds(first - labels.left, lookup[first:stop])
    return Part(labels.num_labels, 0 if labels.q_offset is None else labels.q_offset, ids)


def _lower_dense(labels: DenseLabels) -> Part:
    return Part(labels.num_labels, 0, WrittenIds(labels.ids, labels.full))


def _lower_blocks(labels: BlockLabels) -> Part:
    return Part(labels.num_labels, 0, WrittenIds(labels.ids, labels.full, labels.block_ptr()))


def _lower_function(labels: FunctionLabels) -> Part:
    return Part(labels.num_labels, 0, labels._ids)


def _lower_edges(labels: EdgeLabels) -> Part:
    if isinstance(labels.default, Labels):
        base = _lower_part(labels.default)
    else:
        id_ = NOT_ATTENDING if labels.default is None else labels.default
        base = Part(labels.num_labels, 0, DistanceIds(0, (id_,)))
    edges_only = labels.default is None
    csr = _sort(labels, base.csr, edges_only)
    return Part(labels.num_labels, base.offset, base.ids, csr, edges_only)


def _sort(labels: EdgeLabels, under: Csr | None, edges_only: bool) -> Csr:
    """All listed pairs by query row; if both list a pair, these edges come before those ``under``."""
    source, target = labels.edge_index.unbind()
    batch = 1 if labels.batch is None else labels.batch_size
    row = target if labels.batch is None else labels.batch * labels.q_len + target
    rows = batch * labels.q_len
    if edges_only:
        row_ptr, row, col, ids, order, role = _sort_pairs(row, source, labels.ids, rows, labels.k_len)
        return Csr(row_ptr, row, col, ids, role, order, batch, labels.parallel is not False)
    again = EXTRA if labels.duplicates == "sum" else DEAD
    role = torch.full_like(row, again, dtype=torch.int8)
    columns = (row, source, labels.ids.to(torch.int64), role, torch.zeros_like(role))
    if under is not None:
        below = (under.row, under.col, under.ids, under.role, torch.ones_like(under.role))
        both = common_batch(batch, under.batch)
        columns = _repeat(columns, batch, both, labels.q_len)
        below = _repeat(below, under.batch, both, labels.q_len)
        columns = tuple(torch.cat(pair) for pair in zip(columns, below, strict=True))
        batch = both
    row, col, ids, role, level = columns  # [P] each
    rows = batch * labels.q_len
    key, order = _sorted(torch.add(col, row, alpha=labels.k_len), rows * labels.k_len)
    row, col, ids, role, level = (x.index_select(0, order) for x in (row, col, ids, role, level))
    role = _roles(key, role, level)
    parallel = labels.parallel is not False and labels.duplicates == "sum"
    parallel = parallel or (under is not None and under.parallel)
    return Csr(_borders(row, rows), row, col, ids, role, order, batch, parallel)


def _sort_pairs(row: Tensor, col: Tensor, ids: Tensor, rows: int, keys: int) -> SortedPairs:
    """Pairs by row, then by key; parallel pairs keep their order, and each has the role FIRST."""
    faster = None if torch.compiler.is_compiling() else SORTERS.get(row.device.type)
    found = None if faster is None else faster(row, col, ids, rows, keys)
    if found is not None:
        return found
    _, order = _sorted(torch.add(col, row, alpha=keys), rows * keys)
    row, col, ids = (x.index_select(0, order) for x in (row, col, ids))
    role = torch.full_like(row, FIRST, dtype=torch.int8)
    return SortedPairs(_borders(row, rows), row, col, ids.to(torch.int64), order, role)


def _sorted(numbers: Tensor, stop: int) -> tuple[Tensor, Tensor]:
    """Numbers below ``stop`` in rising order, and where each was; equal ones keep their order."""
    # sorting many numbers takes half the time with 32 bits; a symbolic length cannot be compared
    if not torch.compiler.is_compiling() and numbers.shape[0] >= MANY and stop <= 1 << 31:
        numbers = numbers.to(torch.int32)
    return sort_stably(numbers)


def sort_stably(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers in rising order, and where each was; equal ones keep their order."""
    if not torch.compiler.is_exporting():
        return numbers.sort(stable=True)
    count = numbers.shape[0]  # ONNX has no stable sort, so all numbers must differ
    order = (numbers * count + torch.arange(count, device=numbers.device)).sort().indices
    return numbers.index_select(0, order), order


def _borders(row: Tensor, rows: int) -> Tensor:
    """Where each of ``rows`` rows begins among the sorted ``row`` of all pairs, and where the last one ends."""
    return torch.searchsorted(row, torch.arange(rows + 1, device=row.device))


def _repeat(columns: tuple[Tensor, ...], batch: int, wanted: int, q_len: int) -> tuple[Tensor, ...]:
    """The same listed pairs in each of ``wanted`` batch rows."""
    if batch == wanted:
        return columns
    row = columns[0] + torch.arange(wanted, device=columns[0].device)[:, None] * q_len
    return row.reshape(-1), *(column.repeat(wanted) for column in columns[1:])


def _roles(key: Tensor, again: Tensor, level: Tensor) -> Tensor:
    """FIRST for the first of each pair; later ones keep ``again``, or are DEAD if of a later level than the first."""
    fresh = torch.ones_like(key, dtype=torch.bool)
    fresh[1:] = key[1:] != key[:-1]
    start = torch.where(fresh, torch.arange(key.shape[0], device=key.device), 0).cummax(0).values
    later = torch.where(level > level[start], torch.full_like(again, DEAD), again)
    return torch.where(fresh, torch.full_like(again, FIRST), later)


_LOWERINGS: dict[type[Labels], Callable[[Any], Part]] = {
    DistanceLabels: _lower_distance,
    DenseLabels: _lower_dense,
    BlockLabels: _lower_blocks,
    FunctionLabels: _lower_function,
    EdgeLabels: _lower_edges,
}
