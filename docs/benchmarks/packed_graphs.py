"""Many small graphs: packed attention between all nodes of each, against padding them to the largest.

    python -m docs.benchmarks.packed_graphs pairs --rounds 7    # 256 graphs of 5 to 200 nodes

The label of every pair is its shortest path, up to 10. Ways of the same meaning are compared before the timing.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import relgraph as rg
from docs.benchmarks.about import command
from docs.benchmarks.measure import Rows, report, rounds
from docs.benchmarks.ways import compare, with_gradients

HEADS, SIZE, BUCKETS = 8, 16, 8


def random_graphs(sizes: Tensor) -> rg.Graph:
    """Connected graphs: a chain, plus the same number of other edges."""
    generator = torch.Generator().manual_seed(2)
    graphs = []
    for n in sizes.tolist():
        chain = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
        graphs.append(rg.Graph(torch.cat([chain, torch.randint(n, (2, n), generator=generator)], 1), n))
    return rg.Graph.batch(graphs)


def ways(count: int, most: int, check: bool = False) -> dict[str, Callable[[], Tensor]]:
    """All ways to attend, on the same numbers; each gives nodes ``[T, H, D]``."""
    sizes = torch.randint(5, most + 1, (count,))
    labels = rg.ShortestPath(10)(random_graphs(sizes))
    longest, nodes = int(sizes.max()), int(sizes.sum())
    inside = torch.arange(longest) < sizes[:, None]  # [G, N]
    packed = [torch.randn(nodes, HEADS, SIZE, requires_grad=True) for _ in range(3)]
    key, value = (torch.randn(labels.num_labels, SIZE, requires_grad=True) for _ in range(2))
    bias = torch.randn(HEADS, labels.num_labels, requires_grad=True)
    ids = rg.labels.padded(labels, longest).to_dense()[0].clamp_min(0)  # [G, N, N]
    padded = []
    for x in packed:
        wide = x.new_zeros(count, longest, HEADS, SIZE)
        wide[inside] = x.detach()
        padded.append(wide.transpose(1, 2).contiguous().requires_grad_())  # [G, H, N, D]
    parts, places = [], []
    begin = sizes.cumsum(0) - sizes
    for members in sizes.argsort().tensor_split(min(BUCKETS, count)):
        n = int(sizes[members].max())
        real = inside[members, :n]
        parts.append((members, n, ids[members, :n, :n], real))
        places.append((begin[members][:, None] + torch.arange(n))[real])
    back = torch.cat(places).argsort()

    def biased(query: Tensor, key: Tensor, value: Tensor, ids: Tensor, real: Tensor) -> Tensor:
        mask = bias[:, ids].transpose(0, 1).masked_fill(~real[:, None, None], -math.inf)
        return scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2)[real]

    def bucketed() -> Tensor:
        found = [biased(*(x[members, :, :n] for x in padded), ids, real) for members, n, ids, real in parts]
        return torch.cat(found)[back]

    def plain() -> Tensor:
        return scaled_dot_product_attention(*padded, attn_mask=inside[:, None, None]).transpose(1, 2)[inside]

    attend = partial(rg.relation_attention, *packed, labels)
    found = {f"packed, a bias per label, {impl}": partial(attend, bias_table=bias, impl=impl)
             for impl in ("native", "chunked")}  # fmt: skip
    found["padded to the largest, fused attention with a bias"] = partial(biased, *padded, ids, inside)
    found["the same in eight batches of similar size"] = bucketed
    both = {f"packed, key and value tables, {impl}": partial(attend, key, value, impl=impl)
            for impl in ("native", "chunked")}  # fmt: skip
    if check:
        _same(found, bias)
        _same(both | {"by the equations": partial(attend, key, value, impl="reference")}, value)
    return {"padded, fused attention without labels": plain, **found, **both}


def _same(found: dict[str, Callable[[], Tensor]], table: Tensor) -> None:
    """Compare outputs and gradients of a table; raises :class:`Wrong` where one differs from the last."""
    leaves = {"table": table}
    grad = torch.randn_like(next(iter(found.values()))())
    *_, wanted = (with_gradients(call(), leaves, grad) for call in found.values())
    for name, call in found.items():
        compare(with_gradients(call(), leaves, grad), wanted, torch.float32, name)


def pairs(arguments: argparse.Namespace) -> Rows:
    """All ways; those of the small batch are compared."""
    ways(4, 24, check=True)
    return report(rounds(ways(arguments.graphs, arguments.most), arguments.rounds))


def main(given: Sequence[str] | None = None) -> None:
    """Parse the arguments, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--graphs", type=int, default=256)
    parser.add_argument("--most", type=int, default=200, help="nodes of the largest graph")
    command(parser, {"pairs": pairs}, given)


if __name__ == "__main__":
    main()
