"""Long tables by distance in impl="triton": blocks of query rows that read slices, in Triton's interpreter or a GPU."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

import relgraph as rg
from relgraph.impl import IMPLEMENTATIONS
from relgraph.impl.problem import Problem
from relgraph.impl.triton import row_blocks
from relgraph.labels import DistanceLabels
from relgraph.plan import lower
from relgraph.score import Softcap
from tests.budget import twins
from tests.cases import F64, KINDS, call_of, distance, make, moved, raw
from tests.impl import test_triton
from tests.impl.test_native_slices import ENDS
from tests.impl.test_triton import DEVICE, check

pytestmark = pytest.mark.cuda
small_tiles = test_triton._small_tiles
LABELS = {
    "every distance": lambda n: distance(n, reach=n - 1),
    "causal": lambda n: DistanceLabels(n, lookup=[*range(n), -2], left=n - 1),
    "shared": lambda n: DistanceLabels(n, lookup=[x // 3 for x in range(2 * n - 1)], left=n - 1),
    "a window in the middle": lambda n: DistanceLabels(n, lookup=[-2, -1, *range(n // 2), -2, 3, -2], left=n // 3),
    "fewer keys": lambda n: distance(n, n - 21, reach=n - 1, q_offset=-3),
    "all on the left": lambda n: distance(n, n // 2, q_offset=5 * n),
    "all on the right": lambda n: distance(n, q_offset=-5 * n),
    **{kind: KINDS[kind] for kind in ("distance cross", "distance window", "distance one-sided")},
    **ENDS,
}


@pytest.fixture
def cut(monkeypatch):
    """Blocks of 16 query rows; a list with their number and the columns of each."""
    monkeypatch.setattr(row_blocks, "LONG_TABLE", -1)
    monkeypatch.setattr(row_blocks, "LEAST", 16)
    monkeypatch.setattr(row_blocks, "NUMBERS", 0)
    seen, blocks = [], row_blocks.blocks

    def watched(*args):
        for block in blocks(*args):
            seen.append(block.problem.columns)
            yield block

    monkeypatch.setattr(row_blocks, "blocks", watched)
    return seen


@pytest.mark.parametrize("kind", LABELS)
def test_each_end_of_the_distances(kind, cut):
    labels = LABELS[kind](41)
    check(*twins(labels, n=41, heads=1, kv_heads=1, batch=1, kinds="kb", size=5, value_size=6), mass=False)
    assert len(cut) == 6  # three blocks in forward, three in backward
    assert max(cut) <= labels.k_len - 1 + 16 + 2


@pytest.mark.parametrize(("kind", "which"), [("every distance", 1), ("shared", 0), ("no label, and no attention", 0)])
def test_every_option(kind, which, cut):
    """Causal, dropout by a given mask, an added mask, a function of scores, tables per head."""
    options, mask, keep = (
        ({"per_head": "k", "kinds": "k", "is_causal": True, "dropout_p": 0.25}, (2, 1, 1, 33), (2, 2, 33, 33)),
        ({"per_head": "kb", "kinds": "kb", "score": Softcap(1.5), "scale": -1.0}, (1, 2, 33, 33), None),
    )[which]
    exact, low = twins(LABELS[kind](33), n=33, kv_heads=1, **options, attn_mask=torch.randn(mask, dtype=F64))
    low.options["attn_mask"] = exact.options["attn_mask"].float()
    check(exact, low, keep=None if keep is None else (torch.rand(keep) > 0.25).to(F64), mass=False)
    assert len(cut) == 6  # three blocks, in both directions


@pytest.mark.parametrize(("origin", "mask"), [((0, 0, 0, 0), (1, 2, 20, 20)), ((1, 2, 3, 4), (1, 1, 1, 20))])
def test_drawn_dropout_and_masks_that_learn_are_those_of_the_whole(origin, mask, cut, monkeypatch):
    case, found = moved(make(LABELS["causal"](20), kv_heads=1, batch=1, kinds="kb", dtype=torch.float32), DEVICE), []
    mask = torch.randn(mask, device=DEVICE).requires_grad_()
    call = call_of(*case.inputs, case.labels, *case.tables, enable_gqa=True, attn_mask=mask, dropout_p=0.25)
    call = replace(call, dropout_seed=torch.tensor(77, device=DEVICE), dropout_origin=origin)
    for numbers in (0, 0, 1 << 30):
        monkeypatch.setattr(row_blocks, "NUMBERS", numbers)
        answer = IMPLEMENTATIONS["triton"](call)
        total = answer.output.square().sum() + answer.lse.sum()
        found.append([answer.output, answer.lse, *torch.autograd.grad(total, [*case.leaves, mask])])
    assert len(cut) == 8
    for one, again, whole in zip(*found, strict=True):
        assert torch.equal(one, again)  # nothing is added in an order of its own
        torch.testing.assert_close(one, whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_add_up_in_float32(dtype, cut):
    """The second and the third block add half a unit in the last place each, which a sum of this dtype would lose."""
    half, labels = torch.finfo(dtype).eps / 2, distance(48, 16, reach=47).to(DEVICE)
    query, key, value = (torch.zeros(1, 1, n, 16, dtype=dtype, device=DEVICE) for n in (48, 16, 16))
    bias = torch.zeros(labels.num_labels, dtype=dtype, device=DEVICE)
    output = rg.relation_attention(query, key, value.requires_grad_(), labels, bias_table=bias, impl="triton")
    incoming = torch.full_like(output, half)
    incoming[:, :, :16] = 1
    assert (torch.autograd.grad(output, value, incoming)[0] == 1 + 2 * half).all()
    assert len(cut) == 6


def test_what_is_not_cut(cut):
    """What has numbers for every label in any case, and distances that only the device knows."""
    for kind, kinds, batched in (
        ("every distance", "kv", ""),
        ("every distance", "kq", ""),
        ("every distance", "k", "k"),
        ("distance packed", "k", ""),
        ("distance per row", "k", ""),
        ("dense", "k", ""),
    ):
        labels = (KINDS | LABELS)[kind](33)
        case = make(labels, n=33, heads=1, kv_heads=1, kinds=kinds, batched=batched, dtype=torch.float32)
        raw(moved(case, DEVICE), "triton", mass=False)
    assert cut == []


@pytest.mark.parametrize(
    ("lanes", "n", "reach", "rows"),
    [
        (8, 1500, 1499, None),  # little is computed at once
        (8, 4096, 4095, 2432),
        (128, 1500, 1499, 512),
        (8, 45_000, 44_999, 256),
        (8, 45_000, 100, None),
        (64, 45_000, 200, 5120),
        (512, 45_000, 44_999, 128),  # no fewer rows, even if they have more numbers
    ],
)
def test_blocks_are_as_large_as_memory_allows(lanes, n, reach, rows):
    plan, columns = lower(distance(n, reach=reach)), 2 * reach + 1
    query, table = torch.empty(1, lanes, n, 1, device="meta"), torch.empty(columns, 1, device="meta")
    given = {"query": query, "label_keys": table, "plan": plan, "columns": columns}
    problem = Problem(**{**dict.fromkeys(field.name for field in fields(Problem)), **given})
    assert row_blocks.rows_of_block(problem) == rows
    if rows is not None and rows > row_blocks.LEAST:
        assert lanes * rows * min(columns, n + rows) <= row_blocks.NUMBERS
