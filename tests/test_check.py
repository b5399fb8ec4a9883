"""Checks at the door: what each takes, and what it says of what it refuses."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import torch

import relgraph as rg
from relgraph.arguments import check

X = torch.randn(3, 4)


def test_numbers_that_fit():
    assert check.integer("n", 2**63 - 1) == 2**63 - 1 and check.integer("n", -(2**63)) == -(2**63)
    assert check.length("n", 2**62) == 2**62
    scale = check.finite("scale", 3)
    assert scale == 3.0 and type(scale) is float
    assert check.probability("p", 0) == 0.0


@pytest.mark.parametrize(
    ("check", "error", "match"),
    [
        (lambda: check.integer("n", 10**30), ValueError, r"n must fit into 64 bits, got 1000000000000000000000000000000$"),
        (lambda: check.integer("n", 10**5000), ValueError, "n must fit into 64 bits, got an int of 16610 bits"),
        (lambda: check.integer("n", -(10**5000), minimum=0), ValueError, "n must be at least 0, got an int of 16610 bits"),
        (lambda: check.integer("n", 10**5000, maximum=3), ValueError, "n must be at most 3, got an int of 16610 bits"),
        (lambda: check.length("n", 2**62 + 1), ValueError, "n must be at most 4611686018427387904, got 4611686018427387905"),
        (lambda: check.probability("p", 10**5000), ValueError, r"p must lie in \[0, 1\), got an int of 16610 bits"),
        (lambda: check.finite("x", 10**400), ValueError, "x must be finite, got an int of 1329 bits"),
        (lambda: check.choice("kind", np.array(["a"]), ("a", "b")), TypeError, r"kind must be a string, one of \['a', 'b'\], got ndarray"),
        (lambda: check.choice("kind", "c" * 999, ("a",)), ValueError, r"unknown kind 'c+ \.\.\. c+'; expected one of \['a'\]"),
        (lambda: check.items("words", "abc", "a sequence"), TypeError, "words must be a sequence, got str"),
        (lambda: check.items("words", X, "a sequence"), TypeError, "words must be a sequence, got Tensor"),
        (lambda: check.items("words", np.array(3), "a sequence"), TypeError, "words must be a sequence, got ndarray: iteration over a 0-d array"),
        (lambda: check.items("words", itertools.count(), "a sequence", most=2), ValueError, "words must hold at most 2 items, got more"),
        (lambda: check.device("device", torch.float32), TypeError, "device must be a torch.device or its name, got dtype"),
        (lambda: check.device("device", "nowhere"), ValueError, "device must be a device that torch can use here, got 'nowhere': .*nowhere"),
    ],
)  # fmt: skip
def test_refused(check, error, match):
    with pytest.raises(error, match=match):
        check()


def quiet(make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: X.to_sparse(), "key must be a dense Tensor .* got a torch.sparse_coo one: call its .to_dense()"),
        (lambda: X.to_sparse_csr(), "key must be a dense Tensor .* got a torch.sparse_csr one"),
        (lambda: X.to_mkldnn(), "key must be a dense Tensor .* got a torch._mkldnn one"),
        (lambda: torch.nested.nested_tensor([X, X]), "key must be a dense Tensor .* got a nested one: pad it with torch.nested.to_padded_tensor"),
        (lambda: torch.nested.nested_tensor([X, X], layout=torch.jagged), "key must be a dense Tensor .* got a nested one"),
        (lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8), "key must be a Tensor of plain numbers, got torch.qint8: call its .dequantize"),
        (lambda: X.to(torch.float8_e4m3fn), "key must have a floating dtype of 16 bits or more, got torch.float8_e4m3fn"),
        (lambda: X.to(torch.complex64), "key must have a floating dtype, got torch.complex64"),
    ],
)  # fmt: skip
def test_tensors_of_other_layouts(make, match):
    spoiled = quiet(make)
    with pytest.raises(ValueError, match=match):
        check.floating("key", spoiled)
    with pytest.raises(ValueError, match=match.replace("key", "query")):
        rg.relation_attention(spoiled, X[None, None], X[None, None], None)


def test_tensors_that_are_traced_pass():
    @torch.compile(backend="eager", fullgraph=True)
    def checked(x):
        return check.floating("x", x) + 1

    torch.testing.assert_close(checked(X), X + 1)
    torch.testing.assert_close(torch.func.vmap(lambda x: check.floating("x", x) + 1)(X), X + 1)


def test_devices_that_there_are():
    assert check.device("device", "cpu") == check.device("device", torch.device("cpu")) == torch.device("cpu")
    assert check.device("device", "meta") == torch.device("meta")
