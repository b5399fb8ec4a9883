"""A suite for every labeler of graphs, for its labels and for attention over them in float64, gradients included.

A graph in a batch is what it is alone; the order of edges and the numbers of nodes do not matter; packed attention
within graphs is each graph's own.
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


SUBJECTS = (
    Subject(rg.EdgeType(3)),
    Subject(rg.EdgeType(3, inverse=True, self_loop=True)),
    Subject(rg.EdgeType(3, attend="all", default="none", duplicates="sum")),
    Subject(rg.EdgeType(3, inverse=True, attend="all", duplicates="sum")),
    Subject(rg.ShortestPath(2)),
    Subject(rg.ShortestPath(2, directed=True, unreachable=None)),
    Subject(rg.NodeType(2)),
    Subject(rg.CodeRelations()),
    Subject(rg.TreeRelation(), trees=True),
    Subject(rg.UpDown(2), trees=True),
    Subject(rg.labelers.dependency_relations(["a", "b", "c"]), trees=True),
    Subject(rg.ClippedDistance(2), ordered=True),
    Subject(rg.BucketedDistance(4, 3), ordered=True),
    Subject(rg.FromFunction(lambda i, j: (i < j).long(), 2), ordered=True),
    Subject(rg.labelers.dependency_relations(["a", "b", "c"]) | rg.ClippedDistance(2), trees=True, ordered=True),
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
    """Return ids of each part, -2 where a pair does not attend; for parallel edges, counts of each (i, j, id)."""
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
    """Draw tables of all kinds, by part for a sum."""
    generator = torch.Generator().manual_seed(seed)
    numbers = labeler.num_labels if isinstance(labeler.num_labels, tuple) else (labeler.num_labels,)
    shapes = {"key_table": (3,), "value_table": (2,), "query_table": (3,), "bias_table": ()}
    tables = {
        name: tuple(torch.randn(n, *width, generator=generator, dtype=F64, requires_grad=True) for n in numbers)
        for name, width in shapes.items()
    }
    return tables if isinstance(labeler.num_labels, tuple) else {name: table[0] for name, table in tables.items()}


def run(subject: Subject, labels: Labels, x: torch.Tensor, **options) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the output ``[N, H, D_v]`` and the gradients of x and of all tables."""
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
def test_attention_in_a_batch_is_that_of_each_graph_alone(subject):
    several = graphs(subject)
    labels = subject.labeler(rg.Graph.batch(several))
    x = nodes(labels.q_len)
    alone = [run(subject, subject.labeler(g), part) for g, part in zip(several, x.split([g.num_nodes for g in several]), strict=True)]  # fmt: skip
    wanted = torch.cat([z for z, _ in alone])
    parts = [grads for _, grads in alone]
    summed = [
        torch.cat([grads[0] for grads in parts]),
        *(sum(g) for g in zip(*(grads[1:] for grads in parts), strict=True)),
    ]
    for impl in implementations(labels):
        close(run(subject, labels, x, impl=impl), (wanted, summed))


@each
def test_the_order_of_edges_does_not_matter(subject):
    for graph in graphs(subject):
        order = torch.randperm(graph.num_edges)
        moved = graph.with_edges(graph.edge_index[:, order], graph.edge_type[order])
        x = nodes(graph.num_nodes)
        first, second = subject.labeler(graph), subject.labeler(moved)
        for a, b in zip(codes(first), codes(second), strict=True):
            torch.testing.assert_close(a, b)
        close(run(subject, second, x), run(subject, first, x))


@each
def test_the_numbers_of_nodes_do_not_matter(subject):
    if subject.ordered:
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
        (z, grads), (moved_z, moved_grads) = run(subject, first, x), run(subject, second, x[place.argsort()])
        close((moved_z[place], [moved_grads[0][place], *moved_grads[1:]]), (z, grads))


@each
def test_isolated_and_empty(subject):
    """Nodes that see nothing give zeros, graphs without nodes nothing, and no gradient is NaN."""
    empty = graphs(subject)[1]
    z, grads = run(subject, subject.labeler(empty), nodes(0))
    assert z.shape == (0, 2, 2)
    assert all(bool(torch.isfinite(grad).all()) for grad in grads)
    for graph in graphs(subject):
        labels = subject.labeler(graph)
        z, grads = run(subject, labels, nodes(graph.num_nodes))
        assert all(bool(torch.isfinite(t).all()) for t in (z, *grads))


PATHS = (
    Subject(rg.labelers.ShortestPathTypes(2, 3)),
    Subject(rg.labelers.ShortestPathTypes(3, 3, directed=True)),
    Subject(rg.labelers.TreePaths(3, 3), trees=True),
    Subject(rg.labelers.TreePaths(1, 3), trees=True),
)
each_path = pytest.mark.parametrize("subject", PATHS, ids=lambda subject: repr(subject.labeler))


def sequences(subject: Subject, graph: rg.Graph) -> torch.Tensor:
    """Return the path of every pair, ``[N, N, L]``, all -2 for none and all -3 where the pair does not attend."""
    labels, paths = subject.labeler(graph)
    ids, attends = (t[0] for t in labels.to_dense())
    found = paths[ids.clamp(min=0)] if len(paths) else paths.new_zeros(*ids.shape, paths.shape[1])
    return found.masked_fill((ids < 0)[..., None], -2).masked_fill(~attends[..., None], -3)


def run_paths(subject: Subject, graph: rg.Graph, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Attend with tables from a bank that adds up a vector for each step at each place of a path."""
    labels, paths = subject.labeler(graph)
    generator = torch.Generator().manual_seed(0)
    bank = torch.randn(paths.shape[1], subject.labeler.num_steps, 3, generator=generator, dtype=F64, requires_grad=True)
    x = x.detach().requires_grad_()
    steps = bank[torch.arange(paths.shape[1]), paths.clamp(min=0)]
    table = (steps * (paths >= 0)[..., None]).sum(1)
    q = x if labels.packed else x.transpose(0, 1)[None]
    z = rg.relation_attention(q, q, q, labels, key_table=table, value_table=table.sin())
    z = z if labels.packed else z[0].transpose(0, 1)
    return z, list(torch.autograd.grad((z * x.detach().cos()).sum(), (x, bank)))


@each_path
def test_paths_in_a_batch_are_those_of_each_graph_alone(subject):
    several = graphs(subject)
    batch = rg.Graph.batch(several)
    together, ptr = sequences(subject, batch), batch.borders().tolist()
    for graph, start, stop in zip(several, ptr[:-1], ptr[1:], strict=True):
        torch.testing.assert_close(together[start:stop, start:stop], sequences(subject, graph))
        assert bool((together[start:stop, stop:] == -3).all())
    x = nodes(batch.num_nodes)
    parts = [run_paths(subject, g, x[a:b]) for g, a, b in zip(several, ptr[:-1], ptr[1:], strict=True)]
    wanted = [torch.cat([grads[0] for _, grads in parts]), sum(grads[1] for _, grads in parts)]
    close(run_paths(subject, batch, x), (torch.cat([z for z, _ in parts]), wanted))


@each_path
def test_paths_do_not_depend_on_the_numbers_of_nodes(subject):
    for graph in graphs(subject):
        place = torch.randperm(graph.num_nodes)
        moved = rg.Graph(place[graph.edge_index], graph.num_nodes, edge_type=graph.edge_type)
        torch.testing.assert_close(sequences(subject, moved)[place][:, place], sequences(subject, graph))
        x = nodes(graph.num_nodes)
        (z, grads), (moved_z, moved_grads) = (
            run_paths(subject, graph, x),
            run_paths(subject, moved, x[place.argsort()]),
        )
        close((moved_z[place], [moved_grads[0][place], moved_grads[1]]), (z, grads))
