"""The current region, which answers attention calls while a sequence is split over processes.

Layers and functions look it up here. :mod:`relgraph.distributed`, which imports this module, enters its regions here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    from relgraph.functional.attention import AttentionAux


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
    def attend(self, given: Arguments, impl: str | None) -> tuple[Tensor, AttentionAux]:
        """Let the rows of this process attend to the keys of all processes.

        Args:
            given: query, key, value and scores by row hold the rows of this process; labels cover the whole sequence.
            impl: the implementation for each part, or None for the rule.

        Returns:
            The output of the rows of this process, and the extra results with the log-sum-exp.
        """

    @abstractmethod
    def whole_length(self, length: int) -> int:
        """How many rows all processes hold if this one holds ``length``; raises on all if they disagree."""

    @abstractmethod
    def check_together(self, check: Callable[[], None], labels: Any, *sizes: int) -> None:
        """Run a check of labels, for these sizes; an error on one process is raised on all.

        Args:
            check: raises TypeError or ValueError.
            labels: the labels to check.
            sizes: the sizes that they must fit.
        """

    @abstractmethod
    def positions(self, length: int, device: Any) -> Tensor:
        """The position of each of the ``length`` rows of this process in the whole, ``[length]``."""

    @abstractmethod
    def all_keys(self, padding: Tensor) -> Tensor:
        """Join the masks of the keys of all processes, ``[B, N]``, from that of this process, ``[B, n]``."""


_entered: list[Region] = []


def active() -> Region | None:
    """The region that this code runs in, or None."""
    return _entered[-1] if _entered else None


def whole_length(length: int) -> int:
    """How many rows all processes hold together; ``length`` outside of regions."""
    region = active()
    return length if region is None else region.whole_length(length)


@contextmanager
def entered(region: Region) -> Iterator[None]:
    """Run code within a region."""
    _entered.append(region)
    try:
        yield
    finally:
        _entered.pop()


@contextmanager
def left() -> Iterator[None]:
    """Run code outside of all regions, as a region does when it computes a part."""
    kept = _entered[:]
    _entered.clear()
    try:
        yield
    finally:
        _entered[:] = kept


def hook_for(given: Any) -> Any:  # noqa: D103, ARG001
    return None
