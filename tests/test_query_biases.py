"""Biases of the query (Transformer-XL): every implementation against the formula written out for all pairs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import relgraph as rg
from tests.nn.helpers import F64, close, some_edges

B, H, N, D = 2, 4, 9, 3
BOTH = ("content_bias", "position_bias")
IMPLS = ("reference", "dense", "chunked", "native", None)


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64, requires_grad=True)


def inputs(kv_heads: int = H, q_len: int = N) -> list[Tensor]:
    return [leaf(B, H, q_len, D), leaf(B, kv_heads, N, D), leaf(B, kv_heads, N, D + 1)]


def biases(names=BOTH) -> dict[str, Tensor]:
    return {name: leaf(H, D) for name in names}


def written_out(
    query, key, value, parts, *, scale=None, content_bias=None, position_bias=None, finish=None, seen=None
) -> Tensor:
    """The formula for all pairs; ``parts`` holds labels, key table, query table, bias table and value table of each."""
    heads = query.shape[1]
    key, value = (x.repeat_interleave(heads // x.shape[1], 1) for x in (key, value))
    of_content = query if content_bias is None else query + content_bias[:, None]
    of_position = query if position_bias is None else query + position_bias[:, None]
    scores = of_content @ key.mT
    more, values = 0.0, value[:, :, None]
    for labels, key_table, query_table, bias_table, value_table in parts:
        ids, attend = labels.to_dense()
        seen = attend if seen is None else seen & attend
        there = (ids >= 0)[:, None, :, :, None]

        def rows(table, dims=2, ids=ids, there=there):
            table = table if table.dim() > dims else table[None]
            return table[:, ids.clamp(min=0)].transpose(0, 1) * (there if dims == 2 else there[..., 0])

        if key_table is not None:
            scores = scores + (of_position[:, :, :, None] * rows(key_table)).sum(-1)
        if query_table is not None:
            scores = scores + (key[:, :, None] * rows(query_table)).sum(-1)
        if bias_table is not None:
            more = more + rows(bias_table, 1)
        if value_table is not None:
            values = values + rows(value_table)
    scores = scores * (D**-0.5 if scale is None else scale) + more
    scores = scores if finish is None else finish(scores)
    weights = scores.masked_fill(~seen[:, None], float("-inf")).softmax(-1).nan_to_num(0.0)
    return (weights[..., None] * values).sum(-2)


def check(arguments, options, parts, **written) -> None:
    """Compare values and every gradient."""
    learned = [x for x in (*arguments, *options.values()) if isinstance(x, Tensor)]
    learned += [x for part in parts for x in part[1:] if x is not None]
    labels = [part[0] for part in parts]
    tables = [[part[at] for part in parts] for at in (1, 4, 2, 3)]
    if len(parts) == 1:
        labels, tables = labels[0], [table[0] for table in tables]
    else:
        labels = rg.SumLabels(*labels)
        tables = [tuple(table) if any(x is not None for x in table) else None for table in tables]
    got = rg.relation_attention(*arguments, labels, *tables, enable_gqa=True, **options)
    biased = {name: options[name] for name in (*BOTH, "scale") if name in options}
    wanted = written_out(*arguments, parts, **biased, **written)
    close(got, wanted)
    weight = torch.randn_like(wanted)
    grads = [torch.autograd.grad(z, learned, weight, allow_unused=True, materialize_grads=True) for z in (got, wanted)]
    close(*grads)
    assert all(x.grad_fn is not None or bool(g.abs().sum() > 0) for x, g in zip(learned, grads[0], strict=True))


LABELS = {
    "distance": lambda: rg.ClippedDistance(2)(N),
    "ids": lambda: rg.DenseLabels(torch.randint(-1, 5, (B, N, N)), 5),
    "edges": lambda: some_edges(N, 5, None),
    "edges over a label": lambda: some_edges(N, 5, 2),
}


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize(
    ("names", "kv_heads", "per_head"), [(BOTH, H, False), (BOTH[:1], 2, True), (BOTH[1:], 2, True)]
)
def test_values_and_gradients(impl, kind, names, kv_heads, per_head):
    torch.manual_seed(0)
    lead = (H,) if per_head else ()
    part = (LABELS[kind](), leaf(*lead, 5, D), leaf(*lead, 5, D), leaf(*lead, 5), leaf(5, D + 1))
    check(inputs(kv_heads), {**biases(names), "impl": impl}, [part])


@pytest.mark.parametrize("impl", IMPLS)
def test_every_part_with_a_key_table_has_them(impl):
    torch.manual_seed(0)
    parts = [
        (rg.ClippedDistance(1)(N), leaf(3, D), None, None, leaf(3, D + 1)),
        (rg.DenseLabels(torch.randint(-1, 4, (N, N)), 4), leaf(H, 4, D), None, leaf(4), None),
        (rg.ClippedDistance(2)(N), None, leaf(5, D), None, None),
    ]
    check(inputs(), {**biases(), "impl": impl}, parts)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("score", [rg.score.Softcap(1.5), rg.score.LeakyReLU(0.3), torch.atan])
def test_functions_of_finished_scores(impl, score):
    if impl == "native" and score is torch.atan:
        pytest.skip("native knows two functions")
    torch.manual_seed(0)
    part = (rg.ClippedDistance(2)(N), leaf(5, D), None, leaf(H, 5), None)
    check(inputs(), {**biases(), "impl": impl, "score": score, "scale": 1.0}, [part], finish=score)


def test_packed_graphs_and_edges_alone():
    labels = rg.ClippedDistance(2)(N, ptr=torch.tensor([0, 4, N]))
    q, k, v, table = leaf(N, H, D), leaf(N, H, D), leaf(N, H, D), leaf(5, D)
    given_ = biases()
    z = rg.relation_attention(q, k, v, labels, table, **given_)
    for rows in (slice(0, 4), slice(4, N)):
        mine = (x[rows].transpose(0, 1)[None] for x in (q, k, v))
        alone = rg.relation_attention(*mine, rg.ClippedDistance(2)(rows.stop - rows.start), table, **given_)
        close(z[rows], alone[0].transpose(0, 1))
    edges = some_edges(N, 5, None)
    whole = (x.transpose(0, 1)[None] for x in (q, k, v))
    z = rg.relation_attention(*whole, edges, table, **given_)
    for impl in ("edges", "native", None):
        close(rg.edge_attention(q, k, v, edges, table, **given_, impl=impl), z[0].transpose(0, 1))


def test_edge_vectors_in_the_value():
    edges = some_edges(N, 5, None)
    attr, to_value = leaf(edges.ids.shape[0], 2), leaf(D, 2)
    q, k, v, table = leaf(N, H, D), leaf(N, H, D), leaf(N, H, D), leaf(5, D)
    bias = leaf(H, D)
    both = {"content_bias": bias, "position_bias": bias, "edge_attr": attr, "edge_value": to_value}
    wanted = rg.edge_attention(q + bias, k, v, edges, table, edge_attr=attr, edge_value=to_value)
    close(rg.edge_attention(q, k, v, edges, table, **both), wanted)


@pytest.mark.parametrize(
    ("dtype", "impl"), [(torch.bfloat16, "dense"), (torch.float16, "chunked"), (torch.bfloat16, "native")]
)
def test_half_types(dtype, impl):
    """Half types are as exact as their roundings allow."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(B, H, N, size, dtype=dtype) for size in (D, D, D))
    u, w, table = (torch.randn(*shape, dtype=dtype) for shape in ((H, D), (H, D), (5, D)))
    labels = rg.ClippedDistance(2)(N)
    part = (labels, table.double(), None, None, None)
    wanted = written_out(q.double(), k.double(), v.double(), [part], content_bias=u.double(), position_bias=w.double())
    z = rg.relation_attention(q, k, v, labels, table, content_bias=u, position_bias=w, impl=impl)
    assert z.dtype == dtype
    close(z.double(), wanted, atol=24 * torch.finfo(dtype).eps)


def test_transforms_and_compiled_code():
    q, k, v = inputs()
    labels, table, given_ = rg.ClippedDistance(2)(N), leaf(5, D), biases()

    def loss(u):
        return (
            rg.relation_attention(
                q, k, v, labels, table, content_bias=u, position_bias=given_["position_bias"], impl="dense"
            )
            .square()
            .sum()
        )

    u = given_["content_bias"]
    close(torch.func.grad(loss)(u), torch.autograd.grad(loss(u), u)[0])

    def call(q):
        return rg.relation_attention(q, k, v, labels, table, **given_)

    close(torch.compile(call, backend="eager", fullgraph=True)(q), call(q))


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"position_bias": torch.zeros(H, D, dtype=F64), "key_table": None}, ValueError, "position_bias needs a key_table"),
        (
            {"content_bias": torch.zeros(H, D, dtype=F64), "score": rg.score.Additive(torch.ones(D, dtype=F64))},
            ValueError,
            "content_bias must be None with score=Additive: it is for dot products",
        ),
        (
            {"position_bias": torch.zeros(H, D, dtype=F64), "score": rg.score.Bilinear(torch.ones(5, D, D, dtype=F64))},
            ValueError,
            "position_bias must be None with score=Bilinear: it is for dot products",
        ),
        (
            {
                "content_bias": torch.zeros(H, D, dtype=F64),
                "edge_attr": torch.zeros(1, 2, dtype=F64),
                "edge_key": torch.zeros(D, 2, dtype=F64),
            },
            NotImplementedError,
            "content_bias cannot be added where edge vectors have an edge_key",
        ),
    ],
)  # fmt: skip
def test_refusals(options, error, match):
    q, k, v = inputs()
    labels = rg.EdgeLabels(torch.tensor([[0], [1]]), torch.tensor([0]), 5, q_len=N)
    with pytest.raises(error, match=match):
        rg.relation_attention(q, k, v, labels, **{"key_table": leaf(5, D), **options})
