"""A call of attention cut to some rows and some keys: its arguments, labels and offset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relgraph.call import Answer, check_call
from relgraph.call.offset import offsets_of
from relgraph.distributed.kept import part_of
from relgraph.functional.attention import answer_to
from relgraph.functional.region import Arguments, left
from relgraph.labels import EdgeLabels, Labels
from relgraph.labels.base import positions_before
from relgraph.score import Additive, Bilinear

BIASES = ("content_bias", "position_bias")

Run = tuple[int, int]
"""A run of rows, ``start:stop`` among all rows."""


class Whole(NamedTuple):
    """What all processes hold together.

    Attributes:
        labels: the labels, of all rows or of those of this process, and all keys; None without labels.
        rows_given: the runs of this process if its labels cover only its rows; None for labels of all rows.
        q_len: rows of all processes.
        k_len: keys of all processes.
        axis: the axis of rows in query, key and value.
    """

    labels: Labels | None
    rows_given: tuple[Run, ...] | None
    q_len: int
    k_len: int
    axis: int

    @property
    def packed(self) -> bool:
        """Whether inputs have no batch axis."""
        return self.axis == 0


def cut_labels(whole: Whole, rows: Run, keys: Run) -> Labels | None:
    """The labels of these rows and keys; the same object each time."""
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
    return part_of(labels, ("rows", start, stop, keys), lambda: labels.rows(start, stop).cols(*keys))


def cut_offset(given: Arguments, whole: Whole, rows: Run, keys: Run) -> int | Tensor | None:
    """The position of the first of these rows among these keys; None if nothing needs it."""
    base = given.q_offset
    if base is None:
        base = next((offset for offset in offsets_of(whole.labels) if offset is not None), None)
    if base is None and not given.is_causal:
        return None
    base = 0 if base is None else base
    labels = whole.labels
    if labels is None or labels.q_ptr is None or labels.k_ptr is None:
        base = base.to(torch.int64) if isinstance(base, Tensor) else base
        return base + rows[0] - keys[0]
    return base + positions_before(labels.q_ptr, rows[0]) - positions_before(labels.k_ptr, keys[0])


def sees_nothing(given: Arguments, whole: Whole, rows: Run, keys: Run) -> bool:
    """Whether no row can see a key, as far as borders, order and edges show without reading ids."""
    if rows[0] == rows[1] or keys[0] == keys[1]:
        return True
    labels = whole.labels
    if labels is not None and labels.q_ptr is not None and labels.k_ptr is not None:
        cut = cut_labels(whole, rows, keys)
        assert cut is not None and cut.q_ptr is not None and cut.k_ptr is not None
        return not bool((cut.q_ptr.diff() * cut.k_ptr.diff()).any())
    if isinstance(labels, EdgeLabels) and labels.default is None:
        cut = cut_labels(whole, rows, keys)
        assert isinstance(cut, EdgeLabels)
        return cut.ids.shape[0] == 0
    offset = cut_offset(given, whole, rows, keys)
    return bool(given.is_causal) and isinstance(offset, int) and rows[1] - rows[0] - 1 + offset < 0


def cut_mask(mask: Tensor | None, own: Run, keys: Run) -> Tensor | None:
    """A mask of the rows of this process (or of one row for all) and all keys, cut to these rows and keys."""
    if mask is None:
        return None
    if mask.dim() >= 2 and mask.shape[-2] > 1:
        mask = mask.narrow(-2, own[0], own[1] - own[0])
    if mask.shape[-1] > 1:
        mask = mask.narrow(-1, keys[0], keys[1] - keys[0])
    return mask


def cut_rows(x: Any, whole: Whole, own: Run) -> Any:
    """Rows ``own`` of this process of ``[B, H, n, ...]``, packed ``[n, H, ...]``, or of each tensor of a tuple."""
    if isinstance(x, (tuple, list)):
        return tuple(cut_rows(each, whole, own) for each in x)
    return None if x is None else x.narrow(whole.axis, own[0], own[1] - own[0])


def cut_heads(given: Arguments, first: int, count: int) -> Arguments:
    """The arguments, with everything that differs between heads cut to some heads of the queries.

    Query, key, value and ``row_scores`` do not change, because each method decides which of their heads a process has.
    """
    heads = given.query.shape[1]

    def cut(name: str, x: Any, dims: int) -> Any:
        """Cut a tensor, or each of a tuple, whose heads are ``dims`` axes from the end; 1 head serves all."""
        if isinstance(x, (tuple, list)):
            return tuple(cut(name, each, dims) for each in x)
        if x is None or x.dim() < dims or x.shape[-dims] == 1:
            return x
        if x.shape[-dims] != heads:
            raise ValueError(f"{name} must be for {heads} heads, as the query, got shape {list(x.shape)}")
        return x.narrow(-dims, first, count)

    names = ("key_table", "value_table", "query_table", "bias_table")
    maps, score = given.value_map, given.score
    if isinstance(maps, (tuple, list)) and len(maps) == 2:
        maps = cut("value_map", maps[0], 3), cut("value_map", maps[1], 4)
    else:
        maps = cut("value_map", maps, 4)
    if isinstance(score, Additive):
        score = Additive(cut("score", score.weight, 2), score.activation)
    elif isinstance(score, Bilinear):
        score = Bilinear(cut("score", score.weight, 4))
    return given._replace(
        tables=tuple(cut(name, x, dims) for name, x, dims in zip(names, given.tables, (3, 3, 3, 2), strict=True)),
        attn_mask=cut("attn_mask", given.attn_mask, 3), value_map=maps, score=score,
        query_biases=tuple(cut(name, x, 2) for name, x in zip(BIASES, given.query_biases, strict=True)),
    )  # fmt: skip


def attend_part(
    given: Arguments,
    whole: Whole,
    own: Run,
    rows: Run,
    keys: Run,
    key: Tensor,
    value: Tensor,
    drawn: tuple[Tensor | None, int],
    impl: str | None,
) -> Answer:
    """Attention of some rows of this process to some keys.

    Args:
        given: the arguments for all rows of this process.
        whole: what all processes hold.
        own: which rows of this process.
        rows: the same rows, counted among all rows.
        keys: the keys, counted among all keys.
        key: the keys' vectors.
        value: their values.
        drawn: the seed of dropout, or None, and the number of the first head here among all heads.
        impl: the implementation.
    """
    seed, first_head = drawn
    cut = given._replace(
        query=cut_rows(given.query, whole, own), key=key, value=value, labels=cut_labels(whole, rows, keys),
        attn_mask=cut_mask(given.attn_mask, own, keys),
        q_offset=cut_offset(given, whole, rows, keys), row_scores=cut_rows(given.row_scores, whole, own),
    )  # fmt: skip
    with left():
        call, _ = check_call(*cut)
        if seed is not None:
            batch, head = given.drawn.batch, given.drawn.head + first_head
            call = replace(call, dropout_seed=seed, dropout_origin=(batch, head, rows[0], keys[0]))
        return answer_to(call, impl)


def positions_of(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """For each run, its rows counted within the shard, and among all rows."""
    found, at = [], 0
    for start, stop in runs:
        found.append(((at, at + stop - start), (start, stop)))
        at += stop - start
    return found
