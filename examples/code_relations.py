"""Graphs of syntax and data flow over a function's tokens, also with one variable hidden from the graph."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from stdlib_functions import Function

import relgraph as rg
from relgraph.interop import python

AROUND = "if 1:\n"  # makes an indented function, such as a method, valid source
TOKENS_AROUND = 5


@lru_cache(maxsize=2**14)
def question_graph(function: Function, hole: int) -> rg.Graph:
    """The graph over a function's tokens, read from source in which a fresh name replaces the variable at ``hole``.

    Edges of the original function would reveal the answer: the next use of the hidden variable leads back to the hole.
    """
    return graph_of(hide(function, hole), function.order)


def graph_of(source: str, order: Iterable[int]) -> rg.Graph:
    """The graph over some tokens of a function's source. The source may be indented, as a method's is."""
    first = 0
    if source[0].isspace():
        source, first = AROUND + source, TOKENS_AROUND
    return python.read(source).only(first + at for at in order).graph


def hide(function: Function, hole: int) -> str:
    """The source of a function with a fresh name in place of the token at ``hole``."""
    line, column = function.places[hole]
    lines = function.source.split("\n")
    before, after = lines[line][:column], lines[line][column + len(function.tokens[hole]) :]
    fresh = "hidden"
    while fresh in "\n".join([*lines[:line], before, after, *lines[line + 1 :]]):
        fresh += "_"  # avoids names around the hole only: the hidden name must not matter
    lines[line] = before + fresh + after
    return "\n".join(lines)
