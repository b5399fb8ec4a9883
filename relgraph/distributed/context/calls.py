"""Run attention calls of layers and functions in a region of context parallelism."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed

from relgraph.arguments import check
from relgraph.call import Answer, check_labels_type, labels_from_ids
from relgraph.distributed.collectives import gather
from relgraph.distributed.context import gathered, heads, ring
from relgraph.distributed.context.agreement import LABELS, agree, fingerprint, shared_seed
from relgraph.distributed.context.slices import Whole
from relgraph.distributed.layout import Layout
from relgraph.distributed.together import raise_together
from relgraph.functional.attention import AttentionAux, aux_of
from relgraph.functional.region import Arguments, Region
from relgraph.labels import Labels

METHODS = ("allgather", "ring", "ulysses")
"""The methods: send keys and values to all at once, or around a ring; or exchange rows for heads."""

COMPARED = (
    "the number of axes of query",
    "the length of query",
    "the length of key",
    "the batch size",
    "the number of heads",
    "the number of heads of key",
    "the head size",
    "method",
    "the dtype of query",
    "is_causal",
    "dropout_p > 0",
)
"""The numbers that processes compare before data travel, by the words of an error; labels come after them."""


DTYPES = ("another dtype", "torch.float16", "torch.bfloat16", "torch.float32", "torch.float64")
BOOLS = ("False", "True")
WORDS = {
    "method": METHODS,
    "the dtype of query": DTYPES,
    "is_causal": BOOLS,
    "dropout_p > 0": BOOLS,
}
"""The meaning of the numbers of options, for an error."""


class Calls(Region):
    """Answers every call of attention within a region."""

    def __init__(
        self, method: str, shards_of: Callable[[int], Layout], even: bool, group: Any, device: torch.device
    ) -> None:
        """Within a region.

        Args:
            method: one of ``METHODS``.
            shards_of: returns the layout of all rows, from the number of rows of this process.
            even: whether all processes hold the same number of rows.
            group: the processes.
            device: the device on which they exchange numbers to compare.
        """
        self.method, self.shards_of, self.even, self.group, self.device = method, shards_of, even, group, device
        self.size, self.rank = distributed.get_world_size(group), distributed.get_rank(group)
        self._agreed: dict[tuple[Any, ...], Any] = {}

    def whole_length(self, length: int) -> int:
        known = "rows", length
        if not torch.compiler.is_compiling() and known not in self._agreed:
            if self.even:
                agree({"the number of rows": length}, self.device, self.group, {})
            else:
                raise_together(self._wrong_length(length), "", "", self.device, self.group)
            self._agreed[known] = None
        return self.shards_of(length).length

    def check_together(self, check: Callable[[], None], labels: Any, *sizes: int) -> None:
        if torch.compiler.is_compiling():
            check()
            return
        known = "checked", id(labels), *sizes
        if known in self._agreed:
            check()
            return
        error = None
        try:
            check()
        except (TypeError, ValueError) as found:
            error = found
        raise_together(error, "", "", self.device, self.group)
        self._agreed[known] = labels  # kept, so that no other labels get its id

    def positions(self, length: int, device: Any) -> Tensor:
        return self.shards_of(length).positions(self.rank, device)

    def all_keys(self, padding: Tensor) -> Tensor:
        self.whole_length(padding.shape[-1])
        return gather(padding, self.shards_of(padding.shape[-1]), padding.dim() - 1, self.group)

    def attend(self, given: Arguments, impl: str | None) -> tuple[Tensor, AttentionAux]:
        if torch.compiler.is_compiling():
            # not a decorator: that would load the compiler with relgraph
            outside: Any = torch.compiler.disable(self._attend, reason="context_parallel talks to other processes")
            return outside(given, impl)
        return self._attend(given, impl)

    def _attend(self, given: Arguments, impl: str | None) -> tuple[Tensor, AttentionAux]:
        given, whole, queries, keys = self._opened(given)
        seed = None
        if given.dropout_p:
            seed = shared_seed(given.query.device, self.group, given.drawn.seed)
            given = given._replace(drawn=given.drawn._replace(seed=None))
        if self.method == "ring":
            answer = ring.attend(given, ring.Ring(whole, queries, keys, self.group, seed, impl))
        else:
            method = gathered if self.method == "allgather" else heads
            answer = method.attend(given, whole, queries, keys, self.group, seed, impl)
        return self._closed(answer, given, whole)

    def _closed(self, answer: Answer, given: Arguments, whole: Whole) -> tuple[Tensor, AttentionAux]:
        """Output and extra results for the caller."""
        output = answer.output.to(given.query.dtype)
        output = output.squeeze(0).transpose(0, 1) if whole.packed else output
        return output, aux_of(answer, whole.labels, whole.packed, need_lse=True)

    def _opened(self, given: Arguments) -> tuple[Arguments, Whole, Layout, Layout]:
        """The checked arguments, with a mask of all keys, and a description of what all processes hold."""
        if given.need_weights:
            raise NotImplementedError(
                "need_weights needs all pairs of a row on one process: leave the context_parallel block for it"
            )
        if any(x is not None for x in given.edge):
            raise NotImplementedError("edge_attr cannot be cut by rows and keys: leave the context_parallel block")
        labels, error = None, None
        try:
            labels = _labels_of(given)
        except (TypeError, ValueError) as found:
            error = found
        axis = 0 if labels is not None and labels.packed else 2
        self._agree_on_lengths(given, axis, error)
        if self.method == "ulysses":
            heads.check_heads(given, self.size)
        queries, keys = self.shards_of(given.query.shape[axis]), self.shards_of(given.key.shape[axis])
        self._agree_on_labels(labels, queries, keys)
        whole = self._whole(labels, queries, keys, axis)
        dtype = check.autocast_dtype(given.query.device.type)
        if dtype is not None and given.query.dtype != torch.float64:
            given = given._replace(**{name: getattr(given, name).to(dtype) for name in ("query", "key", "value")})
        mask = self._whole_mask(given, whole, keys)
        return given._replace(labels=None, attn_mask=mask), whole, queries, keys

    def _whole(self, labels: Labels | None, queries: Layout, keys: Layout, axis: int) -> Whole:
        """The labels, with the lengths that all processes hold together."""
        of_part = labels is not None and labels.q_len != queries.length
        return Whole(labels, queries.runs[self.rank] if of_part else None, queries.length, keys.length, axis)

    def _wrong_labels(self, labels: Labels, queries: Layout, keys: Layout) -> ValueError | None:
        """The error if the labels cover neither all rows nor, if that is allowed, the rows of this process."""
        mine = queries.lengths[self.rank]
        if labels.k_len != keys.length or labels.q_len not in (queries.length, mine):
            return ValueError(
                f"labels must cover the whole, [N_q, N_k] = [{queries.length}, {keys.length}], or the rows of this "
                f"process and all keys, [{mine}, {keys.length}], got [{labels.q_len}, {labels.k_len}]"
            )
        if labels.q_len != queries.length and (self.method == "ulysses" or labels.packed):
            what = "method='ulysses' attends from all rows" if self.method == "ulysses" else "they are packed"
            return ValueError(f"labels must cover all {queries.length} queries, as {what}, got {labels.q_len}")
        return None

    def _whole_mask(self, given: Arguments, whole: Whole, keys: Layout) -> Tensor | None:
        """The mask with all keys."""
        mask = given.attn_mask
        if mask is None:
            return None
        check.tensor("attn_mask", mask)
        if mask.dim() == 0 or mask.shape[-1] in (1, whole.k_len):
            return mask
        if mask.shape[-1] == keys.lengths[self.rank] and (mask.dim() < 2 or mask.shape[-2] == 1):
            return gather(mask, keys, mask.dim() - 1, self.group)
        raise ValueError(
            f"attn_mask must have all {whole.k_len} keys on its last axis, or be a mask of the "
            f"{keys.lengths[self.rank]} keys of this process for all rows, [..., 1, n], got {list(mask.shape)}"
        )

    def _agree_on_lengths(self, given: Arguments, axis: int, error: Exception | None) -> None:
        """Compare lengths and shapes among processes, once for each; an error of one process is raised on all."""
        lengths: tuple[int, ...] = ()
        numbers: dict[str, int] = dict.fromkeys(COMPARED, 0)
        if error is None:
            lengths = given.query.shape[axis], given.key.shape[axis]
            shown = lengths if self.even else (0, 0)
            batch = 1 if axis == 0 else given.query.shape[0]
            heads_and_size = given.query.shape[1], given.key.shape[1], given.query.shape[-1]
            found = given.query.dim(), *shown, batch, *heads_and_size, METHODS.index(self.method), *_options(given)
            numbers = dict(zip(COMPARED, found, strict=True))
        known = *lengths, *numbers.values()
        if known in self._agreed:
            return
        agree(numbers, self.device, self.group, WORDS, error)
        if not self.even:
            raise_together(self._wrong_length(*lengths), "", "", self.device, self.group)
        self._agreed[known] = None

    def _wrong_length(self, *lengths: int) -> ValueError | None:
        """The error if the layout gives this process another number of rows."""
        for length in lengths:
            try:
                self.shards_of(length)
            except ValueError as error:
                return error
        return None

    def _agree_on_labels(self, labels: Labels | None, queries: Layout, keys: Layout) -> None:
        """Compare labels among processes, once for each; an error of one process is raised on all."""
        known = "labels", id(labels), queries.length, keys.length
        if known in self._agreed:
            return
        number = fingerprint(labels, whole=labels is None or labels.q_len == queries.length)
        agree({LABELS: number}, self.device, self.group, {})
        if labels is not None:
            raise_together(self._wrong_labels(labels, queries, keys), "", "", self.device, self.group)
        self._agreed[known] = labels  # kept, so that no other labels get its id


def _labels_of(given: Arguments) -> Labels | None:
    """The labels; an error unless query, key and value are tensors of the axes that the labels ask for."""
    check_labels_type(given.labels)
    packed = isinstance(given.labels, Labels) and given.labels.packed
    for name, x in (("query", given.query), ("key", given.key), ("value", given.value)):
        if check.floating(name, x).dim() != (3 if packed else 4):
            shape = "[T, H, D], as the labels are packed" if packed else "[B, H, N, D]"
            raise ValueError(f"{name} must have shape {shape}, got {list(x.shape)}")
    return labels_from_ids(given.labels, given.tables) if isinstance(given.labels, Tensor) else given.labels


def _options(given: Arguments) -> tuple[int, ...]:
    """The dtype, order and dropout of a call as numbers of ``WORDS``."""
    dtype = str(given.query.dtype)
    known = DTYPES.index(dtype) if dtype in DTYPES else 0
    return known, int(bool(given.is_causal)), int(bool(given.dropout_p))
