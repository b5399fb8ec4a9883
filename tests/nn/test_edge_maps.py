"""Layers over all pairs with features of edges: values and all gradients against loops over pairs."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

import relgraph as rg
from tests.nn.helpers import F64, close, fill_tables

B, H, N, D, R, F = 2, 2, 7, 4, 5, 3
IMPLS = ("reference", "dense", "chunked", "edges", "native", None)
PTR = torch.tensor([0, 4, 4, N])


def edges(default=None, *, twice=False, **options) -> rg.EdgeLabels:
    """A third of the pairs, within the graphs of PTR; if ``twice`` some of them again."""
    graph = torch.tensor([0, 0, 0, 0, 2, 2, 2])
    pairs = torch.tensor([p for p in torch.randperm(N * N).tolist() if graph[p // N] == graph[p % N]][:12])
    pairs = torch.cat([pairs, pairs[:5]]) if twice else pairs
    ids = torch.randint(-1, R, pairs.shape)
    return rg.EdgeLabels(torch.stack([pairs % N, pairs // N]), ids, R, q_len=N, default=default, **options)


LABELS = {
    "no default": lambda: edges(),
    "no default, parallel": lambda: edges(twice=True),
    "an id": lambda: edges(2),
    "no id": lambda: edges(-1),
    "distances": lambda: edges(rg.ClippedDistance(1)(N)),
    "the first of parallel edges": lambda: edges(2, twice=True, duplicates="first"),
    "the sum of parallel edges": lambda: edges(rg.ClippedDistance(1)(N), twice=True, duplicates="sum"),
    "packed": lambda: edges(rg.ClippedDistance(1)(N, ptr=PTR), ptr=PTR),
}


def entries(labels: rg.EdgeLabels) -> list[tuple[int, int, list[int], list[int]]]:
    """Query, key, labels and numbers of edges of all that attends."""
    source, target = labels.edge_index.tolist()
    ids = labels.ids.tolist()
    if labels.default is None:
        return [(i, j, [ids[e]], [e]) for e, (i, j) in enumerate(zip(target, source, strict=True))]
    under = labels.default
    under, attend = (
        (torch.full((N, N), under), None) if isinstance(under, int) else (x[0] for x in under.to_dense())
    )  # the labels of pairs without an edge
    found = []
    for i, j in itertools.product(range(N), range(N)):
        if attend is not None and not attend[i, j]:
            continue
        mine = [e for e in range(len(ids)) if (target[e], source[e]) == (i, j)]
        mine = mine[:1] if labels.duplicates == "first" else mine
        found.append((i, j, [ids[e] for e in mine] or [int(under[i, j])], mine))
    return found


def by_loops(layer, x: Tensor, labels: rg.EdgeLabels, attr: Tensor, tables: dict) -> Tensor:
    """The layer, one pair after the other; ``tables`` are those of its labels."""
    kv = layer.num_kv_heads * D
    query, key, value = nn.functional.linear(x, layer.in_proj_weight, layer.in_proj_bias).split([H * D, kv, kv], -1)
    of_key, of_value = (m.view(H, D, F) for m in (layer.edge_maps.key, layer.edge_maps.value))
    turn = (lambda v, at: v) if layer.rotary is None else lambda v, at: layer.rotary(v[None, None, None], at)[0, 0, 0]
    seen, out = entries(labels), []
    for b, i, h in itertools.product(range(B), range(N), range(H)):
        part, kv_part = (
            slice(h * D, h * D + D),
            slice(h * layer.num_kv_heads // H * D, h * layer.num_kv_heads // H * D + D),
        )
        q, scores, values = query[b, i, part], [], []
        for _, j, ids, mine in (entry for entry in seen if entry[0] == i):
            a = [
                sum((tables[kind][r] for r in ids if r >= 0), torch.zeros(D, dtype=F64))
                + sum((m[h] @ attr[e] for e in mine), torch.zeros(D, dtype=F64))
                for kind, m in (("key_table", of_key), ("value_table", of_value))
            ]
            start = PTR[i >= PTR][-1] if labels.packed else 0
            at, other = torch.tensor([i - start]), torch.tensor([j - start])
            scores.append((turn(q, at) @ turn(key[b, j, kv_part], other) + q @ a[0]) / D**0.5)
            values.append(value[b, j, kv_part] + a[1])
        nothing = q.new_zeros(D)
        out.append(torch.stack(scores).softmax(0) @ torch.stack(values) if scores else nothing)
    return layer.out_proj(torch.stack(out).view(B, N, H * D))


def make(**options) -> rg.RelationAttention:
    layer = rg.RelationAttention(8, H, num_labels=R, edge_dim=F, dtype=F64, **options)
    fill_tables(layer)
    return layer


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64, requires_grad=True)


def gradients(z: Tensor, leaves: list[Tensor]):
    return torch.autograd.grad(z, leaves, torch.linspace(-1, 1, z.numel(), dtype=F64).view_as(z), retain_graph=True)


def compare(layer, labels, tables, impls=IMPLS, **call) -> None:
    """Values and all gradients of a layer in every implementation that takes the call."""
    x, attr = leaf(B, N, 8), leaf(len(labels.ids), F)
    wanted, leaves = by_loops(layer, x, labels, attr, tables), [x, attr, *layer.parameters()]
    expected = gradients(wanted, leaves)
    given = x.flatten(0, 1)[:N] if labels.packed else x
    choice = layer.which_impl(given, labels=labels, edge_attr=attr, **call)
    for impl in impls:
        layer.impl = impl
        if impl in choice.refused:
            with pytest.raises(NotImplementedError, match=f"impl='{impl}'"):
                layer(given, labels=labels, edge_attr=attr, **call)
            continue
        if labels.packed:
            z = torch.stack([layer(one, labels=labels, edge_attr=attr, **call) for one in x])
        else:
            z = layer(x, labels=labels, edge_attr=attr, **call)
        close(z, wanted, 1e-12)
        close(gradients(z, leaves), expected, 1e-12)
    layer.impl = None


@pytest.mark.parametrize("kind", LABELS)
def test_values_and_gradients(kind):
    torch.manual_seed(0)
    for options in ({}, {"num_kv_heads": 1, "rotary": rg.RotaryPositions(D)}):
        layer, labels = make(**options), LABELS[kind]()
        compare(layer, labels, layer.tables())


def test_with_tables_from_a_bank():
    torch.manual_seed(0)
    bank = rg.RelationTables(None, D, banks={kind: nn.Linear(2, D) for kind in ("key", "value")})
    layer = rg.RelationAttention(8, H, tables=bank.to(F64), edge_dim=F, dtype=F64)
    features = torch.randn(R, 2, dtype=F64)
    compare(layer, edges(2), layer.tables(features), ("dense", None), bank_features=features)


def test_features_reach_every_layer_of_a_stack():
    torch.manual_seed(0)
    attention = rg.RelationAttention(8, H, num_labels=R, edge_dim=F, dtype=F64)
    layer = rg.RelationEncoderLayer(8, H, 16, dropout=0.0, attention=attention, dtype=F64)
    encoder = rg.RelationEncoder(layer, 2)
    x, labels, attr = leaf(B, N, 8), edges(2), leaf(12, F)
    z, one, two = encoder(x, labels=labels, edge_attr=attr), *encoder.layers
    assert not torch.equal(one.self_attn.edge_maps.key, two.self_attn.edge_maps.key)
    expected = two(one(x, labels=labels, edge_attr=attr), labels=labels, edge_attr=attr)
    close(z, expected)
    assert all(bool(g.abs().sum() > 0) for g in gradients(z, [attr, *encoder.parameters()]))
    model = rg.RelationTransformer(
        8, H, 1, 1, 16, dropout=0.0, custom_encoder=encoder, target_labeler=rg.ClippedDistance(1), dtype=F64
    )
    for stack in model.encoder.layers:
        assert stack.self_attn.edge_maps.key.std() < 1  # drawn as a matrix
    memory = model.encode(x, src_labels=labels, src_edge_attr=attr)
    close(memory, encoder(x, labels=labels, edge_attr=attr))
    tgt = leaf(B, 3, 8)
    close(model(x, tgt, src_labels=labels, src_edge_attr=attr), model.decode(tgt, memory))
    with pytest.raises(ValueError, match="src_edge_attr must be given to a layer with edge_dim=3, got None"):
        model(x, tgt, src_labels=labels)


def test_decoders_refuse_features():
    attention = rg.RelationAttention(8, H, num_labels=R, edge_dim=F)
    for name, others in (("self_attention", {}), ("cross_attention", {"num_labels": R})):
        with pytest.raises(
            NotImplementedError, match=f"{name} must have no edge_dim: features of edges are for encoder"
        ):
            rg.RelationDecoderLayer(8, H, **{name: attention}, **others)


def test_labels_without_ids_and_new_maps_of_a_plain_layer():
    """Features need no tables; and a layer made of torch's one begins as that one."""
    torch.manual_seed(0)
    plain = nn.MultiheadAttention(8, H, batch_first=True, dtype=F64)
    layer = rg.RelationAttention.from_plain(plain, edge_dim=F)
    made = edges(-1)
    labels = rg.EdgeLabels(made.edge_index, torch.full_like(made.ids, -1), 0, q_len=N, default=-1)
    x, attr = leaf(B, N, 8), leaf(12, F)
    close(layer(x, labels=labels, edge_attr=attr), plain(x, x, x)[0])
    layer.reset_parameters()
    assert layer.edge_maps is not None and layer.edge_maps.key.abs().sum() > 0
    assert "(edge_maps): EdgeMaps(edge_dim=3)" in repr(layer)


ATTR = torch.zeros(12, F, dtype=F64)


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"edge_attr": None}, ValueError, "edge_attr must be given to a layer with edge_dim=3, got None"),
        ({"edge_attr": ATTR[:11]}, ValueError, r"edge_attr must have a row for each .* = \[12, 3\], got \[11, 3\]"),
        ({"edge_attr": ATTR.long()}, TypeError, "edge_attr must be floating, got torch.int64: .* passed as labels"),
        (
            {"edge_attr": ATTR.float()},
            ValueError,
            "edge_attr must have the dtype of query, torch.float64, got torch.float32",
        ),
        ({"labels": rg.ClippedDistance(2)(N)}, ValueError, "labels must be EdgeLabels, .* got DistanceLabels"),
        (
            {"cache": rg.KVCache(), "is_causal": True},
            NotImplementedError,
            "edge_attr must not be given with a cache that grows",
        ),
    ],
)
def test_calls_that_do_not_fit(given, error, match):
    with pytest.raises(error, match=match):
        make()(torch.zeros(B, N, 8, dtype=F64), **{"labels": edges(2), "edge_attr": ATTR, **given})


def test_layers_that_do_not_fit():
    with pytest.raises(ValueError, match="edge_attr must be left out without edge_dim"):
        rg.RelationAttention(8, H, tables=())(torch.zeros(B, N, 8), edge_attr=ATTR)
    with pytest.raises(NotImplementedError, match="content_bias must be False with edge_dim"):
        make(content_bias=True)
    with pytest.raises(ValueError, match="edge_dim must be at least 1, got 0"):
        rg.RelationAttention(8, H, edge_dim=0)
