"""Short texts of values, for errors and ``repr``: a tensor without its numbers, a long list without its middle."""

from __future__ import annotations

from typing import Any

from torch import Tensor

MOST_ITEMS = 4  # longest tuple shown in full
MOST_LETTERS = 120  # longest text shown in full


def brief(value: Any) -> str:
    """``repr``, but a tensor is only its shape, and a long tuple only its first two items and its last."""
    if isinstance(value, Tensor):
        return f"<tensor {list(value.shape)}>"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {brief(item)}' for key, item in value.items())}}}"
    if type(value) is tuple:
        shown = list(map(brief, value if len(value) <= MOST_ITEMS else (*value[:2], value[-1])))
        if len(value) > MOST_ITEMS:
            shown.insert(2, "...")
        return f"({', '.join(shown)}{',' if len(value) == 1 else ''})"
    return _printed(value)


def brief_fields(thing: Any, *names: str) -> str:
    """``repr`` of a value with these fields, each shown by :func:`brief`, except fields that are None or empty."""
    fields = ((name, getattr(thing, name)) for name in names)
    shown = (f"{name}={brief(value)}" for name, value in fields if value is not None and value != ())
    return f"{type(thing).__name__}({', '.join(shown)})"


def shown(value: Any) -> str:
    """``repr``, cut if it is long."""
    return cut(_printed(value))


def _printed(value: Any) -> str:
    """``repr``; only the class if the value holds an int of more digits than Python prints."""
    try:
        return repr(value)
    except ValueError:
        return f"<{type(value).__name__}>"


def cut(text: str) -> str:
    """The text, or its beginning and end if it is long."""
    if len(text) <= MOST_LETTERS:
        return text
    return f"{text[: MOST_LETTERS * 2 // 3]} ... {text[-MOST_LETTERS // 3 :]}"
