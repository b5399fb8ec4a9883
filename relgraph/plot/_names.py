"""What the names of labels tell a picture: which of them are distances, and the order that follows from it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.plot._text import written

INVERSE = "⁻¹"
_NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
_DISTANCE = re.compile(rf"(?P<side><=|>=|<|>)?(?P<low>{_NUMBER})(?:\.\.{_NUMBER})?")
_SIDES = {"<": -1, "<=": -1, None: 0, ">=": 1, ">": 1}


@dataclass(frozen=True)
class Naming:
    """The names of R labels as a picture needs them.

    Attributes:
        names: one a label; its id where there are no names.
        distances: label ids in the order of the distances that their names tell, such as ``"-3"``, ``"8..11"`` or
            ``">=4"``; empty where fewer than three names do, and where names are but the ids.
        rest: the ids of all other labels.
    """

    names: tuple[str, ...]
    distances: tuple[int, ...]
    rest: tuple[int, ...]

    @property
    def order(self) -> tuple[int, ...]:
        """All ids: distances as they grow, then the rest."""
        return self.distances + self.rest

    @property
    def texts(self) -> tuple[str, ...]:
        """The names as they are written."""
        return tuple(map(written, self.names))

    @property
    def ordered_texts(self) -> list[str]:
        """The same in the order of ``order``."""
        return [written(self.names[label]) for label in self.order]

    @property
    def integers(self) -> tuple[int, ...] | None:
        """The distances themselves when each is one integer and they follow on one another; else None."""
        named = [self.names[label] for label in self.distances]
        if not named or not all(re.fullmatch(r"-?\d+", name) for name in named):
            return None
        numbers = tuple(map(int, named))
        return numbers if numbers[-1] - numbers[0] == len(numbers) - 1 else None

    @property
    def centre(self) -> int:
        """Where distance 0 stands among the distances; the nearest to it when there is none."""
        low = [_distance(self.names[label])[0] for label in self.distances]  # pyright: ignore[reportOptionalSubscript]
        return min(range(len(low)), key=lambda at: abs(low[at]))

    def base(self, label: int) -> str:
        """The name without the mark of an inverse."""
        return self.names[label].removesuffix(INVERSE)


def naming(names: Any, num_labels: int) -> Naming:
    """Names of R labels, checked; without any, ids, which are no distances."""
    ids = tuple(map(str, range(num_labels)))
    names = ids if names is None else strings("names", names)
    if len(names) != num_labels:
        raise ValueError(f"names must be one for each of the {num_labels} labels, got {len(names)}")
    told = {label: key for label, name in enumerate(names) if (key := _distance(name)) is not None}
    if names == ids or len(told) < 3:
        return Naming(names, (), tuple(range(num_labels)))
    distances = tuple(sorted(told, key=lambda label: told[label]))
    return Naming(names, distances, tuple(label for label in range(num_labels) if label not in told))


def strings(argument: str, value: Any) -> tuple[str, ...]:
    """The entries of a sequence as strings."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{argument} must be a sequence of strings, got {shown(value)}")
    listed = check.items(argument, value, "a sequence of strings")
    for entry in listed:
        if isinstance(entry, (Tensor, np.ndarray)):
            raise TypeError(f"{argument} must be strings or what is told by its name, got {type(entry).__name__}")
    try:
        return tuple(map(str, listed))
    except ValueError as error:  # an int of more digits than Python prints
        raise ValueError(f"{argument} must be strings or what can be printed: {error}") from None


def one_each(names: Any, parts: int) -> tuple[Any, ...]:
    """The names of a sum: a sequence of them for each part."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise TypeError(f"names must be a sequence, got {shown(names)}")
    listed = check.items("names", names, "a sequence")
    if any(isinstance(of, str) for of in listed) or len(listed) != parts:
        raise ValueError(f"names must be {parts} tuples of names, one a part of the sum, got {shown(names)}")
    check_parts(listed)
    return listed


def check_parts(names: tuple[Any, ...]) -> None:
    """The names of every part of a sum, or None, whichever part is drawn."""
    for index, of in enumerate(names):
        if of is not None:
            strings(f"names[{index}]", of)


def _distance(name: str) -> tuple[float, int] | None:
    """The lower end of the distances that a name stands for, and on which side of it they lie; None for no distance."""
    match = _DISTANCE.fullmatch(name)
    return None if match is None else (float(match["low"]), _SIDES[match["side"]])
