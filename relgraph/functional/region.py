"""The current region, which answers attention calls while a sequence is split over processes.

Layers and functions look it up here. :mod:`relgraph.distributed`, which imports this module, enters its regions here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from relgraph.functional.attention import AttentionAux


Checked = TypeVar("Checked")


class Drawn(NamedTuple):
    """Which part of a larger call's dropout mask a call draws; by default it draws its own mask.

    Attributes:
        seed: the seed of the larger call, a number; None to draw one.
        batch: which batch row of the larger call is the first one here.
        head: which query head of the larger call is the first one here.
    """

    seed: Tensor | None = None
    batch: int = 0
    head: int = 0


class Arguments(NamedTuple):
    """The arguments of one call of attention, unchecked, in the order of ``check_call``."""

    query: Any
    key: Any
    value: Any
    labels: Any
    tables: tuple[Any, Any, Any, Any]
    attn_mask: Any
    is_causal: Any
    q_offset: Any
    dropout_p: Any
    scale: Any
    enable_gqa: Any
    need_weights: Any = False
    need_mass: Any = False
    score: Any = None
    row_scores: Any = None
    value_map: Any = None
    edge: tuple[Any, Any, Any] = (None, None, None)
    nodes: bool = False
    query_biases: tuple[Any, Any] = (None, None)
    drawn: Drawn = Drawn()


class Region(ABC):
    """A block of code within which each process holds some rows of every sequence."""

    @abstractmethod
    def attend(self, given: Arguments, impl: str | None, *, need_lse: bool) -> tuple[Tensor, AttentionAux]:
        """Let the rows of this process attend to the keys of all processes.

        Args:
            given: query, key, value and scores by row hold the rows of this process; labels cover the whole sequence.
            impl: the implementation for each part, or None for the rule.
            need_lse: whether the caller uses the log-sum-exp.

        Returns:
            The output of the rows of this process, and the extra results with the log-sum-exp.
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
