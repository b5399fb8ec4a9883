"""Equations 3-5 of the paper, written out directly; tests compare all other implementations with this one.

It builds a^K[l_ij] and a^V[l_ij] for all pairs, N_q · N_k · D elements. Parallel edges give a pair several labels. Over
all pairs their terms add up. If only listed pairs attend, each edge attends separately: the keys are repeated for the
second edges of pairs, for the third, and so on.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import dropout

from relgraph.call import Answer, Call, ValueMap, accumulation_dtype
from relgraph.impl import draw
from relgraph.impl.listed import earlier_twins
from relgraph.impl.terms import attend_mask, hashes_of, repeat_heads, softmax_rows
from relgraph.plan import DEAD, NOT_ATTENDING, Part, dense_ids, listed_pairs


class _Pairs(NamedTuple):
    """What all pairs carry: ids ``[B or 1, N_q, N_k]``, and edge vectors ``[B or 1, N_q, N_k, F]`` or None."""

    ids: Tensor
    vectors: Tensor | None


def attend(call: Call) -> Answer:
    """Attention with the label vectors of every pair in memory."""
    dtype, heads, score = accumulation_dtype(call.query.dtype), call.query.shape[1], call.score
    labels = [_pairs(call, part, dtype) for part in call.plan.parts]
    copies = len(labels[0]) if call.plan.edges_only else 1
    if copies > 1:
        joined = ([x for x in field if x is not None] for field in zip(*labels[0], strict=True))
        labels = [[_Pairs(*(torch.cat(field, 2) if field else None for field in joined))]]  # pyright: ignore[reportArgumentType]
    first = labels[0][0].ids
    query = call.query.to(dtype)[:, :, :, None]  # [B, H, N_q, 1, D]
    key, value = (
        repeat_heads(x.to(dtype), heads).repeat(1, 1, copies, 1)[:, :, None] for x in (call.key, call.value)
    )  # [B, H, 1, N_k, D]
    plain_key = key
    if call.gates is not None:
        key, value = (_gated(x, gate, first, dtype) for x, gate in zip((key, value), call.gates, strict=True))
    key_rows, value_rows, query_rows, bias = query.new_zeros(4, 1).unbind()
    for part, tables in zip(labels, call.tables, strict=True):
        for ids, vectors in part:
            key_rows = key_rows + _rows(tables.key, ids, dtype)
            value_rows = value_rows + _rows(tables.value, ids, dtype)
            query_rows = query_rows + _rows(tables.query, ids, dtype)
            bias = bias + _rows(None if tables.bias is None else tables.bias[..., None], ids, dtype)
            if tables.rows is not None:
                bias = bias + _at(tables.rows.to(dtype)[..., None], ids)
            if call.edge is not None and vectors is not None:
                key_rows = key_rows + _carried(vectors, call.edge.key)
                value_rows = value_rows + _carried(vectors, call.edge.value)
    if score.additive:
        weight = score.weight.to(dtype)
        weight = weight if weight.dim() == 1 else weight[:, None, None]
        scores = (score.act(query + (key + key_rows)) * weight).sum(-1)
    else:
        scores = (query * (key + key_rows)).sum(-1)
        if any(tables.query is not None for tables in call.tables):
            scores = scores + (query_rows * plain_key).sum(-1)
        if score.by_label:  # Wᵀ q_i in the place of q_i
            mapped = (_maps(score.weight.to(dtype), first).mT @ query[..., None]).squeeze(-1)
            scores = scores + ((mapped - query) * key).sum(-1)
    scores = score.finish(scores * call.scale + bias.squeeze(-1))
    if call.mask is not None and call.mask.dtype != torch.bool:
        scores = scores + _repeated(call.mask.to(dtype), copies)
    allowed = attend_mask(call)
    if allowed is not None:
        scores = scores.masked_fill(~_repeated(allowed, copies), float("-inf"))
    for part in labels:
        scores = scores.masked_fill((part[0].ids == NOT_ATTENDING)[:, None], float("-inf"))
    weights, lse = softmax_rows(scores)
    if call.value_map is not None:
        value = (_maps(_free_maps(call.value_map, dtype), first) @ value[..., None]).squeeze(-1)
    output = (_drop(call, weights, copies)[..., None] * (value + value_rows)).sum(-2)
    mass = None
    if call.need_mass:
        mass = tuple(
            sum((_mass(x.ids, weights, r) for x in part), weights.new_zeros(()))
            for part, r in zip(labels, call.plan.num_labels, strict=True)
        )
    by_key = weights.unflatten(-1, (copies, call.plan.k_len)).sum(-2) if call.need_weights else None
    return Answer(output, lse, mass, by_key)


def _pairs(call: Call, part: Part, dtype: torch.dtype) -> list[_Pairs]:
    """The labels of all pairs; then those of the second edge of pairs that have one, of the third, and so on."""
    ids, csr = dense_ids(call.plan, part, call.query.device), part.csr
    if csr is None or not (csr.parallel or call.edge is not None):
        return [_Pairs(ids, None)]
    live = (csr.role != DEAD).nonzero()[:, 0]
    turn = earlier_twins(csr.row[live], csr.col[live])
    rows = csr.batch if ids.shape[0] == 1 else ids.shape[0]
    found = []
    for n in range(int(turn.max()) + 1 if len(turn) else 1):
        edge = live[turn == n]
        batch, *at = (x[edge] for x in listed_pairs(call.plan, csr))
        if csr.batch == 1:  # every batch row has every listed pair
            batch = torch.arange(rows, device=ids.device)[:, None]
        under = ids if n == 0 else torch.full_like(ids, NOT_ATTENDING if part.edges_only else -1)
        own = under.expand(rows, -1, -1).index_put((batch, *at), csr.ids[edge])
        vectors = None
        if call.edge is not None:
            attr = call.edge.attr.to(dtype)[csr.order[edge]]
            vectors = attr.new_zeros(*own.shape, attr.shape[-1]).index_put((batch, *at), attr)
        found.append(_Pairs(own, vectors))
    return found


def _rows(table: Tensor | None, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """a[l_ij] for every pair, ``[B or 1, H or 1, N_q, N_k, D]``; zero without a table."""
    return torch.zeros((), dtype=dtype, device=ids.device) if table is None else _at(table.to(dtype).unsqueeze(-3), ids)


def _at(table: Tensor, ids: Tensor, other: Tensor | None = None) -> Tensor:
    """A ``[B or 1, H or 1, N_q or 1, R, D]`` at the id of each pair; ``other`` or zeros for a pair without a label."""
    table = table.reshape((1,) * (5 - table.dim()) + table.shape)
    last = table.new_zeros(table.shape[-1]) if other is None else other
    table = torch.cat([table, last.expand(*table.shape[:3], 1, -1)], 3)
    batch, head, row = (torch.arange(n, device=ids.device) for n in table.shape[:3])
    slots = torch.where(ids < 0, table.shape[3] - 1, ids)[:, None]
    return table[batch[:, None, None, None], head[:, None, None], row[:, None], slots]


def _gated(x: Tensor, gate: Tensor | None, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Keys or values multiplied by the row of each pair's label, by ones for a pair without a label."""
    return x if gate is None else x * _at(gate.to(dtype).unsqueeze(-3), ids, x.new_ones(x.shape[-1]))


def _carried(vectors: Tensor, maps: Tensor | None) -> Tensor | float:
    """W x for every pair, ``[B or 1, H or 1, N_q, N_k, D]``."""
    return 0.0 if maps is None else vectors[:, None] @ maps.to(vectors.dtype)[..., None, :, :].mT


def _free_maps(maps: ValueMap, dtype: torch.dtype) -> Tensor:
    """W for every label, ``[R, D, D]`` or ``[H, R, D, D]``."""
    bases = maps.bases.to(dtype)
    if maps.coefficients is None:
        return bases
    return (maps.coefficients.to(dtype)[..., None, None] * bases[..., None, :, :, :]).sum(-3)


def _maps(maps: Tensor, ids: Tensor) -> Tensor:
    """The map of each pair's label, ``[B or 1, H or 1, N_q, N_k, D, D]``; the identity for a pair without one."""
    size = maps.shape[-1]
    identity = torch.eye(size, dtype=maps.dtype, device=maps.device).flatten()
    return _at(maps.flatten(-2).unsqueeze(-3), ids, identity).unflatten(-1, (size, size))


def _repeated(pairs: Tensor, copies: int) -> Tensor:
    """``[.., N_k or 1]`` for every copy of the keys."""
    return pairs if copies == 1 or pairs.shape[-1] == 1 else pairs.repeat(*(1,) * (pairs.dim() - 1), copies)


def _drop(call: Call, weights: Tensor, copies: int) -> Tensor:
    """The weights after dropout: by a given mask, by place from a given seed, or by torch."""
    if call.dropout_p == 0.0:
        return weights
    hashes, keep = hashes_of(call), call.keep
    if hashes is not None:
        first, second = hashes.rows[..., :1], hashes.rows[..., 1:]
        turns = torch.arange(copies, device=weights.device).repeat_interleave(call.plan.k_len)
        drawn = draw.numbers(first, draw.parted(second, turns), hashes.keys.repeat(1, copies)[:, None, None])
        keep = drawn >= draw.smallest_kept(call.dropout_p)
    elif keep is not None:
        keep = _repeated(keep, copies)
    return dropout(weights, call.dropout_p) if keep is None else weights * keep / (1.0 - call.dropout_p)


def _mass(ids: Tensor, weights: Tensor, num_labels: int) -> Tensor:
    """How much attention each label receives, ``[B, H, N_q, R]``."""
    one_hot = (ids[..., None] == torch.arange(num_labels, device=ids.device)).to(weights.dtype)
    return torch.einsum("bhqk,bqkr->bhqr", weights, one_hot.expand(weights.shape[0], -1, -1, -1))
