"""Functions of torch that another build of it may lack: calls without them are slower, never wrong."""

from __future__ import annotations

import pytest
import torch

import relgraph as rg
from relgraph import __main__ as report
from relgraph.impl.native import build, found

NAMES = {
    "gemm of float32": found.GEMM[4],
    "gemm of float64": found.GEMM[8],
    "blocked": (found.BLOCKED,),
    "blocked_half": (found.BLOCKED_HALF,),
    "release": (found.RELEASE,),
    "parallel": (found.PARALLEL,),
}


@pytest.fixture
def two_threads(threads):
    threads(2)


def solve(leaves, dtype, labels, impl):
    """Output and gradients."""
    leaves = [x.to(dtype).requires_grad_() for x in leaves]
    query, key, value, *tables = leaves
    output = rg.relation_attention(query, key, value, labels, *tables, impl=impl)
    return [output.detach(), *torch.autograd.grad(output.square().sum(), leaves)]


@pytest.mark.skipif(build.missing() is not None, reason=f"no compiled kernels: {build.missing()}")
@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("hidden", NAMES)
def test_a_function_that_torch_lacks(hidden, monkeypatch):
    address = found._address
    monkeypatch.setattr(
        found, "_address", lambda libraries, *names: None if names == NAMES[hidden] else address(libraries, *names)
    )
    monkeypatch.setattr(build, "_known", None)
    lines = report.kernels_as_json()
    if hidden.startswith("gemm"):
        assert lines["why"] == "this build of torch has no BLAS that can be called"
    else:
        assert report.LOST[hidden] in lines["without"]
        if hidden == "release":
            assert lines["found"]["blocked_half"] is False  # the matrix unit would stay set up for its last product
    pairs = torch.randint(70, (2, 200)).unique(dim=1)
    edges = rg.EdgeLabels(pairs, pairs[0] % 3, 3, q_len=70)
    for labels in (rg.ClippedDistance(3)(70), edges):
        rows = labels.num_labels
        leaves = [torch.randn(2, 2, 70, 16, dtype=torch.float64) for _ in range(3)]
        leaves += [torch.randn(rows, 16, dtype=torch.float64) for _ in range(2)]
        for dtype, bound in ((torch.float64, 1e-11), (torch.float32, 1e-4), (torch.bfloat16, 0.1)):
            rounded = [x.to(dtype).double() for x in leaves]
            wanted = solve(rounded, torch.float64, labels, "reference")
            for mine, theirs in zip(solve(rounded, dtype, labels, None), wanted, strict=True):
                assert (mine.double() - theirs).abs().max() <= bound * (1.0 + theirs.abs().max())
