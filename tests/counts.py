"""Count what a dozen calls do, for :mod:`tests.test_counts`, which compares it with the counts that the repository keeps.

    python -m tests.counts            # a table, with the kept counts of these versions
    python -m tests.counts --json     # what was counted
    python -m tests.counts --write    # keep what was counted for these versions

Counts do not depend on the speed or the load of a machine, as times do. They show work that comes back around small calls.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import relgraph as rg

FILE = Path(__file__).with_suffix(".json")
WHAT = ("Python calls", "operators", "allocations", "peak bytes")
WARM = 4


def versions() -> str:
    """The versions on which counts depend."""
    python = ".".join(platform.python_version_tuple()[:2])
    return f"Python {python}, torch {'.'.join(torch.__version__.split('.')[:2])}"


def counts(call: Callable[[], Any]) -> dict[str, int]:
    """What one call does after some others: functions of Python, operators of torch, tensors, the most bytes at once."""
    for _ in range(WARM):
        call()
    gc.collect()
    gc.disable()
    try:
        calls = _python_calls(call)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            call()
    finally:
        gc.enable()
    events = seen.profiler.kineto_results.events()
    sizes = [event.nbytes() for event in events if event.name() == "[memory]"]
    now = peak = 0
    for size in sizes:
        now += size
        peak = max(peak, now)
    operators = sum(event.name().startswith("aten::") for event in events)
    return dict(zip(WHAT, (calls, operators, sum(size > 0 for size in sizes), peak), strict=True))


def _python_calls(call: Callable[[], Any]) -> int:
    found = 0

    def note(_: Any, event: str, __: Any) -> None:
        nonlocal found
        found += event == "call"

    sys.setprofile(note)
    call()
    sys.setprofile(None)
    return found - 1  # that of ``call``


def _both_ways(module: Callable[[], torch.Tensor]) -> Callable[[], None]:
    return lambda: module().sum().backward()


def made() -> dict[str, Callable[[], Any]]:
    """The calls by name; sizes are small, because there the work around a kernel counts."""
    torch.manual_seed(0)
    near, heads, size = rg.ClippedDistance(4), 4, 16
    x = torch.randn(1, 16, heads * size)
    query = torch.randn(1, heads, 16, size, requires_grad=True)
    table, labels = torch.randn(9, size, requires_grad=True), near(16)
    edge_index = torch.stack([torch.arange(40) % 20, torch.arange(40) * 7 % 20])
    edge_type, nodes = torch.arange(40) % 5, torch.randn(20, heads * size)
    edges = rg.EdgeLabels(edge_index, edge_type, 5, q_len=20)
    layer, conv = (
        rg.RelationAttention(heads * size, heads, labeler=near),
        rg.pyg.RelationConv(64, 16, 4, num_relations=5),
    )
    encoder = rg.RelationEncoderLayer(heads * size, heads, 64, dropout=0.0, labeler=near)
    vectors = torch.randn(20, heads, size)

    def function(impl: str | None = None, **options: Any) -> torch.Tensor:
        return rg.relation_attention(query, query, query, labels, table, table, impl=impl, **options)

    def without(call: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            with torch.no_grad():
                return call()

        return run

    def step() -> None:
        cache = rg.KVCache(32)
        layer(x[:, :8], cache=cache, is_causal=True)
        layer(x[:, 8:9], cache=cache, is_causal=True)

    calls = {
        "function, no gradients": without(function),
        "function, both ways": _both_ways(function),
        "function, a key mask, no gradients": without(lambda: function(attn_mask=torch.ones(16, dtype=torch.bool))),
        "function, dense, both ways": _both_ways(lambda: function("dense")),
        "function, chunked, both ways": _both_ways(lambda: function("chunked")),
        "layer, labels given, no gradients": without(lambda: layer(x, labels=labels)),
        "layer, own labeler": lambda: layer(x),
        "layer, both ways": _both_ways(lambda: layer(x)),
        "layer, a prompt and one more token": without(step),
        "encoder layer, both ways": _both_ways(lambda: encoder(x)),
        "edge_attention, both ways": _both_ways(lambda: rg.edge_attention(vectors, vectors, vectors, edges, table[:5])),
        "RelationConv, edge_index, both ways": _both_ways(lambda: conv(nodes, edge_index, edge_type)),
        "RelationConv, labels, both ways": _both_ways(lambda: conv(nodes, edges)),
    }
    return calls


def main() -> None:
    """Count, and print or keep the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="keep what was counted for these versions")
    parser.add_argument("--json", action="store_true", help="print what was counted as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    found = {name: counts(call) for name, call in made().items()}
    if options.json:
        print(json.dumps(found))
        return
    for name, row in found.items():
        before = kept.get(versions(), {}).get(name, {})
        print(f"{name:40}", "  ".join(f"{what}: {n} ({before.get(what, '-')})" for what, n in row.items()))
    if options.write:
        kept[versions()] = found
        FILE.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
