"""Sizes of zero: every kind of labels, every implementation, empty results and zero gradients."""

from __future__ import annotations

import pytest
import torch

import relgraph as rg
from relgraph.labels import DenseLabels, EdgeLabels, SumLabels
from tests.cases import F64, KINDS, distance, edges

NO_ROWS = DenseLabels(torch.zeros(0, 6, 6, dtype=torch.long), 3)
FEW = edges(6, count=3)[:2]
EMPTY = (torch.zeros(2, 0, dtype=torch.long), torch.zeros(0, dtype=torch.long))
LABELS = {
    "none": None,
    "distance": distance(6),
    "dense": NO_ROWS,
    "sum": KINDS["sum"](6),
    "sum with a part of no rows": SumLabels(distance(6), NO_ROWS),
    "edges, few for so many labels": EdgeLabels(*FEW, 300, q_len=6),
    "edges of no rows": EdgeLabels(*EMPTY, 3, q_len=6, batch=EMPTY[1], batch_size=0),
    "edges over dense": EdgeLabels(*FEW, 3, q_len=6, default=DenseLabels(torch.zeros(6, 6, dtype=torch.long), 3)),
    "edges over dense of no rows": EdgeLabels(*FEW, 3, q_len=6, default=NO_ROWS),
}

PAIRS = [(kind, impl) for kind in LABELS for impl in ("reference", "dense", "chunked", None)]
PAIRS += [(kind, "native") for kind in LABELS]
PAIRS += [(kind, "edges") for kind in LABELS if kind.startswith(("edges, few", "edges of"))]


def tables(labels):
    def table(*shape):
        return torch.randn(shape, requires_grad=True)

    if labels is None:
        return [None] * 4
    if isinstance(labels, SumLabels):
        sizes = labels.num_labels
        return [*(tuple(table(r, 4) for r in sizes) for _ in range(3)), tuple(table(r) for r in sizes)]
    return [*(table(labels.num_labels, 4) for _ in range(3)), table(labels.num_labels)]


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"dropout_p": 0.5}], ids=["", "causal", "dropout"])
@pytest.mark.parametrize(("kind", "impl"), PAIRS)
def test_no_rows(kind, impl, options):
    labels = LABELS[kind]
    x, learned = torch.randn(0, 2, 6, 4, requires_grad=True), tables(labels)
    z, aux = rg.relation_attention_with_aux(
        x, x, x, labels, *learned, impl=impl, need_lse=True, need_label_mass=labels is not None, **options
    )
    masses = () if labels is None else aux.label_mass if isinstance(labels, SumLabels) else (aux.label_mass,)
    assert z.shape == (0, 2, 6, 4)
    assert aux.lse.shape == (0, 2, 6)
    assert [m.shape[:3] for m in masses] == [(0, 2, 6)] * len(masses)
    z.sum().backward()
    assert x.grad.shape == x.shape
    for table in learned:
        for part in table if isinstance(table, tuple) else (table,):
            assert part is None or (part.grad == 0).all()


@pytest.mark.parametrize("labels", [v for v in LABELS.values() if v is not None and v.batch_size == 0], ids=repr)
def test_labels_of_no_rows(labels):
    assert labels.rows(1, 3).batch_size == labels.cols(1, 3).batch_size == 0
    assert labels.to("cpu") == labels
    parts = labels.parts if isinstance(labels, SumLabels) else (labels,)
    assert 0 in [part.to_dense()[0].shape[0] for part in parts]
    for combine in (rg.labels.product, rg.labels.first_of, rg.labels.restrict):
        for part in parts:
            if part.batch_size == 0:
                assert combine(distance(6), part).batch_size == combine(part, distance(6)).batch_size == 0


SIZES = {"B": 1, "H": 2, "N_q": 100, "N_k": 520, "D": 4, "D_v": 6, "P": 300}
"""Enough rows and keys for every layout of the compiled kernels."""


def of_sizes(kind, q_len, k_len, pairs):
    index = torch.stack([torch.arange(pairs) % max(k_len, 1), torch.arange(pairs) % max(q_len, 1)])
    index, ids = index[:, : q_len * k_len * pairs], torch.arange(pairs)[: q_len * k_len * pairs] % 3
    if kind == "distance":
        return distance(q_len, k_len, reach=1, q_offset=0)
    if kind == "dense":
        return DenseLabels(torch.randint(0, 3, (q_len, k_len)), 3)
    return EdgeLabels(index, ids, 3, q_len=q_len, k_len=k_len, default=2 if kind == "over" else None)


def answer(impl, labels, dtype, sizes):
    """Output, log-sum-exp, mass and all gradients, in float64."""
    torch.manual_seed(0)
    rows, (size, value_size) = (sizes["B"], sizes["H"]), (sizes["D"], sizes["D_v"])
    shapes = [(*rows, sizes["N_q"], size), (*rows, sizes["N_k"], size), (*rows, sizes["N_k"], value_size)]
    shapes += [(3, size), (3, value_size), (3, size), (3,)]
    leaves = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]
    z, aux = rg.relation_attention_with_aux(
        *leaves[:3], labels, *leaves[3:], impl=impl, need_lse=True, need_label_mass=True
    )
    total = z.double().cos().sum() + aux.label_mass.double().square().sum()
    return [x.detach().double() for x in (z, aux.lse, aux.label_mass, *torch.autograd.grad(total, leaves))]


ROUGH = {F64: 1e-10, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}


@pytest.mark.parametrize("dtype", ROUGH, ids=str)
@pytest.mark.parametrize("none", [("B",), ("H",), ("N_q",), ("N_k",), ("D",), ("D_v",), ("P",), ("D", "D_v")], ids=str)
def test_sizes_of_zero(none, dtype):
    sizes = {name: 0 if name in none else size for name, size in SIZES.items()}
    for kind in ("distance", "dense", "over", "edges"):
        labels = of_sizes(kind, sizes["N_q"], sizes["N_k"], sizes["P"])
        wanted = answer("reference", labels, dtype, sizes)
        for impl in ("dense", "chunked", "native", *(["edges"] if kind == "edges" else [])):
            found = answer(impl, labels, dtype, sizes)
            for one, other in zip(found, wanted, strict=True):
                scale = float(other.nan_to_num(neginf=0.0).abs().max()) if other.numel() else 1.0
                torch.testing.assert_close(one, other, rtol=0.0, atol=ROUGH[dtype] * max(scale, 1.0))
