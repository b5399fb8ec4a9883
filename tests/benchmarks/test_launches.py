"""Tests the counts of launches and waits, and the limits that a GPU's blocks must keep."""

from __future__ import annotations

import pytest
import torch

import relgraph as rg
from docs.benchmarks import launches
from relgraph.impl import budget
from relgraph.labels import memory
from tests.stubs import Stub, labels_of, stubbed

FORWARD, BACKWARD = 220, 350
"""The most launches for b4 h8 n2048, with key and value tables."""


def test_what_counts_as_a_launch_and_what_as_a_wait():
    x, at = torch.arange(6.0), torch.tensor([1, 2])
    with launches.counting() as operators:
        y = (x + 1).view(2, 3).transpose(0, 1)
        torch.empty_like(y)
    assert operators.counts() == (1, 0)
    with launches.counting() as operators:
        x[at].sum()
        torch.nn.functional.pad(x, (0, 1))
    assert operators.counts() == (4, 0)


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: float(x.sum()),
        lambda x: x[x > 2],
        lambda x: torch.tensor([1.0, 2.0]),
        lambda x: x.index_put_((x > 2,), x.new_zeros(())),
        lambda x: x.repeat_interleave(torch.ones_like(x, dtype=torch.int64)),
    ],
)
def test_what_the_host_waits_for(wait):
    with launches.counting() as operators:
        wait(torch.arange(6.0))
    assert operators.counts().waits > 0


@pytest.mark.parametrize("name", launches.SEQUENCES)
def test_sequences_keep_the_bounds(name, monkeypatch):
    """An eighth of the length of b4 h8 n2048 with a 64th of the budget gives the same number of blocks."""
    monkeypatch.setattr(budget, "CPU_BYTES", budget.DEVICE_BYTES // 64)
    forward, backward = launches.counted(launches.SEQUENCES[name](256), "chunked", 4, 256)
    assert forward.launches <= FORWARD
    assert backward.launches <= BACKWARD
    assert forward.waits == backward.waits <= (8 if name == "edges over a default" else 0)


@pytest.mark.parametrize(
    ("kind", "most"), [("by distance", (8, 16)), ("written out", (12, 22)), ("edges only", (8, 16))]
)
def test_few_operators_surround_the_kernels_of_triton(kind, most, monkeypatch):
    pytest.importorskip("relgraph.impl.triton.attention_kernels", reason="triton is not installed")
    monkeypatch.setattr(memory, "_get_current_dispatch_mode", lambda: None)
    labels = labels_of(32)[kind]
    q, k, v = (torch.randn(1, 2, 32, 16, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    tables = [torch.randn(17, 16, dtype=torch.bfloat16, requires_grad=True) for _ in range(2)]
    with stubbed():
        for _ in range(2):  # the first call with these labels makes their tile maps
            before = Stub.launches
            with launches.counting() as forward:
                output = rg.relation_attention(q, k, v, labels, *tables, impl="triton")
            between = Stub.launches
            with launches.counting() as backward:
                torch.autograd.grad(output, [q, k, v, *tables], torch.ones_like(output))
        assert (between - before, Stub.launches - between) == (1, 2 if kind == "edges only" else 3)
    assert (forward.counts().launches, backward.counts().launches) <= most
    assert backward.counts().launches <= most[1]
