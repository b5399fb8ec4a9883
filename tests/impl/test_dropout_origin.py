"""Dropout is drawn by position in the whole problem: a part of it draws the same, in every pass of every kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import relgraph as rg
from relgraph.impl import IMPLEMENTATIONS
from relgraph.impl.native import build
from relgraph.impl.rule import refusal
from tests.cases import call_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(params=["reference", "dense", "chunked", "edges", "native", "triton"])
def impl(request):
    """An implementation, where it is at hand."""
    if request.param == "triton":
        pytest.importorskip("triton", reason="triton is not installed")
    elif request.param == "native" and build.missing() is not None:
        pytest.skip(f"no compiled kernels: {build.missing()}")
    return request.param


def solve(impl, inputs, labels, keep=None, origin=(0, 0, 0, 0)):
    """The output under dropout of one half, drawn with the same seed or given."""
    biases = None if labels is None else inputs[0].new_zeros(labels.num_labels)
    call = call_of(*inputs, labels, dropout_p=0.5, bias_table=biases)
    assert refusal(call, impl) is None
    seed = torch.tensor(3, device=call.query.device)
    return IMPLEMENTATIONS[impl](replace(call, keep=keep, dropout_seed=seed, dropout_origin=origin)).output


def kept(impl, batch, heads, queries, keys, labels=None, origin=(0, 0, 0, 0)):
    """What multiplies each weight, 0 or 2: with zeros as queries and a unit vector as each value, the output shows it."""
    device = "cpu" if impl == "native" else DEVICE
    query, key = (torch.zeros(batch, heads, n, 8, device=device) for n in (queries, keys))
    value = torch.eye(keys, device=device).expand(batch, heads, -1, -1)
    labels = labels if labels is None else labels.to(device)
    return (solve(impl, (query, key, value), labels, origin=origin) * keys).round().cpu()


def all_pairs_listed(queries, keys):
    pairs = torch.cartesian_prod(torch.arange(keys), torch.arange(queries)).T
    return rg.EdgeLabels(pairs, torch.zeros(keys * queries, dtype=torch.long), 1, q_len=queries, k_len=keys)


@pytest.mark.parametrize(("edges_only", "begin"), [(False, 5), (False, 8), (True, 5)])
def test_a_part_draws_the_dropout_of_the_whole(edges_only, begin, impl):
    if impl == "edges" and not edges_only:
        pytest.skip("edges alone")

    def drawn(*sizes, origin=(0, 0, 0, 0)):
        return kept(impl, *sizes, all_pairs_listed(*sizes[2:]) if edges_only else None, origin=origin)

    whole = drawn(2, 3, 4, 40)
    part = drawn(1, 2, 2, 30, origin=(1, 1, 2, begin))
    assert torch.equal(part, whole[1:, 1:, 2:, begin : begin + 30])
    assert not torch.equal(part, whole[:1, :2, :2, :30])
    assert 0.8 < whole.mean() < 1.2


def test_both_engines_draw_the_same_over_listed_pairs():
    pytest.importorskip("triton", reason="triton is not installed")
    if build.missing() is not None:
        pytest.skip(f"no compiled kernels: {build.missing()}")
    labels = all_pairs_listed(3, 20)
    assert torch.equal(kept("native", 2, 2, 3, 20, labels), kept("triton", 2, 2, 3, 20, labels))


def test_parallel_edges_draw_each_its_own():
    pytest.importorskip("triton", reason="triton is not installed")
    twice = torch.zeros(2, 30, dtype=torch.long)
    twice[1] = torch.arange(15).repeat_interleave(2)
    labels = rg.EdgeLabels(twice, torch.zeros(30, dtype=torch.long), 1, q_len=15, k_len=1)
    query, key, value = (torch.zeros(1, 1, n, 8, device=DEVICE) for n in (15, 1, 1))
    output = solve("triton", (query, key, value + 1), labels.to(DEVICE))
    assert {0.0, 1.0, 2.0} == set(output.flatten().tolist())  # none, one or both of two halves, times two
