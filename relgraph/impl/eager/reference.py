"""Equations 3-5 of the paper, written out directly; tests compare all other implementations with this one.

It builds a^K[l_ij] and a^V[l_ij] for all pairs, N_q · N_k · D numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import dropout

from relgraph.call import Answer, Call, Tables, ValueMap, accumulation_dtype
from relgraph.impl import draw
from relgraph.impl.listed import earlier_twins
from relgraph.impl.terms import attend_mask, drop, hashes_of, repeat_heads, softmax_rows, with_zero_row
from relgraph.plan import DEAD, EXTRA, Part, dense_ids, listed_pairs
from relgraph.score import Additive, Bilinear, finish


def attend(call: Call) -> Answer:
    """Attention with the label vectors of every pair in memory."""
    dtype = accumulation_dtype(call.query.dtype)
    heads = call.query.shape[1]
    query, key, value = (x.to(dtype) for x in (call.query, call.key, call.value))
    key, value = repeat_heads(key, heads), repeat_heads(value, heads)
    part = call.plan.parts[0]
    if part.edges_only and part.csr is not None and part.csr.parallel and len(call.plan.parts) == 1:
        return _edge_by_edge(call, part, query, key, value)
    keys, values = key[:, :, None], value[:, :, None]  # [B, H, 1, N_k, D]
    queries = query[:, :, :, None]  # [B, H, N_q, 1, D]
    bias = 0.0
    allowed = attend_mask(call)
    ids = [dense_ids(call.plan, part, query.device) for part in call.plan.parts]
    for pairs, part, tables in zip(ids, call.plan.parts, call.tables, strict=True):
        keys = keys + _rows(call, part, pairs, tables.key, dtype)
        values = values + _rows(call, part, pairs, tables.value, dtype)
        queries = queries + _rows(call, part, pairs, tables.query, dtype)
        if tables.bias is not None:
            bias = bias + _rows(call, part, pairs, tables.bias[..., None], dtype).squeeze(-1)
        if tables.rows is not None:
            bias = bias + _given_rows(call, part, pairs, tables.rows.to(dtype))
        attends = (pairs > -2)[:, None]
        allowed = attends if allowed is None else allowed & attends
    if call.edge is not None:
        vectors = _vectors_of_pairs(call, call.edge.attr.to(dtype))
        keys, values = keys + _carried(vectors, call.edge.key), values + _carried(vectors, call.edge.value)
    if isinstance(call.score, Additive):
        scores = _additive(call.score, query[:, :, :, None], keys)
    else:
        # q_i·(k_j + a^K) + a^Q·k_j, where `queries` holds q_i + a^Q and `keys` holds k_j + a^K
        scores = (query[:, :, :, None] * keys).sum(-1)
        if any(tables.query is not None for tables in call.tables):
            scores = scores + ((queries - query[:, :, :, None]) * key[:, :, None]).sum(-1)
    if isinstance(call.score, Bilinear):  # Wᵀ q_i - q_i, because q_i·k_j is already in the score
        mapped = _maps(call.score.weight.to(dtype), ids[0]).mT @ query[:, :, :, None, :, None]
        scores = scores + ((mapped.squeeze(-1) - query[:, :, :, None]) * key[:, :, None]).sum(-1)
    scores = finish(call.score, scores * call.scale + bias)
    if call.mask is not None and call.mask.dtype != torch.bool:
        scores = scores + call.mask.to(dtype)
    scores = scores.masked_fill(~allowed, float("-inf")) if allowed is not None else scores
    weights, lse = softmax_rows(scores)
    dropped = drop(call, weights)
    if call.value_map is not None:
        mapped = _maps(_free_maps(call.value_map, dtype), ids[0]) @ value[:, :, None, :, :, None]
        values = values - value[:, :, None] + mapped.squeeze(-1)
    output = (dropped[..., None] * values).sum(-2)
    mass = None
    if call.need_mass:
        mass = tuple(_mass(call, p, pairs, weights) for p, pairs in zip(call.plan.parts, ids, strict=True))
    return Answer(output, lse, mass, weights if call.need_weights else None)


def _rows(call: Call, part: Part, ids: Tensor, table: Tensor | None, dtype: torch.dtype) -> Tensor:
    """a[l_ij] for every pair, ``[B, H or 1, N_q, N_k, D]``; parallel pairs of a sum add their rows."""
    if table is None:
        return torch.zeros((), dtype=dtype, device=ids.device)
    table = with_zero_row(table.to(dtype))
    table = table.reshape((1,) * (4 - table.dim()) + table.shape)  # [B or 1, H or 1, R+1, D]
    slots = torch.where(ids < 0, part.num_labels, ids)[:, None]
    each_batch, each_head = (torch.arange(n, device=ids.device) for n in table.shape[:2])
    rows = table[each_batch[:, None, None, None], each_head[:, None, None], slots]  # [B or 1, H or 1, N_q, N_k, D]
    if part.csr is None or not part.csr.parallel:
        return rows
    batch, query, key = listed_pairs(call.plan, part.csr)
    extra = torch.where((part.csr.role == EXTRA) & (part.csr.ids >= 0), part.csr.ids, part.num_labels)
    batch_rows = table.shape[0] if part.csr.batch == 1 else part.csr.batch
    if part.csr.batch == 1:
        batch = torch.arange(batch_rows, device=ids.device)[:, None]  # every batch row has every listed pair
    taken = table[batch if table.shape[0] != 1 else torch.zeros_like(batch), :, extra]  # [.., P, H or 1, D]
    shape = batch_rows, call.plan.q_len, call.plan.k_len, table.shape[1], table.shape[3]
    added = torch.zeros(shape, dtype=dtype, device=ids.device)
    added = added.index_put((batch, query, key), taken, accumulate=True)
    return rows + added.permute(0, 3, 1, 2, 4)


def _given_rows(call: Call, part: Part, ids: Tensor, rows: Tensor) -> Tensor:
    """Row i's number for the label of each pair, ``[B, H, N_q, N_k]``; parallel pairs of a sum add theirs."""
    rows = with_zero_row(rows, -1)
    slots = torch.where(ids < 0, part.num_labels, ids)[:, None].expand(*rows.shape[:2], -1, -1)
    given = rows.gather(-1, slots)
    if part.csr is None or not part.csr.parallel:
        return given
    batch, query, key = listed_pairs(call.plan, part.csr)
    for e in range(part.csr.ids.shape[0]):
        if part.csr.role[e] == EXTRA and part.csr.ids[e] >= 0:
            here = torch.zeros_like(given)
            here[slice(None) if part.csr.batch == 1 else batch[e], :, query[e], key[e]] = 1.0
            given = given + here * rows[..., part.csr.ids[e], None]
    return given


def _vectors_of_pairs(call: Call, attr: Tensor) -> Tensor:
    """The vector of every pair, ``[B or 1, N_q, N_k, F]``: zeros for pairs that are not listed."""
    csr = call.plan.parts[0].csr
    assert csr is not None
    batch, query, key = listed_pairs(call.plan, csr)
    vectors = attr.new_zeros(csr.batch, call.plan.q_len, call.plan.k_len, attr.shape[-1])
    for e in range(csr.ids.shape[0]):
        if csr.role[e] != DEAD:
            here = torch.zeros_like(vectors)
            here[batch[e], query[e], key[e]] = 1.0
            vectors = vectors + here * attr[csr.order[e]]
    return vectors


def _carried(vectors: Tensor, maps: Tensor | None) -> Tensor | float:
    """W x for every pair, ``[B or 1, H or 1, N_q, N_k, D]``."""
    if maps is None:
        return 0.0
    maps = maps.to(vectors.dtype)
    return vectors[:, None] @ (maps if maps.dim() == 3 else maps[None])[:, None].mT


def _additive(score: Additive, queries: Tensor, keys: Tensor) -> Tensor:
    """W · act(q_i + (k_j + a^K)), for ``[.., H, N_q or 1, N_k or 1, D]``; D is last."""
    weight = score.weight.to(keys.dtype)
    weight = weight if weight.dim() == 1 else weight[:, None, None]
    return (score._act(queries + keys) * weight).sum(-1)


def _free_maps(maps: ValueMap, dtype: torch.dtype) -> Tensor:
    """W for every label, ``[R, D, D]`` or ``[H, R, D, D]``."""
    bases = maps.bases.to(dtype)
    if maps.coefficients is None:
        return bases
    return (maps.coefficients.to(dtype)[..., None, None] * bases[..., None, :, :, :]).sum(-3)


def _maps(maps: Tensor, ids: Tensor) -> Tensor:
    """The map of each pair's label, ``[B or 1, H or 1, N_q, N_k, D, D]``; the identity for a pair without one."""
    identity = torch.eye(maps.shape[-1], dtype=maps.dtype, device=maps.device).expand(*maps.shape[:-3], 1, -1, -1)
    maps = torch.cat([maps, identity], -3)
    maps = maps if maps.dim() == 4 else maps[None]
    return maps[:, torch.where(ids < 0, maps.shape[1] - 1, ids)].transpose(0, 1)


def _mass(call: Call, part: Part, ids: Tensor, weights: Tensor) -> Tensor:
    """How much attention each label receives, ``[B, H, N_q, R]``."""
    labels = torch.arange(part.num_labels, device=ids.device)
    mass = torch.einsum(
        "bhqk,bqkr->bhqr", weights, (ids[..., None] == labels).to(weights.dtype).expand(weights.shape[0], -1, -1, -1)
    )
    if part.csr is None or not part.csr.parallel:
        return mass
    batch, query, key = listed_pairs(call.plan, part.csr)
    for e in range(part.csr.ids.shape[0]):
        if part.csr.role[e] == EXTRA and part.csr.ids[e] >= 0:
            rows = slice(None) if part.csr.batch == 1 else batch[e : e + 1]
            one_hot = (labels == part.csr.ids[e]).to(weights.dtype) * weights[rows, :, query[e], key[e], None]
            index = torch.zeros_like(mass)
            index[rows, :, query[e]] = 1
            mass = mass + index * one_hot[:, :, None]
    return mass


def _edge_by_edge(call: Call, part: Part, query: Tensor, key: Tensor, value: Tensor) -> Answer:
    """Edges-only attention in which parallel edges attend separately: a loop over queries and their edges."""
    csr, tables = part.csr, call.tables[0]
    assert csr is not None
    batch, rows, cols = listed_pairs(call.plan, csr)
    allowed = attend_mask(call)
    kept = _kept_edges(call, part)
    outputs, lses, masses, weights = [], [], [], []
    for b in range(query.shape[0]):
        own = tables._replace(**{kind: getattr(tables, kind)[b] for kind in tables.batched})
        for i in range(call.plan.q_len):
            mine = ((batch == (b if csr.batch > 1 else 0)) & (rows == i)).nonzero()[:, 0]
            if allowed is not None:
                seen = allowed.expand(*query.shape[:2], call.plan.q_len, call.plan.k_len)[b, :, i]
                seen = seen[:, cols[mine]]
            else:
                seen = None
            answer = _one_query(
                call,
                part.num_labels,
                own,
                query[b, :, i],
                key[b],
                value[b],
                (cols[mine], csr.ids[mine], csr.order[mine]),
                seen,
                None if kept is None else kept[b, :, i][:, mine],
                (b, i),
            )
            for collected, item in zip((outputs, lses, masses, weights), answer, strict=True):
                collected.append(item)
    shape = (query.shape[0], call.plan.q_len)

    def whole(items: list[Tensor]) -> Tensor:
        stacked = torch.stack(items).unflatten(0, shape)
        return stacked.transpose(1, 2)

    if not outputs:
        rows = query.shape[:3]
        mass = (query.new_zeros(*rows, part.num_labels),) if call.need_mass else None
        weights = query.new_zeros(*rows, call.plan.k_len) if call.need_weights else None
        return Answer(query.new_zeros(*rows, value.shape[-1]), query.new_zeros(rows), mass, weights)
    return Answer(
        whole(outputs),
        whole(lses),
        (whole(masses),) if call.need_mass else None,
        whole(weights) if call.need_weights else None,
    )


def _kept_edges(call: Call, part: Part) -> Tensor | None:
    """Whether each listed pair is kept if it is one of a query, ``[B, H, N_q, P]``; None unless a seed is given."""
    hashes, csr = hashes_of(call), part.csr
    if hashes is None or csr is None:
        return None
    second = draw.parted(hashes.rows[..., 1:], earlier_twins(csr.row, csr.col))
    drawn = draw.numbers(hashes.rows[..., :1], second, hashes.keys[:, None, None, csr.col])
    return drawn >= draw.smallest_kept(call.dropout_p)


def _one_query(
    call: Call,
    num_labels: int,
    tables: Tables,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edges: tuple[Tensor, Tensor, Tensor],
    seen: Tensor | None,
    kept: Tensor | None,
    where: tuple[int, int],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One query ``[H, D]`` over its edges (keys, labels, order as given): output, lse, mass and weights by key."""
    cols, labels, order = edges
    slots = torch.where(labels < 0, num_labels, labels)

    def rows(table: Tensor | None) -> Tensor | float:
        if table is None:
            return 0.0
        return with_zero_row(table.to(query.dtype))[..., slots, :]

    def carried(name: str) -> Tensor | float:
        maps = None if call.edge is None else getattr(call.edge, name)
        if call.edge is None or maps is None:
            return 0.0
        return call.edge.attr.to(query.dtype)[order] @ maps.to(query.dtype).mT

    keys = key[:, cols]
    label_keys = keys + rows(tables.key) + carried("key")
    if isinstance(call.score, Additive):
        weight = call.score.weight.to(query.dtype)
        added = call.score._act(query[:, None] + label_keys)
        scores = (added * (weight if weight.dim() == 1 else weight[:, None])).sum(-1)
    else:
        scores = (query[:, None] * label_keys).sum(-1)
        if tables.query is not None:
            scores = scores + (rows(tables.query) * keys).sum(-1)
    if isinstance(call.score, Bilinear):
        mapped = _maps(call.score.weight.to(query.dtype), labels[None])[0].mT @ query[:, None, :, None]
        scores = scores + ((mapped.squeeze(-1) - query[:, None]) * keys).sum(-1)
    scores = scores * call.scale
    if tables.bias is not None:
        scores = scores + with_zero_row(tables.bias.to(query.dtype), -1)[..., slots]
    if tables.rows is not None:
        scores = scores + with_zero_row(tables.rows.to(query.dtype), -1)[where[0], :, where[1]][:, slots]
    scores = finish(call.score, scores)
    if call.mask is not None and call.mask.dtype != torch.bool:
        full = call.mask.expand(*call.query.shape[:3], call.plan.k_len)
        scores = scores + full[where[0], :, where[1]][:, cols].to(query.dtype)
    if seen is not None:
        scores = scores.masked_fill(~seen, float("-inf"))
    alpha, lse = softmax_rows(scores)
    dropped = alpha
    if call.dropout_p > 0.0:
        if call.keep is not None:
            kept = call.keep[where[0], :, where[1]][:, cols]
        dropped = dropout(alpha, call.dropout_p) if kept is None else alpha * kept / (1.0 - call.dropout_p)
    values = value[:, cols]
    if call.value_map is not None:
        values = (_maps(_free_maps(call.value_map, values.dtype), labels[None])[0] @ values[..., None]).squeeze(-1)
    output = (dropped[..., None] * (values + rows(tables.value) + carried("value"))).sum(-2)
    mass = alpha.new_zeros(alpha.shape[0], num_labels + 1).index_add(1, slots, alpha)[:, :num_labels]
    weights = alpha.new_zeros(alpha.shape[0], key.shape[1]).index_add(1, cols, alpha)
    return output, lse, mass, weights
