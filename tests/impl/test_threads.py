"""The same bits from run to run with two threads; with another number of them the same but for rounding."""

from __future__ import annotations

import pytest
import torch

import relgraph as rg

pytestmark = pytest.mark.usefixtures("threads")
N = 261
"""Long enough that torch shares the work on scores out among threads, and no multiple of a vector's width."""


def distance():
    return rg.ClippedDistance(16)(N)


def dense():
    return rg.DenseLabels(torch.randint(-1, 33, (N, N)), 33)


def over():
    index, ids = torch.randint(0, N, (2, 4 * N)), torch.randint(0, 33, (4 * N,))
    return rg.EdgeLabels(index, ids, 33, q_len=N, default=distance(), duplicates="sum")


def packed():
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), torch.randint(1, 60, (16,)).cumsum(0)])
    return rg.BlockLabels(torch.randint(0, 33, (int((ptr.diff() ** 2).sum()),)), 33, ptr)


def edges():
    index = torch.randint(0, 600, (2, 9000))
    return rg.EdgeLabels(index, torch.randint(0, 33, (9000,)), 33, q_len=600)


def few():
    index = torch.randint(0, 60, (2, 200))
    return rg.EdgeLabels(index, torch.randint(0, 33, (200,)), 33, q_len=60, default=32, duplicates="sum")


CASES = [
    ("chunked", distance),
    ("chunked", dense),
    ("chunked", over),
    ("chunked", packed),
    ("native", distance),
    ("native", dense),
    ("native", over),
    ("native", packed),
    ("dense", over),
    ("edges", edges),
    ("native", edges),
]


def run(labels, impl, threads):
    """Outputs and all gradients, by name."""
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    shape = (labels.q_len, 2, 32) if labels.packed else (1, 2, labels.q_len, 32)
    shapes = {"query": shape, "key": shape, "value": shape}
    shapes |= dict.fromkeys(("key_table", "value_table", "query_table"), (33, 32)) | {"bias_table": (2, 33)}
    leaves = {name: torch.randn(size, requires_grad=True) for name, size in shapes.items()}
    z, aux = rg.relation_attention_with_aux(
        labels=labels, **leaves, impl=impl, dropout_p=0.1, need_label_mass=True, need_lse=True
    )
    outputs = {"z": z, "mass": aux.label_mass, "lse": aux.lse}
    incoming = [torch.randn(x.shape) for x in outputs.values()]
    grads = torch.autograd.grad(list(outputs.values()), list(leaves.values()), incoming)
    outputs = {name: x.detach() for name, x in outputs.items()}
    return {**outputs, **{f"gradient of {name}": grad for name, grad in zip(leaves, grads, strict=True)}}


@pytest.mark.parametrize(("impl", "kind"), CASES, ids=[f"{impl}-{kind.__name__}" for impl, kind in CASES])
def test_the_same_bits_each_time_and_with_one_thread_the_same_but_for_rounding(impl, kind):
    labels = kind()
    one, first, second = (run(labels, impl, threads) for threads in (1, 2, 2))
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
    # sums over all rows and heads are added in another order: the error grows as the root of their number
    most = 2 * torch.finfo(torch.float32).eps * (2 * labels.q_len) ** 0.5
    if impl == "native":
        by_row = "z", "mass", "lse", "gradient of query"
        assert [name for name in by_row if not torch.equal(one[name], first[name])] == []
    for name in one:
        assert float((one[name] - first[name]).abs().max()) <= most * float(one[name].abs().max()), name


def test_the_reference_gives_the_same_bits_each_time_where_torch_is_told_to():
    labels = few()
    torch.use_deterministic_algorithms(True)
    try:
        first, second = run(labels, "reference", 2), run(labels, "reference", 2)
    finally:
        torch.use_deterministic_algorithms(False)
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
