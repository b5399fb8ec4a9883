"""Tests the counts of launches and waits, and the limits that a GPU's blocks must keep."""

from __future__ import annotations

import json

import pytest
import torch

from docs.benchmarks import launches
from relgraph.impl import budget

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
    case, _ = launches._sequences(name, "chunked", 4, 256)
    monkeypatch.setattr(budget, "CPU_BYTES", budget.DEVICE_BYTES // 64)
    forward, backward = launches.counted(case)
    assert forward.launches <= FORWARD
    assert backward.launches <= BACKWARD
    assert forward.waits == backward.waits <= (8 if name == "edges over a default" else 0)


def test_the_command(capsys):
    assert launches.main(["--quick", "--only", "packed blocks"]) == 0
    table = capsys.readouterr().out
    assert table.count("packed blocks") == 2
    assert launches.main(["--quick", "--only", "packed blocks", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["labels"] for row in rows] == ["packed blocks"] * 2
    assert budget.CPU_BYTES == 0
