"""Edges in every form that PyG knows give what plain edges give, and bad ones are refused by name."""

from __future__ import annotations

import gc
import importlib
import weakref

import pytest
import torch
from torch_geometric import EdgeIndex
from torch_geometric.testing import assert_module
from torch_geometric.typing import WITH_TORCH_SPARSE, SparseTensor

import relgraph as rg
from relgraph.pyg import RelationConv
from relgraph.pyg.adjacency import read_edges
from tests.cases import F64

N, E, R = 7, 20, 4


class Edgewise(RelationConv):
    """The same layer, made to take the message() path."""

    def _can_fuse(self):
        return False


def layer(**options):
    return RelationConv(5, 3, heads=2, **{"num_relations": R, **options}).to(F64)


@pytest.fixture
def x():
    return torch.randn(N, 5, dtype=F64)


@pytest.fixture
def edges():
    """Different edges sorted by target, and a relation for each."""
    keys = torch.randperm(N * N)[:E].sort().values
    return torch.stack([keys % N, keys // N]), torch.randint(R, (E,))


def sparse(edges, values):
    """Targets as rows."""
    return torch.sparse_coo_tensor(edges[0].flip(0), values, (N, N, *values.shape[1:])).coalesce()


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("layout", ["to_sparse_coo", "to_sparse_csr", "to_sparse_csc"])
def test_sparse_tensors(layout, x, edges):
    conv, plain, weighted = layer(), layer(num_relations=None), layer(num_relations=None, edge_dim=1)
    values = torch.rand(E, dtype=F64)
    typed, valued = getattr(sparse(edges, edges[1]), layout)(), getattr(sparse(edges, values), layout)()
    torch.testing.assert_close(conv(x, typed), conv(x, *edges))
    torch.testing.assert_close(plain(x, typed), plain(x, edges[0]))
    torch.testing.assert_close(weighted(x, valued), weighted(x, edges[0], edge_attr=values[:, None]))
    out, (given, alpha) = conv(x, typed, return_attention_weights=True)
    expected = conv(x, *edges, return_attention_weights=True)[1][1]
    torch.testing.assert_close(out, conv(x, *edges))
    assert given is typed
    order = (edges[0][0] * N + edges[0][1]).argsort() if layout == "to_sparse_csc" else torch.arange(E)
    torch.testing.assert_close(alpha, expected[order])


@pytest.mark.skipif(not WITH_TORCH_SPARSE, reason="torch_sparse is not installed")
def test_sparse_tensor_of_torch_sparse(x, edges):
    conv = layer()
    source, target = edges[0]
    adjacency = SparseTensor(row=target, col=source, value=edges[1], sparse_sizes=(N, N))
    out, weighted = conv(x, adjacency, return_attention_weights=True)
    expected, (_, alpha) = conv(x, *edges, return_attention_weights=True)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(weighted.storage.value(), alpha)


def test_as_pyg_tests_layers(x, edges):
    conv = RelationConv(5, 3, heads=2)
    assert_module(conv, x.float(), edges[0], expected_size=(N, 6), atol=1e-6)
    assert_module(RelationConv((5, 5), 3), (x.float(), x.float()), edges[0], expected_size=(N, 3), atol=1e-6)
    assert_module(layer(), x, edges[0], edge_type=edges[1], test_sparse_layouts=[], expected_size=(N, 6))


@pytest.mark.parametrize("order", ["row", "col", None])
def test_edge_index(order, x, edges):
    conv, (index, types) = layer(), edges
    if order == "row":
        by_source = index[0].argsort(stable=True)
        index, types = index[:, by_source], types[by_source]
    typed = EdgeIndex(index, sort_order=order, sparse_size=(N, N))
    out, (given, alpha) = conv(x, typed, types, return_attention_weights=True)
    expected, (_, wanted) = conv(x, index, types, return_attention_weights=True)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(alpha, wanted)
    assert given is typed


@pytest.mark.parametrize("kind", [RelationConv, Edgewise])
def test_narrow_integers(kind, x, edges):
    conv = kind(5, 3, num_relations=R).to(F64)
    for dtype in (torch.int32, torch.uint8):
        torch.testing.assert_close(conv(x, edges[0].to(dtype), edges[1].to(dtype)), conv(x, *edges))


@pytest.mark.parametrize("kind", [RelationConv, Edgewise])
def test_edge_labels(kind, x, edges):
    conv = kind(5, 3, num_relations=R).to(F64)
    labels = rg.EdgeLabels(*edges, R, q_len=N)
    out, (index, alpha) = conv(x, labels, return_attention_weights=True)
    expected, (_, wanted) = conv(x, *edges, return_attention_weights=True)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(alpha, wanted)
    assert torch.equal(index, edges[0])
    plain = kind(5, 3).to(F64)
    unlabeled = rg.EdgeLabels(edges[0], torch.full((E,), -1), 0, q_len=N)
    torch.testing.assert_close(plain(x, unlabeled), plain(x, edges[0]))


def test_bad_edges(x, edges):
    (index, types), attr = edges, torch.randn(E, 2, dtype=F64)
    conv, plain, featured = layer(), layer(num_relations=None), layer(num_relations=None, edge_dim=2)
    labels = rg.EdgeLabels(index, types, R, q_len=N)
    for error, call, message in (
        (ValueError, lambda: conv((x, x[:3]), index, types), r"every target must lie in \[0, 3\), got .* 0 to 6"),
        (ValueError, lambda: conv(x, index - 1, types), r"every source must lie in \[0, 7\), got values from -1"),
        (ValueError, lambda: conv(x, index), "edge_type must be given to a layer with num_relations=4"),
        (TypeError, lambda: conv(x, index, attr), "passed as edge_attr="),
        (ValueError, lambda: conv(x, index, types + R), r"edge_type must lie in \[-1, 4\)"),
        (
            ValueError,
            lambda: plain(x, index, types),
            "edge_type must be left out of a layer without num_relations, got shape",
        ),
        (ValueError, lambda: plain(x, index, None, attr), "edge_attr must be left out without edge_dim"),
        (ValueError, lambda: featured(x, index), "edge_attr must be given to a layer with edge_dim=2"),
        (TypeError, lambda: featured(x, index, None, types), "relations are passed as edge_type"),
        (ValueError, lambda: featured(x, index, None, attr[1:]), r"\[E, edge_dim\] = \[20, 2\], got \[19, 2\]"),
        (ValueError, lambda: conv(x, labels, types), "edge_type must be left out with EdgeLabels"),
        (ValueError, lambda: plain(x, labels), "must have 0 relations, got 4"),
        (ValueError, lambda: conv(x[:5], labels), "given as labels, must be of 5 sources and 5 targets, got 7 and 7"),
        (ValueError, lambda: conv(x, rg.EdgeLabels(index, types, R, q_len=N, default=0)), "must have default=None and"),
        (TypeError, lambda: conv(x, rg.ClippedDistance(1).dense()(N)), "RelationGlobalAttention takes other labels"),
    ):
        with pytest.raises(error, match=message):
            call()


def test_adjacencies_of_other_sizes():
    conv, x = rg.pyg.RelationConv(4, 4), torch.randn(6, 4)
    index = torch.tensor([[0, 1], [1, 2]])
    adjacency = torch.sparse_coo_tensor(index.flip(0), torch.ones(2), (8, 8))
    with pytest.raises(
        ValueError, match="given as a sparse adjacency, must be of 6 sources and 6 targets, got 8 and 8"
    ):
        conv(x, adjacency)
    with pytest.raises(ValueError, match="given as an EdgeIndex, must be of 6 sources and 6 targets, got 8 and 8"):
        conv(x, EdgeIndex(index, sparse_size=(8, 8)))
    assert conv(x, EdgeIndex(index, sparse_size=(6, 6))).shape == (6, 4)


def test_edges_are_sorted_once_and_again_after_a_change_in_place(x, edges, monkeypatch):
    index, types = edges
    lowering = importlib.import_module("relgraph.plan.lower")  # the package has a function of this name
    conv, sort, sorts = layer(), lowering._sort, []
    monkeypatch.setattr(lowering, "_sort", lambda *given: sorts.append(given) or sort(*given))
    first = conv(x, index, types)
    assert torch.equal(conv(x, index, types), first)
    assert len(sorts) == 1
    types.copy_((types + 1) % R)
    changed = conv(x, index, types)
    assert len(sorts) == 2
    assert not torch.equal(changed, first)
    assert torch.equal(changed, conv(x, index.clone(), types.clone()))
    types.data = (types + 1) % R  # torch does not count it as a change
    assert torch.equal(conv(x, index, types), conv(x, index.clone(), types.clone()))
    with pytest.raises(ValueError, match="edge_type must lie in"):
        conv(x, index, types.fill_(R))


def test_what_is_remembered_of_edges_goes_with_them(x, edges):
    conv, alive = layer(), []
    for _ in range(5):
        index, types = (part.clone() for part in edges)
        conv(x, index, types).sum().backward()
        known = read_edges(index, types, None, (N, N), R, None).known
        alive += map(weakref.ref, (index, types, known))
        del index, types, known
    gc.collect()
    assert [ref() for ref in alive] == [None] * 15
