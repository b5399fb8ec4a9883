"""What every labeler of graphs must do, for its labels and for attention over them in float64, gradients included.

A graph in a batch is what it is alone; the order of edges and the numbers of nodes do not matter; edges alone are dense
attention with everything else masked; packed attention within graphs is each graph's own.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

import relgraph as rg
from relgraph.labels import EdgeLabels, Labels, SumLabels

F64 = torch.float64


class Subject(NamedTuple):
    """A labeler and what it reads: any graph, or trees; whether it looks at the order of nodes."""

    labeler: rg.Labeler
    trees: bool = False
    ordered: bool = False
    ties: bool = False  # one of several shortest paths is taken, by the order of edges


SUBJECTS = (
    Subject(rg.EdgeType(3)),
    Subject(rg.EdgeType(3, inverse=True, self_loop=True)),
    Subject(rg.EdgeType(3, default="none", duplicates="sum")),
    Subject(rg.EdgeType(3, inverse=True, default="unlabeled", duplicates="sum")),
    Subject(rg.ShortestPath(2)),
    Subject(rg.ShortestPath(2, directed=True, beyond="label", unreachable=None)),
    Subject(rg.RandomWalk(3)),
    Subject(rg.PersonalizedPageRank()),
    Subject(rg.Degree(3)),
    Subject(rg.NodeType(2)),
    Subject(rg.VirtualNode(1)),
    Subject(rg.graphormer(3, 3, max_path=2), ties=True),
    Subject(rg.grpe(3, 3, duplicates="sum")),
    Subject(rg.CodeRelations()),
    Subject(rg.TreeRelation(), trees=True),
    Subject(rg.UpDown(2), trees=True),
    Subject(rg.AncestorDistance(2), trees=True),
    Subject(rg.SiblingDistance(2), trees=True, ordered=True),
    Subject(rg.StructuralPosition(3), trees=True, ordered=True),
    Subject(rg.dependency_relations(["a", "b", "c"]), trees=True),
    Subject(rg.ClippedDistance(2), ordered=True),
    Subject(rg.FromFunction(lambda i, j: (i < j).long(), 2), ordered=True),
    Subject(rg.dependency_relations(["a", "b", "c"]) | rg.ClippedDistance(2), trees=True, ordered=True),
    Subject(rg.ShortestPath(2) * rg.NodeType(2)),
    Subject(rg.ShortestPath(3) & rg.Window(2), ordered=True),
    Subject(rg.UpDown(1) + rg.EdgeType(3), trees=True),
)
each = pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: repr(subject.labeler))


def graphs(subject: Subject, seed: int = 0) -> list[rg.Graph]:
    """Graphs of 4, 0, 1, 4 and 6 nodes, with loops, parallel edges and nodes without edges."""
    torch.manual_seed(seed)
    out = []
    for n in (4, 0, 1, 4, 6):
        node_type = torch.randint(-1, 2, (n,))
        if subject.trees:
            order = torch.randperm(n)
            parents = torch.full((n,), -1)
            for place in range(1, n):
                parents[order[place]] = order[int(torch.randint(place, ()))]
            out.append(rg.Graph.from_parents(parents, edge_type=torch.randint(3, (n,)), node_type=node_type))
            continue
        edges = torch.randint(max(n - 1, 1), (2, 2 * n if n else 0))  # the last node is left without edges
        out.append(rg.Graph(edges, n, edge_type=torch.randint(3, (edges.shape[1],)), node_type=node_type))
    return out


def codes(labels: Labels) -> list[list[torch.Tensor]]:
    """For each part, ids with -2 where a pair does not attend; for parallel edges how often each (i, j, id) comes."""
    out = []
    for part in labels.parts if isinstance(labels, SumLabels) else (labels,):
        if isinstance(part, EdgeLabels) and part.parallel:
            count = torch.zeros(part.q_len, part.k_len, part.num_labels + 1, dtype=torch.int64)
            source, target = part.edge_index
            out.append([count.index_put((target, source, part.ids.long()), torch.tensor(1), accumulate=True)])
        else:
            ids, attend = part.to_dense()
            out.append([ids[0].masked_fill(~attend[0], -2)])
    return out


def weights(labeler: rg.Labeler, seed: int = 0) -> dict[str, torch.Tensor | tuple[torch.Tensor, ...]]:
    """Tables of all kinds, by part for a sum."""
    generator = torch.Generator().manual_seed(seed)
    numbers = labeler.num_labels if isinstance(labeler.num_labels, tuple) else (labeler.num_labels,)
    shapes = {"key_table": (3,), "value_table": (2,), "query_table": (3,), "bias_table": ()}
    tables = {
        name: tuple(torch.randn(n, *width, generator=generator, dtype=F64, requires_grad=True) for n in numbers)
        for name, width in shapes.items()
    }
    return tables if isinstance(labeler.num_labels, tuple) else {name: table[0] for name, table in tables.items()}


def attend(subject: Subject, labels: Labels, x: torch.Tensor, **options) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Output ``[N, H, D_v]``, and the gradients of x and of all tables, for a gradient that depends on x alone."""
    tables = weights(subject.labeler)
    x = x.detach().requires_grad_()
    value = x[..., :2]
    if labels.packed:
        z = rg.relation_attention(x, x, value, labels, **tables, **options)
    else:
        lanes = (t.transpose(0, 1)[None] for t in (x, x, value))
        z = rg.relation_attention(*lanes, labels, **tables, **options)[0].transpose(0, 1)
    leaves = [x, *(t for table in tables.values() for t in (table if isinstance(table, tuple) else (table,)))]
    grads = torch.autograd.grad((z * x.detach()[..., 1:]).sum(), leaves, allow_unused=True)
    return z, [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves, grads, strict=True)]


def nodes(count: int) -> torch.Tensor:
    return torch.randn(count, 2, 3, generator=torch.Generator().manual_seed(1), dtype=F64)


def close(got, wanted):
    torch.testing.assert_close(got[0], wanted[0])
    for a, b in zip(got[1], wanted[1], strict=True):
        torch.testing.assert_close(a, b)


def implementations(labels: Labels) -> list[str | None]:
    several = any(
        isinstance(p, EdgeLabels) and p.parallel and p.default is None for p in getattr(labels, "parts", [labels])
    )
    return [None] if several else [None, "chunked", "dense"]


@each
@pytest.mark.parametrize("seed", range(3))
def test_attention_in_a_batch_is_that_of_each_graph_alone(subject, seed):
    several = graphs(subject, seed)
    labels = subject.labeler(rg.Graph.batch(several))
    x = nodes(labels.q_len)
    alone = [attend(subject, subject.labeler(g), part) for g, part in zip(several, x.split([g.num_nodes for g in several]), strict=True)]  # fmt: skip
    wanted = torch.cat([z for z, _ in alone])
    parts = [grads for _, grads in alone]
    summed = [
        torch.cat([grads[0] for grads in parts]),
        *(sum(g) for g in zip(*(grads[1:] for grads in parts), strict=True)),
    ]
    for impl in implementations(labels):
        close(attend(subject, labels, x, impl=impl), (wanted, summed))


@each
def test_the_order_of_edges_does_not_matter(subject):
    for graph in graphs(subject):
        order = torch.randperm(graph.num_edges)
        moved = graph.with_edges(graph.edge_index[:, order], graph.edge_type[order])
        x = nodes(graph.num_nodes)
        if subject.ties:
            continue
        first, second = subject.labeler(graph), subject.labeler(moved)
        for a, b in zip(codes(first), codes(second), strict=True):
            torch.testing.assert_close(a, b)
        close(attend(subject, second, x), attend(subject, first, x))


@each
def test_the_numbers_of_nodes_do_not_matter(subject):
    if subject.ordered or subject.ties:
        return
    for graph in graphs(subject):
        n = graph.num_nodes
        place = torch.randperm(n)
        moved = rg.Graph(
            place[graph.edge_index], n, edge_type=graph.edge_type, node_type=graph.node_type[place.argsort()]
        )
        first, second = subject.labeler(graph), subject.labeler(moved)
        for (a,), (b,) in zip(codes(first), codes(second), strict=True):
            torch.testing.assert_close(b[place][:, place], a)
        x = nodes(n)
        (z, grads), (moved_z, moved_grads) = attend(subject, first, x), attend(subject, second, x[place.argsort()])
        close((moved_z[place], [moved_grads[0][place], *moved_grads[1:]]), (z, grads))


@each
def test_edges_alone_are_dense_attention_with_the_rest_masked(subject):
    for graph in graphs(subject):
        labels = subject.labeler(graph)
        if not isinstance(labels, EdgeLabels) or labels.default is not None or labels.parallel:
            continue
        ids, attends = labels.to_dense()
        whole = rg.DenseLabels(ids, labels.num_labels)
        x = nodes(graph.num_nodes)
        close(attend(subject, labels, x), attend(subject, whole, x, attn_mask=attends[:, None]))


@each
def test_isolated_and_empty(subject):
    """Nodes that see nothing give zeros, graphs without nodes nothing, and no gradient is NaN."""
    empty = graphs(subject)[1]
    z, grads = attend(subject, subject.labeler(empty), nodes(0))
    assert z.shape == (0, 2, 2)
    assert all(bool(torch.isfinite(grad).all()) for grad in grads)
    for graph in graphs(subject):
        labels = subject.labeler(graph)
        z, grads = attend(subject, labels, nodes(graph.num_nodes))
        assert all(bool(torch.isfinite(t).all()) for t in (z, *grads))
