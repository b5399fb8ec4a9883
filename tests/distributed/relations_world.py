"""A pretrained model with relations whose parameters FSDP2 shards."""

from __future__ import annotations

import copy

import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import BertConfig, BertModel

import relgraph as rg
from tests.distributed.worlds import caught


def fsdp(mesh):
    """A step of training gives what one process gives for the batches of all."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "num_hidden_layers": 2}
    model = BertModel(BertConfig(**sizes, vocab_size=20, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    rg.interop.transformers.add_relations(model, rg.EdgeType(3, attend="all"))
    with torch.no_grad():
        for name, rows in model.named_parameters():
            if ".relation." in name:
                rows.normal_()
    size, rank = mesh.size(), mesh.get_local_rank()
    batches = [torch.randint(0, 20, (1, 6)) for _ in range(size)]
    graphs = [
        rg.Graph(torch.tensor([[0, 1, 2], [1, 2, 4]]), 6, edge_type=torch.randperm(3), ptr=torch.tensor([0, 6]))
        for _ in range(size)
    ]

    def loss_of(one, number):
        return one(batches[number], relation_labels=graphs[number]).last_hidden_state.sin().sum()

    alone = copy.deepcopy(model)
    (sum(loss_of(alone, number) for number in range(size)) / size).backward()
    for layer in model.encoder.layer:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert any(".relation." in name and isinstance(x, DTensor) for name, x in model.named_parameters())
    loss_of(model, rank).backward()
    wanted = dict(alone.named_parameters())
    for name, x in model.named_parameters():
        if wanted[name].grad is not None:
            torch.testing.assert_close(x.grad.full_tensor(), wanted[name].grad, atol=1e-5, rtol=1e-4)
        assert (".relation." not in name) or bool((wanted[name].grad != 0).any())


def cases(mesh):
    """What went wrong, by name."""
    yield "FSDP2", caught(lambda: fsdp(mesh))
