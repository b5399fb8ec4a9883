"""What every reader refuses: states that are none, tensors of the wrong kind, names that match nothing."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from relgraph.interop.checkpoints import from_fairseq2
from tests.interop.checkpoints.old import random_state
from tests.interop.checkpoints.test_fairseq2 import AT, LEFT, RIGHT, shapes

NAME = f"{AT}k_proj.weight"


def read(state, **options):
    return from_fairseq2(state, **{"clip": (LEFT, RIGHT), "prefix": AT, **options})


@pytest.fixture
def state():
    return random_state(shapes())


def test_prefix_that_nothing_begins_with(state):
    with pytest.raises(ValueError, match=r"prefix must be what names in state begin with, got 'decoder.'; state has "):
        read(state, prefix="decoder.")


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("text", TypeError, "must be a Tensor, got str"),
        (torch.zeros(12, 12, dtype=torch.int64), ValueError, "must have a floating dtype, got torch.int64"),
        (torch.zeros(12, 12).to_sparse(), ValueError, "must be a dense Tensor"),
        (np.array(["a"]), ValueError, "must be an array of numbers, got dtype <U1"),
        (np.zeros((12, 12), dtype=object), ValueError, "must be an array of numbers, got dtype object"),
    ],
    ids=["text", "integers", "sparse", "letters", "objects"],
)
def test_values_that_are_no_weights(state, value, error, message):
    with pytest.raises(error, match=re.escape(f"state['{NAME}'] {message}")):
        read({**state, NAME: value})


def test_dtypes_and_devices_that_differ(state):
    wanted = rf"state must have the dtype of '{AT}q_proj.weight', torch.float64, as '{NAME}', got torch.float32"
    with pytest.raises(ValueError, match=re.escape(wanted)):
        read({**state, NAME: state[NAME].float()})
    with pytest.raises(ValueError, match=f"state must have the device of .*, cpu, as '{NAME}', got meta"):
        read({**state, NAME: state[NAME].to("meta")})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_dtype_stays(dtype):
    layer, _ = read(random_state(shapes(), dtype))
    assert {parameter.dtype for parameter in layer.parameters()} == {dtype}


def test_weights_are_copies_that_learn(state):
    state = {name: tensor.requires_grad_() for name, tensor in state.items()}
    before = state[f"{AT}sdpa.rel_k_embed.weight"].detach().clone()
    layer, labeler = read(state)
    layer(torch.randn(1, 4, 12, dtype=torch.float64), labels=labeler(4)).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
    assert all(tensor.grad is None for tensor in state.values())
    with torch.no_grad():
        layer.tables.key.rows.zero_()
    assert torch.equal(state[f"{AT}sdpa.rel_k_embed.weight"], before)


def test_everything_left_over_is_named(state):
    state |= {f"{AT}extra.{number}": torch.zeros(1) for number in range(11)}
    with pytest.raises(ValueError, match=r"no place for, got 'extra.0', .*'extra.6' and 3 more; name the tensors to"):
        read(state)
    read(state, leave_out=["extra.*"])
    with pytest.raises(ValueError, match=r"leave_out must match names after prefix = .*, got 'norm.\*'; there are 'q"):
        read(state, leave_out=["norm.*"])
    with pytest.raises(ValueError, match=f"must have a tensor named '{NAME}', got none"):
        read(state, leave_out=["k_proj.weight"])


@pytest.mark.parametrize("shape", [(12,), (0, 12), (12, 0), (2, 3, 4)], ids=str)
def test_tables_that_are_no_matrix(state, shape):
    name = f"{AT}sdpa.rel_k_embed.weight"
    with pytest.raises(ValueError, match=re.escape(f"a matrix as '{name}', got shape {list(shape)}")):
        read({**state, name: torch.zeros(shape, dtype=torch.float64)})


def test_heads_that_do_not_divide(state):
    name = f"{AT}sdpa.rel_k_embed.weight"
    with pytest.raises(ValueError, match=f"heads as wide as the rows of '{name}', 5, .* in '{AT}q_proj.weight', got"):
        read({**state, name: torch.zeros(8, 5, dtype=torch.float64)})
