"""Names and tokens as pictures write them; which labels are distances, and their order."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.brief import shown

LABEL, NODE = 32, 16  # characters of a label or token at an axis or in a legend, and of a name at a node or in a title
AS_IS: dict[str, Any] = {"parse_math": False}  # a dollar sign does not begin a formula
_NOT_WRITTEN = ("Cc", "Cs", "Zl", "Zp")  # control characters, lone surrogates, ends of lines and paragraphs

INVERSE = "⁻¹"
_NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
_DISTANCE = re.compile(rf"(?P<side><=|>=|<|>)?(?P<low>{_NUMBER})(?:\.\.{_NUMBER})?")
_SIDES = {"<": -1, "<=": -1, None: 0, ">=": 1, ">": 1}


@dataclass(frozen=True)
class Naming:
    """The names of R labels, by default their ids, sorted into distances and the rest."""

    names: tuple[str, ...]
    # ids of labels named "-3", "8..11" or ">=4", by distance; empty if fewer than three are, or if names are the ids
    distances: tuple[int, ...]
    rest: tuple[int, ...]  # the ids of all other labels

    @property
    def order(self) -> tuple[int, ...]:
        """All ids: distances as they grow, then the rest."""
        return self.distances + self.rest

    @property
    def only_distances(self) -> bool:
        """Whether all names are distances."""
        return bool(self.distances) and not self.rest

    @property
    def texts(self) -> tuple[str, ...]:
        """The names as a picture writes them."""
        return tuple(map(written, self.names))

    @property
    def ordered_texts(self) -> list[str]:
        """The same in the order of ``order``."""
        return [written(self.names[label]) for label in self.order]

    @property
    def integers(self) -> tuple[int, ...] | None:
        """The distances if they are consecutive integers, or None."""
        named = [self.names[label] for label in self.distances]
        if not named or not all(re.fullmatch(r"-?\d+", name) for name in named):
            return None
        numbers = tuple(map(int, named))
        return numbers if numbers[-1] - numbers[0] == len(numbers) - 1 else None

    @property
    def centre(self) -> int:
        """The index of distance 0 among the distances, or of the nearest to it."""
        low = [_distance(self.names[label])[0] for label in self.distances]  # pyright: ignore[reportOptionalSubscript]
        return min(range(len(low)), key=lambda at: abs(low[at]))

    def base(self, label: int) -> str:
        """The name without the mark of an inverse."""
        return self.names[label].removesuffix(INVERSE)


def naming(names: Any, num_labels: int) -> Naming:
    """Check the names of R labels; None for their ids."""
    ids = tuple(map(str, range(num_labels)))
    names = ids if names is None else strings("names", names)
    if len(names) != num_labels:
        raise ValueError(f"names must be one for each of the {num_labels} labels, got {len(names)}: pass labeler.names")
    keys = {label: key for label, name in enumerate(names) if (key := _distance(name)) is not None}
    if names == ids or len(keys) < 3:
        return Naming(names, (), tuple(range(num_labels)))
    distances = tuple(sorted(keys, key=lambda label: keys[label]))
    return Naming(names, distances, tuple(label for label in range(num_labels) if label not in keys))


def strings(argument: str, value: Any) -> tuple[str, ...]:
    """The entries of a sequence as strings."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{argument} must be a sequence of strings, got {shown(value)}")
    listed = check.items(argument, value, "a sequence of strings")
    for entry in listed:
        if isinstance(entry, (Tensor, np.ndarray)):
            raise TypeError(f"{argument} must be strings or printable objects, got {type(entry).__name__}")
    try:
        return tuple(map(str, listed))
    except ValueError as error:  # an int of more digits than Python prints
        raise ValueError(f"{argument} must be strings or printable objects: {error}") from None


def _distance(name: str) -> tuple[float, int] | None:
    """The lower end of the distances in a name, and on which side of it they are; None if it is not a distance."""
    match = _DISTANCE.fullmatch(name)
    return None if match is None else (float(match["low"]), _SIDES[match["side"]])


def written(name: str, most: int = LABEL) -> str:
    """``name`` with escapes for control characters, shortened in the middle if it is longer than ``most``."""
    escaped = {one: one.encode("unicode_escape").decode() for one in name if unicodedata.category(one) in _NOT_WRITTEN}
    text = "".join(escaped.get(letter, letter) for letter in name)
    if len(text) <= most:
        return text
    behind = (most - 1) // 2
    return f"{text[: most - 1 - behind]}…{text[-behind:]}"


def columns(text: str) -> int:
    """How wide a text is, in letters of common width; letters of East Asian scripts count two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def longest(texts: Sequence[str]) -> int:
    """The width of the widest text."""
    return max(map(columns, texts), default=0)
