"""Run attention calls of layers and functions in a region of context parallelism."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, distributed

from relgraph.arguments import check
from relgraph.call import AttentionAux, Drawn, Given, check_labels_type, labels_from_ids
from relgraph.call.check import BATCHED, PACKED, check_ids
from relgraph.distributed.collectives import gather
from relgraph.distributed.context import gathered, heads, masks, ring
from relgraph.distributed.context.agreement import common_bits, described, fingerprint, form_of, shared_seed
from relgraph.distributed.context.slices import Whole, check_whole
from relgraph.distributed.layout import Layout
from relgraph.distributed.together import KINDS, raise_together
from relgraph.functional.attention import aux_of
from relgraph.functional.region import Checked, Region
from relgraph.functional.sink import with_sink
from relgraph.labels import Labels

_ANSWERS = {"allgather": gathered.answer, "ring": ring.answer, "ulysses": heads.answer}
METHODS = tuple(_ANSWERS)
"""The methods: send keys and values to all at once, or around a ring; or exchange rows for heads."""


class Calls(Region):
    """Answers every call of attention within a region."""

    def __init__(
        self, method: str, shards_of: Callable[[int], Layout], even: bool, group: Any, device: torch.device
    ) -> None:
        """``shards_of`` gives the layout from this process's number of rows; ``even``: all hold the same number."""
        self.method, self.shards_of, self.even, self.group, self.device = method, shards_of, even, group, device
        self.size, self.rank = distributed.get_world_size(group), distributed.get_rank(group)
        self._agreed: set[tuple[Any, ...]] = set()
        self._checking = False

    def whole_length(self, length: int) -> int:
        return self.shards_of(length).length

    def check_together(self, check: Callable[[], Checked], labels: Any, arguments: Mapping[str, Any]) -> Checked:
        if self._checking or torch.compiler.is_compiling():
            return check()
        self._checking = True  # a check within this one shares its errors by this one
        try:
            texts = {name: described(x, values=name == "q_offset") for name, x in arguments.items()}
            return self._once(check, (*texts.items(), described(labels)), texts if self.even else {})
        finally:
            self._checking = False

    def _once(self, check: Callable[[], Checked], known: tuple[Any, ...], texts: Mapping[str, str]) -> Checked:
        """The result of a check; processes share errors and compare texts unless they have done so with ``known``."""
        if known in self._agreed:
            return check()
        found, error = None, None
        try:
            found = check()
        except KINDS as raised:
            error = raised
        self._raise_together(error, {} if isinstance(error, TypeError) else texts)
        self._agreed.add(known)
        return cast(Checked, found)

    def _raise_together(self, error: Exception | None, texts: Mapping[str, str]) -> None:
        """Raise an error on all processes. They then compare all calls again: what they agreed on may differ."""
        try:
            raise_together(error, texts, self.device, self.group)
        except KINDS:
            self._agreed.clear()
            raise

    def positions(self, length: int, device: Any) -> Tensor:
        return self.shards_of(length).positions(self.rank, device)

    def all_keys(self, padding: Tensor) -> Tensor:
        length = padding.shape[-1]
        self.check_together(lambda: self.whole_length(length), None, {"the number of rows": length})
        return gather(padding, self.shards_of(length), padding.dim() - 1, self.group)

    def attend(self, given: Given, *, need_lse: bool) -> tuple[Tensor, AttentionAux]:
        if torch.compiler.is_compiling():
            # not a decorator: that would load the compiler with relgraph
            outside: Any = torch.compiler.disable(self._attend, reason="context_parallel talks to other processes")
            return outside(given, need_lse)
        return self._attend(given, need_lse)

    def _attend(self, given: Given, need_lse: bool) -> tuple[Tensor, AttentionAux]:
        sink = given.get("sink")
        given, whole = self._opened(given, need_lse)
        if given.get("dropout_p"):
            drawn = given.get("drawn") or Drawn()
            whole = whole._replace(seed=shared_seed(given["query"].device, self.group, drawn.seed))
            given = {**given, "drawn": drawn._replace(seed=None)}
        answer = with_sink(_ANSWERS[self.method](given, whole), sink)  # once: each part would count it again
        output = answer.output.to(given["query"].dtype)
        output = output.squeeze(0).transpose(0, 1) if whole.packed else output
        return output, aux_of(answer, whole.packed, need_lse=True)

    def _opened(self, given: Given, need_lse: bool) -> tuple[Given, Whole]:
        """The checked arguments, with a mask of all keys, and what all processes hold."""
        whole, error = None, None
        try:
            check.boolean("need_lse", need_lse)
            whole = self._whole(given)
        except KINDS as raised:
            error = raised
        known, texts = self._form(given, whole, need_lse)
        if known not in self._agreed:
            self._once(lambda: self._check(given, whole, error), known, texts)
        assert whole is not None
        dtype = check.autocast_dtype(given["query"].device.type)
        if dtype is not None and given["query"].dtype != torch.float64:
            given = {**given, **{name: given[name].to(dtype) for name in ("query", "key", "value")}}
        mask = given.get("attn_mask")
        if mask is not None:
            axes = masks.Axes.of(mask, whole.queries, whole.keys, self.rank)
            if not masks.clear(whole.queries, whole.keys):
                axes = masks.Axes(*common_bits(list(axes), self.device, self.group))
                self._raise_together(_wrong_mask(mask, axes, whole.keys), {})
            axes = axes.settled()
            whole = whole._replace(own_mask=axes.rows == masks.OWN)
            if axes.keys == masks.OWN:
                mask = gather(mask, whole.keys, mask.dim() - 1, self.group)
        return {**given, "labels": None, "attn_mask": mask, "sink": None}, whole

    def _whole(self, given: Given) -> Whole:
        """What all processes hold; an error for inputs that are not tensors of the right axes."""
        labels = _labels_of(given)
        axis = 0 if labels is not None and labels.packed else 2
        queries, keys = self.shards_of(given["query"].shape[axis]), self.shards_of(given["key"].shape[axis])
        of_part = labels is not None and labels.q_len != queries.length
        runs = queries.runs[self.rank] if of_part else None
        return Whole(labels, runs, queries, keys, self.group, axis)

    def _form(self, given: Given, whole: Whole | None, need_lse: bool) -> tuple[tuple[Any, ...], dict[str, str]]:
        """What identifies a call on this process, and what must be the same on all."""
        axis = 0 if isinstance(given["labels"], Labels) and given["labels"].packed else 2
        texts = form_of(given, need_lse=need_lse, without=() if self.even else (axis,))
        texts["method"] = self.method
        if whole is None:
            return (), texts if self.even else {}
        queries, keys = whole.queries, whole.keys
        mask = given.get("attn_mask")
        if isinstance(mask, Tensor) and not self.even:
            meant = masks.Axes.of(mask, queries, keys, self.rank) if masks.clear(queries, keys) else None
            texts["attn_mask"] = f"{described(mask, without=(mask.dim() - 2, mask.dim() - 1))}, {meant}"
        if whole.labels is not None:
            texts["labels"] = fingerprint(whole.labels, whole=whole.rows_given is None)
        return (*texts.items(), given["query"].shape, given["key"].shape), texts

    def _check(self, given: Given, whole: Whole | None, error: Exception | None) -> None:
        """Raise the error that was found already, or that of the whole call."""
        if error is not None:
            raise error
        for name in ("edge_attr", "edge_key", "edge_value"):
            if given.get(name) is not None:
                raise NotImplementedError(f"{name} cannot be cut by rows and keys: leave the context_parallel block")
        assert whole is not None
        queries, keys = whole.queries, whole.keys
        if whole.labels is not None:
            self._check_labels(whole.labels, queries, keys)
        if self.method == "ulysses":
            heads.check_heads(given, self.size)
        check_whole(given, whole)
        if given.get("need_weights"):
            raise NotImplementedError(
                "need_weights needs all pairs of a row on one process: leave the context_parallel block for it"
            )
        mask = given.get("attn_mask")
        if mask is not None and masks.clear(queries, keys):
            wrong = _wrong_mask(mask, masks.Axes.of(mask, queries, keys, self.rank), keys)
            if wrong is not None:
                raise wrong

    def _check_labels(self, labels: Labels, queries: Layout, keys: Layout) -> None:
        """Raise unless the labels cover either all rows or, if that is allowed, the rows of this process."""
        mine = queries.lengths[self.rank]
        if labels.k_len != keys.length or labels.q_len not in (queries.length, mine):
            raise ValueError(
                f"labels must cover the whole, [N_q, N_k] = [{queries.length}, {keys.length}], or the rows of this "
                f"process and all keys, [{mine}, {keys.length}], got [{labels.q_len}, {labels.k_len}]"
            )
        if labels.q_len != queries.length and (self.method == "ulysses" or labels.packed):
            what = "method='ulysses' attends from all rows" if self.method == "ulysses" else "they are packed"
            raise ValueError(f"labels must cover all {queries.length} queries, as {what}, got {labels.q_len}")


def _wrong_mask(mask: Tensor, axes: masks.Axes, keys: Layout) -> ValueError | None:
    """The error if the last two axes of a mask mean nothing."""
    if all(axes.settled()):
        return None
    return ValueError(
        f"attn_mask must have all {keys.length} keys on its last axis and the rows of this process, or be a mask of "
        f"the keys of this process for all rows, [..., 1, n], got {list(mask.shape)}"
    )


def _labels_of(given: Given) -> Labels | None:
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
