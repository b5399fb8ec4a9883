"""What relgraph makes of torch.distributed: parts of a sequence and shared-out tensors are refused at the door."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import distributed
from torch._dynamo.exc import Unsupported

import relgraph as rg

if not distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.experimental import context_parallel, local_map

LABELER = rg.ClippedDistance(2)
SHARED = pytest.raises(
    NotImplementedError, match="within torch's context_parallel .* outside of that block .* rg.merge"
)


@pytest.fixture
def mesh():
    """One process that is a world of its own."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def calls(length):
    """Every door, by name, as a function of no arguments."""
    x, labels, table = torch.randn(2, 4, length, 8), LABELER(length), torch.randn(5, 8)
    rows, nodes = torch.randn(2, length, 8), torch.randn(length, 4, 8)
    layer = rg.RelationEncoderLayer(8, 2, 16, labeler=LABELER)
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
    """Traced before, it is traced afresh within the block."""
    torch._dynamo.reset()
    compiled = torch.compile(calls(8)["layer"], fullgraph=True, backend="eager")
    compiled()
    # Dynamo wraps what is raised while it traces, and quotes it.
    refused = pytest.raises(Unsupported, match="NotImplementedError.*within torch's context_parallel")
    with context_parallel(mesh, buffers=[torch.randn(2, 4, 8, 8)], buffer_seq_dims=[2]), refused:
        compiled()
    compiled()


def test_another_function_in_place_of_torchs_is_none_of_our_business(monkeypatch):
    plain = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", lambda *args: plain(*args))
    calls(8)["layer"]()


def test_shared_out_tensors_are_refused(mesh):
    x, table = torch.randn(2, 4, 8, 8), torch.randn(5, 8)
    labels, refused = LABELER(8), "must be a Tensor of this rank, got a DTensor, .*local_map"
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


def test_relgraph_does_not_load_shared_out_tensors():
    code = "import relgraph, sys; assert 'torch.distributed.tensor' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
