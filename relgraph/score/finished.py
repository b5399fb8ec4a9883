"""Functions of finished scores that kernels know: after scale and bias, before masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from relgraph.arguments import check
from relgraph.score.base import Compatibility


class _OfScores(Compatibility):
    """A function of finished scores that kernels know."""

    def __call__(self, scores: Tensor) -> Tensor:
        """Change finished scores.

        Args:
            scores: ``[...]``, floating.

        Returns:
            The changed scores, ``[...]``.
        """
        check.floating("scores", scores)
        return self._bend(scores)

    def finish(self, scores: Tensor) -> Tensor:
        return torch.where(scores == float("-inf"), scores, self._bend(scores))

    def _bend(self, scores: Tensor) -> Tensor:
        raise NotImplementedError


@final
@dataclass(frozen=True)
class Softcap(_OfScores):
    """Bound every score smoothly: e becomes ``cap · tanh(e / cap)``.

    Args:
        cap: the bound, positive. Scores stay within ``(-cap, cap)``.

    Source: Bello et al. 2016, "Neural Combinatorial Optimization with Reinforcement Learning" (logit clipping); Gemma
    Team 2024 (Gemma 2) for attention.

    Example:
        >>> x = torch.randn(1, 2, 4, 8)
        >>> rg.relation_attention(x, x, x, None, score=rg.score.Softcap(50.0)).shape
        torch.Size([1, 2, 4, 8])
    """

    cap: float

    def __post_init__(self) -> None:
        if check.finite("cap", self.cap) <= 0.0:
            raise ValueError(f"cap must be positive, got {self.cap}")

    @property
    def code(self) -> tuple[float, float]:
        """The number by which kernels know it, and its parameter."""
        return 0.0, self.cap

    def _bend(self, scores: Tensor) -> Tensor:
        return torch.tanh(scores / self.cap) * self.cap

    def _apply_(self, scores: Tensor) -> Tensor:
        """Change scores in place; -inf stays."""
        hidden = scores == float("-inf")
        return scores.div_(self.cap).tanh_().mul_(self.cap).masked_fill_(hidden, float("-inf"))

    def _derivative_(self, finished: Tensor) -> Tensor:
        """Turn finished scores into the derivative there, in place; 0 at -inf."""
        return finished.div_(self.cap).square_().neg_().add_(1.0).clamp_(min=0.0)


@final
@dataclass(frozen=True)
class LeakyReLU(_OfScores):
    """Scale negative scores by a slope: e becomes ``max(e, 0) + negative_slope · min(e, 0)``.

    With a bias table for edge types and queries and keys of two numbers, (u_i, 1) and (1, v_j), this is GAT's score
    LeakyReLU(u_i + v_j + b[l_ij]).

    Args:
        negative_slope: the slope, finite and at least 0; 0.2 in GAT.

    Source: Veličković et al. 2018, "Graph Attention Networks".

    Example:
        >>> x = torch.randn(1, 2, 4, 8)
        >>> rg.relation_attention(x, x, x, None, score=rg.score.LeakyReLU()).shape
        torch.Size([1, 2, 4, 8])
    """

    negative_slope: float = 0.2

    def __post_init__(self) -> None:
        if check.finite("negative_slope", self.negative_slope) < 0.0:
            raise ValueError(f"negative_slope must be at least 0, got {self.negative_slope}")

    @property
    def code(self) -> tuple[float, float]:
        """The number by which kernels know it, and its parameter."""
        return 1.0, self.negative_slope

    def _bend(self, scores: Tensor) -> Tensor:
        return functional.leaky_relu(scores, self.negative_slope)

    def _apply_(self, scores: Tensor) -> Tensor:
        """Change scores in place; -inf stays."""
        if self.negative_slope > 0.0:
            return functional.leaky_relu_(scores, self.negative_slope)
        hidden = scores == float("-inf")
        return scores.clamp_(min=0.0).masked_fill_(hidden, float("-inf"))

    def _derivative_(self, finished: Tensor) -> Tensor:
        """Turn finished scores into the derivative there, in place; 0 counts as negative, as in torch."""
        negative = finished <= 0.0
        return finished.fill_(1.0).masked_fill_(negative, self.negative_slope)


Named = Softcap | LeakyReLU
"""Functions of finished scores that kernels know; torch differentiates any other."""

NAMED = (Softcap, LeakyReLU)
"""Their order is that of their codes."""
