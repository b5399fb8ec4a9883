"""The operator of exported programs that run without Python: its values and what it refuses; tests/test_export.py runs it."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.export import export

import relgraph as rg
from relgraph import __main__ as report
from relgraph.impl.native import exported
from relgraph.impl.native.compiler import UnavailableError
from tests.cases import F64, KINDS, call_of, distance, make

TAKEN = {
    "distance", "distance wide", "distance window", "distance one-sided", "distance uniform", "distance nowhere",
    "distance cross", "distance before", "dense", "dense batch",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def file():
    """The file, which this process has loaded."""
    try:
        made = exported.compile_exported()
    except UnavailableError as error:
        pytest.skip(f"the file for exported programs is not compiled: {error}")
    torch.ops.load_library(str(made))
    return made


@pytest.fixture
def two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def compare(case):
    """The operator's output and log-sum-exp in float32 are as near to the reference in float64 as those of dense."""

    def call(dtype):
        arguments = [None if x is None else x.detach().float().to(dtype) for x in (*case.inputs, *case.tables)]
        options = {
            name: x.to(dtype) if name == "attn_mask" and x.is_floating_point() else x
            for name, x in case.options.items()
        }
        labels, (query, key, value, *tables) = case.labels, arguments
        return call_of(query, key, value, labels, *tables, **options)

    assert exported.refusal(call(torch.float32)) is None
    wanted = rg.impl.IMPLEMENTATIONS["reference"](call(F64))
    dense, mine = (attend(call(torch.float32)) for attend in (rg.impl.IMPLEMENTATIONS["dense"], exported.attend))
    for name in ("output", "lse"):
        exact, near, got = (getattr(answer, name) for answer in (wanted, dense, mine))
        finite = exact.isfinite()
        assert got.shape == exact.shape and got.dtype == torch.float32
        assert torch.equal(got[~finite].double(), exact[~finite])
        error, allowed = ((x.double() - exact)[finite].abs() for x in (got, near))
        if error.numel():
            assert error.max() <= 2 * allowed.max() + 1e-6


@pytest.mark.parametrize("kinds", ["kvb", "b", ""])
@pytest.mark.parametrize("kind", sorted(TAKEN))
def test_kinds_of_labels(kind, kinds):
    for n in (0, 1, 2, 63, 111):
        compare(make(KINDS[kind](n), kinds=kinds, per_head="vb" if n == 63 else "k"))


@pytest.mark.parametrize(
    "options", [{"attn_mask": "bool"}, {"attn_mask": "added"}, {"is_causal": True}, {"kv_heads": 1}]
)
def test_options(options):
    masks = {"bool": torch.rand(2, 1, 1, 70) > 0.3, "added": torch.randn(1, 2, 70, 70)}
    options = {name: masks[x] if name == "attn_mask" else x for name, x in options.items()}
    compare(make(distance(70), kinds="kvb", **options))
    compare(make(None, n=70, kinds="", **options))


def test_causal_rows_after_others():
    compare(make(distance(5, 70, q_offset=65), kinds="kv", is_causal=True, q_offset=65))


MANY = rg.DenseLabels(torch.arange(130 * 130).view(130, 130) % 700, 700)


@pytest.mark.parametrize(
    ("labels", "size"), [(distance(600), 5), (distance(150, reach=80), 16), (distance(100), 400), (MANY, 8)]
)
def test_panels_long_tables_and_biases_of_all_pairs(labels, size, two_threads):
    compare(make(labels, kinds="b" if size == 400 else "kvb", size=size, value_size=size))


def test_other_layouts():
    """Heads after tokens in memory, as layers give them; keys with a stride, and one row of many."""
    x = torch.randn(2, 100, 3, 8, 2)
    query, key, value = x[..., 0].transpose(1, 2), x.select(-1, 1).transpose(1, 2), x[:, :, :, :, 0].movedim(2, 1)
    table = torch.randn(5, 2, 8)[:, 0]
    for rows in (100, 1):
        call = call_of(query[:, :, :rows], key, value, distance(rows, 100, q_offset=0), table, table)
        wanted = rg.impl.IMPLEMENTATIONS["dense"](call).output
        torch.testing.assert_close(exported.attend(call).output, wanted, atol=1e-5, rtol=1e-5)


def test_what_it_refuses():
    refused = {
        kind
        for kind in KINDS
        if exported.refusal(call_of(*[x.float() for x in make(KINDS[kind](6)).inputs], KINDS[kind](6)))
    }
    assert refused.isdisjoint(TAKEN) and {"sum", "edges only", "block", "distance packed"} <= refused


def test_the_command(file, capsys, monkeypatch):
    assert report.main(["compile", "--exported"]) == 0
    assert capsys.readouterr().out == f"compiled: {file}\n"
    monkeypatch.setenv("CXX", "c++-of-nobody")
    assert report.main(["compile", "--exported"]) == 1
    assert capsys.readouterr().out.startswith("not compiled: the compiler CXX=c++-of-nobody is not there")
    with pytest.raises(SystemExit):
        report.main(["--exported"])
    assert "--exported belongs to compile" in capsys.readouterr().err


class Attention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, x):
        bias = torch.arange(5, dtype=x.dtype)
        return rg.relation_attention(x, x, x, distance(x.shape[2]), bias_table=bias, impl="native", **self.options)


def test_export_says_what_is_missing():
    x = torch.randn(1, 2, 6, 4)
    assert "relgraph.attention_native" in str(export(Attention(), (x,)).graph)
    with pytest.raises(
        NotImplementedError, match=r"impl='native' has no dropout_p inside torch.export; use impl='dense'"
    ):
        export(Attention(dropout_p=0.5), (x,))
    with pytest.raises(
        NotImplementedError, match=r"needs float32 on the CPU inside torch.export; .* got torch.float64"
    ):
        export(Attention(), (x.double(),))


def test_there_is_no_derivative():
    x = torch.randn(1, 2, 6, 4, requires_grad=True)
    with pytest.raises(NotImplementedError, match="has no derivative; export with impl='dense'"):
        export(Attention(), (x,)).module()(x).sum().backward()


GOOD = {
    "query": torch.randn(2, 4, 6, 8), "key": torch.randn(2, 2, 7, 8), "value": torch.randn(2, 2, 7, 3),
    "label_keys": torch.randn(5, 8), "label_values": torch.randn(4, 5, 3), "label_biases": torch.randn(5), "ids": None,
    "mask": torch.rand(2, 1, 1, 7) > 0.5, "lookup": [0, 1, 2, 3, 4], "first_distance": -2, "q_offset": 0,
    "num_labels": 5, "is_causal": False, "causal_offset": 0, "scale": 0.3,
}  # fmt: skip
BAD = [
    ({"query": torch.randn(4, 6, 8)}, "query must have four axes, got 3"),
    ({"query": torch.randn(2, 4, 6, 8).double()}, "query must be float32 on the CPU"),
    ({"query": torch.randn(2, 3, 6, 8)}, "key must have a number of heads that divides 3, got 2"),
    ({"key": torch.randn(1, 2, 7, 8)}, "key must have shape [2, 2, 7, 8], got [1, 2, 7, 8]"),
    ({"value": torch.randn(2, 2, 6, 3)}, "value must have shape [2, 2, 7, 3], got [2, 2, 6, 3]"),
    ({"label_keys": torch.randn(4, 8)}, "label_keys must have shape [5, 8] or the same per head, got [4, 8]"),
    ({"label_biases": torch.randn(2, 5)}, "label_biases must have shape [5] or the same per head, got [2, 5]"),
    ({"lookup": [0, 5]}, "lookup must be in [-2, 5), got numbers from 0 to 5"),
    ({"lookup": []}, "lookup must have at least one id, got none"),
    ({"ids": torch.zeros(2, 6, 6, dtype=torch.long)}, "ids must have shape [2, 6, 7] on the CPU, got [2, 6, 6]"),
    ({"ids": torch.full((1, 6, 7), -3)}, "ids must be in [-2, 5), got numbers from -3 to -3"),
    ({"ids": torch.zeros(1, 6, 7)}, "ids must be signed integers"),
    ({"mask": torch.ones(2, 3, 6, 7, dtype=torch.bool)}, "mask must broadcast to [2, 4, 6, 7], got shape [2, 3, 6, 7]"),
    ({"mask": torch.ones(6, 7, dtype=torch.bool)}, "mask must have four axes, got 2"),
    ({"mask": torch.ones(2, 1, 6, 7).half()}, "mask must be bool or float32 on the CPU"),
]  # fmt: skip


@pytest.mark.parametrize(("bad", "why"), BAD, ids=[why for _, why in BAD])
def test_the_operator_checks_what_a_program_gives(bad, why):
    """The kernels would read beyond the tensors."""
    operator = torch.ops.relgraph.attention_native
    assert operator(**GOOD)[0].shape == (2, 6, 4, 3)
    with pytest.raises(RuntimeError, match=re.escape(why)):
        operator(**{**GOOD, **bad})
