"""One attention problem as kernels see it, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relgraph.call import accumulation_dtype
from relgraph.impl.draw import Hashes
from relgraph.labels.memory import Memory
from relgraph.plan import LabelPlan, plan_memo
from relgraph.score import Coded


@dataclass(frozen=True, eq=False)
class Problem:
    """One attention problem.

    Attributes:
        query: ``[B, H, N_q, D]``; ``[B, H, N_q, D + F]`` with vectors in the score.
        key: ``[B, H_kv, N_k, D]``.
        value: ``[B, H_kv, N_k, D_v]``.
        by_query: B, the number that label r adds to the scores of query i, ``[B, H, N_q, columns]``, or None.
        by_key: C, the number that label r adds to the scores at key j, ``[B, H, N_k, columns]``, or None.
        label_keys: a^K, which a pair's label adds to its key, ``[R, D]`` or ``[H, R, D]``, or None.
        label_values: a^V, which it adds to its value, ``[R, D_v]`` or ``[H, R, D_v]``, or None. For compiled kernels
            over all pairs it has a row for each column of the sums. For GPU kernels all tables have one, or one row
            less if the last column is for pairs without a label.
        label_queries: a^Q, whose product with the key is added to q·k, ``[R, D]`` or ``[H, R, D]``, or None.
        label_biases: b, which it adds to the score, ``[R]`` or ``[H, R]``, or None. Compiled kernels over all pairs
            take it in the place of B, with a number for each column.
        key_gates: g^K, which a pair's label multiplies its key by, ``[R, D]`` or ``[H, R, D]``, or None.
        value_gates: g^V, which it multiplies its value by, ``[R, D_v]`` or ``[H, R, D_v]``, or None.
        value_maps: W, which maps the value for each label, ``[R, D_v, D_v]`` or ``[H, R, D_v, D_v]``, or None.
        score_maps: W of a bilinear score, ``[R, D, D]`` or ``[H, R, D, D]``, or None.
        score_weights: w of an additive score, ``[D]`` or ``[H, D]``, or None; its activation is ``score``, and
            ``label_keys`` is inside.
        vector_maps: W_k of an additive score, which maps the vectors of listed pairs into it, ``[F, D]`` or
            ``[H, F, D]``, or None.
        vector_queries: what meets the vectors of listed pairs in the score, ``[B, H, N_q, F]``, or None; for compiled
            kernels over all pairs.
        vectors: a vector for each listed pair, ``[P, F]`` in the order that they were given, or None.
        mask: ``[B or 1, H or 1, N_q or 1, N_k or 1]``, bool (True attends) or added, or None.
        keep: a given dropout mask ``[B, H, N_q, N_k]``, or None to draw one from ``seed``.
        seed: integer tensor of one number, or of five, see ``origin``.
        plan: the labels.
        causal: query i sees keys j <= i + causal; None: all keys.
        scale: factor on q·k.
        dropout_p: share of the weights that is dropped.
        columns: width of B, C and the sums by label.
        need_sums: whether to return the sums by label after dropout.
        need_mass: whether to return the sums by label before dropout as a further output.
        mask_gradient: whether to return the gradient of an added mask.
        vectors_in_score: whether a key is k_j followed by the pair's vector.
        vectors_in_value: whether a value is v_j followed by the pair's vector, so that the output is wider by F.
        vectors_gradient: whether to return the gradient of the vectors.
        score: a named function of finished scores, an activation, or None.
        plan_key: the plan as the op received it, under which ``memo`` is kept, or where it is; None to keep nothing.
        drawn: the hashes from which dropout draws, after ``chunked`` has made them from ``seed``; else None.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    by_query: Tensor | None
    by_key: Tensor | None
    label_keys: Tensor | None
    label_values: Tensor | None
    label_queries: Tensor | None
    label_biases: Tensor | None
    key_gates: Tensor | None
    value_gates: Tensor | None
    value_maps: Tensor | None
    score_maps: Tensor | None
    score_weights: Tensor | None
    vector_maps: Tensor | None
    vector_queries: Tensor | None
    vectors: Tensor | None
    mask: Tensor | None
    keep: Tensor | None
    seed: Tensor | None
    plan: LabelPlan
    causal: int | Tensor | None
    scale: float
    dropout_p: float
    columns: int
    need_sums: bool
    need_mass: bool
    mask_gradient: bool
    vectors_in_score: bool
    vectors_in_value: bool
    vectors_gradient: bool
    score: Coded | None
    plan_key: tuple[Sequence[Tensor], Sequence[int]] | Memory | None
    drawn: Hashes | None = None

    @cached_property
    def memo(self) -> Memory:
        """What an implementation keeps for the next call with these labels; looked up only if it is used."""
        if isinstance(self.plan_key, Memory):
            return self.plan_key
        return Memory() if self.plan_key is None else plan_memo(*self.plan_key)

    @cached_property
    def dtype(self) -> torch.dtype:
        """The dtype of scores and sums."""
        return accumulation_dtype(self.query.dtype)

    @property
    def factor_keys(self) -> Tensor | None:
        """a^K where queries are multiplied by it; an activation takes it before."""
        return self.label_keys if self.score_weights is None else None

    @property
    def origin(self) -> tuple[int, ...]:
        """The numbers of the first batch row, head, query and key in a larger problem, which follow the seed."""
        return (0, 0, 0, 0) if self.seed is None or self.seed.numel() == 1 else tuple(self.seed.tolist()[1:])


class Outputs(NamedTuple):
    """The outputs of forward, or their gradients.

    Attributes:
        output: ``[B, H, N_q, D_v]``, with the value term where the problem has ``label_values``;
            ``[B, H, N_q, D_v + F]`` with vectors in the value.
        lse: log-sum-exp, ``[B, H, N_q]``.
        sums: sums by label after dropout, ``[B, H, N_q, columns]``. If not needed: None, or empty in forward.
        mass: the same before dropout; without dropout it is ``sums``, and this is empty.
        plain: the output without the value term, if the kernels keep it for backward; else None or empty. It has no
            gradient.
    """

    output: Any
    lse: Any
    sums: Any
    mass: Any
    plain: Any = None


def row_delta(outputs: Outputs, grads: Outputs, dtype: torch.dtype) -> Tensor:
    """δ_i = Σ_j α_ij dα_ij, ``[B, H, N_q]``, from the outputs and their gradients (None for an output not used)."""
    terms = [
        (grad.to(dtype) * out).sum(-1)
        for grad, out in ((grads.output, outputs.output), (grads.sums, outputs.sums), (grads.mass, outputs.mass))
        if grad is not None and out is not None
    ]
    total: Any = sum(terms) if terms else outputs.output.new_zeros(outputs.output.shape[:-1])
    return total if grads.lse is None else total - grads.lse


def with_origin(seed: Tensor, origin: tuple[int, ...]) -> Tensor:
    """The seed and where a part of a larger problem begins, five numbers, without a copy from the host."""
    numbers = seed.new_empty(1 + len(origin))
    numbers[0] = seed
    for at, begin in enumerate(origin, 1):
        numbers[at].fill_(begin)
    return numbers
