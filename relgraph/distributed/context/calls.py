"""Run attention calls of layers and functions in a region of context parallelism."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.call import AttentionAux, Drawn, Given
from relgraph.distributed.collectives import gather
from relgraph.distributed.context import gathered
from relgraph.distributed.context.agreement import described, fingerprint, form_of, shared_seed
from relgraph.distributed.context.whole import Whole, check_whole, has_own_keys, labels_of
from relgraph.distributed.layout import Layout
from relgraph.distributed.together import KINDS, raise_together
from relgraph.functional.attention import aux_of
from relgraph.functional.region import Checked, Region
from relgraph.functional.sink import with_sink


class Calls(Region):
    """Answers every call of attention within a region."""

    def __init__(self, layout_of_shards: Callable[[int], Layout], rank: int, group: Any, device: torch.device) -> None:
        """``layout_of_shards`` gives the layout from the number of rows of a process."""
        self.layout_of_shards, self.rank, self.group, self.device = layout_of_shards, rank, group, device
        self._agreed: set[tuple[Any, ...]] = set()
        self._checking = False

    def whole_length(self, length: int) -> int:
        return self.layout_of_shards(length).length

    def check_together(self, check: Callable[[], Checked], labels: Any, arguments: Mapping[str, Any]) -> Checked:
        if self._checking or torch.compiler.is_compiling():
            return check()
        self._checking = True  # a check within this one shares its errors by this one
        try:
            texts = {name: described(x, values=name == "q_offset") for name, x in arguments.items()}
            return self._once(check, (*texts.items(), described(labels)), texts)
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
        try:
            raise_together(error, {} if isinstance(error, TypeError) else texts, self.device, self.group)
        except KINDS:
            self._agreed.clear()  # what processes agreed on may differ now
            raise
        self._agreed.add(known)
        return cast(Checked, found)

    def positions(self, length: int, device: Any) -> Tensor:
        return self.layout_of_shards(length).positions(self.rank, device)

    def all_keys(self, padding: Tensor) -> Tensor:
        length = padding.shape[-1]
        self.check_together(lambda: self.whole_length(length), None, {"the number of rows": length})
        return gather(padding, self.layout_of_shards(length), padding.dim() - 1, self.group)

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
        answer = with_sink(gathered.answer(given, whole), sink)  # once: each part would count it again
        output = answer.output.to(given["query"].dtype)
        output = output.squeeze(0).transpose(0, 1) if whole.packed else output  # [n_q, H, D_v] or [B, H, n_q, D_v]
        return output, aux_of(answer, whole.packed, need_lse=True)

    def _opened(self, given: Given, need_lse: bool) -> tuple[Given, Whole]:
        """The checked arguments, with a mask of all keys, and what all processes hold."""
        whole, error = None, None
        try:
            check.boolean("need_lse", need_lse)
            whole = self._whole(given)
        except KINDS as raised:
            error = raised
        texts = form_of(given, need_lse=need_lse)
        if whole is not None and whole.labels is not None:
            texts["labels"] = fingerprint(whole.labels, whole=not whole.of_own_rows)

        def checked() -> Whole:
            if whole is None:
                raise cast(Exception, error)
            check_whole(given, whole)
            return whole

        known = tuple(texts.items())
        if whole is None or known not in self._agreed:
            whole = self._once(checked, known, texts)
        dtype = check.autocast_dtype(given["query"].device.type)
        if dtype is not None and given["query"].dtype != torch.float64:
            given = {**given, **{name: given[name].to(dtype) for name in ("query", "key", "value")}}
        mask = given.get("attn_mask")
        if mask is not None and has_own_keys(mask, whole):
            mask = gather(mask, whole.keys, mask.dim() - 1, self.group)
        return {**given, "labels": None, "attn_mask": mask, "sink": None}, whole

    def _whole(self, given: Given) -> Whole:
        """What all processes hold; an error for inputs that are not tensors of the right axes."""
        labels = labels_of(given)
        axis = 0 if labels is not None and labels.packed else 2
        queries, keys = (self.layout_of_shards(given[name].shape[axis]) for name in ("query", "key"))
        return Whole(labels, queries, keys, self.group, axis)
