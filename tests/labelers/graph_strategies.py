"""Graphs for hypothesis: small ones with loops, parallel edges and nodes without edges, and batches of them."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

import relgraph as rg


@st.composite
def graphs(draw, most=7, edge_types=None, node_types=None):
    """Draw one to three graphs of 0 to ``most`` nodes."""
    return [draw(graph(draw(st.integers(0, most)), edge_types, node_types)) for _ in range(draw(st.integers(1, 3)))]


@st.composite
def graph(draw, count, edge_types, node_types):
    node = st.integers(0, max(count - 1, 0))
    kind = st.integers(0, (edge_types or 1) - 1)
    edges = draw(st.lists(st.tuples(node, node, kind), max_size=10 if count else 0))
    table = torch.tensor(edges, dtype=torch.int64).view(-1, 3).T
    of_node = st.integers(-1, (node_types or 1) - 1)
    return rg.Graph(
        table[:2],
        count,
        edge_type=None if edge_types is None else table[2],
        node_type=torch.tensor(draw(st.lists(of_node, min_size=count, max_size=count)), dtype=torch.int64)
        if node_types
        else None,
    )


def assert_alone_as_in_batch(labeler, several):
    """Check that each graph of a batch has the labels that it has without the others, and that no pair crosses."""
    for whole, *alone in zip(
        labeler(rg.Graph.batch(several)).to_dense(), *(labeler(graph).to_dense() for graph in several), strict=True
    ):
        assert whole.dtype == alone[0].dtype
        wanted = torch.block_diag(*(block[0].long() + 1 for block in alone)) - 1
        sizes = [block.shape[1] for block in alone]
        inside = torch.block_diag(*(torch.ones(size, size) for size in sizes)).bool()
        torch.testing.assert_close(whole[0].long()[inside], wanted[inside])
        assert not (whole[0].long() + (whole.dtype != torch.bool))[~inside].any()
