"""What all processes hold together, and the check of a call before its rows are split."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed
from torch.autograd.graph import saved_tensors_hooks

from relgraph.arguments import check
from relgraph.call import Given, check_call, check_labels_type, check_read, labels_from_ids
from relgraph.call.check import BATCHED, PACKED, check_ids
from relgraph.distributed.layout import Layout
from relgraph.functional.region import entered
from relgraph.impl.rule import choose
from relgraph.labels import Labels


class Whole(NamedTuple):
    """What all processes hold together."""

    labels: Labels | None  # of all rows or of those of this process, and all keys
    queries: Layout  # which rows each process has
    keys: Layout
    group: Any  # the processes
    axis: int  # of rows in query, key and value
    seed: Tensor | None = None  # of dropout

    @property
    def rank(self) -> int:
        """The number of this process."""
        return distributed.get_rank(self.group)

    @property
    def packed(self) -> bool:
        """Whether inputs have no batch axis."""
        return self.axis == 0

    @property
    def of_own_rows(self) -> bool:
        """Whether the labels cover only the rows of this process."""
        return self.labels is not None and self.labels.q_len != self.queries.length


def labels_of(given: Given) -> Labels | None:
    """The labels; an error unless query, key and value are tensors of the axes that the labels ask for."""
    labels = given["labels"]
    check_labels_type(labels)
    packed = isinstance(labels, Labels) and labels.packed
    for name in ("query", "key", "value"):
        x = check.floating(name, given[name])
        if x.dim() != (3 if packed else 4):
            raise ValueError(f"{name} must have shape {PACKED if packed else BATCHED}, got {list(x.shape)}")
    if isinstance(labels, Tensor):
        check_ids(labels)
        if labels.dim() not in (2, 3):
            raise ValueError(f"labels must have shape [N_q, N_k] or [B, N_q, N_k], got {list(labels.shape)}")
        return labels_from_ids(labels, given)
    return labels


def check_whole(given: Given, whole: Whole) -> None:
    """Check the call before it is cut, for a part may hide what is wrong; no data are read or written."""
    for name in ("edge_attr", "edge_key", "edge_value"):
        if given.get(name) is not None:
            raise NotImplementedError(f"{name} cannot be cut by rows and keys: leave the context_parallel block")
    if whole.labels is not None:
        _check_labels(whole.labels, whole)
    _check_arguments(given, whole)
    if given.get("need_weights"):
        raise NotImplementedError(
            "need_weights needs all pairs of a row on one process: leave the context_parallel block for it"
        )
    if given.get("attn_mask") is not None:
        has_own_keys(given["attn_mask"], whole)


def _check_labels(labels: Labels, whole: Whole) -> None:
    """Raise unless the labels cover either all rows or, if that is allowed, the rows of this process."""
    length, share = whole.queries.length, whole.queries.length // whole.queries.processes
    if labels.k_len != whole.keys.length or labels.q_len not in (length, share):
        raise ValueError(
            f"labels must cover the whole, [N_q, N_k] = [{length}, {whole.keys.length}], or the rows of this "
            f"process and all keys, [{share}, {whole.keys.length}], got [{labels.q_len}, {labels.k_len}]"
        )
    if whole.of_own_rows and labels.packed:
        raise ValueError(f"labels must cover all {length} queries, as they are packed, got {labels.q_len}")


def _check_arguments(given: Given, whole: Whole) -> None:
    """Check the call as one process would, with tensors that stand for those of all rows."""
    queries, keys = given["query"].shape[whole.axis], given["key"].shape[whole.axis]
    rows = queries, queries if whole.of_own_rows else whole.queries.length
    full = {**given, "labels": None if whole.labels is None else whole.labels._outline()}
    for name, lengths in (("query", rows), ("key", (keys, whole.keys.length)), ("value", (keys, whole.keys.length))):
        full[name] = _grown(given[name], whole.axis, lengths)
    full["row_scores"] = _grown(given.get("row_scores"), whole.axis, rows)
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


def has_own_keys(mask: Tensor, whole: Whole) -> bool:
    """Whether a mask is one of the keys of this process, for all rows; an error if its last two axes mean nothing.

    If each process holds one row (key), a size of 1 is its own, because joining equal masks gives the same answer.
    """
    rows, width = [1, 1, *mask.shape][-2:]
    every, processes = whole.keys.length, whole.keys.processes
    of_pairs = mask.dim() > 1 and rows == whole.queries.length // processes != 1
    of_keys = not of_pairs and mask.dim() > 0 and width == every // processes != every
    if (of_pairs or rows == 1) and (of_keys or width == 1 or (mask.dim() > 0 and width == every)):
        return of_keys
    raise ValueError(
        f"attn_mask must have all {every} keys on its last axis and the rows of this process, or be a mask of "
        f"the keys of this process for all rows, [..., 1, n], got {list(mask.shape)}"
    )
