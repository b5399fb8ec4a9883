"""Compare small calls with those of torch and PyG, where the work around a kernel takes the time.

    python -m docs.benchmarks.small                      # all; --json FILE keeps the figures
    python -m docs.benchmarks.small --only 'RelationConv'
    python -m docs.benchmarks.small --quick              # a smoke run: its figures mean nothing

One block of calls of each way runs in turn with the other in one process; ratios are taken within a round. Times are
those of the thread, so another process on the machine disturbs them little.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, scaled_dot_product_attention
from torch_geometric.nn import RGATConv, RGCNConv, TransformerConv

import relgraph as rg
from docs.benchmarks.about import publish
from docs.benchmarks.measure import Rows, in_turn, quartiles, ratio
from docs.benchmarks.packed_graphs import random_graphs

BLOCK_MS = 10.0
"""Calls are repeated until a block takes about so long."""


class Case(NamedTuple):
    """One call, and the one that it is compared with.

    Attributes:
        name: what is called, and its size.
        peer: what it is compared with.
        ours: the call, without backward.
        theirs: that of the peer.
        backward: whether a training step is measured too.
        forward: whether a call without gradients is measured.
    """

    name: str
    peer: str
    ours: Callable[[], Tensor]
    theirs: Callable[[], Tensor]
    backward: bool = True
    forward: bool = True


def functions(quick: bool) -> Iterator[Case]:
    """``relation_attention`` with key and value tables."""
    heads, size = 8, 64
    for n, batch in ((16, 1), (128, 1), (128, 32)) if not quick else ((4, 1),):
        q, k, v = (torch.randn(batch, heads, n, size, requires_grad=True) for _ in range(3))
        tables = [torch.randn(33, size, requires_grad=True) for _ in range(2)]
        written_out = rg.DenseLabels(torch.randint(33, (n, n)), 33)
        for name, labels in (("distances", rg.ClippedDistance(16)(n)), ("33 arbitrary labels", written_out)):
            yield Case(
                f"relation_attention, n = {n}, b = {batch}, {name}", "scaled_dot_product_attention",
                partial(rg.relation_attention, q, k, v, labels, *tables),
                partial(scaled_dot_product_attention, q, k, v),
            )  # fmt: skip


def layers(quick: bool) -> Iterator[Case]:
    """A layer with labels given."""
    labeler, width = rg.ClippedDistance(16), 512
    for batch, n in ((1, 16), (1, 128), (32, 128)) if not quick else ((1, 4),):
        ours, theirs = (
            rg.RelationAttention(width, 8, labeler=labeler),
            nn.MultiheadAttention(width, 8, batch_first=True),
        )
        x, labels = torch.randn(batch, n, width, requires_grad=True), labeler(n)
        yield Case(
            f"RelationAttention(512, 8), [{batch}, {n}, 512]", "MultiheadAttention", partial(ours, x, labels=labels),
            lambda theirs=theirs, x=x: theirs(x, x, x, need_weights=False)[0],
        )  # fmt: skip


def decoding(quick: bool) -> Iterator[Case]:
    """One more token after those that a cache holds."""
    for n in (64, 4096) if not quick else (4,):
        steps = []
        for labeled in ({"labeler": rg.ClippedDistance(16)}, {"tables": ()}):
            layer, cache = rg.RelationAttention(512, 8, **labeled).eval(), rg.KVCache(2 * n + 20_000)
            with torch.no_grad():
                layer(torch.randn(1, n, 512), cache=cache, is_causal=True)
            steps.append(partial(layer, torch.randn(1, 1, 512), cache=cache, is_causal=True))
        yield Case(f"a step of decoding, from {n:,} tokens on", "the layer without relations", *steps, backward=False)


def graphs(quick: bool) -> Iterator[Case]:
    """A graph layer, with edges that it has seen and with new ones in each call."""
    relations = 20
    for nodes, edges in ((20, 40), (192, 448), (1000, 5000)) if not quick else ((5, 9),):
        ours = rg.pyg.RelationConv(64, 16, heads=8, num_relations=relations)
        theirs = TransformerConv(64, 16, heads=8, edge_dim=relations)
        x, index = torch.randn(nodes, 64, requires_grad=True), torch.randint(nodes, (2, edges))
        types = torch.randint(relations, (edges,))
        peer = partial(theirs, x, index, one_hot(types, relations).float())
        name = f"RelationConv, {nodes:,} nodes, {edges:,} edges"
        yield Case(name, "TransformerConv", partial(ours, x, index, types), peer, forward=False)
        again = lambda ours=ours, x=x, index=index, types=types: ours(x, index.clone(), types.clone())  # noqa: E731
        yield Case(f"{name}, new in each call", "TransformerConv", again, peer, forward=False)


def kinship(quick: bool) -> Iterator[Case]:
    """Full maps on a batch of chains, whose links have one of many relations each way."""
    relations, width, chains = (40, 64, 64) if not quick else (3, 8, 2)
    sizes = torch.randint(8, 13, (chains,))
    last = torch.zeros(int(sizes.sum()), dtype=torch.bool).index_fill(0, sizes.cumsum(0) - 1, True)
    first = (~last).nonzero()[:, 0]
    index = torch.cat([torch.stack([first, first + 1]), torch.stack([first + 1, first])], 1)
    types, x = torch.randint(relations, index.shape[1:]), torch.randn(len(last), width, requires_grad=True)
    convert = rg.pyg.RelationConv
    for theirs, ours in (
        (RGATConv(width, width, relations), convert.from_rgat_conv),
        (RGCNConv(width, width, relations), convert.from_rgcn_conv),
    ):
        call = lambda conv: conv(x, index.clone(), types.clone())  # noqa: E731
        name = f"RelationConv, full maps, {chains} chains of kinship, {relations} relations, new in each call"
        yield Case(name, type(theirs).__name__, partial(call, ours(theirs)), partial(call, theirs), forward=False)


def molecules(quick: bool) -> Iterator[Case]:
    """An encoder of molecules: packed with a label for each pair, against a padded batch without labels."""
    count, width, depth = (256, 256, 6) if not quick else (3, 16, 1)
    sizes = (torch.randn(count) * 6 + 23).round().clamp(10, 40).long()
    labeler = rg.ShortestPath(8)
    labels, longest = labeler(random_graphs(sizes)), int(sizes.max())
    ours = rg.RelationEncoder(rg.RelationEncoderLayer(width, 8, 4 * width, dropout=0.0, labeler=labeler), depth)
    plain = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
    theirs = nn.TransformerEncoder(plain, depth, enable_nested_tensor=False)
    padding = torch.arange(longest) >= sizes[:, None]
    x, padded = torch.randn(int(sizes.sum()), width), torch.zeros(count, longest, width)
    padded[~padding] = x
    yield Case(
        f"an encoder, {count} molecules of 10 to 40 atoms", "TransformerEncoder, padded",
        partial(ours, x, labels=labels), lambda: theirs(padded, src_key_padding_mask=padding)[~padding], forward=False,
    )  # fmt: skip


def measured(case: Case, rounds: int) -> dict[str, object]:
    """Microseconds of ours and theirs, and the ratio with its quartiles: forward, and forward plus backward."""
    row: dict[str, object] = {"call": case.name, "compared with": case.peer}
    grad = torch.randn_like(case.ours()) if case.backward else None
    ways = {"forward": _without_gradients} if case.forward else {}
    if grad is not None:
        ways["forward + backward"] = partial(_both_ways, grad)
    for what, way in ways.items():
        calls = [partial(way, call) for call in (case.ours, case.theirs)]
        for call in calls:
            _block(call, 2)
        count = max(int(BLOCK_MS / _block(calls[0], 1)), 1)
        taken = in_turn({str(at): partial(_block, call, count) for at, call in enumerate(calls)}, rounds)
        ours, theirs = taken.values()
        row |= {
            f"{what}, µs": " / ".join(f"{quartiles(x)[1] * 1e3:,.0f}" for x in (ours, theirs)),
            f"{what}, ours / theirs": ratio(ours, theirs),
        }
    for what in ("forward", "forward + backward"):
        row.setdefault(f"{what}, µs", "–")
        row.setdefault(f"{what}, ours / theirs", "–")
    return row


def _block(call: Callable[[], Any], count: int) -> float:
    """Milliseconds of this thread for each of several calls."""
    start = time.thread_time()
    for _ in range(count):
        call()
    return (time.thread_time() - start) / count * 1e3


def _without_gradients(call: Callable[[], Tensor]) -> None:
    with torch.no_grad():
        call()


def _both_ways(grad: Tensor, call: Callable[[], Tensor]) -> None:
    call().backward(grad)


def main(given: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="docs.benchmarks.small", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="a regular expression for the names of calls")
    parser.add_argument("--quick", action="store_true", help="toy sizes; the figures mean nothing")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args(given)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows: Rows = []
    for make in (functions, layers, decoding, graphs, kinship, molecules):
        for case in make(options.quick):
            if re.search(options.only, case.name):
                rows.append(measured(case, options.rounds))
    publish(rows, path=options.json)


if __name__ == "__main__":
    main()
