"""Speed and memory of graph layers: edges against PyG's TransformerConv, packed graphs against padded ones.

    python -m docs.benchmarks.graphs edges     # 10,000 nodes, 200,000 edges, 20 types; projections and sorting included
    python -m docs.benchmarks.graphs vectors   # the same with 16 numbers on every edge instead of types
    python -m docs.benchmarks.graphs growth    # up to 2,000,000 edges
    python -m docs.benchmarks.graphs memory    # peak extra memory, one fresh process per figure
    python -m docs.benchmarks.graphs packed    # 256 graphs of 5 to 200 nodes, every pair labeled by shortest path
    python -m docs.benchmarks.graphs paths     # shortest paths between all pairs

Run from the root of the repository, on a quiet machine. Ways run in turn, round after round. Ratios to the first way
are taken within a round; the output has their median and quartiles.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot, scaled_dot_product_attention
from torch_geometric.nn import TransformerConv

import relgraph as rg
from docs.benchmarks.measure import Rows, peak_mib, publish, report, rounds
from docs.benchmarks.packed_graphs import random_graphs

NODES, EDGES, TYPES, HEADS, SIZE, VECTOR = 10_000, 200_000, 20, 8, 16, 16
WIDTH = HEADS * SIZE


def random_edges(edges: int, nodes: int = NODES) -> tuple[Tensor, Tensor]:
    """The ends of random edges, ``[2, E]``, and a type for each edge."""
    return torch.randint(nodes, (2, edges)), torch.randint(TYPES, (edges,))


def layers(edges: int, vectors: bool, nodes: int = NODES) -> dict[str, Callable[[], Tensor]]:
    """PyG's layer and ours on the same graph; every call makes labels again, so that sorting counts."""
    x = torch.randn(nodes, WIDTH, requires_grad=True)
    index, types = random_edges(edges, nodes)
    if vectors:
        attr = torch.randn(edges, VECTOR)
        theirs = TransformerConv(WIDTH, SIZE, HEADS, edge_dim=VECTOR)
        ours = rg.pyg.RelationConv(WIDTH, SIZE, HEADS, edge_dim=VECTOR)
        return {
            "TransformerConv, edge_attr": lambda: theirs(x, index, attr),
            "RelationConv, edge_attr": lambda: ours(x, index, edge_attr=attr),
        }
    hot = one_hot(types, TYPES).float()
    theirs = TransformerConv(WIDTH, SIZE, HEADS, edge_dim=TYPES)
    ours = rg.pyg.RelationConv(WIDTH, SIZE, HEADS, num_relations=TYPES)
    return {
        "TransformerConv, one-hot types": lambda: theirs(x, index, hot),
        "RelationConv, types": lambda: ours(x, index, types),
    }


def edges(arguments: argparse.Namespace) -> Rows:
    """Both layers with edge types."""
    return faster(report(rounds(layers(EDGES, vectors=False), arguments.rounds)))


def vectors(arguments: argparse.Namespace) -> Rows:
    """Both layers with edge vectors."""
    return faster(report(rounds(layers(EDGES, vectors=True), arguments.rounds)))


def faster(rows: Rows) -> Rows:
    """The rows, with the speed of each relative to the first."""
    for row in rows:
        ratio = float(str(row["forward+backward ×"]).split()[0])
        row["times as fast"] = round(1 / ratio, 1)
    return rows


def growth(arguments: argparse.Namespace) -> Rows:
    """RelationConv at growing numbers of edges."""
    rows = []
    for count in (200_000, 500_000, 1_000_000, 2_000_000):
        (_, ours) = layers(count, vectors=False).items()
        (row,) = report(rounds(dict([ours]), arguments.rounds))
        total = float(str(row["forward+backward ms"]))
        rows.append({"edges": count, "forward+backward ms": total, "µs an edge": round(total / count * 1e3, 3)})
    return rows


def memory(_: argparse.Namespace) -> Rows:
    """Peak memory above inputs and parameters, forward and backward: the median of three fresh processes."""
    rows = []
    for kind in ("types", "vectors"):
        peaks = []
        for which in (0, 1):
            command = [sys.executable, "-m", "docs.benchmarks.graphs", "peak", "--kind", kind, "--which", str(which)]
            taken = [float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in "123"]
            peaks.append(statistics.median(taken))
        rows.append({"edges carry": kind, "TransformerConv MiB": peaks[0], "RelationConv MiB": peaks[1]})
        rows[-1]["ratio"] = round(peaks[1] / peaks[0], 3)
    return rows


def peak(arguments: argparse.Namespace) -> None:
    """Print the peak extra MiB of one forward and backward."""
    warm = layers(100, vectors=arguments.kind == "vectors", nodes=50)
    list(warm.values())[arguments.which]().sum().backward()
    step = list(layers(EDGES, vectors=arguments.kind == "vectors").values())[arguments.which]

    def both() -> None:
        out = step()
        out.backward(torch.ones_like(out))

    print(round(peak_mib(both), 1))


def packed(arguments: argparse.Namespace) -> Rows:
    """Attention over every pair inside each of many graphs: packed, graph by graph, and padded to the largest."""
    sizes = torch.randint(5, 201, (256,))
    graph = random_graphs(sizes)
    labels = rg.ShortestPath(10)(graph)
    assert isinstance(labels, rg.BlockLabels)
    q, k, v = (torch.randn(graph.num_nodes, HEADS, SIZE, requires_grad=True) for _ in range(3))
    tables = [torch.randn(labels.num_labels, SIZE, requires_grad=True) for _ in range(2)]
    alone = one_by_one(labels, (q, k, v))
    rows, inside = rg.labels.padded(labels, 200), torch.arange(200) < sizes[:, None]

    def padded(impl: str) -> Tensor:
        wide = (torch.zeros(256, 200, HEADS, SIZE).masked_scatter(inside[..., None, None], x) for x in (q, k, v))
        query, key, value = (x.transpose(1, 2) for x in wide)
        z = rg.relation_attention(query, key, value, rows, *tables, attn_mask=inside[:, None, None], impl=impl)
        return z.transpose(1, 2)[inside]

    ways = {
        "padded, dense": lambda: padded("dense"),
        "padded, chunked": lambda: padded("chunked"),
        "packed": lambda: rg.relation_attention(q, k, v, labels, *tables),
        "graph by graph": lambda: torch.cat(
            [rg.relation_attention(a, b, c, mine, *tables)[0] for mine, (a, b, c) in alone], 1
        ),
        "graph by graph, sdpa without labels": lambda: torch.cat(
            [scaled_dot_product_attention(a, b, c)[0] for _, (a, b, c) in alone], 1
        ),
    }
    return faster(report(rounds({name: flat(way) for name, way in ways.items()}, arguments.rounds)))


def flat(way: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The same numbers as one row, so that all ways get one gradient."""
    return lambda: way().reshape(-1)


def one_by_one(labels: rg.BlockLabels, inputs: tuple[Tensor, ...]) -> list[tuple[rg.DenseLabels, list[Tensor]]]:
    """Labels, query, key and value of every graph."""
    out, begin = [], labels.block_ptr().tolist()
    for g, (start, stop) in enumerate(zip(labels.k_ptr.tolist(), labels.k_ptr.tolist()[1:], strict=False)):
        ids = labels.ids[begin[g] : begin[g + 1]].view(stop - start, stop - start)
        mine = [x.detach()[start:stop].transpose(0, 1)[None].contiguous().requires_grad_() for x in inputs]
        out.append((rg.DenseLabels(ids, labels.num_labels), mine))
    return out


def paths(arguments: argparse.Namespace) -> Rows:
    """Shortest paths between all pairs."""
    index, _ = random_edges(5_000, 1_000)
    line = torch.stack([torch.arange(999), torch.arange(1, 1000)])
    graphs = {
        "random, 1,000 nodes, 5,000 edges": rg.Graph(index, 1_000),
        "a path of 1,000 nodes": rg.Graph(line, 1_000),
        "256 graphs of 5 to 200 nodes": random_graphs(torch.randint(5, 201, (256,))),
    }
    rows = []
    for name, graph in graphs.items():
        row: dict[str, object] = {"graph": name}
        for limit, directed in ((None, True), (None, False), (4, False)):
            taken = []
            for _ in range(arguments.rounds):
                start = time.perf_counter()
                rg.labelers.shortest_path_lengths(graph, limit, directed=directed)
                taken.append(time.perf_counter() - start)
            what = "directed" if directed else "both ways"
            row[f"{what}, {'no limit' if limit is None else f'up to {limit}'} s"] = round(statistics.median(taken), 3)
        rows.append(row)
    return rows


WHAT = {"edges": edges, "vectors": vectors, "growth": growth, "memory": memory, "packed": packed, "paths": paths}


def main() -> None:
    """Parse the arguments, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*WHAT, "peak"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--kind", choices=["types", "vectors"], default="types", help="peak: what edges carry")
    parser.add_argument("--which", type=int, choices=[0, 1], default=0, help="peak: PyG's layer (0) or ours (1)")
    parser.add_argument("--json", help="also write the rows to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    if arguments.what == "peak":
        peak(arguments)
        return
    rows = WHAT[arguments.what](arguments)
    publish(rows, arguments.json)


if __name__ == "__main__":
    main()
