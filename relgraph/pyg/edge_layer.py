"""What graph layers over edges have in common: checks of their arguments, tables, score, maps, the fused call."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn.aggr import Aggregation
from torch_geometric.nn.conv import MessagePassing

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.functional.edges import attend_nodes
from relgraph.labels import EdgeLabels
from relgraph.nn.scores import check_score_fits
from relgraph.nn.table import check_label_names
from relgraph.nn.tables import RelationTables, check_given, check_kinds
from relgraph.nn.value_maps import ValueMaps, make_value_maps
from relgraph.pyg.linear_score import LinearScore
from relgraph.score import compatibility


class EdgeLayer(nn.Module):
    """A layer that attends over edges, each of which may have a relation."""

    tables: Any  # RelationTables, or None without relations: Any spares users an assertion at each use
    value_map: Any  # ValueMaps within heads, FullMaps from the input to all heads, or None

    def _set_sizes(self, out_channels: int, heads: int, concat: bool, dropout: float) -> None:
        self.out_channels = check.integer("out_channels", out_channels, minimum=1)
        self.heads = check.integer("heads", heads, minimum=1)
        self.concat = check.boolean("concat", concat)
        self.dropout = check.probability("dropout", dropout)
        check.parameter_size(3, heads=heads, out_channels=out_channels)

    def _check_projections(self, **inputs: int) -> None:
        """Raise ValueError if a projection from one of these widths to all heads would be too large."""
        for name, width in inputs.items():
            check.parameter_size(heads=self.heads, out_channels=self.out_channels, **{name: max(width, 1)})

    def _set_attention(
        self, num_relations: Any, tables: Any, score: Any, value_map: Any, names: Any = None, *, maps: bool = False
    ) -> None:
        """Make tables and maps for the relations, and check the score; ``maps`` if they have others too."""
        if isinstance(score, LinearScore):
            raise NotImplementedError(f"score=LinearScore is for RelationConv, not for {type(self).__name__}")
        self.register_load_state_dict_pre_hook(check_label_names)
        self.num_relations = None if num_relations is None else check.integer("num_relations", num_relations, minimum=1)
        by_label = compatibility(score).by_label
        maps = bool(maps or by_label or value_map is not False)
        self.tables = self._make_tables(tables, names, maps)
        if by_label and self.num_relations is None:
            raise ValueError("score=Bilinear needs num_relations, as its maps are for relations, got None")
        kinds = () if self.tables is None else self.tables.kinds
        self.score = check_score_fits(score, kinds, self.num_relations, self.heads, self.out_channels)
        sizes = (self.num_relations, self.out_channels, self.heads)
        self.value_map = make_value_maps(value_map, *sizes, {}, "num_relations")

    def _make_tables(self, tables: Any, names: Any, maps: bool) -> RelationTables | None:
        """Tables of the kinds asked for, with rows per head, or those given; none if relations have only maps."""
        relations, heads, size = self.num_relations, self.heads, self.out_channels
        if isinstance(tables, RelationTables):
            if not isinstance(tables.num_labels, int) or tables.has_banks:
                raise ValueError(f"tables must be of one label per edge, without banks, got {tables}")
            if relations not in (None, tables.num_labels):
                raise ValueError(f"num_relations must be that of the tables, {tables.num_labels}, got {relations}")
            self.num_relations = tables.num_labels
            return check_given(tables, None, heads, size)
        if maps and isinstance(tables, (tuple, list)) and not tables:
            return None
        kinds = check_kinds("tables", tables)
        if relations is None:
            return None
        check.parameter_size(num_relations=relations, out_channels=size, heads=heads)
        return RelationTables(relations, size, heads, kinds=kinds, per_head=True, names=names, shared=False)

    def reset_parameters(self) -> None:
        """Initialize all parameters again, but not shared tables, which other layers may have."""
        for child in self.children():
            if hasattr(child, "reset_parameters") and not (child is self.tables and self.tables.shared):
                child.reset_parameters()  # pyright: ignore[reportCallIssue]

    def _fused(
        self,
        query: Tensor | None,
        key: Tensor,
        value: Tensor,
        labels: EdgeLabels,
        need_weights: bool,
        given: dict[str, Any],
    ) -> tuple[Tensor, Tensor | None]:
        """The output ``[N, H, C]`` of edge attention, and the weights ``[E, H]`` if needed; ``given`` prevails."""
        given = {
            "query": query, "key": key, "value": value, "labels": labels, "score": self.score,
            "dropout_p": self.dropout if self.training else 0.0,
            "value_map": self.value_map() if isinstance(self.value_map, ValueMaps) else None, **given,
        }  # fmt: skip
        if self.tables is not None:
            given |= self.tables()
        out = attend_nodes(given, need_weights=need_weights)
        return out if isinstance(out, tuple) else (out, None)

    def _shown_options(self) -> str:
        """Tables, score and maps for ``repr``."""
        tables = "" if self.tables is None else self.tables._options(per_head=True)
        within = self.value_map if isinstance(self.value_map, ValueMaps) else None
        return tables + shown_score(self._score, within)

    @property
    def _score(self) -> Any:
        """The score that the layer was made with."""
        return self.score


def shown_score(score: Any, value_map: ValueMaps | None) -> str:
    """The arguments ``score`` and ``value_map`` at the end of a layer's ``repr``."""
    name = "" if score is None else f", score={getattr(score, '__name__', repr(score))}"
    return name if value_map is None else f"{name}, value_map={value_map.num_bases or True}"


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
