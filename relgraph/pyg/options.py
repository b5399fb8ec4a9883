"""Checks of the arguments of a graph layer's constructor."""

from __future__ import annotations

import inspect
from typing import Any

from torch_geometric.nn.aggr import Aggregation
from torch_geometric.nn.conv import MessagePassing

from relgraph.arguments import check
from relgraph.arguments.brief import shown


def check_width(width: Any) -> int:
    """Return ``width``, of one kind of node; raise unless it is at least 1, or -1."""
    if check.integer("in_channels", width, minimum=-1) == 0:
        raise ValueError("in_channels must be at least 1, or -1 to infer it in the first call, got 0")
    return width


def check_widths(in_channels: Any) -> tuple[int, int]:
    """The widths of sources and targets."""
    pair = in_channels if isinstance(in_channels, (tuple, list)) else (in_channels, in_channels)
    if len(pair) != 2:
        raise ValueError(f"in_channels must be an int or a pair, of sources and targets, got {in_channels!r}")
    return check_width(pair[0]), check_width(pair[1])


def check_propagation(options: dict[str, Any]) -> None:
    """Check options that MessagePassing would accept silently, or refuse without naming the layer or the argument."""
    unknown = sorted(options.keys() - inspect.signature(MessagePassing).parameters)
    if unknown:
        raise TypeError(
            f"RelationConv has no argument {unknown[0]!r}: rg.RelationTables, as tables=, takes options of tables, and "
            "rg.pyg.SelfLoops, as add_self_loops=, those of loops"
        )
    if check.integer("decomposed_layers", options.get("decomposed_layers", 1)) != 1:
        raise NotImplementedError(f"decomposed_layers must be 1, got {options['decomposed_layers']}")
    check.choice("flow", options.get("flow", "source_to_target"), ("source_to_target", "target_to_source"))
    aggr = options["aggr"]
    for one in aggr if isinstance(aggr, (list, tuple)) else (aggr,):
        if not isinstance(one, (str, Aggregation)):
            raise TypeError(f"aggr must be a string, an Aggregation or a list of them, got {type(one).__name__}")


def check_some(name: str, given: Any, allowed: tuple[str, ...], least: int = 0) -> tuple[str, ...]:
    """Return the given strings in the order of ``allowed``; raise unless they are different, and ``least`` at least."""
    if isinstance(given, str) or not isinstance(given, (tuple, list, set, frozenset)):
        raise TypeError(f"{name} must be a sequence of strings of {list(allowed)}, got {shown(given)}")
    for one in given:
        check.choice(name, one, allowed)
    if len(set(given)) != len(given) or len(given) < least:
        raise ValueError(f"{name} must hold different ones of {list(allowed)}, {least} at least, got {shown(given)}")
    return tuple(one for one in allowed if one in given)


def check_tied_projections(given: Any, widths: tuple[int, int]) -> tuple[str, ...]:
    """Which projections are shared; queries need sources and targets of one width."""
    tied = check_some("tie_projections", given, ("value", "query", "edge"))
    if "query" in tied and widths[0] != widths[1]:
        raise ValueError(
            f"tie_projections may hold 'query' if sources and targets have one width, got in_channels={widths}"
        )
    return tied
