"""Attention of NeMo, timm and MONAI, written out in float64, against layers with their weights as the page moves them."""

from __future__ import annotations

import pytest
import torch

import relgraph as rg

E, H, D = 24, 3, 8


def drawn(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def weights():
    """Weights and biases of the projections of queries, keys, values and outputs, as one tensor each."""
    return drawn(3 * E, E), drawn(3 * E), drawn(E, E), drawn(E)


def layer_of(in_weight, in_bias, out_weight, out_bias, num_labels, rows, **terms):
    """The layer of the page, as a function of its weights so that these get the gradients."""
    kind = "bias" if rows.ndim == 2 else "key"
    tables = rg.RelationTables(num_labels, D, heads=H, kinds=(kind,), per_head=True)
    biased = dict.fromkeys(terms, True)
    layer = rg.RelationAttention(E, H, tables=tables, **biased).double()
    state = {"in_proj_weight": in_weight, "in_proj_bias": in_bias, "out_proj.weight": out_weight}
    state |= {"out_proj.bias": out_bias, f"tables.{kind}.rows": rows} | terms
    assert state.keys() == {name for name, _ in layer.named_parameters()}
    return lambda x, **given: torch.func.functional_call(layer, state, (x,), given)


def attend(x, projections, score):
    """``score(q, k)`` gives unscaled terms of queries and keys, and what is added after scaling."""
    in_weight, in_bias, out_weight, out_bias = projections
    q, k, v = (y.unflatten(-1, (H, D)).transpose(1, 2) for y in (x @ in_weight.T + in_bias).chunk(3, -1))
    scaled, added = score(q, k)
    z = (scaled / D**0.5 + added).softmax(-1) @ v
    return z.transpose(1, 2).flatten(2) @ out_weight.T + out_bias


def assert_same(ours, theirs, leaves):
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    grad = torch.randn_like(ours)
    mine, wanted = (torch.autograd.grad(z, leaves, grad, retain_graph=True) for z in (ours, theirs))
    torch.testing.assert_close(mine, wanted, rtol=1e-10, atol=1e-10)


def test_nemos_shifted_positions_with_a_mask():
    n, projections = 7, weights()
    x, to_position, u, w = drawn(2, n, E), drawn(E, E), drawn(H, D), drawn(H, D)
    sines = torch.randn(2 * n - 1, E, dtype=torch.float64)  # positions n - 1 to 1 - n: i - j
    rows = (sines @ to_position.T).unflatten(-1, (H, D)).transpose(0, 1)  # [H, R, D]
    blocked = torch.rand(2, n, n) < 0.3
    blocked[:, range(n), range(n)] = False

    def score(q, k):
        shifted = torch.nn.functional.pad((q + w[:, None]) @ rows.mT, (1, 0)).view(2, H, 2 * n, n)  # rel_shift
        shifted = shifted[:, :, 1:].reshape(2, H, n, 2 * n - 1)[..., :n]
        terms = (q + u[:, None]) @ k.mT + shifted
        return terms.masked_fill(blocked[:, None], float("-inf")), 0.0

    labeler = rg.ClippedDistance(n - 1)
    layer = layer_of(*projections, labeler.num_labels, rows, content_bias=u, position_bias=w)
    ours = layer(x, labels=labeler(n), attn_mask=blocked[:, None].expand(-1, H, -1, -1))
    assert_same(ours, attend(x, projections, score), [x, to_position, u, w, *projections])


def index_of(sides):
    """``relative_position_index`` of a window: differences query minus key, the last axis fastest."""
    places = torch.cartesian_prod(*map(torch.arange, sides)).view(-1, len(sides))
    ids = torch.zeros(len(places), len(places), dtype=torch.long)
    for side, place in zip(sides, places.T, strict=True):
        ids = ids * (2 * side - 1) + place[:, None] - place + side - 1
    return ids


@pytest.mark.parametrize("kind", ["swin", "class token", "maxvit", "monai", "monai, part of a 3-D window"])
def test_biases_of_windows_with_the_mask_of_a_shift(kind):
    sides = (2, 3, 2) if "3-D" in kind else (3, 4)
    index = index_of(sides)
    if kind == "class token":
        index = torch.nn.functional.pad(index, (1, 0, 1, 0))
        index[0, :], index[:, 0], index[0, 0] = 35, 36, 37
    if "3-D" in kind:  # a window that the image cuts: MONAI takes the first rows and columns of the index
        index = index[:8, :8]
    n, count = len(index), {"class token": 38, "monai, part of a 3-D window": 45}.get(kind, 35)
    x, table, projections = drawn(4, n, E), drawn(count, H), weights()
    mask = torch.where(torch.rand(2, n, n) < 0.3, -100.0, 0.0).double().repeat(2, 1, 1)
    bias = table[index].permute(2, 0, 1)
    if kind == "maxvit":  # [H, 5, 7], looked up by key minus query
        down, right = (places[None] - places[:, None] for places in torch.cartesian_prod(*map(torch.arange, sides)).T)
        bias = table.T.unflatten(1, (5, 7))[:, down + 2, right + 3]
    theirs = attend(x, projections, lambda q, k: (q @ k.mT, bias + mask[:, None]))

    labeler = rg.Grid((2, 3), extra_tokens=1 if kind == "class token" else 0)
    if "monai" in kind:
        labels, rows = rg.DenseLabels(index, count), table.T
    else:
        labels, rows = labeler(*sides), table.T if kind == "maxvit" else labeler.rows_from(table).T
    ours = layer_of(*projections, count, rows)(x, labels=labels, attn_mask=mask[:, None].expand(-1, H, -1, -1))
    assert_same(ours, theirs, [x, table, *projections])
