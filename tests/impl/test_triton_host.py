"""The host's part of impl="triton": by the ops and without them, no waiting, no unbounded caches, compiled and captured."""

from __future__ import annotations

import pytest
import torch

from relgraph.impl import op
from tests.budget import assert_within_budget, twins
from tests.cases import KINDS, answer, moved

launch = pytest.importorskip("relgraph.impl.triton.launch", reason="triton is not installed")
Tiling = pytest.importorskip("relgraph.impl.triton.tiling", reason="triton is not installed").Tiling

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """Tiles of 16 by 16 pairs, so that short inputs have tiles of all sorts."""
    monkeypatch.setattr(launch, "tiling", lambda *_, **__: Tiling(16, 16, 4, 1))


# ---- by the ops, as compiled code calls them ----


@pytest.mark.parametrize("kind", ["distance", "distance window", "dense batch", "edges only", "sum", "none"])
@pytest.mark.parametrize("options", [{"per_head": "kvqb"}, {"kinds": "v"}, {"dropout_p": 0.4}], ids=str)
def test_the_ops_give_what_direct_calls_give(kind, options, monkeypatch):
    """Every output and gradient, to the bit."""
    labels = KINDS[kind](19)
    _, case = twins(labels, n=19, heads=2, kv_heads=1, batch=1, **options)
    found = []
    for direct in (True, False):
        if not direct:
            monkeypatch.setattr(op, "unwatched", lambda _: False)
        torch.manual_seed(2)
        found.append(answer(moved(case, DEVICE), "triton"))
    for one, two in zip(*found, strict=True):
        assert all(map(torch.equal, one, two))


@pytest.mark.parametrize("per_head", ["", "kqvb"])
@pytest.mark.parametrize("kind", ["distance", "distance window", "dense", "edges only", "sum"])
def test_tables_in_other_company(kind, per_head):
    """Biases without keys, tables of queries alone, shared key heads: what plain torch adds before and after kernels."""
    for kinds in ("b", "q", "v", "qv", "kb"):
        exact, low = twins(KINDS[kind](18), kinds=kinds, per_head=per_head, heads=4, kv_heads=2, batch=1)
        assert_within_budget([(exact, low)], lambda low: answer(moved(low, DEVICE), "triton"), ulps=8, roundings=4)
