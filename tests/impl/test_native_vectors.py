"""Vectors of listed pairs over all pairs in compiled kernels: every way in which they divide and compute a problem."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import relgraph as rg
from relgraph.impl.native import build
from relgraph.impl.native.check import check_tensors
from relgraph.score import Activation
from tests.cases import F64
from tests.counts import counts
from tests.impl.test_native import problem_of, run_both

pytestmark = pytest.mark.skipif(build.missing() is not None, reason="no compiled kernels")
B, H, F = 2, 4, 3


def edges(n: int, default=1, **options) -> rg.EdgeLabels:
    generator = torch.Generator().manual_seed(3)
    pairs = torch.randperm(n * n, generator=generator)[: 4 * n]
    ids = torch.randint(-1, 3, pairs.shape, generator=generator)
    return rg.EdgeLabels(torch.stack([pairs % n, pairs // n]), ids, 3, q_len=n, default=default, **options)


def own_edges(n: int) -> rg.EdgeLabels:
    """Each batch row has edges of its own."""
    one = edges(n)
    batch = torch.arange(len(one.ids)) % B
    return rg.EdgeLabels(one.edge_index, one.ids, 3, q_len=n, default=-1, batch=batch, batch_size=B)


def inputs(labels: rg.EdgeLabels, dtype=F64, d: int = 8) -> dict[str, Tensor]:
    shapes = {
        "query": (B, H, labels.q_len, d), "key": (B, 2, labels.q_len, d), "value": (B, 2, labels.q_len, d),
        "key_table": (3, d), "value_table": (H, 3, d), "bias_table": (3,), "edge_attr": (len(labels.ids), F),
        "edge_key": (H, d, F), "edge_value": (d, F),
    }  # fmt: skip
    return {name: torch.randn(shape, dtype=F64).to(dtype).requires_grad_() for name, shape in shapes.items()}


def answers(labels, given, impl, **options) -> list[Tensor]:
    """Output, log-sum-exp, mass and all gradients."""
    torch.manual_seed(5)
    z, aux = rg.relation_attention_with_aux(
        labels=labels, **given, **options, enable_gqa=True, impl=impl, need_lse=True, need_label_mass=True
    )
    weights = torch.linspace(-1, 1, z.numel(), dtype=z.dtype).view_as(z)
    seen = aux.lse.masked_fill(aux.lse == float("-inf"), 0.0)
    total = (z * weights).sum() + seen.sin().sum() + aux.label_mass.square().sum()
    learned = [*given.values(), *(x for x in options.values() if isinstance(x, Tensor) and x.requires_grad)]
    return [z, aux.lse, aux.label_mass, *torch.autograd.grad(total, learned)]


def compare(labels, given, **options) -> None:
    got, wanted = (answers(labels, given, impl, **options) for impl in ("native", "reference"))
    torch.testing.assert_close(got, wanted, atol=1e-11, rtol=0.0)


MASK = torch.randn(H, 20, 20, dtype=F64, requires_grad=True)
OPTIONS = {
    "causal": {"is_causal": True, "q_offset": -3},  # so that some rows see nothing
    "a mask that learns": {"attn_mask": MASK},
    "softcap": {"score": rg.score.Softcap(2.0)},
    "bilinear": {"score": rg.score.Bilinear(torch.randn(3, 8, 8, dtype=F64))},
    "maps of values": {"value_map": torch.randn(3, 8, 8, dtype=F64, requires_grad=True)},
    "gates": {"key_gate": torch.randn(3, 8, dtype=F64, requires_grad=True)},
}


@pytest.mark.parametrize("make", [edges, own_edges])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_with_every_option(options, make):
    torch.manual_seed(0)
    compare(make(20), inputs(make(20)), **options)


def test_activations_take_vectors_in_the_value():
    labels = edges(20)
    given = {name: x for name, x in inputs(labels).items() if name != "edge_key"}
    compare(labels, given, score=rg.score.Additive(torch.randn(H, 8, dtype=F64), "tanh"))


@pytest.mark.parametrize("make", [edges, own_edges])
def test_threads_and_splits(make, threads):
    """Blocks of one head on several threads give the same bits in each run."""
    torch.manual_seed(0)
    labels = make(150)
    given, found = inputs(labels), []
    for count in (1, 2, 5):
        threads(count)
        found.append(answers(labels, given, "native"))
        assert all(map(torch.equal, found[-1], answers(labels, given, "native")))
    for many in found[1:]:
        torch.testing.assert_close(many, found[0], atol=1e-12, rtol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("short_panels")
def test_panels_and_half_types(dtype):
    """Many keys and queries, which kernels multiply by panels, in bfloat16 where the processor can."""
    n = 150
    labels, eps = edges(n, rg.ClippedDistance(1)(n)), torch.finfo(dtype).eps
    torch.manual_seed(0)
    given = inputs(labels, dtype, 16)
    exact = answers(labels, {name: x.detach().to(F64).requires_grad_() for name, x in given.items()}, "dense")
    found = zip(exact, answers(labels, given, "native"), answers(labels, given, "reference"), strict=True)
    for truth, ours, theirs in found:
        error, allowed = ((x.double() - truth).norm() for x in (ours, theirs))
        assert error <= 2 * allowed + 16 * eps * truth.norm()


def test_dropout_has_the_gradient_of_its_mask_and_second_derivatives():
    labels = edges(6)
    given = inputs(labels, d=2)

    def call(*tensors):
        torch.manual_seed(0)
        named = dict(zip(given, tensors, strict=True))
        return rg.relation_attention(labels=labels, **named, enable_gqa=True, dropout_p=0.3, impl="native")

    assert torch.autograd.gradcheck(call, tuple(given.values()), fast_mode=True)
    assert torch.autograd.gradgradcheck(call, tuple(given.values()), fast_mode=True)


def test_no_edges_give_zeros():
    labels = rg.EdgeLabels(
        torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), 3, q_len=5, default=0
    )
    compare(labels, inputs(labels))


def test_what_does_not_fit_never_reaches_the_kernels():
    labels = edges(8)
    count, good = len(labels.ids), problem_of(labels)
    vectors, queries = torch.randn(count, F, dtype=F64), torch.randn(1, 2, 8, F, dtype=F64)
    good = replace(good, vectors=vectors, vector_queries=queries, vectors_in_value=True, vectors_gradient=True)
    run_both(good)
    additive = {"score": Activation("tanh"), "score_weights": torch.ones(3, dtype=F64)}
    for changes, message in (
        ({"vectors": vectors[1:]}, "vectors must have shape"),
        ({"vectors": vectors.float()}, "vectors must be torch.float64"),
        ({"vector_queries": queries[..., 1:]}, "vector_queries must have shape"),
        ({"vectors": None}, "vectors must be given with vector_queries or in the value"),
        ({"vectors_in_score": True}, "vectors in the score must be given by vector_queries"),
        (additive, "vectors in the score must be given by vector_queries, and not with score_weights"),
    ):
        with pytest.raises(ValueError, match=message):
            check_tensors(replace(good, **changes))
    with pytest.raises(ValueError, match="vectors must be of listed pairs of the only part"):
        check_tensors(replace(problem_of(rg.ClippedDistance(2)(8)), vectors=vectors))


def test_memory_grows_with_edges_and_not_with_pairs():
    """Beyond a call without vectors: the vectors in order, and two numbers per edge and head."""
    n, d = 700, 8
    labels = edges(n)
    given = {name: x.detach().float().requires_grad_() for name, x in inputs(labels, d=d).items()}
    plain = {name: x for name, x in given.items() if not name.startswith("edge")}

    def step(tensors):
        rg.relation_attention(labels=labels, **tensors, enable_gqa=True, impl="native").sum().backward()

    peaks = [counts(lambda tensors=tensors: step(tensors))["peak bytes"] for tensors in (plain, given)]
    count = len(labels.ids)
    most = 4 * (3 * count * F + 2 * B * H * count + 8 * B * H * n * (d + F))
    assert peaks[1] - peaks[0] < most < 4 * n * count / 3
