"""The hook by which :mod:`relgraph.distributed` answers attention calls with DTensors once it is imported.

Until then, :mod:`relgraph.arguments.sharding` refuses DTensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from torch import Tensor

from relgraph.functional.region import Arguments

if TYPE_CHECKING:
    from relgraph.functional.attention import AttentionAux


class Door(ABC):
    """Runs a call with DTensors on the parts of this process."""

    @abstractmethod
    def takes(self, given: Arguments) -> bool:
        """Whether query, key or value is a DTensor."""

    @abstractmethod
    def attend(self, given: Arguments, impl: str | None, *, need_lse: bool) -> tuple[Tensor, AttentionAux]:
        """The output and the extra results, as DTensors."""


_doors: list[Door] = []


def open_door(door: Door) -> None:
    """Let ``door`` answer calls with DTensors from now on."""
    _doors[:] = [door]


def door_for(given: Arguments) -> Door | None:
    """The door that takes this call, or None for a call of plain tensors."""
    for door in _doors:
        if door.takes(given):
            return door
    return None
