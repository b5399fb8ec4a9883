"""Which options of RelationConv fit together: full maps, scores and means by relation."""

from __future__ import annotations

from typing import Any

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.score import compatibility


def which_full(given: dict[str, Any], tied: tuple[str, ...]) -> tuple[str, ...]:
    """Those of keys, values and queries that have full maps; a shared projection is full if that of the keys is."""
    for name in ("key", "query"):
        if given[name] is not False and not (isinstance(given[name], str) and given[name] == "full"):
            raise ValueError(f"{name}_map must be False or 'full', got {shown(given[name])}")
    full = tuple(name for name, one in given.items() if isinstance(one, str) and one == "full")
    for name in ("value", "query"):
        if name in tied and (name in full) != ("key" in full):
            raise ValueError(
                f"{name}_map and key_map must both be 'full' or neither, as tie_projections holds {name!r}, "
                f"got {given[name]!r} and {given['key']!r}"
            )
    return full


def check_full_sizes(
    full: tuple[str, ...], num_relations: int | None, in_channels: tuple[int, int], width: int, bases: Any, blocks: Any
) -> None:
    """Raise unless full maps from ``in_channels`` to ``width`` numbers can have these bases or blocks."""
    for name, one in (("num_bases", bases), ("num_blocks", blocks)):
        if one is not None and not full:
            raise ValueError(f"{name} must be None without a map that is 'full', got {one}: see value_map=K")
        if one is not None:
            check.integer(name, one, minimum=1)
    if not full:
        return
    if num_relations is None:
        raise ValueError("num_relations must be given with maps that are 'full', one for each relation, got None")
    if min(in_channels) < 1:
        raise ValueError(f"in_channels must be at least 1 with maps that are 'full', got {in_channels}")
    if bases is not None and blocks is not None:
        raise ValueError(f"num_blocks must be None with num_bases, got {blocks}")
    if blocks is not None and any(size % blocks for size in (*in_channels, width)):
        raise ValueError(
            f"num_blocks must divide in_channels and heads · out_channels, {in_channels} and {width}, got {blocks}"
        )


def check_scores(layer: Any) -> None:
    """Raise unless the score fits full maps, tables and edge features of the layer."""
    kinds, linear = () if layer.tables is None else layer.tables.kinds, layer.linear_score
    if linear is not None:
        sizes = (layer.heads, layer.out_channels)
        if (linear.heads, linear.out_channels) != sizes:
            got = (linear.heads, linear.out_channels)
            raise ValueError(f"score must be a LinearScore of heads and out_channels {sizes}, got {got}")
        if (linear.edge is None) == (reads := layer.lin_edge is not None):
            enter = "enter" if reads else "do not enter"
            raise ValueError(
                f"score must be LinearScore(edge={reads}), as edge features {enter} it, got edge={not reads}"
            )
    what = "score=LinearScore" if linear is not None else "query_map='full'"
    if (linear is not None or "query" in layer.full_maps) and {"key", "query"} & set(kinds):
        raise NotImplementedError(f"tables must be of 'value' and 'bias' with {what}, got {list(kinds)}")
    if "query" in layer.full_maps and linear is None:
        if compatibility(layer.score).replaces_dot:
            raise NotImplementedError(
                f"score must be a dot product or LinearScore with query_map='full', got {type(layer.score).__name__}"
            )
        if layer.lin_edge is not None:
            raise NotImplementedError("edge_terms must leave out 'key' with query_map='full' and a dot product")
    if layer.full_maps and layer.self_loops is not None and layer.self_loops.relation < 0:
        raise ValueError("add_self_loops must be SelfLoops(relation=r) with maps that are 'full', got no relation")


def check_means(layer: Any) -> None:
    """Raise unless a layer without a softmax has only the options that make sense there."""
    if layer.num_relations is None:
        raise ValueError("num_relations must be given with normalize='relation', got None")
    kinds = () if layer.tables is None else layer.tables.kinds
    within = layer.value_map is not None and "value" not in layer.full_maps
    wrong = {
        "score": layer.score is not None, "key_map": "key" in layer.full_maps,
        "query_map": "query" in layer.full_maps, "tie_projections": bool(layer.tie_projections),
        "impl": layer.impl is not None,
        "tables": not set(kinds) <= {"value"}, "value_map": within, "edge_dim": layer.edge_dim is not None,
        "dropout": layer.dropout > 0.0, "aggr": layer.aggr not in ("add", "sum"),
    }  # fmt: skip
    for name, is_wrong in wrong.items():
        if is_wrong:
            raise NotImplementedError(
                f"{name} must be left out with normalize='relation', which has no scores and no softmax: it takes "
                "value_map='full' or False, and tables=('value',) or ()"
            )


def check_states(layer: Any, given: dict[str, Any]) -> None:
    """Raise unless a layer with edge states has only options that make sense there."""
    wrong = {name: value for name, value in given.items() if value not in (None, False)}
    wrong |= {} if layer.normalize == "softmax" else {"normalize": layer.normalize}
    wrong |= {} if layer.flow == "source_to_target" else {"flow": layer.flow}
    wrong |= {} if layer.edge_terms == ("key", "value") else {"edge_terms": layer.edge_terms}
    wrong |= {"tie_projections": layer.tie_projections} if "edge" in layer.tie_projections else {}
    for name, value in wrong.items():
        hint = ": add an embedding of the relation to edge_attr" if name == "num_relations" else ""
        raise NotImplementedError(f"{name} must be left out with edge_update, got {value!r}{hint}")
