"""What graph layers that attend over edges have in common: tables, score, maps, and the fused call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from relgraph.arguments import check
from relgraph.functional.edges import attend_nodes
from relgraph.labels import EdgeLabels
from relgraph.nn.scores import check_score_fits
from relgraph.nn.table import check_label_names
from relgraph.nn.tables import RelationTables, check_given, check_kinds
from relgraph.nn.value_maps import ValueMaps, make_value_maps
from relgraph.score import Score, compatibility


class EdgeLayer(nn.Module):
    """A layer that attends over edges, each of which may have a relation."""

    tables: Any  # RelationTables, or None without relations: Any spares users an assertion at each use
    value_map: ValueMaps | None

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
        self,
        num_relations: int | None,
        tables: Sequence[str] | RelationTables,
        score: Score | None,
        value_map: bool | int,
        names: Sequence[str] | None = None,
    ) -> None:
        """Make tables and maps for the relations, and check the score."""
        self.register_load_state_dict_pre_hook(check_label_names)
        self.num_relations = None if num_relations is None else check.integer("num_relations", num_relations, minimum=1)
        by_label = compatibility(score).by_label
        self.tables = self._make_tables(tables, names, by_label or value_map is not False)
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
        self, query: Tensor, key: Tensor, value: Tensor, labels: EdgeLabels, need_weights: bool, given: dict[str, Any]
    ) -> tuple[Tensor, Tensor | None]:
        """The output ``[N, H, C]`` of edge attention, and the weights ``[E, H]`` if needed."""
        given |= {
            "query": query, "key": key, "value": value, "labels": labels, "score": self.score,
            "dropout_p": self.dropout if self.training else 0.0,
            "value_map": None if self.value_map is None else self.value_map(),
        }  # fmt: skip
        tables = self.tables
        if tables is not None:
            given |= tables()
        out = attend_nodes(given, need_weights=need_weights)
        return out if isinstance(out, tuple) else (out, None)

    def _shown_options(self) -> str:
        """Tables, score and maps for ``repr``."""
        tables = "" if self.tables is None else self.tables._options(per_head=True)
        return tables + shown_score(self.score, self.value_map)


def shown_score(score: Any, value_map: ValueMaps | None) -> str:
    """The arguments ``score`` and ``value_map`` at the end of a layer's ``repr``."""
    name = "" if score is None else f", score={getattr(score, '__name__', repr(score))}"
    return name if value_map is None else f"{name}, value_map={value_map.num_bases or True}"
