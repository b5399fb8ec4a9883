"""Names and tokens as a picture writes them: unchanged but in one line, and short enough to leave room for the rest."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any

LABEL, NODE = 32, 16  # characters of a label or token at an axis or in a legend, and of a name at a node or in a title
AS_IS: dict[str, Any] = {"parse_math": False}  # a dollar sign does not begin a formula
_NOT_WRITTEN = ("Cc", "Cs", "Zl", "Zp")  # control characters, lone surrogates, ends of lines and paragraphs


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
