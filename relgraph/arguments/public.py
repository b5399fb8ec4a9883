"""What ``dir`` of a public module lists: its public names, without what the module itself imports."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


def lists_public(names: dict[str, Any], *modules: str) -> Callable[[], list[str]]:
    """The ``__dir__`` of a module: its ``__all__``, or what it exports and the modules of these names.

    Args:
        names: the module's ``globals()``.
        modules: public modules within it, also those that load on first use.
    """

    def listed() -> list[str]:
        found = names.get("__all__") or [
            name
            for name, value in names.items()
            if not (name.startswith("_") or isinstance(value, ModuleType) or value is lists_public)
            and name != "TYPE_CHECKING"
            and str(getattr(value, "__module__", "relgraph")).startswith("relgraph")
        ]
        return sorted([*found, *modules])

    return listed
