"""The primitive's arguments as tensors and numbers, the form in which they enter the chunked implementation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from relgraph.impl.common import accumulation_dtype
from relgraph.plan import LabelPlan


@dataclass(frozen=True, eq=False)
class Problem:
    """One attention problem.

    Attributes:
        query: ``[B, H, N_q, D]``.
        key: ``[B, H_kv, N_k, D]``.
        value: ``[B, H_kv, N_k, D_v]``.
        by_query: B, what label r adds to the scores of query i, ``[B, H, N_q, columns]``, or None.
        by_key: C, what label r adds to the scores at key j, ``[B, H, N_k, columns]``, or None.
        mask: ``[B or 1, H or 1, N_q or 1, N_k or 1]``, bool (True attends) or added, or None.
        keep: a given dropout mask ``[B, H, N_q, N_k]``, or None to draw one from ``seed``.
        seed: scalar integer tensor.
        plan: the labels.
        causal: offset up to which keys are seen, j <= i + causal; None when all are.
        scale: factor on q·k.
        dropout_p: share of the weights that is dropped.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    by_query: Tensor | None
    by_key: Tensor | None
    mask: Tensor | None
    keep: Tensor | None
    seed: Tensor | None
    plan: LabelPlan
    causal: int | Tensor | None
    scale: float
    dropout_p: float

    @property
    def dtype(self) -> torch.dtype:
        """What scores and sums are computed in."""
        return accumulation_dtype(self.query.dtype)

    @property
    def columns(self) -> int:
        """All labels of all parts, and one column of zeros a part."""
        return self.plan.total_labels + len(self.plan.parts)

    def starts(self) -> list[int]:
        """The first column of each part."""
        sizes = self.plan.num_labels
        return [sum(sizes[:p]) + p for p in range(len(sizes))]

    def draw_keep(self, shape: tuple[int, ...], number: int) -> Tensor:
        """The dropout mask of block ``number``: the same one forward and backward."""
        assert self.seed is not None
        device = self.query.device
        generator = torch.Generator(device).manual_seed((int(self.seed) + number) % (1 << 63))
        return torch.empty(shape, dtype=self.dtype, device=device).bernoulli_(1.0 - self.dropout_p, generator=generator)


@dataclass(frozen=True, eq=False)
class Outputs:
    """What forward gave, as backward needs it: output without value term, lse, sums after and before dropout."""

    output: Tensor
    lse: Tensor
    sums: Tensor | None
    mass: Tensor | None


@dataclass(frozen=True, eq=False)
class Incoming:
    """Gradients of the four outputs; None where nobody used one."""

    output: Tensor | None
    lse: Tensor | None
    sums: Tensor | None
    mass: Tensor | None

    def delta(self, outputs: Outputs, dtype: torch.dtype) -> Tensor:
        """δ_i = Σ_j α_ij dα_ij, from the outputs alone, ``[B, H, N_q]``."""
        terms = [
            (grad.to(dtype) * out).sum(-1)
            for grad, out in ((self.output, outputs.output), (self.sums, outputs.sums), (self.mass, outputs.mass))
            if grad is not None and out is not None
        ]
        delta = sum(terms) if terms else outputs.output.new_zeros(outputs.output.shape[:-1])
        assert isinstance(delta, Tensor)
        return delta if self.lse is None else delta - self.lse
