"""Tests the command for host time: stubs launch nothing, operators are counted, and kernels are back afterwards."""

from __future__ import annotations

import json

import pytest
import torch

from docs.benchmarks import host

attention_kernels = pytest.importorskip("relgraph.impl.triton.attention_kernels", reason="triton is not installed")


@pytest.fixture
def _threads():
    count = torch.get_num_threads()
    yield
    torch.set_num_threads(count)


@pytest.mark.usefixtures("_threads")
def test_the_command_prints_and_keeps_a_row_per_way(monkeypatch, capsys, tmp_path):
    """The ways without FlexAttention, which takes long to compile."""
    monkeypatch.setattr(host, "theirs", lambda dtype: [])
    path = tmp_path / "rows.json"
    host.main(["--quick", "--json", str(path)])
    rows = json.loads(path.read_text())["rows"]
    assert len(rows) == 6
    assert "| relgraph, by distance, key and value tables |" in capsys.readouterr().out
    for row in rows:
        assert row["forward: operators, launching, kernels"].endswith(", 1")
        kernels = 2 if "edges only" in str(row["way"]) else 3
        assert row["backward: operators, launching, kernels"].endswith(f", {kernels}")


def test_operators_that_launch_are_counted_once():
    """A product is one launch, including the operators that it calls; a view is none."""
    x = torch.randn(4, 4, requires_grad=True)
    way = host.Way("a product", lambda: (x.T @ x).float(), [x])
    forward, backward = host.operators(way, torch.ones(4, 4))
    assert (forward.launched, forward.kernels) == (1, 0)
    assert backward.launched == 3  # two products and their sum


def test_few_operators_surround_the_kernels():
    """The counts do not depend on the machine: operators that launch in forward and backward of one call."""
    most = {"by distance": (8, 16), "written out": (12, 22), "edges only": (8, 16)}
    with host.stubbed():
        for way in host.ours(torch.bfloat16):
            if "key and value tables" in way.name:
                grad = torch.ones_like(way.call())
                host.operators(way, grad)  # the first call with these labels makes their tile maps
                found = host.operators(way, grad)
                bounds = next(bound for kind, bound in most.items() if kind in way.name)
                assert all(count.launched <= bound for count, bound in zip(found, bounds, strict=True)), way.name
