"""Speed and memory of graph layers over listed edges, against PyG's TransformerConv.

    python -m docs.benchmarks.graphs edges     # 10,000 nodes, 200,000 edges, 20 types; projections and sorting included
    python -m docs.benchmarks.graphs peers     # the same, with other layers of PyG that read types of edges
    python -m docs.benchmarks.graphs vectors   # the same with 16 channels on every edge instead of types
    python -m docs.benchmarks.graphs scores    # maps of values, Bilinear and Additive against the dot product
    python -m docs.benchmarks.graphs growth    # up to 2,000,000 edges
    python -m docs.benchmarks.graphs memory    # peak extra memory, one fresh process per figure

Run from the root of the repository, on a quiet machine. Ways run in turn, round after round. Ratios to the first way
are taken within a round; the output has their median and quartiles.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torch_geometric.nn import HGTConv, TransformerConv

import relgraph as rg
from docs.benchmarks.about import command
from docs.benchmarks.measure import Rows, fresh_peak, peak_mib, report, rounds

NODES, EDGES, TYPES, HEADS, SIZE, VECTOR = 10_000, 200_000, 20, 8, 16, 16
WIDTH = HEADS * SIZE


def layers(edges: int, kind: str, nodes: int = NODES) -> dict[str, Callable[[], Tensor]]:
    """PyG's layer and ours on the same random graph; every call makes labels again, so that sorting counts.

    The layers of scores are all ours, over edges that were sorted before.
    """
    x = torch.randn(nodes, WIDTH, requires_grad=True)
    index, types = torch.randint(nodes, (2, edges)), torch.randint(TYPES, (edges,))
    if kind == "scores":
        options: dict[str, dict[str, Any]] = {"the dot product": {}, "value_map=True": {"value_map": True}}
        options["Bilinear"] = {"score": rg.score.Bilinear.learned(TYPES, HEADS, SIZE)}
        for name in ("leaky_relu", "tanh", "gelu"):
            options[f"Additive, {name}"] = {"score": rg.score.Additive.learned(HEADS, SIZE, name)}
        made = {name: rg.pyg.RelationConv(WIDTH, SIZE, HEADS, num_relations=TYPES, **x) for name, x in options.items()}
        labels = rg.EdgeLabels(index, types, TYPES, q_len=nodes)
        return {name: partial(conv, x, labels) for name, conv in made.items()}
    if kind == "vectors":
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
    pair = {
        "TransformerConv, one-hot types": lambda: theirs(x, index, hot),
        "RelationConv, types": lambda: ours(x, index, types),
    }
    return pair | (others(x, index, types, theirs, hot) if kind == "peers" else {})


def others(x: Tensor, index: Tensor, types: Tensor, conv: Any, hot: Tensor) -> dict[str, Callable[[], Tensor]]:
    """The same layer compiled, with a learned vector per type, and PyG's layer for typed edges."""
    compiled = torch.compile(conv)
    embedded, vectors = TransformerConv(WIDTH, SIZE, HEADS, edge_dim=SIZE), nn.Embedding(TYPES, SIZE)
    kinds = [("node", str(kind), "node") for kind in range(TYPES)]
    typed = HGTConv(WIDTH, WIDTH, (["node"], kinds), HEADS)
    by_kind = {kind: index[:, types == number] for number, kind in enumerate(kinds)}
    return {
        "TransformerConv, compiled": lambda: compiled(x, index, hot),
        "TransformerConv, a learned vector per type": lambda: embedded(x, index, vectors(types)),
        "HGTConv, a map per type": lambda: typed({"node": x}, by_kind)["node"],
    }


def edges(arguments: argparse.Namespace) -> Rows:
    """All layers of one kind."""
    return report(rounds(layers(arguments.edges, arguments.what), arguments.rounds))


def growth(arguments: argparse.Namespace) -> Rows:
    """RelationConv at growing numbers of edges."""
    rows = []
    for count in (arguments.edges * times // 2 for times in (2, 5, 10, 20)):
        (_, ours) = layers(count, "types").items()
        (row,) = report(rounds(dict([ours]), arguments.rounds))
        total = float(str(row["forward+backward ms"]))
        rows.append({"edges": count, "forward+backward ms": total, "µs an edge": round(total / count * 1e3, 3)})
    return rows


def memory(arguments: argparse.Namespace) -> Rows:
    """Peak memory above inputs and parameters, forward and backward: the median of three fresh processes."""
    rows = []
    for kind in ("types", "vectors"):
        row: dict[str, object] = {"edges carry": kind}
        for which, layer in enumerate(("TransformerConv", "relgraph")):
            command = "docs.benchmarks.graphs", "peak", "--kind", kind, "--which", str(which)
            peaks = [fresh_peak(*command, "--edges", str(arguments.edges)) for _ in range(3)]
            row[f"{layer} MiB"] = statistics.median(peak for peak in peaks if peak is not None)
        rows.append(row)
    return rows


def peak(arguments: argparse.Namespace) -> None:
    """Print the peak extra MiB of one forward and backward."""
    warm = layers(100, arguments.kind, nodes=50)
    list(warm.values())[arguments.which]().sum().backward()
    step = list(layers(arguments.edges, arguments.kind).values())[arguments.which]

    def both() -> None:
        out = step()
        out.backward(torch.ones_like(out))

    print(round(peak_mib(both), 1))


MEASURES = {
    "edges": edges,
    "peers": edges,
    "vectors": edges,
    "scores": edges,
    "growth": growth,
    "memory": memory,
}


def main(given: Sequence[str] | None = None) -> None:
    """Parse the arguments, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--edges", type=int, default=EDGES)
    parser.add_argument("--kind", choices=["types", "vectors", "scores"], default="types", help="peak: which layers")
    parser.add_argument("--which", type=int, default=0, help="peak: which of these layers, in their order")
    command(parser, {**MEASURES, "peak": peak}, given)


if __name__ == "__main__":
    main()
