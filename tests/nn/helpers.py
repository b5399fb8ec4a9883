"""The tests of layers share these: a layer written out, and edges over a sequence."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

import relgraph as rg
from relgraph.labels import EdgeLabels

F64 = torch.float64


def by_hand(layer, query, key=None, value=None, *, labels=None, features=None, **options) -> Tensor:
    """Compute ``layer`` for batched input by the reference; masks have the polarity of functional."""
    key = query if key is None else key
    value = key if value is None else value
    head, wide, kv = layer.head_dim, layer.num_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim
    weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    if layer.in_proj_weight is not None:
        weights = layer.in_proj_weight.split([wide, kv, kv])
    biases = (layer.q_proj_bias, layer.k_proj_bias, layer.v_proj_bias)
    if layer.in_proj_bias is not None:
        biases = layer.in_proj_bias.split([wide, kv, kv])
    q, k, v = (
        linear(x, w, b).unflatten(-1, (-1, head)).transpose(1, 2)
        for x, w, b in zip((query, key, value), weights, biases, strict=True)
    )
    tables = {} if layer.tables is None else layer.tables(features)
    options |= {"scale": layer.scale, "enable_gqa": True, "impl": "reference"}
    options |= {name: getattr(layer, name) for name in ("content_bias", "position_bias", "sink")}
    z = rg.relation_attention(q, k, v, labels, **tables, **options)
    return layer.out_proj(z.transpose(1, 2).flatten(-2))


def fill_tables(module: nn.Module, scale: float = 1.0) -> nn.Module:
    """Fill every table with random values, bias tables too."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith(".rows"):
                parameter.normal_(std=scale)
    return module


def zero_tables(module: nn.Module) -> nn.Module:
    """Fill every table with zeros."""
    return fill_tables(module, 0.0)


def some_edges(length: int, num_labels: int, default: int | None) -> EdgeLabels:
    """List a third of all pairs with random labels; the others follow ``default``."""
    pairs = torch.randperm(length * length)[: length * length // 3]
    ids = torch.randint(0, num_labels, pairs.shape)
    return EdgeLabels(torch.stack([pairs % length, pairs // length]), ids, num_labels, q_len=length, default=default)


def close(got, wanted, atol: float = 1e-10) -> None:
    torch.testing.assert_close(got, wanted, atol=atol, rtol=0.0)


def table_keys(missing: list[str]) -> bool:
    """Return whether all missing keys of a state belong to tables."""
    return bool(missing) and all(".tables." in f".{key}" for key in missing)
