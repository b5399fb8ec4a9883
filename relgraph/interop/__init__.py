"""Graphs and models from other packages and formats: each module imports its package at its top and loads on first use.

- ``relgraph.interop.checkpoints``: checkpoints of other code, read into layers of relgraph; needs nothing else.
- ``relgraph.interop.conllu``: dependency trees of treebanks; needs the extra ``relgraph[conllu]``.
- ``relgraph.interop.networkx``: from and to networkx graphs; needs the extra ``relgraph[networkx]``.
- ``relgraph.interop.python``: Python source as a graph over its tokens; needs nothing else.
- ``relgraph.interop.transformers``: models of Hugging Face whose attention has learned tables, computed here; needs the
  extra ``relgraph[transformers]``.

A module whose package is missing raises an ImportError that says what to install.

Behind ``networkx`` are two files: ``_networkx_items`` lists nodes and edges, ``_networkx_attributes`` makes tensors of
their attributes.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

MODULES = ("checkpoints", "conllu", "networkx", "python", "transformers")

__all__ = list(MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> ModuleType:
    if name in MODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
