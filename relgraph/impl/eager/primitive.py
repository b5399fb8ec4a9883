"""The one primitive over listed pairs in plain torch, differentiable to any order.

The second derivative of kernels that define their own backward goes through it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from relgraph.impl.eager.sparse import row_softmax, sampled_dot, weighted_sum
from relgraph.impl.listed import Pattern, added_to_pairs
from relgraph.impl.problem import Outputs, Problem
from relgraph.impl.terms import with_zero_row
from relgraph.plan import Csr
from relgraph.score import ACTIVATIONS, Activation


def outputs(problem: Problem, factor: Tensor | None) -> Outputs:
    """The result of a kernel's forward.

    Args:
        problem: the problem, over listed pairs only.
        factor: the factor of dropout on the weight of every pair, ``[L or 1, P]``, or None.
    """
    csr, plan = problem.plan.parts[0].csr, problem.plan
    assert csr is not None
    lanes = _Lanes(problem, csr)
    col = csr.col if csr.batch == 1 else csr.col + csr.row // max(plan.q_len, 1) * plan.k_len
    pattern = Pattern.of(csr.row_ptr, csr.row, col, csr.batch * plan.k_len)
    num_labels = problem.plan.num_labels[0]
    labels = torch.where(csr.ids < 0, num_labels, csr.ids)
    vectors, by_vector = None, pattern
    if problem.vectors is not None:
        vectors = problem.vectors.to(problem.dtype).index_select(0, csr.order)[None]
        by_vector = _of_pairs(csr)
    query, size = lanes.enter(problem.query) * problem.scale, problem.key.shape[-1]
    if problem.score_weights is not None:
        scores = _additive(problem, lanes, pattern, labels, vectors)
    elif problem.key_gates is not None:
        keys = lanes.gated(problem.key, problem.key_gates, col, labels)
        scores = (query[:, csr.row, :size] * keys).sum(-1)
    else:
        scores = sampled_dot(query[..., :size], lanes.enter(problem.key), pattern)
    for label, maps in lanes.by_label(problem.score_maps):
        mapped = sampled_dot(query[..., :size] @ maps.mT, lanes.enter(problem.key), pattern)
        scores = torch.where(labels == label, mapped, scores)
    if vectors is not None and problem.vectors_in_score:
        scores = scores + sampled_dot(query[..., size:], vectors, by_vector)
    if problem.factor_keys is not None:
        scores = scores + _gather(query[..., :size] @ lanes.table(problem.factor_keys), csr.row, labels)
    if problem.label_queries is not None:
        by_key = lanes.heads_of(lanes.enter(problem.key)) @ lanes.table(problem.label_queries) * problem.scale
        scores = scores + _gather(by_key, col, labels)
    if problem.by_query is not None:
        scores = scores + _gather(lanes.enter(problem.by_query), csr.row, labels)
    if problem.by_key is not None:
        scores = scores + _gather(lanes.enter(problem.by_key), col, labels)
    scores = scores if problem.score is None else problem.score.finish(scores)
    added = added_to_pairs(problem)
    if added is not None:
        scores = (scores + added).masked_fill(added == float("-inf"), float("-inf"))  # hides NaN too
    weights, lse = row_softmax(scores, pattern)
    dropped = weights if factor is None else weights * factor
    value = lanes.enter(problem.value)
    if problem.value_gates is not None:
        values = dropped[..., None] * lanes.gated(problem.value, problem.value_gates, col, labels)
        output = values.new_zeros(*query.shape[:2], values.shape[-1]).index_add(1, csr.row, values)
    elif problem.value_maps is None:
        output = weighted_sum(dropped, value, pattern)
    else:
        output = weighted_sum(dropped.masked_fill(labels != num_labels, 0.0), value, pattern)
    for label, maps in lanes.by_label(problem.value_maps):
        output = output + weighted_sum(dropped.masked_fill(labels != label, 0.0), value, pattern) @ maps
    if problem.label_values is not None:
        of_labels = _sum_by_label(dropped, csr, labels, num_labels)
        output = output + of_labels @ lanes.table(problem.label_values).transpose(-1, -2)
    if vectors is not None and problem.vectors_in_value:
        output = torch.cat([output, weighted_sum(dropped, vectors, by_vector)], -1)

    def sums(of: Tensor, needed: bool) -> Tensor:
        if not needed:
            return of.new_empty(0)
        return lanes.to_caller_layout(_sum_by_label(of, csr, labels, problem.columns))

    return Outputs(
        lanes.to_caller_layout(output),
        lanes.to_caller_layout(lse),
        sums(dropped, problem.need_sums),
        sums(weights, problem.need_mass),
    )


class _Lanes:
    """``[B, H, N, D]`` as lanes: ``[B · H, N, D]`` if batch rows share their pairs, otherwise ``[H, B · N, D]``."""

    def __init__(self, problem: Problem, csr: Csr) -> None:
        self.own, self.dtype = csr.batch != 1, problem.dtype
        self.batch, self.heads, self.kv_heads = *problem.query.shape[:2], problem.key.shape[1]

    def enter(self, x: Tensor) -> Tensor:
        x = x.to(self.dtype)
        return x.transpose(0, 1).flatten(1, 2) if self.own else x.flatten(0, 1)

    def heads_of(self, x: Tensor) -> Tensor:
        """Keys or values with those of each head repeated for the query heads that share them."""
        return x if self.heads == self.kv_heads else x.repeat_interleave(self.heads // self.kv_heads, 0)

    def table(self, table: Tensor) -> Tensor:
        """``[R, D]`` or ``[H, R, D]`` transposed, for a product with lanes: ``[1 or L, D, R]``."""
        table = table.to(self.dtype).transpose(-1, -2)
        if table.dim() == 2:
            return table[None]
        return table if self.own or self.batch == 1 else table.repeat(self.batch, 1, 1)

    def gated(self, x: Tensor, gates: Tensor, col: Tensor, labels: Tensor) -> Tensor:
        """The key or value of every pair times the row of its label, ``[L, P, D]``; without a label, times ones."""
        ones = torch.ones_like(gates[..., :1, :])
        rows = self.table(torch.cat([gates, ones], -2)).transpose(-1, -2)
        return self.heads_of(self.enter(x))[:, col] * rows[:, labels]

    def by_label(self, maps: Tensor | None) -> Iterator[tuple[int, Tensor]]:
        """Each label and its map, transposed as by :meth:`table`; none without maps."""
        for label in range(0 if maps is None else maps.shape[-3]):
            yield label, self.table(maps[..., label, :, :])  # pyright: ignore[reportOptionalSubscript]

    def to_caller_layout(self, x: Tensor) -> Tensor:
        if self.own:
            return x.unflatten(1, (self.batch, -1)).transpose(0, 1)
        return x.unflatten(0, (self.batch, self.heads))


def _additive(problem: Problem, lanes: _Lanes, pattern: Pattern, labels: Tensor, vectors: Tensor | None) -> Tensor:
    """``w · act(q_i + k_j + a^K[l_ij] + W_k e_ij) · scale`` of every pair, ``[L, P]``."""
    assert isinstance(problem.score, Activation) and problem.score_weights is not None
    keys = lanes.heads_of(lanes.enter(problem.key))
    summed = lanes.enter(problem.query)[:, pattern.row] + keys[:, pattern.col]
    if problem.label_keys is not None:
        summed = summed + lanes.table(with_zero_row(problem.label_keys)).mT[:, labels]
    if vectors is not None and problem.vector_maps is not None:
        summed = summed + vectors @ lanes.table(problem.vector_maps).mT
    weights = lanes.table(problem.score_weights[..., None, :])
    return (ACTIVATIONS[problem.score.name](summed) @ weights).squeeze(-1) * problem.scale


def _gather(table: Tensor, rows: Tensor, labels: Tensor) -> Tensor:
    """The entry of ``[L, n, R]`` at every pair's row and label, ``[L, P]``; no label adds 0."""
    return with_zero_row(table, -1).flatten(1)[:, rows * (table.shape[-1] + 1) + labels]


def _sum_by_label(weights: Tensor, csr: Csr, labels: Tensor, columns: int) -> Tensor:
    """The weights of each query summed by label, ``[L, n, columns]``."""
    rows, at = csr.row_ptr.shape[0] - 1, csr.row * (columns + 1) + labels
    sums = weights.new_zeros(weights.shape[0], rows * (columns + 1)).index_add(1, at, weights)
    return sums.unflatten(1, (rows, columns + 1))[..., :columns]


def _of_pairs(csr: Csr) -> Pattern:
    """Queries by pairs: every pair is a separate column."""
    ends = torch.arange(csr.col.shape[0] + 1, device=csr.col.device)
    here = ends[:-1]
    return Pattern(csr.row_ptr, csr.row, here, ends, here, csr.row, here, here)
