"""Projections of nodes: one for all edges, or full maps by relation, from the whole input to all heads."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric.nn.dense.linear import Linear
from torch_geometric.typing import OptTensor

from relgraph.labels import EdgeLabels
from relgraph.pyg.adjacency import Edges
from relgraph.pyg.edge_layer import EdgeLayer
from relgraph.pyg.fitting import check_full_sizes
from relgraph.pyg.full_maps import FullMaps, Reader
from relgraph.pyg.linear_score import LinearScore
from relgraph.pyg.messages import edge_rows
from relgraph.pyg.query_maps import scored_by_pairs
from relgraph.pyg.related import Related, related
from relgraph.pyg.relation_mean import relation_means


class ProjectedLayer(EdgeLayer):
    """An edge layer whose keys, values and queries may each be full maps by relation.

    Attributes:
        full_maps: those of ``"key"``, ``"value"`` and ``"query"`` that are.
        lin_key, lin_value, lin_query: the projections of the others; Any spares an assertion at each use.
        key_map, query_map: full maps, or None; those of the values are ``value_map``.
        linear_score: a score that reads the projections of all heads, or None.
    """

    full_maps: tuple[str, ...]
    tie_projections: tuple[str, ...]
    edge_terms: tuple[str, ...]
    normalize: str
    lin_key: Any
    lin_value: Any
    lin_query: Any
    lin_skip: Linear | None
    lin_edge: Linear | None
    lin_edge_value: Linear | None
    key_map: FullMaps | None
    query_map: FullMaps | None
    linear_score: LinearScore | None
    flow: str
    impl: str | None
    _widths: tuple[int, int]

    def _make_full_maps(self, num_bases: int | None, num_blocks: int | None) -> None:
        width, (sources, targets) = self.heads * self.out_channels, self._widths
        check_full_sizes(self.full_maps, self.num_relations, self._widths, width, num_bases, num_blocks)
        own = {name for name in self.full_maps if name not in self.tie_projections}

        def make(inputs: int) -> FullMaps:
            assert self.num_relations is not None
            return FullMaps(self.num_relations, inputs, width, num_bases, num_blocks)

        self.key_map = make(sources) if "key" in own else None
        self.query_map = make(targets) if "query" in own else None
        if "value" in own:
            self.value_map = make(sources)

    def _project_by_relation(
        self, x_src: Tensor, x_dst: Tensor, labels: EdgeLabels
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """Keys and values of every pair of a source and a relation, ``[U, H, C]``; queries unless they have maps."""
        pairs, shape = related(labels, self._side), (-1, self.heads, self.out_channels)

        def rows(maps: FullMaps | None, lin: Linear | None) -> Tensor:
            if maps is not None:
                return maps(pairs.rows(x_src), pairs).view(shape)
            assert lin is not None
            return pairs.rows(lin(x_src)).view(shape)

        key = rows(self.key_map, self.lin_key)
        full_value = self.value_map if "value" in self.full_maps else None
        value = key if "value" in self.tie_projections else rows(full_value, self.lin_value)
        if "query" in self.full_maps:
            return None, key, value
        to_query = self.lin_key if self.lin_query is None else self.lin_query
        assert to_query is not None
        return to_query(x_dst).view(shape), key, value

    def _options(
        self, query: Tensor | None, key: Tensor, x_dst: Tensor, labels: EdgeLabels, attr: OptTensor
    ) -> dict[str, Any]:
        """Further arguments of the fused call; those that say how full maps of queries and a LinearScore enter."""
        given: dict[str, Any] = {"edge_attr": attr, "impl": self.impl}
        if attr is not None:
            shape = (self.heads, self.out_channels, -1)
            for name, lin in zip(("edge_key", "edge_value"), self._edge_projections(), strict=True):
                given[name] = None if lin is None else lin.weight.view(shape)
        maps = None
        if "query" in self.full_maps:
            maps = self.key_map if self.query_map is None else self.query_map
        if self.linear_score is not None:
            edge = None if attr is None or self.lin_edge is None else self.lin_edge.weight
            rows = None if maps is None else maps.numbers(x_dst, self.linear_score.query)
            return given | self.linear_score._operands(query, key, rows, edge)
        return (
            given if maps is None else given | scored_by_pairs(maps, x_dst, key, labels, attr, given.get("edge_value"))
        )

    def _averaged(self, x_src: Tensor, edges: Edges) -> tuple[Tensor, Tensor]:
        """The sums over relations of the means over edges, ``[N_dst, H, C]``, and each edge's share, ``[E, H]``."""
        labels = edges.known or edges.labels()

        def project(means: Tensor, pairs: Related) -> Tensor:
            lin = self.lin_value
            rows = self.value_map(means, pairs) if lin is None else lin(means)
            added = edge_rows(pairs.relations, self.tables).get("value_table")
            return rows if added is None else rows + added.expand(-1, self.heads, -1).flatten(1)

        out, share = relation_means(x_src, labels, 1 - self._side, project)
        return out.view(-1, self.heads, self.out_channels), share[:, None].expand(-1, self.heads)

    @property
    def _side(self) -> int:
        """Which row of ``edge_index`` holds the sources."""
        return int(self.flow == "target_to_source")

    def _readers(self) -> tuple[Any, Any]:
        """A projection that reads the sources, and one that reads the targets."""
        full_value = self.value_map if "value" in self.full_maps else None
        sources: Any = self.lin_key or self.key_map or self.lin_value or full_value
        targets = self.lin_query or self.query_map
        if targets is None:
            targets = self.lin_skip if self.normalize == "relation" else sources
        return sources, targets or Reader(self._widths[1], sources.weight)

    def _edge_projections(self) -> tuple[Linear | None, Linear | None]:
        """The projections of ``edge_attr`` for score and output."""
        one_for_both = "edge" in self.tie_projections and "value" in self.edge_terms and self.lin_edge_value is None
        return self.lin_edge, self.lin_edge if one_for_both else self.lin_edge_value

    @property
    def _score(self) -> Any:
        return self.score if self.linear_score is None else self.linear_score

    def _shown_options(self) -> str:
        maps = "".join(f", {name}_map='full'" for name in self.full_maps)
        one = next((one for one in (self.key_map, self.value_map, self.query_map) if isinstance(one, FullMaps)), None)
        normalize = "" if self.normalize == "softmax" else f", normalize={self.normalize!r}"
        return super()._shown_options() + maps + ("" if one is None else one._options()) + normalize
