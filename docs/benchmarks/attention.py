"""Speed and memory of attention with labels against fused attention without, as ratios within one process.

    python docs/benchmarks/attention.py table    # forward and backward at three lengths, in float32 and bfloat16
    python docs/benchmarks/attention.py memory   # peak extra memory against n, one fresh process per figure
    python docs/benchmarks/attention.py decode   # one token against a cache of 4,096
    python docs/benchmarks/attention.py scores   # other scores and maps of values against the dot product
    python docs/benchmarks/attention.py positions # Transformer-XL's positions, a table with a row for each distance

``--impl`` names the implementations; ``None`` lets relgraph choose, which is the default for users.

Ways run in turn, round after round, so that a machine that slows down slows all of them. Ratios are taken within a
round; the output has their median and quartiles. Use a quiet machine: other work on the same cores distorts the
figures.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

# when run as a file, it imports its neighbours from the root of the repository
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import relgraph as rg
from docs.benchmarks.about import command
from docs.benchmarks.measure import Rows, fresh_peak, in_turn, peak_mib, report, rounds
from relgraph.impl import IMPLEMENTATIONS
from relgraph.score import ACTIVATIONS

CLIP = 16
LABELS = 32


def named(impl: str) -> str | None:
    """The implementation of this name on the command line."""
    return None if impl == "None" else impl


def leaves(batch: int, heads: int, length: int, size: int, dtype: str = "float32") -> list[Tensor]:
    """Query, key and value, which require gradients."""
    kind = getattr(torch, dtype)
    return [torch.randn(batch, heads, length, size, dtype=kind, requires_grad=True) for _ in range(3)]


def ways(q: Tensor, k: Tensor, v: Tensor, impls: Sequence[str]) -> dict[str, Callable[[], Tensor]]:
    """Every way to attend, with the floor first."""
    length, size = q.shape[2], q.shape[3]
    clipped = rg.ClippedDistance(CLIP)
    written = rg.DenseLabels(torch.randint(0, LABELS, (length, length)), LABELS)
    tables = {count: [torch.randn(count, size, dtype=q.dtype, requires_grad=True) for _ in range(2)]
              for count in (clipped.num_labels, LABELS)}  # fmt: skip

    def by_distance(impl: str | None) -> Tensor:
        return rg.relation_attention(q, k, v, clipped(length), *tables[clipped.num_labels], impl=impl)

    def arbitrary(impl: str | None) -> Tensor:
        return rg.relation_attention(q, k, v, written, *tables[LABELS], impl=impl)

    def plain(impl: str | None) -> Tensor:
        return rg.relation_attention(q, k, v, None, impl=impl)

    kinds = {"no labels": plain, f"ClippedDistance({CLIP})": by_distance, f"{LABELS} arbitrary labels": arbitrary}
    return {"sdpa, no labels": lambda: scaled_dot_product_attention(q, k, v)} | {
        f"{name}, {what}": partial(way, named(name)) for name in impls for what, way in kinds.items()
    }


WORK = {"float32": ((1, 8, 2048), (8, 8, 512), (32, 8, 128)), "bfloat16": ((1, 8, 2048), (32, 8, 128))}
"""Batch, heads and length of each part of the table, by dtype."""


def table(arguments: argparse.Namespace) -> Rows:
    """Long, medium and short sequences in float32, long and short ones in bfloat16."""
    found: Rows = []
    for dtype, works in WORK.items():
        for batch, heads, length in works:
            q, k, v = leaves(batch, heads, length, 64, dtype)
            work = f"{dtype}, n={length} b{batch} h{heads} d64"
            found += [{"work": work, **row} for row in report(rounds(ways(q, k, v, arguments.impl), arguments.rounds))]
    return found


@torch.no_grad()
def decode(arguments: argparse.Namespace) -> Rows:
    """One new token against a cache, for the layer with relations and the same layer without."""
    token, past = torch.randn(1, 1, 512), torch.randn(1, arguments.cache, 512)

    def step(layer: rg.RelationAttention, labeler: rg.ClippedDistance | None, many: int = 20) -> tuple[float, float]:
        cache = rg.KVCache()
        labels = labeler(arguments.cache) if labeler else None
        layer(past, labels=labels, cache=cache, is_causal=True)
        start = time.perf_counter()
        for _ in range(many):
            one = labeler(1, len(cache) + 1, q_offset=len(cache)) if labeler else None
            layer(token, labels=one, cache=cache, is_causal=True)
        return (time.perf_counter() - start) / many * 1e3, 1.0

    plain = rg.RelationAttention(512, 8, tables=()).eval()
    labeled = rg.RelationAttention(512, 8, labeler=(labeler := rg.ClippedDistance(CLIP))).eval()
    steps = {"layer, no relations": partial(step, plain, None)}
    steps[f"layer, ClippedDistance({CLIP})"] = partial(step, labeled, labeler)
    rows = report(in_turn(steps, arguments.rounds))
    return [{key: value for key, value in row.items() if "backward" not in key} for row in rows]


FEW_LABELS = 9


def scores(arguments: argparse.Namespace) -> Rows:
    """Scores other than the dot product and maps of values, with both tables, in multiples of the dot product."""
    heads, size, length, impl = 8, 16, arguments.length, named(arguments.impl[0])
    q, k, v = leaves(1, heads, length, size)
    tables = [torch.randn(FEW_LABELS, size, requires_grad=True) for _ in range(2)]
    identities = torch.eye(size).repeat(heads, FEW_LABELS, 1, 1)
    options: dict[str, dict[str, object]] = {
        "dot product": {},
        "Bilinear": {"score": rg.score.Bilinear(identities.clone().requires_grad_())},
        "value_map": {"value_map": identities.clone().requires_grad_()},
        **{
            f"Additive, {name}": {"score": rg.score.Additive(torch.randn(heads, size, requires_grad=True), name)}
            for name in ACTIVATIONS
        },
    }
    kinds = {
        "distances": rg.ClippedDistance(FEW_LABELS // 2)(length),
        "written out": rg.DenseLabels(torch.randint(0, FEW_LABELS, (length, length)), FEW_LABELS),
    }
    found: Rows = []
    for kind, labels in kinds.items():
        made = {
            name: partial(rg.relation_attention, q, k, v, labels, *tables, impl=impl, **more)
            for name, more in options.items()
        }
        found += [{"labels": kind, **row} for row in report(rounds(made, arguments.rounds))]
    return found


POSITIONS = (4, 512), (1, 1500), (1, 2048)


def positions(arguments: argparse.Namespace) -> Rows:
    """Transformer-XL's attention, 8 x 128, whose table has 2n - 1 rows per head, against a mask made of its scores."""
    found: Rows = []
    for batch, length in POSITIONS:
        q, k, v = leaves(batch, 8, length, 128)
        table = torch.randn(8, 2 * length - 1, 128, requires_grad=True)
        content, position = (torch.randn(8, 128, requires_grad=True) for _ in range(2))

        def by_mask(q=q, k=k, v=v, u=content, w=position, table=table) -> Tensor:
            scores = (q + w[:, None]) @ table.mT / q.shape[-1] ** 0.5
            batch, heads, n, many = scores.shape
            shifted = torch.nn.functional.pad(scores, (1, 0)).view(batch, heads, many + 1, n)[:, :, 1:]
            return scaled_dot_product_attention(q + u[:, None], k, v, shifted.reshape(scores.shape)[..., :n])

        made: dict[str, Callable[[], Tensor]] = {"sdpa, positions as a mask": by_mask}
        made["sdpa, no labels"] = partial(scaled_dot_product_attention, q, k, v)
        labels = rg.ClippedDistance(length - 1)(length)
        for name in arguments.impl:
            made[f"{name}, a table of {2 * length - 1} rows"] = partial(
                rg.relation_attention, q, k, v, labels, table, content_bias=content, position_bias=position,
                impl=named(name),
            )  # fmt: skip
        work = f"n={length} b{batch} h8 d128"
        found += [{"work": work, **row} for row in report(rounds(made, arguments.rounds))]
    return found


def memory(arguments: argparse.Namespace) -> Rows:
    """Peak memory above the inputs, forward and backward: the median of five fresh processes."""
    rows: Rows = []
    for kind in ("distance", "written"):
        taken = []
        for length in (4096, 8192):
            command = "docs.benchmarks.attention", "peak", "--length", str(length), "--kind", kind
            peaks = [fresh_peak(*command, "--impl", arguments.impl[0]) for _ in range(5)]
            taken.append(statistics.median(peak for peak in peaks if peak is not None))
        growth = round(taken[1] / taken[0], 2)
        rows.append({"labels": kind, "n=4096 MiB": taken[0], "n=8192 MiB": taken[1], "growth": growth})
    return rows


def peak(arguments: argparse.Namespace) -> None:
    """Print the peak extra MiB of one forward and backward."""
    length, impl = arguments.length, named(arguments.impl[0])
    q, k, v = leaves(1, 8, length, 64)
    if arguments.kind == "distance":
        labels = rg.ClippedDistance(CLIP)(length)
    else:
        labels = rg.DenseLabels(torch.randint(0, LABELS, (length, length), dtype=torch.int8), LABELS)
    tables = [torch.randn(labels.num_labels, 64, requires_grad=True) for _ in range(2)]
    tiny = slice(0, 8)
    rg.relation_attention(q[:, :, tiny], k[:, :, tiny], v[:, :, tiny], None, impl=impl).sum().backward()
    for x in (q, k, v):
        x.grad = None
    grad = torch.ones_like(q)
    print(round(peak_mib(lambda: rg.relation_attention(q, k, v, labels, *tables, impl=impl).backward(grad)), 1))


MEASURES = {
    "table": table, "memory": memory, "decode": decode, "scores": scores, "positions": positions,
}  # fmt: skip


def main(given: Sequence[str] | None = None) -> None:
    """Parse the arguments, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    impls = [*IMPLEMENTATIONS, "None"]
    parser.add_argument("--impl", nargs="+", choices=impls, default=["None"], help="implementations; None picks one")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--length", type=int, default=2048, help="peak and scores: number of tokens")
    parser.add_argument("--cache", type=int, default=4096, help="decode: tokens in the cache")
    parser.add_argument(
        "--kind",
        choices=["distance", "written"],
        default="distance",
        help="peak: kind of labels",
    )
    command(parser, {**MEASURES, "peak": peak}, given)


if __name__ == "__main__":
    main()
