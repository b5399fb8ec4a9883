"""Checks of the arguments of a graph layer's constructor."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric.nn.aggr import Aggregation

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.nn.scores import check_score_fits
from relgraph.nn.tables import check_kinds
from relgraph.nn.value_maps import ValueMaps
from relgraph.score import compatibility

FILLS = ("mean", "add", "min", "max", "mul")
"""How a self-loop gets its features from the edges into its node, by PyG's names."""


def check_widths(in_channels: Any) -> tuple[int, int]:
    """The widths of sources and targets."""
    pair = in_channels if isinstance(in_channels, (tuple, list)) else (in_channels, in_channels)
    if len(pair) != 2:
        raise ValueError(f"in_channels must be an int or a pair, of sources and targets, got {in_channels!r}")
    for width in pair:
        if check.integer("in_channels", width, minimum=-1) == 0:
            raise ValueError(
                f"in_channels must be at least 1, or -1 to infer it in the first call, got {in_channels!r}"
            )
    return pair[0], pair[1]


def check_propagation(options: dict[str, Any]) -> None:
    """Check options that MessagePassing would accept silently, or refuse without naming the argument."""
    if check.integer("decomposed_layers", options.get("decomposed_layers", 1)) != 1:
        raise NotImplementedError(f"decomposed_layers must be 1, got {options['decomposed_layers']}")
    check.choice("flow", options.get("flow", "source_to_target"), ("source_to_target", "target_to_source"))
    aggr = options["aggr"]
    for one in aggr if isinstance(aggr, (list, tuple)) else (aggr,):
        if not isinstance(one, (str, Aggregation)):
            raise TypeError(f"aggr must be a string, an Aggregation or a list of them, got {type(one).__name__}")


def check_projections(heads: int, out_channels: int, **inputs: int) -> None:
    """Raise ValueError if a projection from one of these widths to all heads would be too large."""
    check.parameter_size(3, heads=heads, out_channels=out_channels)
    for name, width in inputs.items():
        check.parameter_size(**{"heads": heads, "out_channels": out_channels, name: max(width, 1)})


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
    """Which inputs share the projection of the keys; queries need sources and targets of one width."""
    tied = check_some("tie_projections", given, ("value", "query"))
    if "query" in tied and widths[0] != widths[1]:
        raise ValueError(
            f"tie_projections may hold 'query' if sources and targets have one width, got in_channels={widths}"
        )
    return tied


def check_table_kinds(tables: Any, maps: bool) -> tuple[str, ...]:
    """The kinds of tables; none at all is fine if relations have maps."""
    if maps and isinstance(tables, (tuple, list)) and not tables:
        return ()
    return check_kinds("tables", tables)


def check_score(score: Any, num_relations: int | None, heads: int, dim: int, kinds: tuple[str, ...]) -> Any:
    """Return ``score``; raise unless it fits a layer of these sizes with tables of these kinds."""
    if num_relations is None and compatibility(score).by_label:
        raise ValueError("score=Bilinear needs num_relations, as its maps are for relations, got None")
    return check_score_fits(score, () if num_relations is None else kinds, num_relations, heads, dim)


def shown_score(score: Any, value_map: ValueMaps | None) -> str:
    """The arguments ``score`` and ``value_map`` at the end of a layer's ``repr``."""
    name = "" if score is None else f", score={getattr(score, '__name__', repr(score))}"
    return name if value_map is None else f"{name}, value_map={value_map.num_bases or True}"


def check_fill(fill_value: Any, edge_dim: int | None) -> float | Tensor | str:
    """The features of self-loops: a number, a tensor ``[F]`` or one of :data:`FILLS`."""
    if isinstance(fill_value, str):
        return check.choice("fill_value", fill_value, FILLS)
    if not isinstance(fill_value, Tensor):
        return check.finite("fill_value", fill_value)
    if edge_dim is None or not check.shaped(check.floating("fill_value", fill_value), [edge_dim]):
        wanted = "be a number or a string without edge_dim" if edge_dim is None else f"have shape [F] = [{edge_dim}]"
        raise ValueError(f"fill_value must {wanted}, got a tensor {list(fill_value.shape)}")
    return fill_value


def check_loop_relation(loop_relation: Any, num_relations: int | None) -> int:
    """The relation of self-loops, in ``[-1, R)``."""
    most = -1 if num_relations is None else num_relations - 1
    return check.integer("loop_relation", loop_relation, minimum=-1, maximum=most)
