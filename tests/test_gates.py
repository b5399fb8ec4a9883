"""Gates, a vector per label that multiplies keys or values: every implementation against a loop over pairs."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

import relgraph as rg
from tests.nn.helpers import F64, some_edges

B, H, N, D, R = 2, 4, 7, 3, 5
IMPLS = ("reference", "dense", "chunked", "edges", "native", None)


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64, requires_grad=True)


def close(got, wanted) -> None:
    torch.testing.assert_close(got, wanted, atol=1e-12, rtol=0.0)


def entries(labels, b: int) -> list[tuple[int, int, int]]:
    """Query, key and label of everything that attends; parallel edges one by one."""
    if isinstance(labels, rg.EdgeLabels) and labels.default is None:
        source, target = labels.edge_index.tolist()
        return list(zip(target, source, labels.ids.tolist(), strict=True))
    ids, attend = (x[b % len(x)].tolist() for x in labels.to_dense())
    return [(i, j, ids[i][j]) for i, j in itertools.product(range(N), range(N)) if attend[i][j]]


def by_loops(q, k, v, labels, key_table=None, value_table=None, query_table=None, *, key_gate=None, value_gate=None):
    """The output, one pair after the other."""

    def at(table, h, label, without):
        if table is None or label < 0:
            return without
        return table[label] if table.dim() == 2 else table[h, label]

    group, rows = q.shape[1] // k.shape[1], []
    for b, h in itertools.product(range(q.shape[0]), range(q.shape[1])):
        seen = entries(labels, b)
        for i in range(N):
            scores, values = [], []
            for _, j, label in (entry for entry in seen if entry[0] == i):
                key, value = k[b, h // group, j], v[b, h // group, j]
                used = key * at(key_gate, h, label, 1.0) + at(key_table, h, label, 0.0)
                plain = (key * at(query_table, h, label, torch.zeros(D, dtype=F64))).sum()
                scores.append(((q[b, h, i] * used).sum() + plain) * D**-0.5)
                values.append(value * at(value_gate, h, label, 1.0) + at(value_table, h, label, 0.0))
            nothing = v.new_zeros(v.shape[-1])
            rows.append(torch.stack(scores).softmax(0) @ torch.stack(values) if scores else nothing)
    return torch.stack(rows).view(*q.shape[:3], -1)


def edges(default) -> rg.EdgeLabels:
    made = some_edges(N, R, default)
    return rg.EdgeLabels(made.edge_index, made.ids.masked_fill(made.ids == 1, -1), R, q_len=N, default=default)


def parallel() -> rg.EdgeLabels:
    index = torch.randint(0, N, (2, 30))
    return rg.EdgeLabels(index, torch.randint(-1, R, (30,)), R, q_len=N)


LABELS = {
    "distance": lambda: rg.ClippedDistance(2)(N),
    "ids": lambda: rg.DenseLabels(torch.randint(-1, R, (B, N, N)), R),
    "edges": lambda: edges(None),
    "parallel edges": parallel,
    "edges over a label": lambda: edges(2),
}
TERMS = {
    "both, shared": ((), ("key", "value")),
    "both per head, with tables": ((H,), ("key", "value", "tables")),
    "keys": ((), ("key",)),
    "values per head, with tables": ((H,), ("value", "tables")),
}


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("kind", LABELS)
def test_values_and_gradients(impl, kind, terms):
    torch.manual_seed(0)
    labels, (lead, names) = LABELS[kind](), TERMS[terms]
    q, k, v = leaf(B, H, N, D), leaf(B, 2, N, D), leaf(B, 2, N, D + 1)
    tables = {} if "tables" not in names else {
        "key_table": leaf(R, D), "value_table": leaf(*lead, R, D + 1), "query_table": leaf(*lead, R, D)
    }  # fmt: skip
    gates = {}
    if "key" in names:
        gates["key_gate"] = leaf(*lead, R, D)
    if "value" in names:
        gates["value_gate"] = leaf(*lead, R, D + 1)
    choice = rg.which_impl(q, k, v, labels, **tables, **gates, enable_gqa=True)
    if impl in choice.refused:
        with pytest.raises(NotImplementedError, match="impl="):
            rg.relation_attention(q, k, v, labels, **tables, **gates, enable_gqa=True, impl=impl)
        return
    got = rg.relation_attention(q, k, v, labels, **tables, **gates, enable_gqa=True, impl=impl)
    wanted = by_loops(q, k, v, labels, **tables, **gates)
    close(got, wanted)
    learned, direction = [q, k, v, *tables.values(), *gates.values()], torch.randn_like(wanted)
    close(*(torch.autograd.grad(z, learned, direction) for z in (got, wanted)))


def test_edge_vectors_biases_of_queries_and_functions_of_scores():
    """Beside gates they mean what they mean without: all ways agree with the equations to the letter."""
    torch.manual_seed(0)
    labels, inputs = edges(None), [leaf(N, H, D) for _ in range(3)]
    options = {
        "key_gate": leaf(R, D), "value_gate": leaf(H, R, D), "key_table": leaf(R, D),
        "score": rg.score.Softcap(2.0),
    }  # fmt: skip
    vectors = {"edge_attr": leaf(len(labels.ids), 2), "edge_key": leaf(D, 2), "edge_value": leaf(H, D, 2)}
    biases = {"content_bias": leaf(H, D), "position_bias": leaf(H, D)}
    whole = [x.transpose(0, 1)[None] for x in inputs]
    for more in (vectors, biases):
        given = {**options, **more}
        learned = [*inputs, *(x for x in given.values() if isinstance(x, Tensor))]
        wanted = rg.relation_attention(*whole, labels, **given, impl="reference")[0].transpose(0, 1)
        direction = torch.randn_like(wanted)
        expected = torch.autograd.grad(wanted, learned, direction, retain_graph=True)
        for impl in ("edges", "native"):
            got = rg.edge_attention(*inputs, labels, **given, impl=impl)
            close(got, wanted)
            close(torch.autograd.grad(got, learned, direction), expected)


def test_packed_graphs_and_rows_and_columns_of_labels():
    torch.manual_seed(0)
    ptr = torch.tensor([0, 4, N])
    q, k, v, gates = leaf(N, H, D), leaf(N, H, D), leaf(N, H, D), {"key_gate": leaf(R, D), "value_gate": leaf(R, D)}
    packed = rg.ClippedDistance(2)(N, ptr=ptr)
    z = rg.relation_attention(q, k, v, packed, **gates)
    for at in (slice(0, 4), slice(4, N)):
        mine = (x[at].transpose(0, 1)[None] for x in (q, k, v))
        alone = rg.relation_attention(*mine, rg.ClippedDistance(2)(at.stop - at.start), **gates)
        close(z[at], alone[0].transpose(0, 1))
    whole = [x.transpose(0, 1)[None] for x in (q, k, v)]
    for labels in (rg.ClippedDistance(2)(N), edges(None)):
        z = rg.relation_attention(*whole, labels, **gates)
        close(rg.relation_attention(whole[0][:, :, 2:5], *whole[1:], labels.rows(2, 5), **gates), z[:, :, 2:5])


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"key_gate": torch.zeros(R, D + 1)}, ValueError, r"key_gate must have shape \[R, D\] or \[H, R, D\] = \[5, 3\]"),
        ({"value_gate": [1.0]}, TypeError, "value_gate must be a Tensor, got list"),
        ({"value_gate": torch.zeros(R, D), "labels": None}, ValueError, "value_gate needs labels, got None"),
        (
            {"key_gate": torch.zeros(R, D), "labels": rg.SumLabels(rg.ClippedDistance(1)(N), rg.ClippedDistance(2)(N))},
            NotImplementedError, "key_gate needs one label per pair, got a sum of 2 labels",
        ),
        (
            {"key_gate": torch.zeros(R, D), "score": rg.score.Additive(torch.zeros(D))}, ValueError,
            "key_gate must be None with score=Additive: it is for dot products",
        ),
        (
            {"value_gate": torch.zeros(R, D), "value_map": torch.zeros(R, D, D)}, ValueError,
            "value_gate must be None with a value_map",
        ),
        ({"key_gate": torch.zeros(R, D), "impl": "triton"}, NotImplementedError, "has no key_gate or value_gate; use"),
    ],
)  # fmt: skip
def test_gates_that_do_not_fit(options, error, match):
    x = torch.zeros(1, H, N, D)
    given = {"labels": rg.ClippedDistance(2)(N), **options}
    with pytest.raises(error, match=match):
        rg.relation_attention(x, x, x, given.pop("labels"), **given)
