"""The score of RGAT: a number that is linear in the query plus one that is linear in the key, and a leaky ReLU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from relgraph.arguments import check
from relgraph.score import LeakyReLU


class LinearScore(nn.Module):
    """Scores of :class:`~relgraph.pyg.RelationConv` that add one number per head of the query and one of the key.

    Queries, keys and projected edge features, of all heads together, are vectors of H · C numbers::

        s_e = LeakyReLU(A_q·q + A_k·k + A_f·(U_k f_e) + b[r_e])        # [H], one number per head

    With one map W_r for queries, keys and values (``key_map="full"``, ``value_map="full"``, ``query_map="full"``,
    ``tie_projections=("value", "query")``), this is additive relational attention. No tensor holds a vector per edge;
    with full maps of the queries, one holds N · R · H numbers.

    Source: Busbridge et al. 2019, "Relational Graph Attention Networks", eqs. 3-5 (ARGAT).

    Args:
        heads: H, as in the layer.
        out_channels: C, as in the layer.
        negative_slope: the slope of the leaky ReLU.
        edge: whether there is an A_f; needed by a layer whose score reads ``edge_attr``.

    Raises:
        ValueError: a size below 1, or a slope that is negative or not finite.

    Example:
        >>> score = rg.pyg.LinearScore(2, 4)
        >>> full = {"key_map": "full", "value_map": "full", "query_map": "full"}
        >>> conv = rg.pyg.RelationConv(
        ...     8, 4, 2, num_relations=3, tables=(), score=score, tie_projections=("value", "query"), **full
        ... )
        >>> conv(torch.randn(3, 8), torch.tensor([[0, 1, 2], [1, 2, 2]]), torch.tensor([0, 2, 1])).shape
        torch.Size([3, 8])
    """

    edge: nn.Parameter | None

    def __init__(self, heads: int, out_channels: int, negative_slope: float = 0.2, edge: bool = False) -> None:
        super().__init__()
        self.heads = check.integer("heads", heads, minimum=1)
        self.out_channels = check.integer("out_channels", out_channels, minimum=1)
        self.function = LeakyReLU(negative_slope)
        check.parameter_size(heads, heads=heads, out_channels=out_channels)
        width = heads * out_channels
        self.query, self.key = (nn.Parameter(torch.empty(width, heads)) for _ in range(2))
        self.register_parameter(
            "edge", nn.Parameter(torch.empty(width, heads)) if check.boolean("edge", edge) else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew, as in Glorot and Bengio 2010."""
        for one in self.parameters():
            nn.init.xavier_uniform_(one)

    def extra_repr(self) -> str:
        """The arguments."""
        edge = "" if self.edge is None else ", edge=True"
        return f"{self.heads}, {self.out_channels}, negative_slope={self.function.negative_slope}{edge}"

    def _operands(self, query: Tensor | None, key: Tensor, rows: Tensor | None, edge: Tensor | None) -> dict[str, Any]:
        """The arguments of attention whose dot products are these sums, by name.

        Query and key are ``[N, H, C]``; ``rows`` ``[N, H, R]``, each query's number by relation, replace a query; the
        projection of edge features is ``[H·C, F]``. Keys become (1, k) and queries (q, 1), or k and 1 with ``rows``.
        """
        ours = key.flatten(1) @ self.key
        if rows is None:
            assert query is not None
            theirs = query.flatten(1) @ self.query
            found: dict[str, Any] = {
                "query": torch.stack([theirs, torch.ones_like(theirs)], -1),
                "key": torch.stack([torch.ones_like(ours), ours], -1),
            }
        else:
            found = {"query": rows.new_ones(*rows.shape[:2], 1), "key": ours[..., None], "row_scores": rows}
        found["scale"] = 1.0
        if edge is not None:
            assert self.edge is not None
            weight = (self.edge.T @ edge)[:, None]
            found["edge_key"] = weight if rows is not None else torch.cat([torch.zeros_like(weight), weight], 1)
        return found
