"""Small graphs of one size in a packed batch, worked on together as the rows of a padded batch without padding."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from relgraph.impl.problem import Incoming, Problem
from relgraph.plan import FIRST, NOT_ATTENDING, Block, LabelPlan, Part, ids_by_distance

SMALL_PAIRS = 1 << 12
"""Up to this many pairs a graph is small: calling the operators costs more than they do."""


@dataclass(frozen=True, eq=False)
class Group:
    """Graphs of one size.

    Attributes:
        graphs: their numbers.
        queries: ``[g, n_q]``, the packed positions of their queries.
        keys: ``[g, n_k]``, likewise of their keys.
        problem: the same attention as a padded batch of g rows.
    """

    graphs: list[int]
    queries: Tensor
    keys: Tensor
    problem: Problem

    @staticmethod
    def rows(x: Tensor, positions: Tensor) -> Tensor:
        """``[1, H, T, X]`` at ``[g, n]`` positions: ``[g, H, n, X]``."""
        return x[0].transpose(0, 1)[positions].transpose(1, 2)

    @staticmethod
    def put(whole: Tensor, positions: Tensor, mine: Tensor) -> None:
        """The way back: writes ``[g, H, n, ...]`` to ``[1, H, T, ...]``."""
        whole[0][:, positions] = mine.transpose(0, 1)

    def incoming(self, incoming: Incoming) -> Incoming:
        """The group's share of the gradients of the outputs."""
        lse = incoming.lse
        return Incoming(
            None if incoming.output is None else self.rows(incoming.output, self.queries),
            None if lse is None else self.rows(lse[..., None], self.queries)[..., 0],
            None if incoming.sums is None else self.rows(incoming.sums, self.queries),
            None if incoming.mass is None else self.rows(incoming.mass, self.queries),
        )


def groups(problem: Problem) -> list[Group]:
    """Groups of two graphs or more; none for a batch that is not packed, or labels that have several ids a pair."""
    plan = problem.plan
    if plan.q_ptr is None or plan.k_ptr is None or any(p.csr is not None and p.csr.parallel for p in plan.parts):
        return []
    sizes = zip(plan.q_ptr.diff().tolist(), plan.k_ptr.diff().tolist(), strict=True)
    alike: dict[tuple[int, int], list[int]] = defaultdict(list)
    for graph, (n_q, n_k) in enumerate(sizes):
        if 0 < n_q * n_k <= SMALL_PAIRS:
            alike[n_q, n_k].append(graph)
    return [_group(problem, graphs, *size) for size, graphs in alike.items() if len(graphs) > 1]


def _group(problem: Problem, graphs: list[int], n_q: int, n_k: int) -> Group:
    plan = problem.plan
    assert plan.q_ptr is not None and plan.k_ptr is not None
    at = torch.tensor(graphs, device=plan.q_ptr.device)
    queries, keys = (
        ptr[at][:, None] + torch.arange(n, device=at.device) for ptr, n in ((plan.q_ptr, n_q), (plan.k_ptr, n_k))
    )
    sub = replace(
        problem,
        query=Group.rows(problem.query, queries),
        key=Group.rows(problem.key, keys),
        value=Group.rows(problem.value, keys),
        by_query=None if problem.by_query is None else Group.rows(problem.by_query, queries),
        by_key=None if problem.by_key is None else Group.rows(problem.by_key, keys),
        mask=_pairs(problem.mask, queries, keys),
        keep=_pairs(problem.keep, queries, keys),
        # every group draws random numbers of its own
        seed=None if problem.seed is None else problem.seed ^ (graphs[0] + 1 << 40),
        causal=_offset(problem.causal, at),
        plan=LabelPlan(n_q, n_k, len(graphs), tuple(_part(plan, part, at, queries, keys) for part in plan.parts)),
    )
    return Group(graphs, queries, keys, sub)


def _offset(offset: int | Tensor | None, graphs: Tensor) -> int | Tensor | None:
    return offset[graphs] if isinstance(offset, Tensor) and offset.dim() == 1 and offset.shape[0] > 1 else offset


def _pairs(pairs: Tensor | None, queries: Tensor, keys: Tensor) -> Tensor | None:
    """What broadcasts to ``[1, H, T_q, T_k]`` as ``[g, H or 1, n_q, n_k]``."""
    if pairs is None:
        return None
    row = queries if pairs.shape[2] > 1 else torch.zeros_like(queries)
    col = keys if pairs.shape[3] > 1 else torch.zeros_like(keys)
    return pairs[0][:, row[:, :, None], col[:, None]].transpose(0, 1)


def _part(plan: LabelPlan, part: Part, graphs: Tensor, queries: Tensor, keys: Tensor) -> Part:
    """One part of the labels of some graphs of one size; listed pairs are written out."""
    offset = _offset(part.offset, graphs)
    assert offset is not None
    blocks = [region for region in part.regions if isinstance(region, Block)]
    if not blocks and part.csr is None:
        return replace(part, offset=offset)
    ids, full = _ids(plan, part, offset, graphs, queries, keys)
    return Part(part.num_labels, offset, (Block(ids, full),))


def _ids(
    plan: LabelPlan, part: Part, offset: int | Tensor, graphs: Tensor, queries: Tensor, keys: Tensor
) -> tuple[Tensor, bool]:
    """The ids of all pairs, ``[g, n_q, n_k]``, and whether all attend."""
    assert plan.q_ptr is not None and plan.k_ptr is not None
    n_q, n_k = queries.shape[1], keys.shape[1]
    block = next((region for region in part.regions if isinstance(region, Block)), None)
    here = torch.arange(n_q * n_k, device=graphs.device)
    if block is not None:
        sizes = plan.q_ptr.diff() * plan.k_ptr.diff()
        begin = (sizes.cumsum(0) - sizes)[graphs]
        ids = block.ids[begin[:, None] + here].view(-1, n_q, n_k)
    else:
        distance = (here % n_k - here // n_k).view(n_q, n_k)
        distance = distance - (offset.reshape(-1, 1, 1) if isinstance(offset, Tensor) else offset)
        ids = ids_by_distance(part.regions, distance.expand(graphs.shape[0], n_q, n_k))
    csr = part.csr
    if csr is None:
        return ids, part.complete
    first = csr.row_ptr[queries.reshape(-1)]
    counts = csr.row_ptr[queries.reshape(-1) + 1] - first
    row = torch.arange(first.shape[0], device=first.device).repeat_interleave(counts)
    pair = torch.arange(row.shape[0], device=first.device) - (counts.cumsum(0) - counts)[row] + first[row]
    pair, row = pair[csr.role[pair] == FIRST], row[csr.role[pair] == FIRST]
    ids = ids.to(torch.int64, copy=True)
    ids[row // n_q, row % n_q, csr.col[pair] - keys[row // n_q, 0]] = csr.ids[pair]
    return ids, part.complete and bool((ids > NOT_ATTENDING).all())
