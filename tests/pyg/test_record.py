"""Recording what PyG layers attend to, edge by edge and relation by relation."""

from __future__ import annotations

import pytest
import torch

import relgraph as rg
from relgraph.pyg import RelationConv

F64, N, E, R = torch.float64, 5, 11, 3


@pytest.fixture
def graph():
    """Nodes, edges with parallel ones, and relations, some of them none."""
    torch.manual_seed(0)
    return torch.randn(N, 4, dtype=F64), torch.randint(N - 1, (2, E)), torch.randint(-1, R, (E,))


def layer(**options):
    torch.manual_seed(1)
    return RelationConv(4, 3, heads=2, **{"num_relations": R, **options}).to(F64)


def mass_by_loop(alpha, targets, edge_type, nodes=N):
    mass = torch.zeros(2, nodes, R, dtype=F64)
    for e, (node, label) in enumerate(zip(targets.tolist(), edge_type.tolist(), strict=True)):
        if label >= 0:
            mass[:, node, label] += alpha[e]
    return mass


class Edgewise(RelationConv):
    """Takes the message() path."""

    def update(self, inputs):
        return inputs


@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
@pytest.mark.parametrize("kind", [RelationConv, Edgewise])
def test_mass_is_the_weights_summed_by_relation(kind, flow, graph):
    x, edge_index, edge_type = graph
    conv = kind(4, 3, heads=2, num_relations=R, flow=flow).to(F64)
    out, (_, alpha) = conv(x, edge_index, edge_type, return_attention_weights=True)
    with rg.record_attention(conv, weights=True) as record:
        assert torch.equal(conv(x, edge_index, edge_type), out)
    (call,) = record[""]
    torch.testing.assert_close(call.weights, alpha.detach())
    targets = edge_index[1 if flow == "source_to_target" else 0]
    torch.testing.assert_close(call.label_mass, mass_by_loop(alpha, targets, edge_type))
    assert not call.weights.requires_grad and not call.label_mass.requires_grad


@pytest.mark.parametrize("asked", [True, False])
def test_a_caller_gets_the_weights_it_asks_for(asked, graph):
    conv = layer()
    out, (index, alpha) = conv(*graph, return_attention_weights=asked)
    with rg.record_attention(conv) as record:
        for got in (conv(*graph, return_attention_weights=asked), conv(*graph, None, asked)):
            assert torch.equal(got[0], out) and got[1][0] is index and torch.equal(got[1][1], alpha)
        assert torch.equal(conv(*graph), out)
    assert len(record[""]) == 3


def test_without_relations_there_are_weights_alone(graph):
    conv = layer(num_relations=None, edge_dim=2)
    attr = torch.randn(E, 2, dtype=F64)
    with rg.record_attention(conv, weights=True) as record:
        conv(graph[0], graph[1], edge_attr=attr)
    (call,) = record[""]
    assert call.label_mass is None
    torch.testing.assert_close(
        torch.zeros(N, 2, dtype=F64).index_add(0, graph[1][1], call.weights),
        torch.isin(torch.arange(N), graph[1][1]).to(F64)[:, None].expand(N, 2),
    )
