"""Bytes that processes really send, beside the model.

``relgraph.distributed.count_bytes`` counts what relgraph hands over to torch.distributed. What torch sends by itself
(DDP, FSDP2, the sums of a layer whose heads are split) is not counted: it depends on the backend's algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

import relgraph as rg
import relgraph.distributed as several
from docs.benchmarks.processes import model
from docs.benchmarks.processes.model import Sequences
from docs.benchmarks.processes.worlds import run_world

ROWS, SIZE, LABELS = 24, 8, 5
"""Rows of each process, numbers of each head, rows of a table."""


class Count(NamedTuple):
    """What was counted on one process, and what the model says.

    Attributes:
        what: the part, and its inputs.
        counted: bytes.
        model: bytes.
    """

    what: str
    counted: float
    model: float

    @property
    def ratio(self) -> float:
        """Counted bytes over those of the model."""
        return self.counted / self.model


class Case(NamedTuple):
    """One call of attention in a region.

    Attributes:
        name: of its labels and options.
        labels: makes the labels of so many rows.
        heads: of queries, for each process.
        kv_heads: of keys, for each process.
        is_causal: whether rows see only keys up to their own; rows are dealt out by head and tail then.
        dtype: of inputs and tables.
    """

    name: str
    labels: Callable[[int], rg.Labels]
    heads: int = 1
    kv_heads: int = 1
    is_causal: bool = False
    dtype: torch.dtype = torch.float32


def _edges(n: int) -> tuple[Tensor, Tensor]:
    """Four incoming edges for each row, and their labels."""
    target = torch.arange(n).repeat_interleave(4)
    source = (target * 7 + torch.arange(4 * n) % 4 * 5) % n
    edges = torch.unique(torch.stack([source, target]), dim=1)
    return edges, torch.arange(edges.shape[1]) % LABELS


def _distance(n: int) -> rg.Labels:
    return rg.ClippedDistance(LABELS // 2)(n)


def _packed(n: int) -> rg.Labels:
    return rg.DistanceLabels(n, lookup=range(LABELS), left=2, ptr=torch.tensor([0, n // 3, n]))


CASES = (
    Case("distance", _distance),
    Case("distance, causal", _distance, is_causal=True),
    Case("distance, bfloat16", _distance, dtype=torch.bfloat16),
    Case("distance, two query heads to a key head", _distance, heads=2),
    Case("written out", lambda n: rg.DenseLabels(torch.arange(n * n).view(n, n) % LABELS, LABELS)),
    Case("edges alone", lambda n: rg.EdgeLabels(*_edges(n), LABELS, q_len=n)),
    Case("edges over distance", lambda n: rg.EdgeLabels(*_edges(n), LABELS, q_len=n, default=_distance(n))),
    Case("a sum", lambda n: rg.SumLabels(_distance(n), rg.EdgeLabels(*_edges(n), LABELS, q_len=n, default=0))),
    Case("distance, packed", _packed),
)


def count(processes: int) -> list[Count]:
    """Everything that is counted in a world of so many processes; of its processes the one that is farthest off."""
    per_process = run_world(processes, _all_counts)
    return [max(rows, key=lambda row: abs(row.ratio - 1)) for rows in zip(*per_process, strict=True)]


def _all_counts(mesh: DeviceMesh) -> list[Count]:
    found = [row for case in CASES for method in model.METHODS for row in _context(mesh, case, method)]
    return [*found, *_halo(mesh)]


def _context(mesh: DeviceMesh, case: Case, method: str) -> Iterator[Count]:
    """One call within a region."""
    size = mesh.size()
    n, heads, kv_heads = ROWS * size, case.heads * size, case.kv_heads * size
    labels = case.labels(n)
    rows, batch = (ROWS, 1) if labels.packed else (ROWS, 2)

    def learned(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=case.dtype).requires_grad_()

    def inputs(count: int) -> Tensor:
        return learned(rows, count, SIZE) if labels.packed else learned(batch, count, rows, SIZE)

    sums = isinstance(labels.num_labels, tuple)
    sizes = labels.num_labels if sums else (labels.num_labels,)
    tables: list[Any] = [tuple(learned(labels_of, SIZE) for labels_of in sizes) for _ in range(2)]
    if not sums:
        tables = [table for (table,) in tables]
    query, key, value = inputs(heads), inputs(kv_heads), inputs(kv_heads)
    layout = "head-tail" if case.is_causal else "even"
    with several.context_parallel(mesh, method=method, layout=layout):  # pyright: ignore[reportArgumentType]
        with several.count_bytes() as forward:
            output = rg.relation_attention(
                query, key, value, labels, *tables, is_causal=case.is_causal, enable_gqa=heads != kv_heads
            )
        with several.count_bytes() as backward:
            output.sum().backward()
    work = Sequences(
        n, batch, heads, kv_heads, SIZE, LABELS, itemsize=case.dtype.itemsize
    )  # fmt: skip
    wanted = model.context_bytes(method, work, size)
    yield Count(f"{method}, {case.name}: forward", sum(forward.values()), wanted.forward)
    yield Count(f"{method}, {case.name}: backward", sum(backward.values()), wanted.backward)


def _halo(mesh: DeviceMesh) -> Iterator[Count]:
    """A graph whose nodes are split."""
    size, width = mesh.size(), 16
    nodes, count = 24_000, 96_000
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(nodes, (2, count), generator=generator)
    layout = several.Layout.even(nodes, size)
    with several.count_bytes() as setup:
        part = several.NodePartition.cut(mesh, layout, edges)
    x = torch.randn(part.num_own, width).requires_grad_()
    with several.count_bytes() as forward:
        sources = part.with_halo(x)
    with several.count_bytes() as backward:
        sources.sum().backward()
    sent, back = (model.halo_bytes(rows, width, 4) for rows in (part.num_sent, part.num_halo))
    at_random = model.halo_bytes(model.random_halo(nodes, count, size), width, 4)
    yield Count("nodes: set up, by its halo", setup["all_to_all"], model.setup_bytes(part.num_halo, size))
    yield Count("nodes: forward, by its rows sent", forward["all_to_all"], sent.forward)
    yield Count("nodes: backward, by its halo", backward["all_to_all"], back.backward)
    yield Count("nodes: forward, halo estimated", forward["all_to_all"], at_random.forward)
    yield Count("nodes: backward, halo estimated", backward["all_to_all"], at_random.backward)
