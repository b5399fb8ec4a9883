"""Edges-only attention over listed pairs, in runs of query rows: nothing is computed for a pair that is not listed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from relgraph.impl.problem import Incoming, Problem
from relgraph.plan import graph_at

RUN_NUMBERS = 1 << 21
"""How many gathered numbers (edges · heads · head size) a run of rows holds at most, unless one row alone has more."""


def forward(problem: Problem, output: Tensor, lse: Tensor, sums: Tensor | None, mass: Tensor | None) -> None:
    """Fills output, lse and the sums by label, each zeros or -inf before."""
    for run in _runs(problem):
        weights, lse[run.batch, :, run.rows] = run.weights()
        if mass is not None:
            run.add_by_label(weights, mass)
        weights = run.drop(weights)
        values = run.gather(problem.value, run.key)
        product = run.group(weights)[..., None] * values[:, None]
        output[run.batch].index_add_(1, run.query, product.flatten(0, 1))
        if sums is not None:
            run.add_by_label(weights, sums)


def backward(problem: Problem, incoming: Incoming, delta: Tensor, grads: tuple[Tensor | None, ...]) -> None:
    """Adds to the gradients of query, key, value, by_query and by_key."""
    dq, dk, dv, d_by_query, d_by_key = grads
    assert dq is not None and dk is not None and dv is not None
    for run in _runs(problem):
        weights, _ = run.weights()
        dropped = run.drop(weights)
        weight_grad = torch.zeros_like(weights)
        if incoming.output is not None:
            rows = run.gather_rows(incoming.output)
            weight_grad += (run.group(rows) * run.gather(problem.value, run.key)[:, None]).sum(-1).flatten(0, 1)
            dv[run.batch].index_add_(1, run.key, (run.group(dropped)[..., None] * run.group(rows)).sum(1))
        if incoming.sums is not None:
            weight_grad += incoming.sums[run.batch][:, run.query, run.column]
        if run.keep is not None:
            weight_grad *= run.keep
            if incoming.mass is not None:
                weight_grad += incoming.mass[run.batch][:, run.query, run.column]
        score_grad = weights * (weight_grad - delta[run.batch][:, run.query])
        scaled = run.group(score_grad * problem.scale)[..., None]
        keys = run.gather(problem.key, run.key)[:, None]
        dq[run.batch].index_add_(1, run.query, (scaled * keys).flatten(0, 1))
        dk[run.batch].index_add_(1, run.key, (scaled * run.group(run.gather_rows(problem.query))).sum(1))
        if d_by_query is not None:
            run.add_by_label(score_grad, d_by_query)
        if d_by_key is not None:
            run.add_by_label(score_grad, d_by_key, run.key)


def _runs(problem: Problem) -> Iterator[_Run]:
    csr = problem.plan.parts[0].csr
    assert csr is not None
    heads, width = problem.query.shape[1], max(problem.query.shape[-1], problem.value.shape[-1], 1)
    most = max(RUN_NUMBERS // max(heads * width, 1), 1)
    row_ptr, q_len = csr.row_ptr.tolist(), problem.plan.q_len
    past = _past_limit(problem)
    number = 0
    for batch in range(problem.query.shape[0]):
        first = batch * q_len if csr.batch > 1 else 0
        row = first
        while row < first + q_len:
            stop = row + 1
            while stop < first + q_len and row_ptr[stop + 1] - row_ptr[row] <= most:
                stop += 1
            edges = slice(row_ptr[row], row_ptr[stop])
            if edges.start < edges.stop:
                yield _Run(problem, batch, slice(row - first, stop - first), edges, first, number, past)
            row, number = stop, number + 1


def _past_limit(problem: Problem) -> Tensor | None:
    """Which listed pairs lie in the future, ``[B or 1, P]``; None when all may be seen."""
    if problem.causal is None:
        return None
    plan = problem.plan
    csr = plan.parts[0].csr
    assert csr is not None
    query, key = csr.row % max(plan.q_len, 1), csr.col
    offset = problem.causal
    if plan.q_ptr is not None and plan.k_ptr is not None:
        graph = graph_at(plan.q_ptr, query)
        query, key = query - plan.q_ptr[graph], key - plan.k_ptr[graph]
        if isinstance(offset, Tensor) and offset.dim() == 1:
            offset = offset[graph]
    elif isinstance(offset, Tensor):
        offset = offset.reshape(-1, 1)
    ahead = key - query - offset > 0
    return ahead if ahead.dim() == 2 else ahead[None]


@dataclass(eq=False)
class _Run:
    """The listed pairs of some query rows of one batch row."""

    problem: Problem
    batch: int
    rows: slice
    edges: slice
    first_row: int
    number: int
    past: Tensor | None
    keep: Tensor | None = None

    def __post_init__(self) -> None:
        part = self.problem.plan.parts[0]
        csr = part.csr
        assert csr is not None
        self.query = csr.row[self.edges] - self.first_row
        self.key = csr.col[self.edges]
        ids = csr.ids[self.edges]
        self.column = torch.where(ids < 0, part.num_labels, ids)
        self.kv_heads = self.problem.key.shape[1]

    def group(self, x: Tensor) -> Tensor:
        """``[H, ...]`` as ``[H_kv, group, ...]``."""
        return x.unflatten(0, (self.kv_heads, -1))

    def gather(self, x: Tensor, positions: Tensor) -> Tensor:
        """``[H_kv, P, D]`` in the accumulation dtype."""
        return x[self.batch][:, positions].to(self.problem.dtype)

    def gather_rows(self, x: Tensor) -> Tensor:
        """``[H, P, D]``: a per-query tensor at every pair's query."""
        return self.gather(x, self.query)

    def weights(self) -> tuple[Tensor, Tensor]:
        """Attention weights ``[H, P]`` and the log-sum-exp of each row ``[H, rows]``."""
        problem = self.problem
        queries = self.group(self.gather_rows(problem.query))
        scores = (queries * self.gather(problem.key, self.key)[:, None]).sum(-1).flatten(0, 1) * problem.scale
        if problem.by_query is not None:
            scores += problem.by_query[self.batch][:, self.query, self.column]
        if problem.by_key is not None:
            scores += problem.by_key[self.batch][:, self.key, self.column]
        self._mask(scores)
        row = (self.query - self.rows.start).expand(scores.shape)
        shape = (scores.shape[0], self.rows.stop - self.rows.start)
        top = scores.new_full(shape, float("-inf")).scatter_reduce_(1, row, scores, "amax")
        safe = top.masked_fill(top == float("-inf"), 0.0)
        grown = (scores - safe.gather(1, row)).exp_()
        total = scores.new_zeros(shape).scatter_add_(1, row, grown)
        lse = top + total.log()
        return grown / total.masked_fill(total == 0.0, 1.0).gather(1, row), torch.where(total > 0, lse, top)

    def _mask(self, scores: Tensor) -> None:
        mask = self.problem.mask
        if mask is not None:
            mine = self._pairs(mask)
            if mask.dtype == torch.bool:
                scores.masked_fill_(~mine, float("-inf"))
            else:
                scores += mine
        if self.past is not None:
            row = self.past[self.batch if self.past.shape[0] > 1 else 0]
            scores.masked_fill_(row[self.edges], float("-inf"))

    def _pairs(self, x: Tensor) -> Tensor:
        """The listed entries of a tensor that broadcasts to ``[B, H, N_q, N_k]``: ``[H or 1, P]``."""
        mine = x[self.batch if x.shape[0] > 1 else 0]
        zero = torch.zeros_like(self.query)
        return mine[:, self.query if mine.shape[1] > 1 else zero, self.key if mine.shape[2] > 1 else zero]

    def drop(self, weights: Tensor) -> Tensor:
        """The weights after dropout."""
        problem = self.problem
        if problem.dropout_p == 0.0:
            return weights
        given = problem.keep is not None
        keep = self._pairs(problem.keep) if given else problem.draw_keep(tuple(weights.shape), self.number)  # pyright: ignore[reportArgumentType]
        self.keep = keep / (1.0 - problem.dropout_p)
        return weights * self.keep

    def add_by_label(self, pairs: Tensor, table: Tensor, positions: Tensor | None = None) -> None:
        """``table[batch, h, position, label] += pairs[h, pair]``, positions being the queries by default."""
        mine = table[self.batch]
        at = (self.query if positions is None else positions) * mine.shape[-1] + self.column
        mine.flatten(1).index_add_(1, at, pairs)
