"""Attention that is split by heads over processes gives what one process gives: outputs, losses and gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import distributed

import relgraph as rg

if not distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

from tests.distributed import worlds
from tests.distributed.heads_worlds import begin, resume_alone
from tests.layers import encoder_layer


def check(size: int, folder: Path, world: str) -> None:
    """What a process asserts is raised here."""
    worlds.start(size, begin, size, str(folder), world)


def test_two_processes(tmp_path):
    check(2, tmp_path, "few")


@pytest.mark.slow
@pytest.mark.parametrize(("size", "world"), [(2, "two"), (4, "four")])
def test_all(tmp_path, size, world):
    check(size, tmp_path, world)


def test_one_process_reads_the_checkpoint_of_two(tmp_path):
    check(2, tmp_path, "save")
    resume_alone(tmp_path)


@pytest.fixture
def mesh():
    """One process that is a world of its own."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def test_what_cannot_be_split_is_refused(mesh):
    style, layer = rg.distributed.HeadParallel(), encoder_layer(8, 2, 16)
    with pytest.raises(TypeError, match="splits a RelationAttention, got RelationEncoderLayer: name 'self_attn'"):
        parallelize_module(layer, mesh, style)
    parallelize_module(layer, mesh, {"self_attn": style})
    with pytest.raises(ValueError, match="layer must not be split already"):
        parallelize_module(layer, mesh, {"self_attn": style})
    layer.self_attn.out_proj = torch.nn.Identity()
    with pytest.raises(ValueError, match=r"out_proj must be a torch.nn.Linear .* got Identity"):
        parallelize_module(layer, mesh, {"self_attn": style})
    with pytest.raises(TypeError, match="output_layouts must be a Placement"):
        rg.distributed.HeadParallel(output_layouts="rows")


@pytest.mark.parametrize("options", [{}, {"bias": ("query",)}, {"num_kv_heads": 2}], ids=["all", "query", "grouped"])
def test_states_of_packed_and_separate_projections_load_into_each_other(mesh, options):
    torch.manual_seed(0)
    first, second = (rg.RelationAttention(16, 4, num_labels=5, **options) for _ in range(2))
    x, labels = torch.randn(2, 6, 16), rg.ClippedDistance(2)(6)
    second._separate()
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(second(x, labels=labels), first(x, labels=labels))
    third = rg.RelationAttention(16, 4, num_labels=5, **options)
    third.load_state_dict(second.state_dict())
    assert torch.equal(third.in_proj_weight, first.in_proj_weight)
