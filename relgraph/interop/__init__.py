"""Graphs from other people's worlds: each module imports its package at its top and loads on first use."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

MODULES = ("conllu", "networkx", "python_source")

__all__ = list(MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> ModuleType:
    if name in MODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
