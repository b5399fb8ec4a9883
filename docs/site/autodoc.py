"""How docstrings are read: types stand in annotations, never in prose; private bases are left out."""

from __future__ import annotations

from typing import Any

from sphinx.ext.napoleon.docstring import GoogleDocstring

import relgraph as rg

PUBLIC = {value for module in (rg, rg.labelers) for value in vars(module).values() if isinstance(value, type)}

HOOKS = {"extra_repr", "propagate", "edge_updater"}


def setup(app: Any) -> dict[str, Any]:
    """Change what napoleon and autodoc would do otherwise."""
    # napoleon takes what stands before a colon for a type; here it is the beginning of a sentence
    GoogleDocstring._consume_inline_attribute = _whole_attribute
    GoogleDocstring._consume_returns_section = _whole_returns
    app.connect("autodoc-process-bases", _public_bases)
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True}


def _whole_attribute(self: Any) -> tuple[str, list[str]]:
    return "", self.__class__(self._dedent(self._consume_to_end()), self._config).lines()


def _whole_returns(self: Any, preprocess_types: bool = False) -> list[tuple[str, str, list[str]]]:
    lines = self._dedent(self._consume_to_next_section())
    return [("", "", lines)] if lines else []


def _public_bases(_: Any, __: str, ___: Any, ____: Any, bases: list[Any]) -> None:
    """In place of a private base of relgraph stands the public class that it inherits from."""
    for at, base in enumerate(bases):
        ours = getattr(base, "__module__", "").startswith("relgraph")
        if isinstance(base, type) and ours and base not in PUBLIC:
            bases[at] = next((parent for parent in base.__mro__ if parent in PUBLIC), object)


def _skip(_: Any, __: str, name: str, member: Any, skip: bool, ____: Any) -> bool | None:
    """Skip named tuples' fields ("Alias for field number 0"), and what torch and PyG hook in or generate."""
    return True if type(member).__name__ == "_tuplegetter" or name in HOOKS else None
