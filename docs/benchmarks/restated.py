"""Other libraries' attention with labels, restated in a few lines from the published formulas.

Shapes: query, key and value ``[B, H, N, D]``, tables ``[R, D]``, ids ``[N, N]`` int64, the label of each pair.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def paper(query: Tensor, key: Tensor, value: Tensor, key_table: Tensor, value_table: Tensor, ids: Tensor) -> Tensor:
    """Eqs. 3 and 4 as in section 3.3 of Shaw et al. 2018: builds a[l_ij], then N products over batch and heads."""
    scores = query @ key.mT + row_by_row(query, key_table[ids].mT)
    weights = (scores / math.sqrt(query.shape[-1])).softmax(-1)
    return weights @ value + row_by_row(weights, value_table[ids])


def row_by_row(x: Tensor, matrices: Tensor) -> Tensor:
    """``x[b, h, i] @ matrices[i]`` for every i as N batched products, ``[B, H, N, columns]``."""
    rows = x.flatten(0, 1).transpose(0, 1)  # [N, B·H, columns of x]
    return (rows @ matrices).transpose(0, 1).unflatten(0, x.shape[:2])


def split(query: Tensor, key: Tensor, value: Tensor, key_table: Tensor, value_table: Tensor, ids: Tensor) -> Tensor:
    """The split term over all pairs: gathers q·a^K by label, sums weights by label, then multiplies by a^V."""
    pairs = ids.expand(*query.shape[:2], -1, -1)
    scores = query @ key.mT + (query @ key_table.mT).gather(-1, pairs)
    weights = (scores / math.sqrt(query.shape[-1])).softmax(-1)
    mass = weights.new_zeros(*query.shape[:3], key_table.shape[0]).scatter_add(-1, pairs, weights)
    return weights @ value + mass @ value_table


def bert_relative_key(query: Tensor, key: Tensor, value: Tensor, key_table: Tensor) -> Tensor:
    """BERT with ``position_embedding_type="relative_key"`` (transformers up to 4.56): row i - j + P - 1 of 2P - 1.

    The term is the product ``bhld,lrd->bhlr`` of queries and positions, built for every pair (Shaw et al. 2018; Huang
    et al. 2020, method 1). There are no value vectors.
    """
    length, most = query.shape[2], (key_table.shape[0] + 1) // 2
    at = torch.arange(length, device=query.device)
    positions = key_table[at[:, None] - at + most - 1]
    scores = query @ key.mT + torch.einsum("bhld,lrd->bhlr", query, positions)
    return (scores / math.sqrt(query.shape[-1])).softmax(-1) @ value


def opennmt(query: Tensor, key: Tensor, value: Tensor, table: Tensor) -> Tensor:
    """OpenNMT-py with ``max_relative_positions`` k: one table of 2k + 1 rows serves keys and values, built for pairs.

    Queries are scaled before both products; softmax runs in float32.
    """
    length, clip = query.shape[2], table.shape[0] // 2
    at = torch.arange(length, device=query.device)
    vectors = table[(at - at[:, None]).clamp(-clip, clip) + clip]
    query = query / math.sqrt(query.shape[-1])
    scores = query @ key.mT + row_by_row(query, vectors.mT)
    weights = scores.float().softmax(-1).to(query.dtype)
    return weights @ value + row_by_row(weights, vectors)
