"""The one hook by which :mod:`relgraph.distributed` answers attention calls: for DTensors, or within a region.

A region splits a sequence over processes. Layers and functions look the current one up here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch import Tensor

from relgraph.call import AttentionAux, Given

Checked = TypeVar("Checked")


Attend = Callable[..., tuple[Tensor, AttentionAux]]
"""Answers calls of attention in place of one implementation on this process, as :meth:`Region.attend` does."""


class Region(ABC):
    """A block of code within which each process holds some rows of every sequence.

    In its calls query, key, value and scores by row hold the rows of this process; labels cover the whole sequence.
    """

    @abstractmethod
    def attend(self, given: Given, *, need_lse: bool) -> tuple[Tensor, AttentionAux]:
        """The output and the extra results, in the layout of the caller.

        Args:
            given: the arguments of :func:`~relgraph.relation_attention_with_aux` by name, unchecked.
            need_lse: whether the caller uses the log-sum-exp.
        """

    @abstractmethod
    def whole_length(self, length: int) -> int:
        """How many rows all processes hold if this one holds ``length``; ValueError if the layout says otherwise."""

    @abstractmethod
    def check_together(self, check: Callable[[], Checked], labels: Any, arguments: Mapping[str, Any]) -> Checked:
        """The result of a check; an error on one process, or arguments that differ, raise the same error on all.

        Args:
            check: raises TypeError, ValueError or NotImplementedError.
            labels: the labels that it checks, which may differ; or None.
            arguments: what it checks, by the words of an error.
        """

    @abstractmethod
    def positions(self, length: int, device: Any) -> Tensor:
        """The position of each of the ``length`` rows of this process in the whole, ``[length]``."""

    @abstractmethod
    def all_keys(self, padding: Tensor) -> Tensor:
        """Join the masks of the keys of all processes, ``[B, N]``, from that of this process, ``[B, n]``."""


_of_tensors: list[tuple[Callable[[Given], bool], Attend]] = []
"""What answers calls with DTensors, once :mod:`relgraph.distributed` is imported. Until then they are refused."""


def answer_tensors(takes: Callable[[Given], bool], attend: Attend) -> None:
    """Let ``attend`` answer the calls that ``takes`` finds from now on."""
    _of_tensors[:] = [(takes, attend)]


def hook_for(given: Given) -> Attend | None:
    """What answers a call in place of one implementation: of its tensors, of the current region, or nothing."""
    for takes, attend in _of_tensors:
        if takes(given):
            return attend
    region = active()
    return None if region is None else region.attend


_current: ContextVar[Region | None] = ContextVar("region of relgraph", default=None)
_open: list[Region] = []
"""The regions of all threads. Compiled code guards on this list, because torch.compile cannot read a ContextVar."""


def active() -> Region | None:
    """The region that this code runs in, or None; a thread begins outside of all regions."""
    if not _open:
        return None
    if torch.compiler.is_compiling():
        # not a decorator: that would load the compiler with relgraph
        outside: Any = torch.compiler.disable(_current.get, reason="the current region is known at run time only")
        return outside()
    return _current.get()


def whole_length(length: int) -> int:
    """How many rows all processes hold together; ``length`` outside of regions."""
    region = active()
    if region is None:
        return length
    return region.check_together(lambda: region.whole_length(length), None, {"the number of rows": length})


@contextmanager
def entered(region: Region | None) -> Iterator[None]:
    """Run code within a region, or outside of all regions."""
    before = _current.get()
    _current.set(region)
    if region is not None:
        _open.append(region)
    try:
        yield
    finally:
        _current.set(before)
        if region is not None:
            _open.remove(region)
