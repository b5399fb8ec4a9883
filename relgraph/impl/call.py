"""What the implementations share: the call they all answer, and the small maths around the primitive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from relgraph.plan import LabelPlan, distances, graph_at, inside_graphs, listed_pairs


class Tables(NamedTuple):
    """The learned vectors of one part of the labels; each may be missing."""

    key: Tensor | None = None
    value: Tensor | None = None
    query: Tensor | None = None
    bias: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Call:
    """One checked call: what every implementation is given and must answer alike.

    Shapes: query ``[B, H, N_q, D]``, key ``[B, H_kv, N_k, D]``, value ``[B, H_kv, N_k, D_v]``; a packed batch has B = 1
    and the borders in the plan. ``mask`` is None or broadcasts to ``[B, H, N_q, N_k]`` with four dimensions; bool (True
    attends) or added to the scores. ``keep`` is a given dropout mask ``[B, H, N_q, N_k]`` instead of a drawn one.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    plan: LabelPlan
    tables: tuple[Tables, ...]
    scale: float
    mask: Tensor | None = None
    is_causal: bool = False
    q_offset: int | Tensor = 0
    dropout_p: float = 0.0
    keep: Tensor | None = None
    need_weights: bool = False
    need_mass: bool = False


class Answer(NamedTuple):
    """What an implementation returns.

    output ``[B, H, N_q, D_v]``; lse ``[B, H, N_q]`` (-inf on a row that sees nothing); mass, one ``[B, H, N_q, R]`` a
    part, when asked for; weights ``[B, H, N_q, N_k]``, when asked for. All in the accumulation dtype.
    """

    output: Tensor
    lse: Tensor
    mass: tuple[Tensor, ...] | None = None
    weights: Tensor | None = None


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for the half types, else the type itself."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """``[B, H_kv, N, D]`` with every head repeated for the query heads that share it."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def with_zero_row(table: Tensor, dim: int = -2) -> Tensor:
    """The table with a row of zeros after its last: what a pair without a label looks up."""
    size = list(table.shape)
    size[dim] = 1
    return torch.cat([table, table.new_zeros(size)], dim)


def attend_mask(call: Call) -> Tensor | None:
    """Which pairs the arguments allow: boolean mask, causal order and graph borders, or None for all of them."""
    plan, allowed = call.plan, inside_graphs(call.plan)
    if call.is_causal:
        causal = (distances(plan, call.q_offset, call.query.device) <= 0)[:, None]
        allowed = causal if allowed is None else causal & allowed
    if call.mask is not None and call.mask.dtype == torch.bool:
        allowed = call.mask if allowed is None else allowed & call.mask
    return allowed


def softmax_rows(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax over keys and its log-sum-exp; a row of -inf gives zeros and -inf, and no NaN in any gradient.

    A row with NaN or +inf among its scores gives NaN.
    """
    if scores.shape[-1] == 0:
        return scores, scores.sum(-1) + float("-inf")
    top = scores.detach().amax(-1, keepdim=True)
    top = torch.where(top == float("-inf"), torch.zeros_like(top), top)
    grown = (scores - top).exp()
    total = grown.sum(-1, keepdim=True)
    seen = total != 0  # true of NaN, which stays NaN
    total = torch.where(seen, total, torch.ones_like(total))
    lse = torch.where(seen, top + total.log(), torch.full_like(top, float("-inf")))
    return grown / total, lse.squeeze(-1)


def score_tables(query: Tensor, tables: Sequence[Tables], sizes: Sequence[int], scale: float) -> Tensor | None:
    """B = scale · q·(a^K)ᵀ + b for every label of every part, ``[B, H, N_q, sum of R+1]``; None without tables.

    Each part ends with a column of zeros for the pairs that carry no label.
    """
    if all(t.key is None and t.bias is None for t in tables):
        return None
    columns = []
    for table, size in zip(tables, sizes, strict=True):
        term = None
        if table.key is not None:
            term = query @ with_zero_row(table.key.to(query.dtype)).transpose(-1, -2) * scale
        if table.bias is not None:
            bias = with_zero_row(table.bias.to(query.dtype), -1)
            bias = bias[:, None, :] if bias.dim() == 2 else bias
            term = bias if term is None else term + bias
        if term is None:
            term = query.new_zeros(size + 1)
        columns.append(term.expand(*query.shape[:-1], size + 1))
    return columns[0] if len(columns) == 1 else torch.cat(columns, -1)


def query_tables(
    key: Tensor, heads: int, tables: Sequence[Tables], sizes: Sequence[int], scale: float
) -> Tensor | None:
    """C = scale · k·(a^Q)ᵀ, ``[B, H, N_k, sum of R+1]``, laid out as :func:`score_tables`; None without tables."""
    if all(t.query is None for t in tables):
        return None
    key = repeat_heads(key, heads)
    columns = []
    for table, size in zip(tables, sizes, strict=True):
        if table.query is None:
            columns.append(key.new_zeros(*key.shape[:-1], size + 1))
        else:
            columns.append(key @ with_zero_row(table.query.to(key.dtype)).transpose(-1, -2) * scale)
    return torch.cat(columns, -1)


def add_value_tables(output: Tensor, sums: Tensor, tables: Sequence[Tables], sizes: Sequence[int]) -> Tensor:
    """Output + Σ_r P[i, r]·a^V[r] over all parts; ``sums`` is laid out as :func:`score_tables`."""
    start = 0
    for table, size in zip(tables, sizes, strict=True):
        if table.value is not None:
            output = output + sums[..., start : start + size] @ table.value.to(output.dtype)
        start += size + 1
    return output


def split_mass(sums: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """P as one ``[B, H, N_q, R]`` a part."""
    starts = [sum(sizes[:p]) + p for p in range(len(sizes))]
    return tuple(sums[..., start : start + size] for start, size in zip(starts, sizes, strict=True))


def listed_entries(call: Call, x: Tensor) -> Tensor:
    """The listed entries of a tensor that broadcasts to ``[B, H, N_q, N_k]``: ``[L or 1, P]``."""
    csr = call.plan.parts[0].csr
    assert csr is not None
    batch, query, key = listed_pairs(call.plan, csr)
    query, key = (at if n > 1 else torch.zeros_like(at) for at, n in zip((query, key), x.shape[2:], strict=True))
    if csr.batch != 1:
        return x[batch if x.shape[0] > 1 else torch.zeros_like(batch), :, query, key].T
    x = x[:, :, query, key]
    return x[0] if x.shape[:2] == (1, 1) else x.expand(*call.query.shape[:2], -1).flatten(0, 1)


def listed_future(call: Call) -> Tensor:
    """Which listed pairs a causal query may not see, ``[L or 1, P]``."""
    plan, offset, csr = call.plan, call.q_offset, call.plan.parts[0].csr
    assert csr is not None
    batch, query, key = listed_pairs(plan, csr)
    if plan.q_ptr is not None and plan.k_ptr is not None:
        batch = graph_at(plan.q_ptr, query)
        query, key = query - plan.q_ptr[batch], key - plan.k_ptr[batch]
    distance = (key - query)[None]
    if not isinstance(offset, Tensor) or offset.dim() == 0 or offset.shape[0] == 1:
        return distance > offset
    if csr.batch != 1 or plan.q_ptr is not None:
        return distance > offset[batch]
    return (distance > offset[:, None]).repeat_interleave(call.query.shape[1], 0)
