"""The encoder of Graphormer, of the released code and of transformers 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.interop.checkpoints.reader import Reader
from relgraph.interop.weights import AttentionWeights
from relgraph.labelers import Sum, graphormer
from relgraph.nn import RelationEncoder
from relgraph.nn.layer_parts import Activation

_UNREACHABLE = 510
"""The distance that the released code gives to pairs without a path."""

_FIRST, _STEP = 3, 512
"""Attribute f of an edge with value a has row ``a + 512 f + 3`` of the edge encoder."""

_BIAS = "graph_attn_bias."


class _Reader(Reader):
    maps = ("q_proj", "k_proj", "v_proj", "out_proj")
    tables: Mapping[str, str] = {}
    linears = ("fc1", "fc2")
    alone = ("layers.",)
    wanted = ("an encoder, with 'layers.0.self_attn.q_proj.weight'",)
    edge_types: Mapping[str, tuple[int, ...]]
    virtual_node: int
    spatial_pos_max: int
    max_path: int

    def _norms(self, at: str, memory: bool) -> tuple[Sequence[str], str | None]:  # noqa: ARG002
        return ("self_attn_layer_norm", "final_layer_norm"), None

    def _measure(self, at: str) -> None:
        spatial, query = f"{_BIAS}spatial_pos_encoder.weight", f"{at}{self.maps[0]}{self.weight}"
        self.distances, self.num_heads = self.entries.rank_two(spatial)
        self.heads_width, self.width = self.entries.rank_two(query)
        if self.heads_width % self.num_heads:
            raise ValueError(
                f"state must have as many heads as columns in {self.entries.prefix + spatial!r}, {self.num_heads}, so "
                f"that it divides the width of queries in {self.entries.prefix + query!r}, got {self.heads_width}"
            )
        self.head_dim, self.biased = self.heads_width // self.num_heads, dict.fromkeys(self.maps, True)
        self.hop_maps = self._maps()
        all_attend = self.spatial_pos_max > _UNREACHABLE
        least = _UNREACHABLE + 2 if all_attend else self.spatial_pos_max + 1
        if self.distances < least:
            raise ValueError(
                f"spatial_pos_max must be at most {self.distances - 1} for {self.entries.prefix + spatial!r}, which "
                f"has {self.distances} rows, got {self.spatial_pos_max}"
            )
        self.labeler = graphormer(
            _UNREACHABLE - 1 if all_attend else self.spatial_pos_max - 1, [*self.edge_types], max_path=self.max_path,
            beyond="unreachable", unreachable="label" if all_attend else None, virtual_node=self.virtual_node,
            start="query",
        )  # fmt: skip

    def _tables(self, at: str) -> dict[str, Any]:
        """The biases that all layers share: those of distances, then one part per hop."""
        if at != f"layers.0.{self.attention_at}":
            return {}
        spatial = self.entries.take(f"{_BIAS}spatial_pos_encoder.weight", self.distances, self.num_heads)
        token = self.entries.take(f"{_BIAS}graph_token_virtual_distance.weight", 1, self.num_heads)
        distances = spatial[1 : min(self.spatial_pos_max, _UNREACHABLE) + 1]
        parts = [token.expand(3, -1), distances]
        if self.spatial_pos_max > _UNREACHABLE:
            parts.append(spatial[_UNREACHABLE + 1, None])
        return {"bias": tuple(part.T for part in (torch.cat(parts), *self._hops()))}

    def _maps(self) -> Tensor:
        """The map of each hop, ``[hops, H, H]``."""
        name = f"{_BIAS}edge_dis_encoder.weight"
        if name not in self.entries:
            raise NotImplementedError(
                f"state must have {self.entries.prefix + name!r}: only edge_type='multi_hop' is read"
            )
        rows, square = self.entries.rank_two(name)[0], self.num_heads**2
        if rows % square:
            full = self.entries.prefix + name
            raise ValueError(f"state must have a map of {square} numbers for each hop in {full!r}, got {rows} numbers")
        if rows // square < self.max_path:
            most = rows // square
            raise ValueError(f"multi_hop_max_dist must be at most {most}, the maps of hops, got {self.max_path}")
        return self.entries.take(name, rows, 1).reshape(-1, self.num_heads, self.num_heads)

    def _hops(self) -> list[Tensor]:
        """For each hop the bias of each (length, type), ``[R, H]``: the product of vector and map, over the length."""
        name, heads = f"{_BIAS}edge_encoder.weight", self.num_heads
        encoder = self.entries.take(name, self.entries.rank_two(name)[0], heads)
        if bool(encoder[0].any()):
            raise NotImplementedError(
                f"state must have zeros in row 0 of {self.entries.prefix + name!r}: otherwise the released code adds "
                "this row for hops beyond the end of a path, as many as the longest path of a batch has"
            )
        rows = [[_FIRST + value + _STEP * at for at, value in enumerate(own)] for own in self.edge_types.values()]
        most = max(map(max, rows), default=0)
        if most >= len(encoder):
            raise ValueError(
                f"edge_types must have attributes with rows in {self.entries.prefix + name!r}, which has "
                f"{len(encoder)}, got one with row {most}"
            )
        vectors = encoder[torch.tensor(rows, device=encoder.device)].mean(1)
        return [
            torch.cat([vectors @ self.hop_maps[hop] / length for length in range(hop + 1, self.max_path + 1)])
            for hop in range(self.max_path)
        ]

    def _attention(self, at: str, *, labeled: bool = True) -> AttentionWeights:
        return replace(super()._attention(at, labeled=labeled), shared=True)


def from_graphormer(
    state: Mapping[str, Any],
    *,
    edge_types: Mapping[str, Sequence[int]],
    virtual_node: int,
    spatial_pos_max: int,
    multi_hop_max_dist: int = 5,
    pre_layernorm: bool = False,
    prefix: str = "",
    activation: Activation = "gelu",
    layer_norm_eps: float = 1e-5,
    dropout: float = 0.0,
    leave_out: Sequence[str] = (),
) -> tuple[RelationEncoder, Sum]:
    """Read Graphormer's encoder; return it with the labeler of its distances and of the edges on its paths.

    The biases of pairs become tables that all layers share: a row for each distance, and for hop n of a path of N edges
    a row for each edge type t, which holds ``w_n(t) / N``, the product of the type's vector and the map of the hop.
    Further training may change each row. The labels are those of :func:`~relgraph.labelers.graphormer`
    with ``start="query"``: if several paths between two nodes are shortest, the released code may count the edges of
    another one.

    The encoder reads nodes that are already embedded, with the token of the graph as a node without edges. Leave out
    the tensors before it, ``"graph_node_feature.*"`` and ``"emb_layer_norm.*"``, and compute them yourself; and
    ``"final_layer_norm.*"``, if it is there, which the released code has but never applies.

    Args:
        state: names and tensors, or arrays of numpy.
        edge_types: the name of each edge type, in the order of ``graph.edge_type``, and its attributes, as in the
            columns of ``edge_attr``.
        virtual_node: the node type of the graph's token, in ``graph.node_type``.
        spatial_pos_max: pairs at this distance or beyond do not attend: 1024 by default in the released code, which is
            above the 510 that it gives to pairs without a path, so that these attend; 20 in the collator of
            transformers.
        multi_hop_max_dist: how many edges of a path count.
        pre_layernorm: whether norms come before each step, as in the configuration.
        prefix: the beginning of the names, before ``layers.0.self_attn.q_proj.weight``: ``"encoder.graph_encoder."``.
        activation: ``activation_fn`` of the configuration.
        layer_norm_eps: the number that norms add to variances.
        dropout: dropout of the new module.
        leave_out: ``fnmatch`` patterns for names after the prefix of tensors to skip.

    Returns:
        The encoder with copies of the weights, in their dtype and on their device, and its labeler.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: sizes or attributes beyond those of the tensors; a prefix, pattern or tensor that does not fit; see
            the package.
        NotImplementedError: an ``edge_type`` other than ``"multi_hop"``; an edge encoder whose row 0 is not zero, which
            makes the output depend on other graphs of a batch.

    Example:
        >>> maps = {f"self_attn.{name}_proj": (16, 16) for name in ("q", "k", "v", "out")}
        >>> maps |= {"fc1": (32, 16), "fc2": (16, 32)}
        >>> state = {f"layers.0.{name}.weight": torch.randn(*size) for name, size in maps.items()}
        >>> state |= {f"layers.0.{name}.bias": torch.zeros(size[0]) for name, size in maps.items()}
        >>> for name in ("self_attn_layer_norm", "final_layer_norm"):
        ...     state |= {f"layers.0.{name}.weight": torch.ones(16), f"layers.0.{name}.bias": torch.zeros(16)}
        >>> biases = {"spatial_pos_encoder": (512, 4), "graph_token_virtual_distance": (1, 4)}
        >>> biases |= {"edge_encoder": (1537, 4), "edge_dis_encoder": (128 * 4 * 4, 1)}
        >>> state |= {f"graph_attn_bias.{name}.weight": torch.randn(*size) for name, size in biases.items()}
        >>> state["graph_attn_bias.edge_encoder.weight"][0] = 0
        >>> encoder, labeler = rg.interop.checkpoints.from_graphormer(
        ...     state, edge_types={"single": (0, 0), "double": (1, 0)}, virtual_node=9, spatial_pos_max=20
        ... )
        >>> bonds = torch.tensor([[1, 2], [2, 1]])                              # node 0 is the token
        >>> graph = rg.Graph(bonds, 3, edge_type=torch.tensor([0, 0]), node_type=torch.tensor([9, 6, 8]))
        >>> encoder(torch.randn(3, 16), labels=labeler(graph)).shape
        torch.Size([3, 16])
    """
    if not isinstance(edge_types, Mapping):
        raise TypeError(f"edge_types must be a mapping of names to attributes, got {type(edge_types).__name__}")
    reader = _Reader(state, prefix, leave_out)
    reader.edge_types = {name: _attributes(name, own) for name, own in edge_types.items()}
    if len({len(own) for own in reader.edge_types.values()}) != 1:
        raise ValueError(f"edge_types must have one number of attributes for all types, got {shown(dict(edge_types))}")
    reader.virtual_node = check.integer("virtual_node", virtual_node, minimum=0)
    reader.spatial_pos_max = check.integer("spatial_pos_max", spatial_pos_max, minimum=2)
    reader.max_path = check.integer("multi_hop_max_dist", multi_hop_max_dist, minimum=1)
    reader.norm_first = check.boolean("pre_layernorm", pre_layernorm)
    return reader.build(dropout, activation=activation, layer_norm_eps=layer_norm_eps)


def _attributes(name: Any, own: Any) -> tuple[int, ...]:
    """The attributes of an edge type."""
    if not isinstance(name, str):
        raise TypeError(f"edge_types must have strings as names, got {shown(name)}")
    given = check.items(f"edge_types[{name!r}]", own, "a sequence of integers")
    if not given:
        raise ValueError(f"edge_types[{name!r}] must have an attribute at least, got none")
    return tuple(check.integer(f"edge_types[{name!r}]", value, minimum=0, maximum=_STEP - 1) for value in given)
