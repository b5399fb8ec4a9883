"""The label terms: B and C from tables, P back to the output; and the softmax of rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import dropout

from relgraph.call import Answer, Call, Tables, ValueMap
from relgraph.impl import draw
from relgraph.impl.problem import Outputs
from relgraph.plan import distances, inside_graphs


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """``[B, H_kv, N, D]`` with each head repeated for the query heads that share it."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def with_zero_row(table: Tensor, dim: int = -2) -> Tensor:
    """The table plus a last row of zeros, for pairs without a label; rows are counted by axis -2 or -1."""
    return torch.constant_pad_nd(table, (0, 1) if dim == -1 else (0, 0, 0, 1))


def attend_mask(call: Call) -> Tensor | None:
    """Which pairs may attend by boolean mask, causal order and graph borders; None for all pairs."""
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
    unnormalised = (scores - top).exp()
    total = unnormalised.sum(-1, keepdim=True)
    seen = total != 0  # also True for NaN, which stays NaN
    total = torch.where(seen, total, torch.ones_like(total))
    lse = torch.where(seen, top + total.log(), torch.full_like(top, float("-inf")))
    return unnormalised / total, lse.squeeze(-1)


def hashes_of(call: Call) -> draw.Hashes | None:
    """The hashes from which dropout draws by place; None if nothing is drawn that way."""
    if call.dropout_p == 0.0 or call.keep is not None:
        return None
    if call.drawn is not None or call.dropout_seed is None:
        return call.drawn
    rows, keys = call.query.shape[:3], call.key.shape[2]
    return draw.hashes(call.dropout_seed, call.dropout_origin, rows, keys, call.query.device)


def drop(call: Call, weights: Tensor) -> Tensor:
    """The weights ``[B, H, N_q, N_k]`` after dropout: by a given mask, by place from a given seed, or by torch."""
    if call.dropout_p == 0.0:
        return weights
    kept, hashes = call.keep, hashes_of(call)
    if hashes is not None:
        kept = draw.keep_mask(hashes, call.dropout_p)
    return dropout(weights, call.dropout_p) if kept is None else weights * kept / (1.0 - call.dropout_p)


def score_tables(
    query: Tensor, tables: Sequence[Tables], sizes: Sequence[int], scale: float, dtype: torch.dtype
) -> Tensor | None:
    """B = scale · q·(a^K)ᵀ + b for every label of every part, ``[B, H, N_q, sum of R+1]``; None without tables.

    Given scores by row replace the product. Each part ends with a column of zeros for pairs without a label.
    """
    for t in tables:
        if t.key is not None or t.bias is not None or t.rows is not None:
            break
    else:
        return None
    query, columns = query.to(dtype), []
    for table, size in zip(tables, sizes, strict=True):
        term = None if table.rows is None else with_zero_row(table.rows.to(dtype), -1)  # [B, H, N_q, R+1]
        if table.key is not None:
            term = query @ (with_zero_row(table.key.to(dtype)) * scale).transpose(-1, -2)
        if table.bias is not None:
            bias = with_zero_row(table.bias.to(dtype), -1)
            bias = bias[..., None, :] if bias.dim() > 1 else bias  # [H, 1, R+1] or [B, 1 or H, 1, R+1]
            term = bias if term is None else term + bias
        if term is None:
            term = query.new_zeros(size + 1)
        columns.append(term.expand(*query.shape[:-1], size + 1))
    return columns[0] if len(columns) == 1 else torch.cat(columns, -1)


_NONE = Tables()


def split_batched(tables: Sequence[Tables]) -> tuple[tuple[Tables, ...], tuple[Tables, ...]]:
    """The tables whose kind has a batch axis in no part, with scores by row; and those whose kind has one in some part.

    Kernels that add tables themselves take the first. The others become B, C and a product with the sums by label.
    """
    kinds: set[str] = set()
    for table in tables:
        kinds.update(table.batched)
    if not kinds:
        return tuple(tables), (_NONE,) * len(tables)
    inside = tuple(table._replace(**dict.fromkeys(kinds)) for table in tables)
    outside = tuple(Tables(**{kind: getattr(table, kind) for kind in kinds}) for table in tables)
    return inside, outside


def query_tables(
    key: Tensor, heads: int, tables: Sequence[Tables], sizes: Sequence[int], scale: float, dtype: torch.dtype
) -> Tensor | None:
    """C = scale · k·(a^Q)ᵀ, ``[B, H, N_k, sum of R+1]``, laid out as :func:`score_tables`; None without tables."""
    for t in tables:
        if t.query is not None:
            break
    else:
        return None
    key = repeat_heads(key.to(dtype), heads)
    columns = []
    for table, size in zip(tables, sizes, strict=True):
        if table.query is None:
            columns.append(key.new_zeros(*key.shape[:-1], size + 1))
        else:
            columns.append(key @ (with_zero_row(table.query.to(dtype)) * scale).transpose(-1, -2))
    return torch.cat(columns, -1)


def free_maps(maps: ValueMap, dtype: torch.dtype) -> Tensor:
    """W for every label, ``[R, D_v, D_v]`` or ``[H, R, D_v, D_v]``: a product with the bases if there are some."""
    bases = maps.bases.to(dtype)
    if maps.coefficients is None:
        return bases
    return (maps.coefficients.to(dtype) @ bases.flatten(-2)).unflatten(-1, bases.shape[-2:])


def has_value_tables(tables: Sequence[Tables]) -> bool:
    """Whether a part has a value table."""
    for table in tables:  # noqa: SIM110 - a generator costs a call of Python per part
        if table.value is not None:
            return True
    return False


def add_value_tables(output: Tensor, sums: Tensor, tables: Sequence[Tables], sizes: Sequence[int]) -> Tensor:
    """Output + Σ_r P[i, r]·a^V[r] over all parts; ``sums`` is laid out as :func:`score_tables`."""
    values = [None if table.value is None else table.value.to(output.dtype) for table in tables]
    given = [with_zero_row(value) for value in values if value is not None]
    if len(given) == len(tables) and all(value.dim() == 2 for value in given):  # one product, without a copy of P
        joined = given[0] if len(given) == 1 else torch.cat(given)
        return torch.addmm(output.flatten(0, -2), sums.flatten(0, -2), joined).view(output.shape)
    start = 0
    for value, size in zip(values, sizes, strict=True):
        if value is not None:
            output = output + sums[..., start : start + size] @ value
        start += size + 1
    return output


def answer(call: Call, outputs: Outputs, tables: Sequence[Tables], sizes: Sequence[int]) -> Answer:
    """Add the value term to the primitive's output and split label mass by part."""
    output, lse, sums, mass, _ = outputs
    if has_value_tables(tables):
        output = add_value_tables(output, sums, tables, sizes)
    masses = split_mass(mass if call.dropout_p > 0.0 else sums, sizes) if call.need_mass else None
    return Answer(output, lse, masses)


def split_mass(sums: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """P as one ``[B, H, N_q, R]`` per part."""
    columns = sums.split([size + 1 for size in sizes], -1)
    return tuple(part[..., :size] for part, size in zip(columns, sizes, strict=True))
