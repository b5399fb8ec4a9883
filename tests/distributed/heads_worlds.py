"""What each process of the worlds in ``test_heads`` does."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

import relgraph as rg
from relgraph.impl.native import build
from tests.distributed.head_cases import ENCODER, HEADS, LABELER, WIDTH, cases, check_case, compare
from tests.layers import attention_layer, encoder_layer

COMPILED = ["native"] if build.missing() is None else []

ROWS = 8
"""The length of a sequence whose rows are split."""


def whole(x: Tensor) -> Tensor:
    return x.full_tensor() if isinstance(x, DTensor) else x


def encoder(**options: Any) -> rg.RelationEncoderLayer:
    """An encoder layer, the same one each time."""
    torch.manual_seed(0)
    given = {"labeler": LABELER, "per_head": ("value",), "dtype": torch.float64, **options}
    return encoder_layer(WIDTH, HEADS, 48, 0.0, **given)


def inputs(batch: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(batch, ROWS, WIDTH, dtype=torch.float64, generator=generator)


def train(model: nn.Module, x: Tensor, call: Any = None, steps: int = 10) -> dict[str, Tensor]:
    """Steps of AdamW; outputs of each, and parameters afterwards, whole, in the order of their names."""
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, foreach=False)
    found: dict[str, Tensor] = {}
    for step in range(steps):
        optimizer.zero_grad()
        z = model(x) if call is None else call(model, x)
        z.sin().square().mean().backward()
        optimizer.step()
        found[f"output {step}"] = z.detach()
    return {**found, **named(model)}


def named(model: nn.Module) -> dict[str, Tensor]:
    """All parameters, whole, with projections as one."""
    found = {name: whole(p.detach()) for name, p in model.named_parameters()}
    for first in [name for name in found if "self_attn.q_proj" in name]:
        parts = [first.replace("q_proj", f"{name}_proj") for name in "qkv"]
        found[first.replace("q_proj", "in_proj")] = torch.cat([found.pop(part) for part in parts])
    return found


def all_cases(mesh: Any) -> None:
    for at, case in enumerate(cases()):
        check_case(case, mesh, torch.float64, 1e-12)
        if at % 4 == 0:
            check_case(case, mesh, torch.float32, 1e-5)


def few_cases(mesh: Any) -> None:
    for case in cases():
        if case.name in ("packed weight", "grouped", "dropout"):
            check_case(case, mesh, torch.float64, 1e-12)


def refused_heads(mesh: Any) -> None:
    """Every process raises the same, before anything has changed."""
    layer = attention_layer(15, 5)
    said = f"num_heads must be a multiple of the {mesh.size()} processes of the mesh, got 5"
    with pytest.raises(ValueError, match=said):
        parallelize_module(layer, mesh, rg.distributed.HeadParallel())
    assert layer.in_proj_weight is not None and not isinstance(layer.in_proj_weight, DTensor)


def door_cases(mesh: Any) -> None:
    """DTensors by batch, by heads and replicated into the function, by every implementation."""
    generator = torch.Generator().manual_seed(11)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()

    batch, length, size, labels = 4, 6, 8, 5
    dense = rg.DenseLabels(torch.randint(-1, labels, (batch, length, length), generator=generator), labels)
    given = [randn(batch, HEADS, length, size), *(randn(batch, 4, length, size) for _ in range(2))]
    given += [randn(labels, size), randn(HEADS, labels, size), randn(labels, size), randn(HEADS, labels)]
    plain_shapes = [x.detach().clone().requires_grad_() for x in given]
    kinds = {"dense labels": dense, "distance": LABELER(length), "ids": dense.ids.long()}
    all_places = ([Shard(0)] * 3, [Shard(1)] * 3, [Replicate()] * 3, [Shard(1), Replicate(), Replicate()])
    impls = ("reference", "dense", "chunked", *COMPILED)
    for at, (name, places) in enumerate(itertools.product(kinds, all_places)):
        used, impl = kinds[name], impls[(at + at // 4) % len(impls)]
        split = [distribute_tensor(x.detach(), mesh, [p]) for x, p in zip(given[:3], places, strict=True)]
        tables = [x.detach().clone() for x in given[3:]]
        tables[1] = distribute_tensor(tables[1], mesh, [Shard(0)])
        tables[0] = distribute_tensor(tables[0], mesh, [Replicate()])
        leaves = [x.requires_grad_() for x in (*split, *tables)]
        compare(f"{name} {impl} {places}", values(used, leaves, impl), values(used, plain_shapes, impl), 1e-12)
    pairs = dense.ids[0].nonzero().T.flip(0)
    listed = rg.EdgeLabels(pairs, dense.ids[0].long()[pairs[1], pairs[0]].clamp(min=0), labels, q_len=length)
    for used, impls in ((dense, ("chunked", "dense", "reference", *COMPILED)), (listed, ("edges", *COMPILED))):
        for impl in impls:
            # parts draw by place, as native and chunked do in every call; all in plain torch draw alike
            wanted = values(used, plain_shapes, "native" if impl == "native" else "chunked", 0.3, 3)
            for place in (Shard(0), Shard(1)):
                leaves = [distribute_tensor(x.detach(), mesh, [place]).requires_grad_() for x in given[:3]]
                leaves += [x.detach().clone().requires_grad_() for x in given[3:]]
                compare(f"dropout {impl} {place}", values(used, leaves, impl, 0.3, 3), wanted, 1e-12)
    refused_placements(mesh)


def refused_placements(mesh: Any) -> None:
    x = torch.randn(2, 4, 8, 8)
    for place in (Shard(2), Partial()):
        split = DTensor.from_local(x, mesh, [place])
        with pytest.raises(NotImplementedError, match=r"query must be sharded by batch, .* got .*context_parallel"):
            rg.relation_attention(split, split, split, None)
    by_heads = DTensor.from_local(x, mesh, [Shard(1)])
    with pytest.raises(TypeError, match="key must be a DTensor"):
        rg.relation_attention(by_heads, x, x, None)


def values(labels: Any, leaves: list[Tensor], impl: str, dropout_p: float = 0.0, seed: int = 0) -> dict[str, Tensor]:
    """Output, mass and gradients of one call."""
    query, key, value, *tables = leaves
    for leaf in leaves:
        leaf.grad = None
    torch.manual_seed(seed)
    z, aux = rg.relation_attention_with_aux(
        query, key, value, labels, *tables, enable_gqa=True, impl=impl, dropout_p=dropout_p, need_label_mass=True,
        need_lse=True,
    )  # fmt: skip
    assert isinstance(z, DTensor) == isinstance(query, DTensor)
    parts = {"output": z, "mass": aux.label_mass, "lse": aux.lse}
    torch.autograd.backward([x.sin().sum() for x in parts.values()])
    found = {name: whole(x.detach()) for name, x in parts.items()}
    for at, leaf in enumerate(leaves):
        assert leaf.grad is not None
        assert not isinstance(leaf, DTensor) or leaf.grad.placements == leaf.placements
        found[f"gradient {at}"] = whole(leaf.grad)
    return found


def shared_tables(mesh: Any) -> None:
    """Layers that share tables, and a score, train as on one process: their gradients from all layers are summed."""
    plan = {f"layers.*.{name}": style for name, style in ENCODER.items()}
    for options in ({}, {"per_head": True, "tied": True}, {"per_head": ("value",), "frozen": 1}):
        wanted = train(sharing(**options), inputs(), steps=3)
        split = parallelize_module(sharing(**options), mesh, plan)
        assert split.layers[0].self_attn.tables is split.layers[1].self_attn.tables
        compare(f"shared tables {options}", train(split, inputs(), steps=3), wanted, 1e-10)


def sharing(**options: Any) -> rg.RelationEncoder:
    """Two encoder layers with the same tables."""
    torch.manual_seed(0)
    tables = rg.RelationTables(5, WIDTH // HEADS, HEADS, dtype=torch.float64, **options)
    score = rg.score.Additive.learned(HEADS, WIDTH // HEADS).double()
    return rg.RelationEncoder(encoder(tables=tables, score=score, per_head=False), 2)


def sequence_parallel(mesh: Any) -> None:
    """Rows are split between attention and feed-forward, where the norms are."""
    rows = Shard(1)
    plan = {
        "norm1": SequenceParallel(), "norm2": SequenceParallel(),
        "self_attn": rg.distributed.HeadParallel(input_layouts=rows, output_layouts=rows, use_local_output=False),
        "linear1": ColwiseParallel(input_layouts=rows),
        "linear2": RowwiseParallel(output_layouts=rows, use_local_output=False),
    }  # fmt: skip
    for norm_first in (True, False):
        wanted = train(encoder(norm_first=norm_first), inputs())
        split = parallelize_module(encoder(norm_first=norm_first), mesh, plan)

        def call(model: nn.Module, x: Tensor) -> Tensor:
            return model(distribute_tensor(x, mesh, [rows])).full_tensor()

        compare(f"sequence parallel {norm_first}", train(split, inputs(), call), wanted, 1e-10)


def with_fully_shard(_: Any) -> None:
    """FSDP2 over one axis of a mesh of 2 by 2, heads over the other; tables of several layers are sharded first."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    at = mesh["dp"].get_local_rank()
    for make, layers in ((encoder, ""), (sharing, "layers.*.")):
        wanted = train(make(), inputs())
        model = parallelize_module(make(), mesh["tp"], {f"{layers}{name}": style for name, style in ENCODER.items()})
        if layers:
            fully_shard(model.layers[0].self_attn.tables, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
        got = train(model, inputs().chunk(2)[at].contiguous())
        wanted = {name: x.chunk(2)[at] if name.startswith("output") else x for name, x in wanted.items()}
        compare(f"FSDP2 {layers}", got, wanted, 1e-10)


def save(mesh: Any, folder: Path) -> None:
    """Five steps, and a checkpoint of them."""
    model = parallelize_module(encoder(), mesh, ENCODER)
    train(model, inputs(), steps=5)
    checkpoint.save(model.state_dict(), checkpoint_id=folder / "saved")


def resume_alone(folder: Path) -> None:
    """The checkpoint of several processes gives the model of one, in a layer that knows nothing of others."""
    wanted, model = encoder(), encoder()
    train(wanted, inputs(), steps=5)
    dcp_to_torch_save(folder / "saved", folder / "saved.pt")
    model.load_state_dict(torch.load(folder / "saved.pt", weights_only=True))
    assert model.self_attn.in_proj_weight is not None
    compare("resumed alone", named(model), named(wanted), 1e-10)


OF_EVERY_SIZE = [refused_heads, door_cases, shared_tables]
WORLDS = {
    "few": [few_cases, *OF_EVERY_SIZE],
    "two": [all_cases, sequence_parallel],
    "four": [all_cases, *OF_EVERY_SIZE, sequence_parallel, with_fully_shard],
}


def begin(rank: int, size: int, folder: str, world: str) -> None:
    """What a process does; module-level, so that it can be started."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message="`torch.jit.script", category=DeprecationWarning)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/{world}{size}", rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", (size,))
    try:
        if world == "save":
            save(mesh, Path(folder))
        else:
            for check in WORLDS[world]:
                check(mesh)
    finally:
        distributed.destroy_process_group()
