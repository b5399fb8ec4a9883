"""Memory that processes really take for one training call, beyond what they hold idle, beside one process.

Each process makes the rows that it holds and no others, attends forward and backward, and reads the highest memory
that the system has seen of it (VmHWM), less what it held before. So inputs, gradients and all that comes in between
count. One process is a process of its own, without a region. What is loaded or built at the first call is no part of
it: a small call by the same method comes first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

import relgraph as rg
from docs.benchmarks.measure import MIB, forget_peak, highest, resident
from docs.benchmarks.processes.model import METHODS
from docs.benchmarks.processes.worlds import PROMPT, run_world

SMALL = 512
"""Rows of the first call; more than 2¹⁸ scores, so that the same implementation answers it."""


class Setting(NamedTuple):
    """One call: attention with distance labels, key and value tables.

    Attributes:
        n: rows of the whole.
        heads: of queries, keys and values.
        size: numbers of each head.
        clip: distances are clipped to it.
        is_causal: whether rows see only keys up to their own.
        impl: the implementation, or None for the rule.
    """

    n: int = 16_384
    heads: int = 8
    size: int = 64
    clip: int = 16
    is_causal: bool = False
    impl: str | None = None


def growths(setting: Setting, processes: int, method: str | None) -> list[float]:
    """MiB by which each process grew; ``method`` None is one call without a region."""
    return run_world(processes, _growth, setting, method, environment=PROMPT)


def measured(setting: Setting, processes: int) -> Iterator[dict[str, object]]:
    """A row for one process, and for each method one with the growth of the process that grew most."""
    one = growths(setting, 1, None)[0]
    yield _row(setting, "one process", 1, one, one)
    for method in METHODS:
        yield _row(setting, method, processes, max(growths(setting, processes, method)), one)


def _row(setting: Setting, name: str, processes: int, most: float, one: float) -> dict[str, object]:
    return {
        "mode": name, "processes": processes, "n": setting.n, "impl": setting.impl, "MiB": round(most),
        "× one process": round(most / one, 3),
    }  # fmt: skip


def _growth(mesh: DeviceMesh, setting: Setting, method: str | None) -> float:
    _call(mesh, setting._replace(n=SMALL * mesh.size()), method)
    held = resident()
    forget_peak()
    _call(mesh, setting, method)
    return highest() - held


def _call(mesh: DeviceMesh, setting: Setting, method: str | None) -> None:
    """Forward and backward of the rows of this process, on inputs made here."""
    import relgraph.distributed as several

    rows = setting.n // mesh.size()
    query, key, value = (_learned(1, setting.heads, rows, setting.size) for _ in range(3))
    labels = rg.ClippedDistance(setting.clip)(setting.n)
    tables = [_learned(labels.num_labels, setting.size) for _ in range(2)]
    grad = torch.randn(1, setting.heads, rows, setting.size)
    layout = "head-tail" if setting.is_causal else "even"
    region: Any = contextlib.nullcontext()
    if method is not None:
        region = several.context_parallel(mesh, method=method, layout=layout)
    with region:
        output = rg.relation_attention(
            query, key, value, labels, *tables, is_causal=setting.is_causal, impl=setting.impl
        )
        output.backward(grad)


def _learned(*shape: int) -> Tensor:
    return torch.randn(shape).requires_grad_()


def bytes_of_an_edge(edges: int) -> float:
    """Bytes by which a process grows for each further edge: its ends and label, what is sorted, and one training call.

    Two sizes of a graph with the same few nodes are compared, so that nodes do not count.
    """
    few, many = (run_world(1, _edge_growth, count, environment=PROMPT)[0] for count in (edges, 3 * edges))
    return (many - few) * MIB / (2 * edges)


def _edge_growth(mesh: DeviceMesh, edges: int) -> float:
    _edge_call(mesh, 1000)
    held = resident()
    forget_peak()
    _edge_call(mesh, edges)
    return highest() - held


def _edge_call(mesh: DeviceMesh, edges: int) -> None:
    """Forward and backward over random edges among 1,000 nodes, with 32 relations, 4 heads of 32."""
    import relgraph.distributed as several

    index = torch.randint(1000, (2, edges))
    partition = several.NodePartition(mesh, several.Layout.even(1000, 1), index)
    labels = partition.labels(torch.randint(32, (edges,)), 32)
    query, key, value = (_learned(1000, 4, 32) for _ in range(3))
    tables = [_learned(32, 32) for _ in range(2)]
    rg.edge_attention(query, partition.with_halo(key), partition.with_halo(value), labels, *tables).sum().backward()
