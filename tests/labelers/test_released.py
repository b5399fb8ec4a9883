"""GRPE's labels and attention as its released code computes them."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

import relgraph as rg
from relgraph.labelers import ReleasedGRPE, grpe

from .conformance import Case, LabelerSuite

F64 = torch.float64
EDGES = torch.tensor([[0, 1, 2, 3, 1, 1, 2, 0], [1, 2, 3, 1, 4, 4, 2, 1]])
TYPES = torch.tensor([0, 1, 0, 1, 1, 0, 1, 1])
NODES = torch.tensor([0, 0, 0, 0, 0, 9, 0])
ONE = rg.Graph(EDGES, 7, edge_type=TYPES, node_type=NODES)
BATCH = rg.Graph.batch([ONE, rg.Graph(EDGES[:, :0], 2, edge_type=TYPES[:0], node_type=NODES[4:6]), ONE])


class TestConformance(LabelerSuite):
    cases = (
        Case(ReleasedGRPE(2, 2), (ONE,)),
        Case(ReleasedGRPE(3, ["single", "double"], directed=True, task_node=9), (BATCH,)),
        Case(grpe(2, 2, task_node=9, duplicates="first"), (ONE,)),
    )


def published(graph, max_hop, types, directed, task):
    """Write both matrices pair by pair, then overwrite entries in the order of the released code."""
    n = graph.num_nodes
    steps = {(s, t) for s, t in graph.edge_index.T.tolist()}
    steps |= set() if directed else {(t, s) for s, t in steps}
    far = n + max_hop + 5
    length = {(i, j): 0 if i == j else 1 if (i, j) in steps else far for i in range(n) for j in range(n)}
    for k, i, j in itertools.product(range(n), repeat=3):
        length[i, j] = min(length[i, j], length[i, k] + length[k, j])
    edge = {(s, t): kind for (s, t), kind in zip(graph.edge_index.T.tolist(), graph.edge_type.tolist(), strict=True)}
    hops, kinds = torch.zeros(n, n, dtype=torch.int64), torch.zeros(n, n, dtype=torch.int64)
    for i, j in length:
        with_task = i != j and task is not None and task in (graph.node_type[i], graph.node_type[j])
        hop = max_hop + 2 if length[i, j] >= far else min(length[i, j], max_hop)
        hops[i, j] = max_hop + 1 if with_task else hop
        kind = types + 2 if i == j else edge.get((i, j), types + 3)
        kind = types + 3 if hop != 1 else kind
        kinds[i, j] = types + 1 if with_task else kind
    return hops, kinds


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 2)), max_size=12), st.booleans(), st.data()
)
def test_against_pair_by_pair(drawn, directed, data):
    columns = torch.tensor(drawn, dtype=torch.int64).view(-1, 3).T
    max_hop = data.draw(st.integers(1, 4))
    graph = rg.Graph(columns[:2], 7, edge_type=columns[2], node_type=torch.tensor([0] * 6 + [9]))
    labels = ReleasedGRPE(max_hop, 3, directed=directed, task_node=9)(graph)
    wanted = published(graph, max_hop, 3, directed, 9)
    for part, matrix in zip(labels.parts, wanted, strict=True):
        ids, attend = part.to_dense()
        assert torch.equal(ids[0], matrix)
        assert bool(attend.all())


def test_attention_of_the_released_code():
    """Scores are q_i·(k_j + Q[l]) + k_i·K[l], summed over both channels; both value tables are added."""
    torch.manual_seed(0)
    labeler = grpe(2, 2, task_node=9, released=True)
    heads, dim, nodes = 2, 4, ONE.num_nodes
    labels = labeler(ONE)
    q, k, v = torch.randn(3, 1, heads, nodes, dim, dtype=F64)
    tables = {kind: [torch.randn(heads, rows, dim, dtype=F64) for rows in labeler.num_labels] for kind in "qkv"}
    ids = [part.to_dense()[0][0] for part in labels.parts]
    scores = q @ k.mT
    for query_rows, key_rows, at in zip(tables["q"], tables["k"], ids, strict=True):
        scores = scores + torch.einsum("bhid,hijd->bhij", q, query_rows[:, at])
        scores = scores + torch.einsum("bhid,hijd->bhij", k, key_rows[:, at])
    alpha = (scores / dim**0.5).softmax(-1)
    wanted = alpha @ v + sum(
        torch.einsum("bhij,hijd->bhid", alpha, rows[:, at]) for rows, at in zip(tables["v"], ids, strict=True)
    )
    row_scores = tuple((q @ a.mT + k @ b.mT) / dim**0.5 for a, b in zip(tables["q"], tables["k"], strict=True))
    got = rg.relation_attention(q, k, v, labels, value_table=tuple(tables["v"]), row_scores=row_scores)
    torch.testing.assert_close(got, wanted)
    paper = rg.relation_attention(
        q, k, v, labels, tuple(tables["q"]), tuple(tables["v"]), query_table=tuple(tables["k"])
    )
    assert not torch.allclose(paper, wanted, atol=1e-2)
