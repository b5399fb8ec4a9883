"""Graphs and models from other packages and formats; each module loads on first use and then imports its package.

- ``relgraph.interop.bert``: BERT's encoder with ``relative_key`` from a state dict; needs nothing else.
- ``relgraph.interop.conllu``: dependency trees of treebanks; needs the extra ``relgraph[conllu]``.
- ``relgraph.interop.networkx``: from and to networkx graphs; needs the extra ``relgraph[networkx]``.
- ``relgraph.interop.pandas``: cells of relational tables, sampled around a row; needs the extra ``relgraph[pandas]``.
- ``relgraph.interop.python``: Python source as a graph over its tokens; needs nothing else.
- ``relgraph.interop.transformers``: lets relgraph compute the attention of models of Hugging Face that have learned
  tables; needs the extra ``relgraph[transformers]``.

A module whose package is missing raises an ImportError that says what to install.

``transformers`` uses ``weights``, which makes a layer with the weights of an attention. ``networkx`` uses two more
files: ``_networkx_items`` lists nodes and edges, ``_networkx_attributes`` makes tensors from their attributes.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from relgraph.arguments.public import lists_public

MODULES = ("bert", "conllu", "networkx", "pandas", "python", "transformers")

__all__ = list(MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> ModuleType:
    if name in MODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__dir__ = lists_public(globals())
