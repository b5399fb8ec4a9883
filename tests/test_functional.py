"""The front door: shapes, dtypes, packed batches, options, and every refusal."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import relgraph as rg
from relgraph.impl.native import build
from relgraph.labels import DenseLabels, DistanceLabels, EdgeLabels, SumLabels
from tests.cases import F64, KINDS, distance, make, raw

IMPLS = ["reference", "dense", "chunked", "native", None]


def qkv(batch=2, heads=2, q_len=5, k_len=5, size=4, dtype=F64):
    return [torch.randn(batch, heads, n, size, dtype=dtype) for n in (q_len, k_len, k_len)]


@pytest.mark.parametrize("impl", IMPLS)
def test_without_labels_it_is_plain_attention(impl):
    q, k, v = qkv(q_len=6, k_len=6)
    plain = torch.nn.functional.scaled_dot_product_attention
    torch.testing.assert_close(rg.relation_attention(q, k, v, None, impl=impl), plain(q, k, v))
    causal = rg.relation_attention(q, k, v, None, is_causal=True, impl=impl)
    torch.testing.assert_close(causal, plain(q, k, v, is_causal=True))
    mask = torch.rand(6, 6) > 0.2
    torch.testing.assert_close(rg.relation_attention(q, k, v, None, attn_mask=mask, impl=impl), plain(q, k, v, mask))


@pytest.mark.parametrize("impl", IMPLS)
def test_shaws_equations_by_hand(impl):
    """Two positions and one head of size one are few enough to write out."""
    q = torch.tensor([[[[1.0], [2.0]]]])
    k, v = torch.tensor([[[[1.0], [-1.0]]]]), torch.tensor([[[[10.0], [20.0]]]])
    a_k, a_v = torch.tensor([[0.5], [0.0], [-0.5]]), torch.tensor([[1.0], [2.0], [3.0]])
    labels = DistanceLabels(2, lookup=range(3), left=1)
    z = rg.relation_attention(q, k, v, labels, a_k, a_v, impl=impl)
    first = torch.softmax(torch.tensor([1.0 * (1 + 0.0), 1.0 * (-1 - 0.5)]), 0)  # labels 0 and +1
    second = torch.softmax(torch.tensor([2.0 * (1 + 0.5), 2.0 * (-1 + 0.0)]), 0)  # labels -1 and 0
    wanted = torch.stack([first @ torch.tensor([12.0, 23.0]), second @ torch.tensor([11.0, 22.0])])
    torch.testing.assert_close(z.flatten(), wanted)


def test_weights_and_mass():
    q, k, v = qkv()
    labels = KINDS["edges default"](5)
    a_v = torch.randn(4, 4, dtype=F64)
    z, aux = rg.relation_attention_with_aux(
        q, k, v, labels, None, a_v, need_weights=True, need_label_mass=True, need_lse=True
    )
    torch.testing.assert_close(z, aux.weights @ v + aux.label_mass @ a_v)
    ids = labels.to_dense()[0][0]
    unlabeled = (aux.weights * (ids == -1)).sum(-1)
    torch.testing.assert_close(aux.label_mass.sum(-1), 1 - unlabeled)
    nothing = rg.relation_attention_with_aux(q, k, v, labels, None, a_v)[1]
    assert nothing == rg.functional.AttentionAux(None, None, None)
    packed = rg.relation_attention_with_aux(
        *(torch.randn(9, 2, 3) for _ in range(3)), KINDS["distance packed"](9), need_weights=True
    )[1]
    assert packed.weights.shape == (2, 9, 9)


@pytest.mark.parametrize("impl", IMPLS)
@given(st.permutations(range(6)).map(torch.tensor), st.permutations(range(5)).map(torch.tensor))
@settings(max_examples=10)
def test_relabeling_permutes_tables_and_renumbering_nodes_permutes_outputs(impl, label_at, node_at):
    """Of edges over a default."""
    label_of, node_of, pairs, ids = label_at.argsort(), node_at.argsort(), torch.randperm(25)[:8], torch.arange(8) % 6
    index, inputs = torch.stack([pairs // 5, pairs % 5]), qkv(batch=1)
    tables = [*(torch.randn(6, 4, dtype=F64) for _ in range(3)), torch.randn(6, dtype=F64)]
    one = rg.relation_attention(*inputs, EdgeLabels(index, ids, 6, q_len=5, default=5), *tables, impl=impl)
    moved = EdgeLabels(node_of[index], label_of[ids], 6, q_len=5, default=int(label_of[5]))
    at = [x[:, :, node_at] for x in inputs]
    two = rg.relation_attention(*at, moved, *(table[label_at] for table in tables), impl=impl)
    torch.testing.assert_close(two, one[:, :, node_at])


@pytest.mark.parametrize("impl", IMPLS)
def test_autocast(impl):
    q, k, v = qkv(dtype=torch.float32)
    table = torch.randn(5, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        z = rg.relation_attention(q, k, v, distance(5), table, table, impl=impl)
    assert z.dtype == torch.bfloat16
    exact = rg.relation_attention(*(x.bfloat16().float() for x in (q, k, v)), distance(5), table, table)
    torch.testing.assert_close(z.float(), exact, atol=2e-2, rtol=2e-2)
    (grad,) = torch.autograd.grad(z.float().sum(), [table])
    assert grad.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        double = rg.relation_attention(*(x.double() for x in (q, k, v)), distance(5), table, impl=impl)
    assert double.dtype == F64


def test_offset_of_the_labels_serves_the_causal_order():
    q, k, v = qkv(q_len=2, k_len=5)
    own = rg.relation_attention(q, k, v, distance(2, 5, q_offset=3), is_causal=True)
    given = rg.relation_attention(q, k, v, None, is_causal=True, q_offset=3)
    torch.testing.assert_close(own, given)
    nothing, later = torch.zeros(2, 0, dtype=torch.long), distance(2, 5, q_offset=3)
    nested = EdgeLabels(nothing, nothing[0], 5, q_len=2, k_len=5, default=later)
    summed = SumLabels(DenseLabels(torch.zeros(2, 5, dtype=torch.long), 1), later)
    for labels, options in ((nested, {}), (summed, {}), (later, {"q_offset": 3})):
        torch.testing.assert_close(rg.relation_attention(q, k, v, labels, is_causal=True, **options), given)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("low", [-1e9, -1e4, float("-inf")])
def test_a_bias_that_closes_all_but_the_edges(impl, low):
    """The default's entry is huge, and the edges' entries must not be lost in it."""
    labels = EdgeLabels(torch.tensor([[0, 1, 3], [0, 0, 2]]), torch.tensor([0, 1, 1]), 3, q_len=5, default=2)
    q, k, v = qkv()
    bias = torch.tensor([0.5, -1.5, low], dtype=F64)
    z, aux = rg.relation_attention_with_aux(q, k, v, labels, bias_table=bias, need_label_mass=True, impl=impl)
    edges = EdgeLabels(labels.edge_index, labels.ids, 3, q_len=5)
    alone = rg.relation_attention(q, k, v, edges, bias_table=bias, impl="reference")
    torch.testing.assert_close(z[:, :, [0, 2]], alone[:, :, [0, 2]], atol=1e-12, rtol=0)
    if low == float("-inf"):
        assert (z[:, :, [1, 3, 4]] == 0).all()
    assert (aux.label_mass >= 0).all()
    assert (aux.label_mass[:, :, 0, 2] == 0).all()


@pytest.mark.parametrize("impl", ["dense", "chunked", "native", "edges"])
def test_labels_used_in_inference_mode_still_train(impl):
    labels = KINDS["edges default"](5)
    if impl == "edges":  # many labels for few pairs
        labels = EdgeLabels(torch.tensor([[0, 1, 2], [2, 0, 1]]), torch.tensor([0, 7, 39]), 40, q_len=5)
    x, table = torch.randn(1, 2, 5, 4), torch.randn(labels.num_labels, 4)
    with torch.inference_mode():
        rg.relation_attention(x, x, x, labels, table, table, table, impl=impl)
    x.requires_grad_()
    rg.relation_attention(x, x, x, labels, table, table, table, impl=impl).sum().backward()
    assert x.grad.isfinite().all()


T = torch.zeros


@pytest.mark.parametrize(
    ("error", "message", "changes"),
    [
        (ValueError, r"key must have 4 heads like query \(see enable_gqa\), got 2", {"query": T(2, 4, 5, 4)}),
        (ValueError, "key must have a divisor of the 3 query heads, got 2", {"query": T(2, 3, 5, 4), "enable_gqa": True}),
        (ValueError, r"labels must cover \[N_q, N_k\] = \[5, 5\], got \[4, 4\]", {"labels": distance(4)}),
        (ValueError, r"labels must have shape \[N_q, N_k\] = \[5, 5\] or \[2, 5, 5\], got \[5, 4\]", {"labels": T(5, 4).long()}),
        (ValueError, r"labels must lie in \[-1, 5\), got values from 5 to 5", {"labels": T(5, 5).long() + 5}),
        (ValueError, "need a table or a gate, whose rows give R", {"labels": T(5, 5).long(), "key_table": None, "value_table": None}),
        (ValueError, r"query must have shape \[T, H, D\], as the labels are packed", {"labels": distance(5, ptr=torch.tensor([0, 5]))}),
        (ValueError, r"key_table must have shape \[R, D\] or \[H, R, D\] = \[5, 4\] or \[2, 5, 4\], got \[6, 4\]", {"key_table": T(6, 4)}),
        (ValueError, "key_table must be None when labels is None", {"labels": None}),
        (ValueError, "key_table must be a tuple of 2 tables, one per part of the sum, got Tensor", {"labels": SumLabels(distance(5), distance(5))}),
        (ValueError, "key_table must be a tuple of 2 tables, one per part of the sum, got 1", {"labels": SumLabels(distance(5), distance(5)), "key_table": (T(5, 4),)}),
        (ValueError, r"key_table\[1\] must have shape", {"labels": SumLabels(distance(5), distance(5)), "key_table": (T(5, 4), T(4, 4))}),
        (ValueError, r"attn_mask must broadcast to \[2, 2, 5, 5\], got \[2, 5, 5, 5\]", {"attn_mask": T(2, 5, 5, 5)}),
        (ValueError, "q_offset must hold one number per batch row, 2, got 3", {"labels": None, "key_table": None, "value_table": None, "q_offset": torch.tensor([0, 1, 2])}),
        (ValueError, "q_offset must be that of the labels, which count distances from 1, got 2: give it to the labeler", {"labels": distance(5, q_offset=1), "q_offset": 2}),
        (ValueError, "q_offset must be that of the labels, which count distances from 0, got 2", {"q_offset": 2}),
        (ValueError, "q_offset must be that of the labels", {"q_offset": torch.tensor([0, 1])}),
        (ValueError, "q_offset must be that of the labels", {"labels": SumLabels(distance(5), distance(5, q_offset=1)), "key_table": None, "value_table": None, "is_causal": True}),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_together(error, message, changes):
    given = dict.fromkeys(("query", "key", "value"), T(2, 2, 5, 4))
    given |= {"labels": distance(5), **dict.fromkeys(("key_table", "value_table"), T(5, 4))}
    with pytest.raises(error, match=message):
        rg.relation_attention(**given | changes)


def test_causal_order_needs_an_offset_where_lengths_differ():
    table = torch.zeros(5, 4, dtype=F64)
    for labels in (distance(2, 5), None):
        with pytest.raises(ValueError, match=r"q_offset .* with is_causal when .* differ in length \(2 and 5\)"):
            rg.relation_attention(*qkv(q_len=2, k_len=5), labels, table if labels else None, is_causal=True)


def test_checkpointing_gives_the_same_gradients_with_dropout():
    from torch.utils.checkpoint import checkpoint

    case = make(KINDS["distance"](6), dropout_p=0.3)
    torch.manual_seed(2)
    plain = torch.autograd.grad(raw(case, "chunked")[0].sum(), case.leaves[:3])
    torch.manual_seed(2)
    out = checkpoint(lambda *leaves: raw(case, "chunked")[0], *case.leaves, use_reentrant=False)
    for a, b in zip(plain, torch.autograd.grad(out.sum(), case.leaves[:3]), strict=True):
        assert torch.equal(a, b)


def test_causal_over_packed_labels_however_they_were_made():
    """Composing, moving and copying leave borders that are equal but not the same tensor."""
    graph = rg.Graph(torch.tensor([[0, 3], [1, 4]]), 5, ptr=torch.tensor([0, 3, 5]))
    q = torch.randn(5, 2, 3, dtype=torch.float64)
    near = rg.ClippedDistance(1) & rg.Window(1)
    made = {
        "composed": near(graph),
        "edges over distance": (rg.EdgeType(1, attend="all") | rg.ClippedDistance(1))(graph),
        "block": rg.ShortestPath(1)(graph),
        "from blocks": rg.BlockLabels.from_blocks([torch.zeros(n, n, dtype=torch.long) for n in (3, 2)], 1),
    }
    for name, labels in made.items():
        copied = torch.utils._pytree.tree_map(torch.clone, labels)
        wanted = rg.relation_attention(q, q, q, labels, is_causal=True, q_offset=0)
        for one in (labels, copied, labels.to("cpu")):
            torch.testing.assert_close(rg.relation_attention(q, q, q, one, is_causal=True), wanted, msg=name)
    moved = rg.ShortestPath(1)(graph).to("meta")
    assert moved.q_ptr is moved.k_ptr


@pytest.mark.parametrize("impl", ["dense", "chunked", "native", "edges"])
def test_a_tensor_that_torch_negates_when_it_reads_it(impl):
    """Such as the imaginary part of a conjugate; kernels read memory as it is."""
    if impl == "native" and build.missing() is not None:
        pytest.skip(f"no compiled kernels: {build.missing()}")
    labels = rg.EdgeLabels(torch.tensor([[0, 1, 2], [1, 2, 3]]), torch.tensor([0, 1, 2]), 5, q_len=6)
    labels = labels if impl == "edges" else rg.ClippedDistance(2)(6)
    query, key, value = (torch.randn(1, 2, 6, 4) for _ in range(3))
    table = torch.randn(5, 4)
    wanted = rg.relation_attention(-query, key, -value, labels, -table, table, impl="reference")
    lazy = [torch._neg_view(x) for x in (query, value, table)]
    found = rg.relation_attention(lazy[0], key, lazy[1], labels, lazy[2], table, impl=impl)
    torch.testing.assert_close(found, wanted)
