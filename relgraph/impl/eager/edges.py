"""Edges-only attention: softmax over each query's listed pairs; nothing has size pairs · heads · head size.

Scores are dot products sampled at the pairs, the output is a sparse product. Label terms are gathered from the small
table B = q·(a^K)ᵀ and summed to P (then P·a^V). If a query has few pairs for many labels, table rows are taken per pair
instead, by the same two products with the label as the column. Edge vectors e split in the same way:
q·(W_k e) = (W_kᵀ q)·e and Σ α W_v e = W_v (Σ α e).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import dropout, pad
from torch.utils.checkpoint import checkpoint

from relgraph.call import Answer, Call, EdgeVectors, Gates, Tables, ValueMap, accumulation_dtype
from relgraph.impl.draw import Hashes, numbers, parted, smallest_kept
from relgraph.impl.eager.sparse import row_softmax, run_numbers, sampled_dot, weighted_sum
from relgraph.impl.listed import Pattern, earlier_twins, listed_entries, listed_future
from relgraph.impl.problem import Outputs, Problem
from relgraph.impl.terms import hashes_of, with_zero_row
from relgraph.labels.memory import plainly
from relgraph.score import Compatibility

_T = TypeVar("_T")

LABELS_A_PAIR = 3.0
"""With more labels than this per pair of a query (on average), table rows are taken per pair."""


def attend(call: Call) -> Answer:
    """Attention over listed pairs only; see the module."""
    return attend_edges(call)[0]


def outputs(problem: Problem, factor: Tensor | None) -> Outputs:
    """The result of a kernel's forward over listed pairs; second derivatives of compiled kernels go through it.

    Args:
        problem: the problem, over listed pairs only.
        factor: the factor of dropout on the weight of every pair, ``[L or 1, P]``, or None.
    """
    work = _Work(_call_of(problem))
    weights, lse = row_softmax(work.scores(), work.pattern)
    dropped = weights if factor is None else weights * factor
    sums, mass = (
        work.to_caller_layout(work.by_label(each)[..., :-1]) if needed else each.new_empty(0)
        for each, needed in ((dropped, problem.need_sums), (weights, problem.need_mass))
    )
    return Outputs(work.to_caller_layout(work.output(dropped)), work.to_caller_layout(lse), sums, mass)


def _call_of(problem: Problem) -> Call:
    """The call of a problem. Vectors in the score or value are further numbers of queries and values there.

    So keys, values and what meets them get as many zeros, and the maps of vectors pick these numbers.
    """
    more, values = problem.query.shape[-1] - problem.key.shape[-1], problem.value.shape[-1]
    width = 0 if problem.vectors is None else problem.vectors.shape[-1]
    wider = width if problem.vectors_in_value else 0

    def wide(x: Tensor | None, by: int, axes: int = 1) -> Tensor | None:
        return x if x is None or by == 0 else pad(x, (0, by) * axes)

    edge = gates = None
    if problem.vectors is not None:
        pick = torch.eye(width, dtype=problem.dtype, device=problem.vectors.device)
        to_key = None if problem.vector_maps is None else problem.vector_maps.mT
        to_key = pad(pick, (0, 0, problem.key.shape[-1], 0)) if problem.vectors_in_score else to_key
        edge = EdgeVectors(problem.vectors, to_key, pad(pick, (0, 0, values, 0)) if wider else None)
    if problem.key_gates is not None or problem.value_gates is not None:
        gates = Gates(wide(problem.key_gates, more), wide(problem.value_gates, wider))
    maps = wide(problem.value_maps, wider, 2)
    tables = Tables(
        wide(problem.label_keys, more), wide(problem.label_values, wider), wide(problem.label_queries, more),
        rows=problem.by_query,
    )  # fmt: skip
    key, value = pad(problem.key, (0, more)), pad(problem.value, (0, wider))  # [B, H_kv, N_k, D + F]
    causal, score_maps = problem.causal, wide(problem.score_maps, more, 2)
    return Call(
        problem.query, key, value, problem.plan, (tables,), problem.scale, problem.mask, causal is not None,
        0 if causal is None else causal, score=replace(problem, score_maps=score_maps).weighted_score,
        value_map=None if maps is None else ValueMap(None, maps), edge=edge, gates=gates,
    )  # fmt: skip


def attend_edges(call: Call) -> tuple[Answer, Tensor]:
    """The answer, and the weight of every pair before dropout, ``[L, P]`` in the order of the plan's ``csr``."""
    work = _Work(call)
    weights, lse = row_softmax(work.scores(), work.pattern)
    output = work.output(work.drop(weights))
    mass = (work.to_caller_layout(work.by_label(weights)[..., :-1]),) if call.need_mass else None
    return Answer(work.to_caller_layout(output), work.to_caller_layout(lse), mass), weights


class _Work:
    """One call in lanes: ``[B · H, N, D]`` if batch rows share their pairs, otherwise ``[H, B · N, D]``."""

    def __init__(self, call: Call) -> None:
        part = call.plan.parts[0]
        assert part.edges_only and part.csr is not None
        self.call, self.csr, self.tables = call, part.csr, call.tables[0]
        self.num_labels, self.memory = part.num_labels, part.csr.memory
        self.batch, self.heads = call.query.shape[:2]
        self.joint = self.csr.batch != 1
        dtype = accumulation_dtype(call.query.dtype)
        query, self.key, self.value = (self._lanes(x.to(dtype)) for x in (call.query, call.key, call.value))
        self._plain_query, self.query = query, query * call.scale
        self.labels = plainly(lambda: self.csr.ids.masked_fill(self.csr.ids < 0, self.num_labels))
        self.pattern = self._remember("pairs", self._pairs)
        pairs, rows = self.labels.shape[0], max(query.shape[1], 1)
        # Lanes that join batch rows hold the tables of all of these, one below the other.
        self.stacked = self.joint and bool(self.tables.batched)
        # a rule on sizes would fix those of an exported program
        many = not torch.compiler.is_exporting() and self.num_labels * rows > LABELS_A_PAIR * pairs
        self.pair_by_pair = self.stacked or many
        self.at_row = self.labels
        if self.stacked:
            rows_of = self.num_labels + 1
            self.at_row = plainly(lambda: self.labels + self.csr.row // max(call.plan.q_len, 1) * rows_of)

    def scores(self) -> Tensor:
        """The score of every pair, ``[L, P]``."""
        edge = self.call.edge
        if self.call.score.additive:
            scores = self._additive(self.call.score)
        elif self.call.score.by_label:
            maps = self.call.score.weight.to(self.query.dtype)
            scores = self._scores_by_label(lambda label: self.query @ self._table(maps[..., label, :, :]))
        elif self.call.gates is not None and self.call.gates.key is not None:
            gate = self._table(self.call.gates.key)
            scores = self._scores_by_label(lambda label: self.query * gate[:, label, None])
        else:
            scores = sampled_dot(self.query, self.key, self.pattern)  # [L, P]
        for term in self._label_scores():
            scores = scores.add_(term)
        if edge is not None and edge.key is not None and not self.call.score.additive:
            scores = scores.add_(sampled_dot(self.query @ self._table(edge.key), self._vectors(edge), self._of_pairs()))
        return self._mask(self.call.score.finish(scores))

    def drop(self, weights: Tensor) -> Tensor:
        """The weights after dropout."""
        call = self.call
        if call.dropout_p == 0.0:
            return weights
        kept, hashes = None, hashes_of(call)
        if hashes is not None:
            kept = self._drawn(hashes)
        elif call.keep is not None:
            kept = listed_entries(call.plan, call.keep, (self.batch, self.heads))
        return dropout(weights, call.dropout_p) if kept is None else weights * kept / (1.0 - call.dropout_p)

    def _drawn(self, hashes: Hashes) -> Tensor:
        """Which pairs a given seed keeps, ``[L, P]``; each of several parallel edges has another random number."""
        csr, rows = self.csr, self._lanes(hashes.rows)
        first, second = (rows[..., half].index_select(1, csr.row) for half in (0, 1))
        if csr.parallel:
            second = parted(second, earlier_twins(csr.row, csr.col))
        return numbers(first, second, hashes.keys[0, csr.col]) >= smallest_kept(self.call.dropout_p)

    def output(self, weights: Tensor) -> Tensor:
        """Σ_j α_ij (v_j + a^V[l_ij] + W_v e_ij), ``[L, n, D_v]``."""
        maps, edge = self.call.value_map, self.call.edge
        if self.call.gates is not None and self.call.gates.value is not None:
            output = self._gated(self.call.gates.value, weights)
        else:
            output = weighted_sum(weights, self.value, self.pattern) if maps is None else self._mapped(maps, weights)
        table = self.tables.value
        if table is not None and self.pair_by_pair:
            output = output + weighted_sum(weights, self._rows(table), self._of_labels())
        elif table is not None:
            output = output + self.by_label(weights)[..., :-1] @ self._table(table)
        if edge is not None and edge.value is not None:
            sums = weighted_sum(weights, self._vectors(edge), self._of_pairs())  # [L, n, F]
            output = output + sums @ self._table(edge.value).transpose(-1, -2)
        return output

    def _additive(self, score: Compatibility) -> Tensor:
        """``w · act(q_i + k_j + a^K[l_ij] + W_k e_ij) · scale``, ``[L, P]`` by runs, again in backward."""
        lanes, pairs, edge = self.query.shape[0], self.csr.row.shape[0], self.call.edge
        key = self.key.repeat_interleave(lanes // max(self.key.shape[0], 1), 0)
        rows = None if self.tables.key is None else self._rows(self.tables.key)
        maps = None if edge is None or edge.key is None else self._table(edge.key).transpose(-1, -2)
        vectors = None if maps is None or edge is None else self._vectors(edge)  # [1, P, F]
        weight = score.weight.to(self.query.dtype)
        weight = weight[:, None] if weight.dim() == 1 else self._table(weight[..., None])

        def run(at: slice) -> Tensor:
            summed = self._plain_query[:, self.csr.row[at]] + key[:, self.pattern.col[at]]  # [L, pairs of a run, D]
            if rows is not None:
                summed = summed + rows[:, self.at_row[at]]
            if vectors is not None and maps is not None:
                summed = summed + vectors[:, at] @ maps
            return (score.act(summed) @ weight).squeeze(-1) * self.call.scale

        if torch.compiler.is_exporting():  # the number of runs would fix that of pairs
            return run(slice(None))
        step = max(run_numbers(self.query.device, self.query.dtype) // max(lanes * self.query.shape[-1], 1), 1)
        # without pairs there is one empty run, so that parameters get zeros: DistributedDataParallel waits for all
        runs = [slice(start, start + step) for start in range(0, max(pairs, 1), step)]
        again = torch.is_grad_enabled()
        found = [
            checkpoint(run, at, use_reentrant=False, preserve_rng_state=False) if again else run(at) for at in runs
        ]
        return torch.cat(found, 1)

    def _scores_by_label(self, queries: Callable[[int], Tensor]) -> Tensor:
        """The products of keys and the queries for their pair's label, ``[L, P]``, one label after the other."""
        scores = self.query.new_zeros(self.query.shape[0], self.labels.shape[0])
        for label in range(self.num_labels + 1):
            own = queries(label) if label < self.num_labels else self.query
            scores = self._with_dots_of(label, own, scores)
        return scores

    def _mapped(self, maps: ValueMap, weights: Tensor) -> Tensor:
        """Σ_j α_ij W[l_ij] v_j, ``[L, n, D_v]``: weights times the coefficient of each base, summed, then mapped."""
        bases = maps.bases.to(weights.dtype)
        output = self._sum_of(self.num_labels, weights)  # pairs without a label keep their value
        for k in range(bases.shape[-3]):
            if maps.coefficients is None:
                sums = self._sum_of(k, weights)
            else:
                column = with_zero_row(self._table(maps.coefficients[..., k, None].to(weights.dtype))).squeeze(-1)
                sums = weighted_sum(weights * column[:, self.labels], self.value, self.pattern)
            output = output + sums @ self._table(bases[..., k, :, :]).transpose(-1, -2)
        return output

    def _gated(self, gate: Tensor, weights: Tensor) -> Tensor:
        """Σ_j α_ij g[l_ij] ⊙ v_j, ``[L, n, D_v]``: the sum of each label, then multiplied by its row."""
        gate, output = self._table(gate), self._sum_of(self.num_labels, weights)
        for label in range(self.num_labels):
            output = output + self._sum_of(label, weights) * gate[:, label, None]
        return output

    def _with_dots_of(self, label: int, query: Tensor, scores: Tensor) -> Tensor:
        """The scores ``[L, P]`` with products of these queries and the keys for the pairs of a label."""
        if torch.compiler.is_compiling():  # how many pairs have the label would be known in a run only
            return torch.where(self.labels == label, sampled_dot(query, self.key, self.pattern), scores)
        places, pattern = self._pairs_by_label()[label]
        return scores.index_copy(1, places, sampled_dot(query, self.key, pattern))

    def _sum_of(self, label: int, weights: Tensor) -> Tensor:
        """Each query's weighted sum of values over the pairs of a label, ``[L, n, D_v]``."""
        if torch.compiler.is_compiling():
            return weighted_sum(weights.masked_fill(self.labels != label, 0.0), self.value, self.pattern)
        places, pattern = self._pairs_by_label()[label]
        return weighted_sum(weights[:, places], self.value, pattern)

    def _pairs_by_label(self) -> list[tuple[Tensor, Pattern]]:
        """The places of the pairs with each label, last those without one, and the pattern of these pairs."""

        def make() -> list[tuple[Tensor, Pattern]]:
            found, rows = [], torch.arange(self.query.shape[1] + 1, device=self.labels.device)
            for label in range(self.num_labels + 1):
                places = (self.labels == label).nonzero().squeeze(-1)
                row, col = self.pattern.row[places], self.pattern.col[places]
                columns = self.pattern.col_ptr.shape[0] - 1
                found.append((places, Pattern.of(torch.searchsorted(row, rows), row, col, columns)))
            return found

        return self._remember("pairs by label", make)

    def by_label(self, weights: Tensor) -> Tensor:
        """P, the weights of each query summed by label, ``[L, n, R+1]``; the last column: no label."""
        rows, columns = self.query.shape[1], self.num_labels + 1
        sums = weights.new_zeros(weights.shape[0], rows * columns)
        return sums.index_add(1, self._at_label(), weights).unflatten(1, (rows, columns))

    def to_caller_layout(self, x: Tensor) -> Tensor:
        """``[B, H, N, ...]`` from lanes."""
        if self.joint:
            return x.unflatten(1, (self.batch, self.call.plan.q_len)).transpose(0, 1)
        return x.unflatten(0, (self.batch, self.heads))

    def _lanes(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1).flatten(1, 2) if self.joint else x.flatten(0, 1)

    def _table(self, table: Tensor) -> Tensor:
        """``[X, D]``, ``[H, X, D]`` or ``[B, 1 or H, X, D]`` so that it broadcasts with lanes, ``[1 or L, X, D]``.

        A table with a batch axis is for lanes of single batch rows; see :meth:`_rows` for others.
        """
        table = table.to(self.query.dtype)
        if table.dim() == 4:
            return table.expand(self.batch, self.heads, -1, -1).flatten(0, 1)
        if table.dim() == 2:
            return table[None]
        return table if self.joint or self.batch == 1 else table.repeat(self.batch, 1, 1)

    def _rows(self, table: Tensor) -> Tensor:
        """The rows of a table, with one of zeros for pairs without a label, by :attr:`at_row`, ``[1 or L, X, D]``."""
        table = with_zero_row(table)
        if not self.stacked:
            return self._table(table)
        table = table.reshape((1,) * (4 - table.dim()) + table.shape).expand(self.batch, -1, -1, -1)
        return table.to(self.query.dtype).transpose(0, 1).flatten(1, 2)

    def _remember(self, name: str, make: Callable[[], _T]) -> _T:
        """Make a value once for these labels."""
        return self.memory.once(name, make)

    def _at_label(self) -> Tensor:
        """Index of each pair's query and label in a flat ``[n, R+1]``, for the scores and for the sums."""
        return self._remember("query and label", lambda: self.csr.row * (self.num_labels + 1) + self.labels)

    def _pairs(self) -> Pattern:
        """Queries by keys, both numbered through the batch rows if their pairs differ."""
        csr, plan = self.csr, self.call.plan
        col = csr.col if not self.joint else csr.col + csr.row // max(plan.q_len, 1) * plan.k_len
        return Pattern.of(csr.row_ptr, csr.row, col, csr.batch * plan.k_len)

    def _of_labels(self) -> Pattern:
        """Queries by rows of tables."""
        return self._remember(
            f"labels{self._stacked_name()}",
            lambda: Pattern.of(self.csr.row_ptr, self.csr.row, self.at_row, self._row_count()),
        )

    def _of_labels_by_key(self) -> Pattern:
        """Keys by rows of tables, the pairs sorted by key."""

        def make() -> Pattern:
            by_key = self.pattern.transposed
            return Pattern.of(by_key.row_ptr, by_key.row, self.at_row[self.pattern.by_col], self._row_count())

        return self._remember(f"labels by key{self._stacked_name()}", make)

    def _stacked_name(self) -> str:
        """The key that separates patterns of stacked tables from others that are kept with the labels."""
        return " of batch rows" if self.stacked else ""

    def _row_count(self) -> int:
        """How many rows tables have in lanes."""
        return (self.num_labels + 1) * (self.batch if self.stacked else 1)

    def _of_pairs(self) -> Pattern:
        """Queries by pairs: every pair is a separate column."""
        here = torch.arange(self.csr.row.shape[0], device=self.labels.device)
        ends = torch.arange(here.shape[0] + 1, device=here.device)
        return Pattern(self.csr.row_ptr, self.csr.row, here, ends, here, self.csr.row, here, here)

    def _vectors(self, edge: EdgeVectors) -> Tensor:
        """Edge vectors in the order of the plan, ``[1, P, F]``."""
        return edge.attr.to(self.query.dtype).index_select(0, self.csr.order)[None]

    def _label_scores(self) -> Iterator[Tensor]:
        """The label terms of the scores, each ``[L or 1, P]``."""
        tables, columns = self.tables, self.num_labels + 1
        if tables.rows is not None:
            given = with_zero_row(self._lanes(tables.rows.to(self.query.dtype)), -1)
            yield given.flatten(1).index_select(1, self._at_label())
        if tables.key is not None and not self.call.score.additive:
            rows = self._rows(tables.key)  # [1 or L, R+1, D]
            if self.pair_by_pair:
                yield sampled_dot(self.query, rows, self._of_labels())
            else:
                by_query = (self.query @ rows.transpose(-1, -2)).flatten(1)  # [L, n · (R+1)]
                yield by_query.index_select(1, self._at_label())
        if tables.query is not None:
            rows = self._rows(tables.query)
            key = self.key.repeat_interleave(self.query.shape[0] // max(self.key.shape[0], 1), 0) * self.call.scale
            if self.pair_by_pair:
                by_key = sampled_dot(key, rows, self._of_labels_by_key())  # [L, P], sorted by key
                yield by_key.index_select(1, self.pattern.to_row)
            else:
                by_key = (key @ rows.transpose(-1, -2)).flatten(1)
                yield by_key.index_select(1, self.pattern.col * columns + self.labels)
        if tables.bias is not None:
            yield self._rows(tables.bias[..., None]).squeeze(-1).index_select(1, self.at_row)

    def _mask(self, scores: Tensor) -> Tensor:
        call = self.call
        if call.mask is not None:
            mask = listed_entries(call.plan, call.mask, (self.batch, self.heads))
            scores = (
                scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask.to(scores.dtype)
            )
        return (
            scores.masked_fill(listed_future(call.plan, call.q_offset, self.heads), float("-inf"))
            if call.is_causal
            else scores
        )
