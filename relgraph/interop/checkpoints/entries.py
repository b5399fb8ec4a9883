"""The tensors of a state dict under a prefix: each is taken once, with its shape; tensors left over are an error."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.nn.stack import MOST_LAYERS

MOST_NAMES = 8
"""How many names an error lists."""

MOST_NEAREST = 4
"""How many similar names an error lists for a missing name."""


class Entries:
    """The tensors from which a reader takes its weights, by their names after the prefix."""

    def __init__(self, state: Any, prefix: Any, leave_out: Any) -> None:
        if not isinstance(state, Mapping):
            raise TypeError(f"state must be a mapping of names to tensors, got {type(state).__name__}")
        for name in state:
            if not isinstance(name, str):
                raise TypeError(f"state must have strings as names, got {shown(name)}")
        if not isinstance(prefix, str):
            raise TypeError(f"prefix must be a string, got {type(prefix).__name__}")
        self.state, self.prefix = state, prefix
        self.names = {name.removeprefix(prefix): name for name in state if name.startswith(prefix)}
        if not self.names:
            raise ValueError(
                f"prefix must be what names in state begin with, got {shown(prefix)}; state has {listed(state)}"
            )
        for pattern in _patterns(leave_out):
            matching = [name for name in self.names if fnmatchcase(name, pattern)]
            if not matching:
                raise ValueError(
                    f"leave_out must match names after prefix = {shown(prefix)}, got {shown(pattern)}; there are "
                    f"{listed(self.names)}"
                )
            for name in matching:
                del self.names[name]
        self.not_taken = set(self.names)
        self.first: tuple[str, Tensor] | None = None

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def rank_two(self, name: str) -> tuple[int, int]:
        """The shape of a matrix, which gives the sizes of a module; the matrix itself is not taken yet."""
        tensor = self._tensor(name)
        if tensor.dim() != 2 or 0 in tensor.shape:
            raise ValueError(f"state must have a matrix as {self._full(name)!r}, got shape {list(tensor.shape)}")
        return tensor.shape[0], tensor.shape[1]

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor of that name, which must have that shape, and the dtype and device of the first one taken."""
        tensor = self._tensor(name)
        if tensor.shape != torch.Size(shape):
            raise ValueError(f"state must have shape {list(shape)} as {self._full(name)!r}, got {list(tensor.shape)}")
        if self.first is None:
            self.first = name, tensor
        first, like = self.first
        for what, wanted, got in (("dtype", like.dtype, tensor.dtype), ("device", like.device, tensor.device)):
            if wanted != got:
                raise ValueError(
                    f"state must have the {what} of {self._full(first)!r}, {wanted}, as {self._full(name)!r}, got {got}"
                )
        self.not_taken.discard(name)
        return tensor

    def count(self, pattern: str) -> int:
        """How many layers there are; the number of a layer is the group of ``pattern``, from 0 without a gap."""
        found = {int(match[1]) for name in self.names if (match := re.match(pattern, name))}
        missing = next((number for number in range(len(found)) if number not in found), None)
        if missing is not None:
            raise ValueError(
                f"state must have layers 0 to {len(found) - 1} under {shown(self.prefix)}, which has {len(found)} "
                f"layers, got none of number {missing}"
            )
        if len(found) > MOST_LAYERS:
            raise ValueError(f"state must have at most {MOST_LAYERS} layers, got {len(found)}")
        return len(found)

    def finish(self, kind: str) -> None:
        """Raise ValueError if a tensor under the prefix was not taken."""
        if self.not_taken:
            raise ValueError(
                f"state must have no tensors under prefix = {shown(self.prefix)} that {kind} has no place for, got "
                f"{listed(sorted(self.not_taken))}; name the tensors to skip in leave_out"
            )

    def neither(self, *wanted: str) -> ValueError:
        """The error for a prefix under which there is nothing that the reader knows."""
        return ValueError(
            f"prefix must be that of {' or '.join(wanted)}, got {shown(self.prefix)}; after it come "
            f"{listed(self.names)}"
        )

    def _full(self, name: str) -> str:
        return self.names.get(name, self.prefix + name)

    def _tensor(self, name: str) -> Tensor:
        if name not in self.names:
            nearest = get_close_matches(name, self.names, n=MOST_NEAREST, cutoff=0.0)
            raise ValueError(
                f"state must have a tensor named {self.prefix + name!r}, got none; under that prefix the nearest names "
                f"are {listed(nearest)}"
            )
        full = self.names[name]
        return check.floating(f"state[{full!r}]", as_tensor(full, self.state[full])).detach()


def as_tensor(name: str, value: Any) -> Any:
    """An array of numpy as a tensor that copies its memory; anything else unchanged."""
    if type(value).__module__ != "numpy":
        return value
    import numpy  # only where there are arrays

    try:
        return torch.from_numpy(numpy.array(value))  # a copy: the original may be read-only
    except TypeError:
        raise ValueError(f"state[{name!r}] must be an array of numbers, got dtype {value.dtype}") from None


def listed(names: Any) -> str:
    """The first names, and how many more there are."""
    names = list(names)
    some = ", ".join(repr(name) for name in names[:MOST_NAMES])
    more = len(names) - MOST_NAMES
    return (some or "no tensors") + (f" and {more} more" if more > 0 else "")


def _patterns(leave_out: Any) -> Sequence[str]:
    patterns = check.items("leave_out", leave_out, "a sequence of patterns")
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(f"leave_out must hold strings, got {shown(pattern)}")
    return patterns
