"""What only a GPU can show: the rule, streams, recorded graphs, compiled calls, waits and launches.

All of it is skipped without a GPU. There Triton's interpreter runs the kernels in the other files marked ``cuda``.
"""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import relgraph as rg

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

DEVICE = "cuda"
KINDS = ("distance", "dense", "edges over a default", "edges alone", "packed")
ALLOWED = {torch.float32: 2e-5, torch.bfloat16: 5e-2}


@pytest.fixture(autouse=True)
def _nothing_compiled():
    yield
    torch.compiler.reset()


def labels_of(kind, length):
    """Labels with five ids; packed ones are of graphs of 16 tokens."""
    pairs = torch.randint(length, (2, 8 * length)).unique(dim=1)
    ids = torch.randint(5, pairs.shape[1:])
    if kind == "distance":
        made = rg.ClippedDistance(2)(length)
    elif kind == "dense":
        made = rg.DenseLabels(torch.randint(5, (length, length)), 5)
    elif kind == "packed":
        made = rg.ClippedDistance(2)(length, ptr=torch.arange(0, length + 1, 16))
    else:
        made = rg.EdgeLabels(pairs, ids, 5, q_len=length, default=4 if kind == "edges over a default" else None)
    return made.to(DEVICE)


def inputs_of(labels, dtype=torch.float32, batch=2, heads=2, size=64):
    """Query, key, value, and tables of keys, values, queries and biases, as leaves."""
    rows = (labels.q_len, heads, size) if labels.packed else (batch, heads, labels.q_len, size)
    shapes = [rows] * 3 + [(5, size)] * 3 + [(5,)]
    return [torch.randn(shape, device=DEVICE, dtype=dtype, requires_grad=True) for shape in shapes]


def attend(inputs, labels, **options):
    return rg.relation_attention(*inputs[:3], labels, *inputs[3:], **options)


def solve(inputs, labels, **options):
    """The output, and the gradients of its sum of squares."""
    output = attend(inputs, labels, **options)
    return [output.detach(), *torch.autograd.grad(output.square().sum(), inputs)]


def assert_near(got, wanted, allowed):
    for mine, theirs in zip(got, wanted, strict=True):
        mine, theirs = mine.double().cpu(), theirs.double().cpu()
        assert (mine - theirs).abs().max() <= allowed * theirs.abs().max()


def reference(inputs, labels):
    doubles = [x.detach().double().cpu().requires_grad_() for x in inputs]
    return solve(doubles, labels.to("cpu"), impl="reference")


@pytest.mark.parametrize("dtype", ALLOWED)
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_that_are_asked_for_are_right(kind, dtype):
    labels = labels_of(kind, 160)
    inputs = inputs_of(labels, dtype)
    assert rg.which_impl(*inputs[:3], labels, *inputs[3:]).impl != "triton"
    assert_near(solve(inputs, labels, impl="triton"), reference(inputs, labels), ALLOWED[dtype])


@pytest.mark.parametrize("kind", KINDS)
def test_another_stream(kind):
    labels = labels_of(kind, 160)
    inputs = inputs_of(labels)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = solve(inputs, labels)
    torch.cuda.current_stream().wait_stream(stream)
    assert_near(found, reference(inputs, labels), ALLOWED[torch.float32])


@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_graph_computes_anew(kind):
    labels = labels_of(kind, 160)
    inputs = inputs_of(labels)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            solve(inputs, labels)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = solve(inputs, labels)
    with torch.no_grad():
        for x in inputs:
            x.copy_(torch.randn_like(x))
    graph.replay()
    assert_near(found, reference(inputs, labels), ALLOWED[torch.float32])


@pytest.mark.parametrize("kind", ["distance", "edges alone"])
def test_compiled_with_lengths_that_change(kind):
    compiled = torch.compile(lambda *x: attend(x[:-1], x[-1]), fullgraph=True, dynamic=True)
    for length in (96, 160, 224):
        labels = labels_of(kind, length)
        inputs = inputs_of(labels)
        output = compiled(*inputs, labels)
        found = [output.detach(), *torch.autograd.grad(output.square().sum(), inputs)]
        assert_near(found, reference(inputs, labels), ALLOWED[torch.float32])


@pytest.mark.parametrize("kind", ["distance", "edges alone"])
def test_compiled_into_recorded_graphs(kind):
    labels = labels_of(kind, 160)
    compiled = torch.compile(lambda *x: attend(x, labels), fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        inputs = inputs_of(labels)
        output = compiled(*inputs)
        found = [output.detach().clone(), *torch.autograd.grad(output.square().sum(), inputs)]
        assert_near(found, reference(inputs, labels), ALLOWED[torch.float32])


@pytest.mark.parametrize("impl", ["triton", "chunked"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_waits_for_the_gpu(kind, impl):
    if (kind, impl) == ("edges alone", "chunked"):
        impl = "edges"
    labels = labels_of(kind, 160)
    inputs = inputs_of(labels)
    solve(inputs, labels, impl=impl)  # labels are lowered, kernels are compiled
    torch.cuda.set_sync_debug_mode("error")
    try:
        solve(inputs, labels, impl=impl)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def launches(work):
    """How many kernels and copies the GPU runs for this."""
    work()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        work()
        torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in found.events())


@pytest.mark.parametrize("impl", ["triton", "chunked"])
@pytest.mark.parametrize("kind", ["distance", "dense", "edges over a default", "packed"])
def test_launches(kind, impl):
    """At batch 4, 8 heads, length 2,048; packed: 256 graphs."""
    length = 4096 if kind == "packed" else 2048
    labels = labels_of(kind, length)
    inputs = inputs_of(labels, batch=4, heads=8)
    with torch.no_grad():
        assert 0 < launches(lambda: attend(inputs, labels, impl=impl)) <= 60
    output = attend(inputs, labels, impl=impl)
    there = torch.ones_like(output)
    assert 0 < launches(lambda: torch.autograd.grad(output, inputs, there, retain_graph=True)) <= 200
