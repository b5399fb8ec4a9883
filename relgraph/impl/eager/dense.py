"""The split term in plain torch: N_q · N_k scores, gathers and sums by label, differentiable any number of times."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from relgraph.call import Answer, Call, EdgeVectors, Tables, ValueMap, accumulation_dtype
from relgraph.impl.problem import Outputs, Problem
from relgraph.impl.terms import (
    add_value_tables,
    attend_mask,
    drop,
    has_value_tables,
    query_tables,
    repeat_heads,
    score_tables,
    softmax_rows,
    split_mass,
    with_zero_row,
)
from relgraph.plan import DEAD, EXTRA, NOT_ATTENDING, LabelPlan, Part, dense_ids, listed_pairs, memo_of
from relgraph.score import DOT, Activation, Additive, Bilinear, Compatibility

NUMBERS_PER_SCORE = 8
"""Numbers per score that forward and backward hold at a time: 6.3 at most, measured, and some room."""


def attend(call: Call) -> Answer:
    """Attention with every score in memory at once."""
    dtype, sizes = accumulation_dtype(call.query.dtype), call.plan.num_labels
    labels = _ids_of(call.plan, call.query.device)
    edges = None if call.edge is None else _Edges(call, call.edge, dtype)
    weights, lse = _weights(call, labels, edges, None)
    dropped = drop(call, weights) if call.dropout_p else weights
    values = repeat_heads(call.value.to(dtype), call.query.shape[1])
    gate = None if call.gates is None else call.gates.value
    if gate is not None:
        output = _gated_sum(gate, dropped, values, labels[0])
    else:
        output = _summed(call.value_map, dropped, values, labels[0])
    if has_value_tables(call.tables):
        output = add_value_tables(output, _sum_by_label(labels, dropped), call.tables, sizes)
    if edges is not None and edges.value is not None:
        output = output + edges.sums(dropped) @ edges.value.transpose(-1, -2)
    mass = split_mass(_sum_by_label(labels, weights), sizes) if call.need_mass else None
    return Answer(output, lse, mass, weights if call.need_weights else None)


def outputs(problem: Problem) -> Outputs:
    """The result of a kernel's forward over all pairs; the second derivative of compiled kernels goes through it.

    Dropout takes a given mask, ``keep``.
    """
    plan, tables = problem.plan, []
    for start, part in zip(plan.starts, plan.parts, strict=True):
        columns = slice(start, start + part.num_labels)
        keys, values = (None if x is None else x[..., columns, :] for x in (problem.label_keys, problem.label_values))
        biases, rows = (None if x is None else x[..., columns] for x in (problem.label_biases, problem.by_query))
        tables.append(Tables(keys, values, None, biases, rows))
    causal, score = problem.causal, DOT if problem.score is None else problem.score
    if isinstance(score, Activation) and problem.score_weights is not None:
        score = Additive(problem.score_weights, score.name)
    if problem.score_maps is not None:
        score = Bilinear(problem.score_maps)
    call = Call(
        problem.query, problem.key, problem.value, plan, tuple(tables), problem.scale, problem.mask,
        causal is not None, 0 if causal is None else causal, problem.dropout_p, problem.keep, score=score,
    )  # fmt: skip
    labels = _ids_of(plan, problem.query.device)
    edges = None
    if problem.vectors is not None:
        edges = _Edges(call, EdgeVectors(problem.vectors, None, None), problem.dtype, problem.vector_queries)
    weights, lse = _weights(call, labels, edges, problem.by_key)
    dropped = drop(call, weights) if call.dropout_p else weights
    sums = _sum_by_label(labels, dropped)
    maps = None if problem.value_maps is None else ValueMap(None, problem.value_maps)
    output = _summed(maps, dropped, repeat_heads(problem.value.to(problem.dtype), weights.shape[1]), labels[0])
    if has_value_tables(tables):
        output = add_value_tables(output, sums, tables, plan.num_labels)
    if edges is not None and problem.vectors_in_value:
        output = torch.cat([output, edges.sums(dropped)], -1)
    return Outputs(output, lse, sums, _sum_by_label(labels, weights) if problem.need_mass else None)


def _weights(call: Call, labels: list[Ids], edges: _Edges | None, by_key: Tensor | None) -> tuple[Tensor, Tensor]:
    """The weights of all pairs before dropout, and the log-sum-exp of rows; C may be given."""
    dtype, sizes = accumulation_dtype(call.query.dtype), call.plan.num_labels
    heads = call.query.shape[1]
    query, key = call.query.to(dtype), call.key.to(dtype)
    keys = repeat_heads(key, heads)
    if call.score.additive:
        scores = _additive(call, call.score, query, keys, labels, edges) * call.scale
        by_query = score_tables(query, [tables._replace(key=None) for tables in call.tables], sizes, call.scale, dtype)
    else:
        scores = query @ keys.transpose(-1, -2)
        gate = None if call.gates is None else call.gates.key
        if call.score.by_label:
            weight = call.score.weight.to(dtype)
            scores = _by_label(lambda label: query @ weight[..., label, :, :], keys, labels[0], scores)
        elif gate is not None:
            rows = gate.to(dtype)
            scores = _by_label(lambda label: query * rows[..., label, None, :], keys, labels[0], scores)
        queries = None if edges is None else edges.queries(query)
        if edges is not None and queries is not None:
            scores = edges.added(scores, edges.dots(queries))
        scores = scores * call.scale
        by_query = score_tables(query, call.tables, sizes, call.scale, dtype)
    if by_key is None:
        by_key = query_tables(key, heads, call.tables, sizes, call.scale, dtype)
    allowed = attend_mask(call)
    start = 0
    for ids in labels:
        stop = start + ids.size + 1
        if by_query is not None:
            scores = scores + ids.gather(by_query[..., start:stop], rows=True)
        if by_key is not None:
            scores = scores + ids.gather(by_key[..., start:stop], rows=False)
        if ids.attends is not None:
            allowed = ids.attends if allowed is None else allowed & ids.attends
        start = stop
    scores = call.score.finish(scores)
    if call.mask is not None and call.mask.dtype != torch.bool:
        scores = scores + call.mask.to(dtype)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, float("-inf"))
    return softmax_rows(scores)


def _additive(
    call: Call, score: Compatibility, query: Tensor, key: Tensor, labels: list[Ids], edges: _Edges | None
) -> Tensor:
    """``w · act(q_i + k_j + a^K[l_ij] + W_k x_ij)`` for every pair, ``[B, H, N_q, N_k]``."""
    summed = query[:, :, :, None] + key[:, :, None]
    if edges is not None and edges.key is not None:
        summed = edges.added(summed, edges.vectors @ edges.key.mT)
    for ids, table in zip(labels, call.tables, strict=True):
        if table.key is not None:
            summed = summed + ids.rows(table.key.to(query.dtype))
    weight = score.weight.to(query.dtype)
    return (score.act(summed) @ (weight[..., None] if weight.dim() == 1 else weight[:, None, :, None])).squeeze(-1)


def _by_label(queries: Callable[[int], Tensor], key: Tensor, ids: Ids, plain: Tensor) -> Tensor:
    """The products of the keys and the queries for their pair's label; ``plain`` for a pair without a label."""
    scores, keys = plain, key.transpose(-1, -2)
    for label in range(ids.size):
        scores = torch.where(ids.slots == label, queries(label) @ keys, scores)
    return scores


def _gated_sum(gate: Tensor, weights: Tensor, value: Tensor, ids: Ids) -> Tensor:
    """Σ_j α_ij g[l_ij] ⊙ v_j: the sum of each label, then multiplied by its row."""
    output = weights.masked_fill(ids.slots < ids.size, 0.0) @ value  # pairs without a label keep their value
    for label in range(ids.size):
        sums = weights.masked_fill(ids.slots != label, 0.0) @ value
        output = output + sums * gate[..., label, None, :].to(value.dtype)
    return output


def _summed(maps: ValueMap | None, weights: Tensor, value: Tensor, ids: Ids) -> Tensor:
    """Σ_j α_ij W[l_ij] v_j: weights times the coefficient of each base, summed, then mapped by the base."""
    if maps is None:
        return weights @ value
    output = weights.masked_fill(ids.slots < ids.size, 0.0) @ value  # pairs without a label keep their value
    bases = maps.bases.to(value.dtype)
    for k in range(bases.shape[-3]):
        if maps.coefficients is None:
            mine = weights.masked_fill(ids.slots != k, 0.0)
        else:
            coefficients = with_zero_row(maps.coefficients[..., k].to(value.dtype), -1)
            mine = weights * (coefficients[ids.slots] if coefficients.dim() == 1 else _per_head(coefficients, ids))
        output = output + mine @ value @ bases[..., k, :, :].transpose(-1, -2)
    return output


def _per_head(coefficients: Tensor, ids: Ids) -> Tensor:
    """``[H, R+1]`` at the label of each pair, ``[B or 1, H, N_q, N_k]``."""
    return coefficients[:, ids.slots[:, 0]].transpose(0, 1)


def _sum_by_label(labels: list[Ids], weights: Tensor) -> Tensor:
    sums = [ids.scatter(weights) for ids in labels]
    return sums[0] if len(sums) == 1 else torch.cat(sums, -1)


class _Edges:
    """The vectors of listed pairs, and where these pairs are; their scores and weights are ``[B or 1, H, P]``."""

    def __init__(self, call: Call, edge: EdgeVectors, dtype: torch.dtype, queries: Tensor | None = None) -> None:
        csr = call.plan.parts[0].csr
        assert csr is not None
        live = csr.role != DEAD
        batch, self.query, self.col = (x[live] for x in listed_pairs(call.plan, csr))
        self.batch = batch if csr.batch > 1 else torch.arange(call.query.shape[0], device=batch.device)[:, None]
        self.vectors = edge.attr.to(dtype)[csr.order[live]]
        self.key, self.value = (None if x is None else x.to(dtype) for x in (edge.key, edge.value))
        self._queries = queries

    def queries(self, query: Tensor) -> Tensor | None:
        """What meets the vectors in the score, ``[B, H, N_q, F]``: as it was given, or made of the queries."""
        return self._queries if self._queries is not None or self.key is None else query @ self.key

    def dots(self, query: Tensor) -> Tensor:
        """q_i · x for every listed pair, ``[P, H]`` or ``[B, P, H]``, from ``[B, H, N_q, F]``."""
        return (query.transpose(1, 2)[self.batch, self.query] * self.vectors[:, None]).sum(-1)

    def added(self, pairs: Tensor, entries: Tensor) -> Tensor:
        """``[B, H, N_q, N_k]`` (or with a last dimension D) plus entries of the listed pairs."""
        if pairs.dim() == 5:  # [P, D] or [H, P, D]
            entries = entries.transpose(0, 1) if entries.dim() == 3 else entries[:, None]
        spread = pairs.movedim(1, 3)
        return spread.index_put((self.batch, self.query, self.col), entries, accumulate=True).movedim(3, 1)

    def sums(self, weights: Tensor) -> Tensor:
        """Σ_j α_ij x_ij, ``[B, H, N_q, F]``."""
        entries = weights.movedim(1, 3)[self.batch, self.query, self.col][..., None] * self.vectors[:, None]
        batch, heads, q_len, _ = weights.shape
        sums = weights.new_zeros(batch, q_len, heads, self.vectors.shape[-1])
        return sums.index_put((self.batch, self.query), entries, accumulate=True).transpose(1, 2)


KEPT_PAIRS = 1 << 15
"""Up to so many pairs, their ids are kept for the next call: 8 bytes each."""


def _ids_of(plan: LabelPlan, device: torch.device) -> list[Ids]:
    """The ids of every part; those of few pairs are kept with the plan."""

    def made() -> list[Ids]:
        return [Ids(plan, part, device) for part in plan.parts]

    if torch.compiler.is_compiling() or plan.batch * plan.q_len * plan.k_len > KEPT_PAIRS:
        return made()
    for part in plan.parts:
        if part.csr is not None and part.csr.parallel:  # these ids hold the plan, which what is kept may not
            return made()
    return memo_of(plan).once(("dense", device), made)


class Ids:
    """The ids of one part for every pair: gather a table over pairs, scatter pairs into sums by label."""

    def __init__(self, plan: LabelPlan, part: Part, device: torch.device) -> None:
        ids = dense_ids(plan, part, device)
        self.size = part.num_labels
        everywhere = part.complete and plan.q_ptr is None
        self.attends = None if everywhere else (ids > NOT_ATTENDING)[:, None]
        labeled = part.labeled and plan.q_ptr is None
        self.slots = (ids if labeled else torch.where(ids < 0, self.size, ids))[:, None]
        self.csr = part.csr if part.csr is not None and part.csr.parallel else None
        self.plan = None if self.csr is None else plan

    def gather(self, table: Tensor, *, rows: bool) -> Tensor:
        """``[.., N_q, R+1]`` at (i, l_ij), or ``[.., N_k, R+1]`` at (j, l_ij): ``[B, H, N_q, N_k]``."""
        if self.size == 0:
            return table.new_zeros(())
        batch, heads = table.shape[:2]
        slots = self.slots.expand(batch, heads, -1, -1)
        pairs = table.gather(-1, slots) if rows else table.gather(-1, slots.transpose(-1, -2)).transpose(-1, -2)
        if self.csr is None:
            return pairs
        row, extra, at, shape = self._extra(batch, heads, rows=rows)
        values = table.flatten(-2).gather(-1, row + extra)
        return pairs.flatten(-2).scatter_add(-1, at, values).view(shape)

    def rows(self, table: Tensor) -> Tensor:
        """The rows of a table at the labels, ``[B or 1, H or 1, N_q, N_k, D]``."""
        table = with_zero_row(table)
        table = table.reshape((1,) * (4 - table.dim()) + table.shape)  # [B or 1, H or 1, R+1, D]
        each_batch, each_head = (torch.arange(n, device=table.device) for n in table.shape[:2])
        rows = table[each_batch[:, None, None, None], each_head[:, None, None], self.slots]
        if self.csr is None:
            return rows
        assert self.plan is not None
        batch, query, key = listed_pairs(self.plan, self.csr)
        extra = torch.where((self.csr.role == EXTRA) & (self.csr.ids >= 0), self.csr.ids, self.size)
        batch_rows = table.shape[0] if self.csr.batch == 1 else self.csr.batch
        if self.csr.batch == 1:
            batch = torch.arange(batch_rows, device=extra.device)[:, None]  # every batch row has every listed pair
        taken = table[batch if table.shape[0] != 1 else torch.zeros_like(batch), :, extra]  # [.., P, H or 1, D]
        rows = rows.expand(batch_rows if rows.shape[0] == 1 else rows.shape[0], -1, -1, -1, -1).movedim(1, 3)
        added = rows.new_zeros(batch_rows, *rows.shape[1:])
        return (rows + added.index_put((batch, query, key), taken, accumulate=True)).movedim(3, 1)

    def scatter(self, weights: Tensor) -> Tensor:
        """P[i, r]: the weights of row i summed by label, ``[B, H, N_q, R+1]``."""
        batch, heads, q_len, _ = weights.shape
        if q_len == 1 and self.csr is None:
            return self._scatter_row(weights)
        slots = self.slots.expand(batch, heads, -1, -1)
        sums = weights.new_zeros(batch, heads, q_len, self.size + 1).scatter_add(-1, slots, weights)
        if self.csr is None:
            return sums
        row, extra, at, _ = self._extra(batch, heads, rows=True)
        taken = weights.flatten(-2).gather(-1, at)
        return sums.flatten(-2).scatter_add(-1, row + extra, taken).view(sums.shape)

    def _scatter_row(self, weights: Tensor) -> Tensor:
        """P of a single long row, in four interleaved sums, so that additions to one label wait less for each other."""
        batch, heads, _, k_len = weights.shape
        turn = torch.arange(k_len, device=weights.device) % 4
        at = (self.slots * 4 + turn).expand(batch, heads, -1, -1)
        sums = weights.new_zeros(batch, heads, 1, (self.size + 1) * 4).scatter_add(-1, at, weights)
        return sums.unflatten(-1, (self.size + 1, 4)).sum(-1)

    def _extra(self, batch: int, heads: int, *, rows: bool) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...]]:
        """Indices of the further labels of parallel pairs in flat tables and flat scores, ``[B, H, P]`` each."""
        csr, plan = self.csr, self.plan
        assert csr is not None and plan is not None
        b, i, j = listed_pairs(plan, csr)
        slot = torch.where((csr.role == EXTRA) & (csr.ids >= 0), csr.ids, self.size)
        if csr.batch > 1:  # pairs of other batch rows look up the column of zeros, so they add nothing
            mine = b == torch.arange(batch, device=b.device)[:, None]
            slot = torch.where(mine, slot, self.size)
        else:
            slot = slot.expand(batch, -1)
        base = (i if rows else j) * (self.size + 1)
        at = (i * plan.k_len + j).expand(batch, -1)
        row, extra, at = (x[:, None].expand(batch, heads, -1) for x in (base.expand(batch, -1), slot, at))
        return row, extra, at, (batch, heads, plan.q_len, plan.k_len)
