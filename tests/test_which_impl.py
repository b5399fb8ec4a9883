"""The choice of an implementation, its reason, and the refusals of the others."""

from __future__ import annotations

import importlib.util
import logging
import re
import runpy
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode

import relgraph as rg
from relgraph.impl import IMPLEMENTATIONS, rule
from relgraph.impl.rule import DENSE_SCORES
from relgraph.impl.triton import limits
from tests.cases import KINDS, make

SIDE = int(DENSE_SCORES**0.5)


def ask(q_len=4, k_len=None, labels=None, batch=1, heads=1, dtype=torch.float32, **options):
    k_len = q_len if k_len is None else k_len
    query = torch.empty(batch, heads, q_len, 2, device="meta", dtype=dtype)
    key = torch.empty(batch, heads, k_len, 2, device="meta", dtype=dtype)
    return rg.which_impl(query, key, key, labels, **options)


@pytest.fixture
def no_triton(monkeypatch):
    monkeypatch.setattr(limits, "HAS_TRITON", False)


UNCOMPILED = ", and no compiled kernels can do the call, or torch compiles it"


@pytest.mark.parametrize(
    ("impl", "reason", "options"),
    [
        ("between", "B · H · N_q · N_k = 32,768 is at most 32,768 scores" + UNCOMPILED, {"q_len": 64, "k_len": 512}),
        ("between", "B · H · N_q · N_k = 32,832 is at most 262,144 scores", {"q_len": 64, "k_len": 513}),
        ("between", "B · H · N_q · N_k = 262,144 is at most 262,144 scores", {"q_len": SIDE}),
        ("large", "B · H · N_q · N_k = 262,656 is more than 262,144 scores", {"q_len": SIDE, "k_len": SIDE + 1}),
        (
            "large",
            "B · H · N_q · N_k = 2,097,152 is more than 262,144 scores",
            {"q_len": SIDE, "batch": 4, "heads": 2},
        ),
        ("one row", "there is one query row", {"q_len": 1, "k_len": 10**6}),
        ("dense", "attention weights are asked for", {"q_len": 4 * SIDE, "need_weights": True}),
    ],
)
def test_choice_and_reason(impl, reason, options, on_a_cpu):
    choice = ask(**options)
    if impl == "between":
        impl = "large" if on_a_cpu == "native" else "dense"
    if impl == "large":
        impl = on_a_cpu
        reason = reason if impl == "chunked" else "the tensors are on a CPU, and the compiled kernels can do the call"
    if impl == "one row":
        impl = "native" if on_a_cpu == "native" else "dense"
        decoding = " without gradients (a decoding step) on a CPU, and the compiled kernels can do the call"
        reason = reason if impl == "dense" else reason + decoding
    assert (choice.impl, choice.reason) == (impl, reason)
    if on_a_cpu == "chunked" and "need_weights" not in options:
        wanted = "impl='native' has no compiled kernels: RELGRAPH_NATIVE=0 turns them off; use impl='chunked'"
        assert choice.refused["native"] == wanted


def test_a_mask_that_learns(on_a_cpu):
    x = torch.zeros(1, 1, SIDE, 2)
    mask = torch.zeros(SIDE, SIDE, requires_grad=True)
    choice = rg.which_impl(x, x, x, None, attn_mask=mask)
    assert choice.impl == ("native" if on_a_cpu == "native" else "dense")
    assert {"dense", "reference", "chunked", choice.impl}.isdisjoint(choice.refused)


def test_edges_alone(on_a_cpu):
    x = torch.zeros(1, 1, 5, 2)
    choice = rg.which_impl(x, x, x, KINDS["edges only"](5))
    wanted = ("edges", "edges-only labels: EdgeLabels with default=None")
    if on_a_cpu == "native":
        wanted = ("native", "edges-only labels on a CPU, and the compiled kernels can do the call")
    assert (choice.impl, choice.reason) == wanted
    assert not {"reference", "dense", "chunked", "edges"} & set(choice.refused)
    parallel = KINDS["edges only parallel"](5)
    weights = rg.which_impl(x, x, x, parallel, need_weights=True)
    assert weights.impl == "reference"
    assert weights.reason == "attention weights are asked for, and parallel edges attend separately"
    assert set(rg.which_impl(x, x, x, parallel).refused) - {"triton", "native"} == {"dense", "chunked"}


def test_inside_export(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    choice = ask(q_len=3)
    assert choice.impl == "dense"
    assert choice.reason == "inside torch.export, whose programs then hold torch's own operators only"


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("kind", list(KINDS))
def test_refused_is_what_raises_when_asked_for(kind, need_weights):
    case = make(KINDS[kind](5))
    arguments = (*case.inputs, case.labels, *(case.tables if case.labels is not None else ()))
    choice = rg.which_impl(*arguments, need_weights=need_weights)
    assert choice.impl not in choice.refused
    for name in IMPLEMENTATIONS:
        if name in choice.refused:
            for call in (rg.which_impl, rg.relation_attention_with_aux):
                with pytest.raises(NotImplementedError, match=f"^{re.escape(choice.refused[name])}$"):
                    call(*arguments, need_weights=need_weights, impl=name)
        else:
            assert rg.which_impl(*arguments, need_weights=need_weights, impl=name).impl == name
            if name != "triton":
                rg.relation_attention_with_aux(*arguments, need_weights=need_weights, impl=name)


def test_triton_says_what_it_lacks(monkeypatch):
    monkeypatch.setattr(limits, "HAS_TRITON", False)
    assert "needs the package triton (pip install triton)" in ask().refused["triton"]
    monkeypatch.setattr(limits, "HAS_TRITON", True)
    assert "impl='triton' needs CUDA tensors" in ask().refused["triton"]
    monkeypatch.setattr(limits, "interpreted", lambda: True)
    x = torch.zeros(1, 1, 4, 2)
    assert "triton" not in rg.which_impl(x, x, x, None).refused
    double = rg.which_impl(x.double(), x.double(), x.double(), None)
    assert "takes float16, bfloat16 and float32, got torch.float64" in double.refused["triton"]
    many = torch.randint(0, 200, (4, 4))
    labels = rg.DenseLabels(many, 200)
    assert "triton" not in rg.which_impl(x, x, x, labels).refused
    assert "sums at most 127 labels" in rg.which_impl(x, x, x, labels, need_label_mass=True).refused["triton"]


def fake(length=4, dtype=torch.bfloat16):
    """Make a fake tensor of a GPU; asking for its implementation loads no kernel."""
    with FakeTensorMode():
        return torch.empty(2, 8, length, 64, device="cuda", dtype=dtype)


@pytest.fixture
def triton_there(monkeypatch):
    """Pretend that Triton is installed and asked for."""
    monkeypatch.setattr(limits, "HAS_TRITON", True)
    monkeypatch.setattr(limits, "ASKED", True)


@pytest.mark.parametrize("length", [1, 4, 1024])
def test_fake_tensors_of_a_gpu_take_the_fused_kernels(triton_there, length):
    x = fake(length)
    choice = rg.which_impl(x, x, x, rg.ClippedDistance(2)(length))
    assert choice.impl == "triton"
    assert choice.reason == (
        "the tensors are on a GPU, outside torch.export, RELGRAPH_TRITON=1 asks for the fused kernels, and they can do "
        "the call"
    )
    assert rg.which_impl(x, x, x, rg.ClippedDistance(2)(length), need_weights=True).impl == "dense"


@pytest.mark.parametrize(("length", "impl"), [(1, "dense"), (4, "dense"), (4096, "chunked")])
def test_a_gpu_takes_plain_torch_unless_the_kernels_are_asked_for(triton_there, monkeypatch, length, impl):
    monkeypatch.setattr(limits, "ASKED", False)
    x = fake(length)
    choice = rg.which_impl(x, x, x, rg.ClippedDistance(2)(length))
    assert (choice.impl, "triton" in choice.refused) == (impl, False)
    assert rg.which_impl(x, x, x, rg.ClippedDistance(2)(length), impl="triton").impl == "triton"


def test_shapes_alone_stand_for_a_cpu(triton_there, no_kernels):
    assert ask().impl == "dense"


@pytest.mark.parametrize(("switch", "asked"), [(None, False), ("0", False), ("1", True), ("yes", False)])
def test_the_switch_is_read_when_relgraph_is_imported(monkeypatch, caplog, switch, asked):
    monkeypatch.delenv("RELGRAPH_TRITON", raising=False)
    if switch is not None:
        monkeypatch.setenv("RELGRAPH_TRITON", switch)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: "triton is there")
    assert runpy.run_path(limits.__file__)["ASKED"] is asked
    assert caplog.messages == ["RELGRAPH_TRITON must be 0 or 1, got 'yes'; set RELGRAPH_TRITON"] * (switch == "yes")


def test_a_gpu_that_is_too_old(monkeypatch):
    capability = [(7, 5)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability[0])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setattr(limits, "_age", {})
    monkeypatch.setattr(limits, "HAS_TRITON", True)
    monkeypatch.setattr(limits, "ASKED", True)
    why = "needs compute capability 8.0 or newer, got 7.5 (Tesla T4)"
    old, cpu, x = torch.device("cuda", 0), torch.device("cpu"), fake()
    assert (limits.too_old(old), limits.too_old(cpu)) == (why, None)
    capability[0] = (8, 0)
    assert limits.too_old(old) == why  # asked once
    assert limits.too_old(torch.device("cuda", 1)) is None
    assert rg.which_impl(x, x, x, None).impl == "triton"  # a fake tensor stands for a GPU that is new enough
    monkeypatch.setattr(limits, "unfit", lambda tensor: limits.too_old(tensor.device))
    choice = rg.which_impl(x, x, x, None)
    assert (choice.impl, choice.refused["triton"]) == ("dense", f"impl='triton' {why}; use impl='chunked'")


def test_asking_for_kernels_without_triton_says_so(monkeypatch, caplog):
    monkeypatch.setenv("RELGRAPH_TRITON", "1")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    runpy.run_path(limits.__file__)
    wanted = "RELGRAPH_TRITON=1 has no effect without triton: pip install triton"
    assert caplog.record_tuples == [("relgraph", logging.WARNING, wanted)]


def test_it_checks_as_the_call_does():
    x = torch.zeros(1, 1, 3, 2)
    with pytest.raises(ValueError, match=r"labels must cover \[N_q, N_k\] = \[3, 3\], got \[4, 4\]"):
        rg.which_impl(x, x, x, rg.ClippedDistance(1)(4))
    with pytest.raises(NotImplementedError, match="torch.func transforms .* need impl='reference' or 'dense'"):
        torch.vmap(lambda one: rg.which_impl(one, one, one, None) and one)(x[None])


def test_what_is_printed(no_triton, no_kernels):
    assert str(ask(q_len=3)) == (
        f"impl='dense': B · H · N_q · N_k = 9 is at most 32,768 scores{UNCOMPILED}\n"
        "able too: reference, chunked\n"
        "refused: impl='edges' attends only over listed pairs and needs EdgeLabels with default=None; use impl='chunked'\n"
        "refused: impl='native' has no compiled kernels: RELGRAPH_NATIVE=0 turns them off; use impl='chunked'\n"
        "refused: impl='triton' needs the package triton (pip install triton); use impl='chunked'"
    )


def test_the_documented_table_is_the_rule():
    page = Path(rg.__file__).parent.parent / "docs" / "learn" / "implementations.md"
    after = page.read_text().split("| `impl=None` takes | when |")[1]
    rows = re.findall(r"^\| `(\w+)` \| ", after.split("\n\n")[0], re.MULTILINE)
    assert rows == [row.impl for row in rule.RULES.values()]
