"""A call of attention cut to some rows and some keys: its arguments, labels and offset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed
from torch.autograd.graph import saved_tensors_hooks

from relgraph.arguments import check
from relgraph.call import Answer, Drawn, Given, check_call, check_read, cut_given
from relgraph.call.offset import offsets_of
from relgraph.distributed.layout import Layout
from relgraph.distributed.parts import part_of
from relgraph.functional.attention import answer_to
from relgraph.functional.region import entered
from relgraph.impl.rule import choose
from relgraph.labels import Labels
from relgraph.labels.borders import positions_before

Run = tuple[int, int]
"""A run of rows, ``start:stop`` among all rows."""


class Whole(NamedTuple):
    """What all processes hold together."""

    labels: Labels | None  # of all rows or of those of this process, and all keys
    rows_given: tuple[Run, ...] | None  # the runs of this process if its labels cover only its rows
    queries: Layout  # which rows each process has
    keys: Layout
    group: Any  # the processes
    axis: int  # of rows in query, key and value
    own_mask: bool = False  # whether each process has a mask of its own rows, not one for all
    seed: Tensor | None = None  # of dropout

    @property
    def rank(self) -> int:
        """The number of this process."""
        return distributed.get_rank(self.group)

    @property
    def packed(self) -> bool:
        """Whether inputs have no batch axis."""
        return self.axis == 0


def check_whole(given: Given, whole: Whole) -> None:
    """Check the call before it is cut, for a part may hide what is wrong; no data are read or written."""
    mine = given["query"].shape[whole.axis], whole.queries.length
    keys = given["key"].shape[whole.axis], whole.keys.length
    if whole.rows_given is not None:
        mine = mine[0], mine[0]
    full = {**given, "labels": None if whole.labels is None else whole.labels._outline()}
    for name, lengths in (("query", mine), ("key", keys), ("value", keys), ("row_scores", mine)):
        full[name] = _grown(given.get(name), whole.axis, lengths)
    mask = given.get("attn_mask")
    if mask is not None:  # its last two axes are checked by what they mean
        check.tensor("attn_mask", mask)
        full["attn_mask"] = _sized(mask, [*mask.shape[:-2], 1, 1][-mask.dim() :] if mask.dim() else [])
    # a recomputation does not check again, so checkpointing must not count what the check saves for backward
    with entered(None), saved_tensors_hooks(lambda x: x, lambda x: x):
        call = check_call(full, only_check=True)
        check_read(call, full)
        if given.get("impl") is not None:
            choose(call, given["impl"])


def _grown(x: Any, axis: int, lengths: tuple[int, int]) -> Any:
    """A tensor, or each of a tuple, of which this process holds ``lengths[0]`` rows, as one number with all rows."""
    if isinstance(x, (tuple, list)):
        return tuple(_grown(each, axis, lengths) for each in x)
    odd = not isinstance(x, Tensor) or x.is_nested or x.layout != torch.strided
    if odd or x.dim() <= axis or x.shape[axis] != lengths[0]:
        return x
    return _sized(x, [*x.shape[:axis], lengths[1], *x.shape[axis + 1 :]])


def _sized(x: Tensor, shape: list[int]) -> Tensor:
    """A tensor like ``x`` of another shape, which has one number in memory."""
    return torch.zeros((), dtype=x.dtype, device=x.device, requires_grad=x.requires_grad).expand(shape)


def cut_labels(whole: Whole, rows: Run, keys: Run) -> Labels | None:
    """The labels of these rows and keys, the same object each time."""
    labels = whole.labels
    if labels is None:
        return None
    start, stop = rows
    if whole.rows_given is not None:  # labels of the rows of this process, run after run
        at = 0
        for first, last in whole.rows_given:
            if (first, last) == rows:
                break
            at += last - first
        start, stop = at, at + stop - start
    return part_of(labels, ("rows", start, stop, keys), lambda labels: labels.rows(start, stop).cols(*keys))


def cut_offset(given: Given, whole: Whole, rows: Run, keys: Run) -> int | Tensor | None:
    """The position of the first of these rows among these keys; None if nothing needs it."""
    base = given.get("q_offset")
    if base is None:
        base = next((offset for offset in offsets_of(whole.labels) if offset is not None), None)
    if base is None and not given.get("is_causal"):
        return None
    base = 0 if base is None else base
    labels = whole.labels
    if labels is None or labels.q_ptr is None or labels.k_ptr is None:
        base = base.to(torch.int64) if isinstance(base, Tensor) else base
        return base + rows[0] - keys[0]
    return base + positions_before(labels.q_ptr, rows[0]) - positions_before(labels.k_ptr, keys[0])


def sees_nothing(given: Given, whole: Whole, rows: Run, keys: Run) -> bool:
    """Whether no row can see a key, as far as borders, order and edges show without reading ids."""
    if rows[0] == rows[1] or keys[0] == keys[1]:
        return True
    labels = whole.labels
    if labels is not None and (labels.packed or labels._edges_only):
        cut = cut_labels(whole, rows, keys)
        assert cut is not None
        return cut._attends_nowhere()
    offset = cut_offset(given, whole, rows, keys)
    return bool(given.get("is_causal")) and isinstance(offset, int) and rows[1] - rows[0] - 1 + offset < 0


def attend_part(
    given: Given, whole: Whole, own: Run, rows: Run, keys: Run, key: Tensor, value: Tensor, first_head: int = 0
) -> Answer:
    """Attention of rows of this process, ``own`` in its shard and ``rows`` in the whole, to some keys of the whole."""
    of_pairs = {name: given.get(name) for name in ("query", "row_scores", "attn_mask")}
    cut = {
        **given, **cut_given(of_pairs, {"N_q": range(*own), "N_k": range(*keys)}, packed=whole.packed),
        "key": key, "value": value, "labels": cut_labels(whole, rows, keys),
        "q_offset": cut_offset(given, whole, rows, keys), "drawn": None,
    }  # fmt: skip
    with entered(None):
        call = check_call(cut)
        if whole.seed is not None:
            larger = given.get("drawn") or Drawn()
            origin = (larger.batch, larger.head + first_head, rows[0], keys[0])
            call = replace(call, dropout_seed=whole.seed, dropout_origin=origin)
        return answer_to(call, given.get("impl"))


def positions_of(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """For each run, its rows counted within the shard, and among all rows."""
    found, at = [], 0
    for start, stop in runs:
        found.append(((at, at + stop - start), (start, stop)))
        at += stop - start
    return found
