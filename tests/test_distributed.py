"""Parts of a sequence and DTensors of torch.distributed are refused at the front doors."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import distributed
from torch._dynamo.exc import Unsupported

import relgraph as rg
from relgraph.functional import region

if not distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.experimental import context_parallel, local_map

from tests.layers import encoder_layer

LABELER = rg.ClippedDistance(2)
SHARED = pytest.raises(
    NotImplementedError,
    match="within torch's context_parallel .* take rg.distributed.context_parallel .* rg.functional.merge",
)


@pytest.fixture
def mesh():
    """Make a world of one process."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def calls(length):
    """Return every front door by name, as a function without arguments."""
    x, labels, table = torch.randn(2, 4, length, 8), LABELER(length), torch.randn(5, 8)
    rows, nodes = torch.randn(2, length, 8), torch.randn(length, 4, 8)
    layer = encoder_layer(8, 2, 16, labeler=LABELER)
    edges = rg.EdgeLabels(torch.tensor([[0], [1]]), torch.tensor([0]), 5, q_len=length)
    return {
        "relation_attention": lambda: rg.relation_attention(x, x, x, labels, table),
        "relation_attention_with_aux": lambda: rg.relation_attention_with_aux(x, x, x, labels, table, need_lse=True),
        "edge_attention": lambda: rg.edge_attention(nodes, nodes, nodes, edges, table),
        "layer": lambda: layer(rows),
    }


def test_context_parallel_is_refused(mesh):
    buffer, doors = torch.randn(2, 4, 8, 8), calls(8)
    with context_parallel(mesh, buffers=[buffer], buffer_seq_dims=[2]):
        for call in doors.values():
            with SHARED:
                call()
    for call in doors.values():
        call()


def test_compiled_code_refuses_context_parallel(mesh):
    """Code that was traced before is traced again within the block."""
    torch._dynamo.reset()
    compiled = torch.compile(calls(8)["layer"], fullgraph=True, backend="eager")
    compiled()
    # Dynamo wraps what is raised while it traces, and quotes it.
    refused = pytest.raises(Unsupported, match="NotImplementedError.*within torch's context_parallel")
    with context_parallel(mesh, buffers=[torch.randn(2, 4, 8, 8)], buffer_seq_dims=[2]), refused:
        compiled()
    compiled()


def test_shared_out_tensors_are_refused(mesh, monkeypatch):
    monkeypatch.setattr(region, "_of_tensors", [])  # as before relgraph.distributed is imported
    x, table = torch.randn(2, 4, 8, 8), torch.randn(5, 8)
    labels, refused = (
        LABELER(8),
        "must be a Tensor of this rank, got a DTensor. After `import relgraph.distributed` .*local_map",
    )
    shared = DTensor.from_local(x, mesh, [Shard(0)])
    for impl in ("reference", "dense", "chunked", None):
        with pytest.raises(NotImplementedError, match=f"query {refused}"):
            rg.relation_attention(shared, shared, shared, labels, table, impl=impl)
        with pytest.raises(NotImplementedError, match=f"key_table {refused}"):
            rg.relation_attention(x, x, x, labels, DTensor.from_local(table, mesh, [Replicate()]), impl=impl)
    with pytest.raises(NotImplementedError, match=f"attn_mask {refused}"):
        rg.relation_attention(x, x, x, labels, table, attn_mask=DTensor.from_local(x[..., 0] > 0, mesh, [Shard(0)]))
    with pytest.raises(NotImplementedError, match=f"query {refused}"):
        rg.RelationAttention(8, 2, num_labels=5)(DTensor.from_local(x[0], mesh, [Shard(0)]), labels=labels)


def test_local_map_is_the_way(mesh):
    x, table = torch.randn(2, 4, 8, 8), torch.randn(5, 8)
    labels, shared = LABELER(8), DTensor.from_local(x, mesh, [Shard(0)])
    attend = local_map(
        lambda q: rg.relation_attention(q, q, q, labels, table, table), [Shard(0)], in_placements=([Shard(0)],)
    )
    torch.testing.assert_close(attend(shared).to_local(), rg.relation_attention(x, x, x, labels, table, table))


def stack(**options):
    """Make two layers with these options, from the same seed each time."""
    torch.manual_seed(0)
    return rg.RelationEncoder(encoder_layer(32, 4, 64, 0.0, labeler=LABELER, **options), 2)


def shared(**options):
    """Make two layers that share their tables."""
    torch.manual_seed(0)
    return stack(tables=rg.RelationTables(5, 8, names=LABELER.names, **options))


def additive(**options):
    """Make two layers with a score and maps of values each."""
    torch.manual_seed(0)
    return stack(score=rg.score.Additive.learned(4, 8), **options)


def tables_of(model):
    return model.layers[0].self_attn.tables


def shard_layers(model, mesh):
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def tables_first(model, mesh):
    fully_shard(tables_of(model), mesh=mesh)
    shard_layers(model, mesh)


def each_table_first(model, mesh):
    for table in tables_of(model).children():
        fully_shard(table, mesh=mesh)
    shard_layers(model, mesh)


def root_alone(model, mesh):
    fully_shard(model, mesh=mesh)


SHARDINGS = (tables_first, each_table_first, root_alone)


def train(model, x):
    """Train two steps; return the output and all parameters."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        z = model(x)
        z.sin().mean().backward()
        optimizer.step()
    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    return [z.detach(), *(p.detach() for p in whole)]


WHOLE = [(shard, partial(shared, **how)) for shard in SHARDINGS for how in ({}, {"frozen": 1}, {"tied": True})]
WHOLE += [(shard_layers, stack)]
WHOLE += [
    (shard_layers, partial(additive, value_map=value_map, impl=impl))
    for value_map in (True, 2) for impl in ("dense", "chunked")
]  # fmt: skip


@pytest.mark.parametrize(("shard", "make"), WHOLE)
def test_they_train_under_fsdp_as_on_one_process(mesh, shard, make):
    """Shared tables, free, frozen and tied; and tables, scores and maps that each layer has for itself."""
    sharded, plain, x = make(), make(), torch.randn(2, 7, 32)
    shard(sharded, mesh)
    assert all(isinstance(p, DTensor) for p in sharded.parameters())
    for got, wanted in zip(train(sharded, x), train(plain, x), strict=True):
        torch.testing.assert_close(got, wanted)


def test_tables_that_were_left_sharded_are_refused(mesh):
    tables = rg.RelationTables(5, 8)
    tables.key.rows = torch.nn.Parameter(DTensor.from_local(tables.key.rows.detach(), mesh, [Shard(0)]))
    with pytest.raises(NotImplementedError, match=r"must be whole .* got a DTensor: .* fully_shard\(tables\)"):
        tables()


def _one_of_two(rank, path):
    distributed.init_process_group("gloo", init_method=f"file://{path}/store", rank=rank, world_size=2)
    mesh, x = init_device_mesh("cpu", (2,)), torch.load(f"{path}/x.pt")
    for shard in SHARDINGS:
        model = shared()
        shard(model, mesh)
        z, *parameters = train(model, x[rank : rank + 1])
        if rank == 0:
            torch.save([z, *parameters], f"{path}/{shard.__name__}.pt")
    distributed.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_train_as_one(tmp_path):
    x = torch.randn(2, 7, 32)
    torch.save(x, tmp_path / "x.pt")
    torch.multiprocessing.spawn(_one_of_two, (str(tmp_path),), nprocs=2)
    z, *parameters = train(shared(), x)
    for shard in SHARDINGS:
        mine, *got = torch.load(tmp_path / f"{shard.__name__}.pt")
        torch.testing.assert_close(mine, z[:1])
        for a, b in zip(got, parameters, strict=True):
            torch.testing.assert_close(a, b)
