"""Positions that are drawn anew for each call in training, so that a model works on longer sequences later."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from relgraph.arguments import check
from relgraph.functional.region import active


class _Sampler(nn.Module, ABC):
    """Draws a position for each row in training, and leaves positions as they are in evaluation."""

    def forward(self, x: Tensor) -> Tensor | None:
        """Draw positions for the rows of ``x``, by torch's generator of its device.

        Args:
            x: ``[B, N, E]`` or ``[N, E]``; only its shape and its device are read.

        Returns:
            Integers ``[B, N]`` that rise along N; ``[N]`` without a batch. In evaluation None, with which positions
            count from 0 as without a sampler.

        Raises:
            ValueError: another shape, or more rows than there are positions.
            NotImplementedError: within ``context_parallel``, where each process would draw positions of its own.
        """
        if check.tensor("x", x).dim() not in (2, 3):
            raise ValueError(f"x must have shape [B, N, E] or [N, E], got {list(x.shape)}")
        return self._move(torch.arange(x.shape[-2], device=x.device), x, "x") if self.training else None

    def _move(self, positions: Tensor, x: Tensor, name: str) -> Tensor:
        """The drawn positions in place of ``positions``, ``[N]`` or ``[B, N]``, of the rows of ``x``.

        Position 0 is that of a sequence's first row; rows before it are padding and stay where they are.
        """
        if not self.training:
            return positions
        if active() is not None:
            raise NotImplementedError(
                "positions must not be drawn within context_parallel, where each process would draw its own"
            )
        rows = x.shape[0] if x.dim() == 3 else 1
        moved = torch.where(positions < 0, positions, self._drawn(torch.atleast_2d(positions), rows, x.shape[-2], name))
        return moved[0] if positions.dim() == 1 and x.dim() == 2 else moved

    @abstractmethod
    def _drawn(self, positions: Tensor, rows: int, length: int, name: str) -> Tensor:
        """What ``rows`` draws make of positions ``[B or 1, N]`` of sequences with ``length`` rows, ``[B, N]``."""


class RandomPositions(_Sampler):
    """Draw ordered positions from a range longer than any training sequence.

    Each sequence gets N different positions of 0 to ``longest`` - 1, in rising order. So training meets all distances
    and positions of sequences up to that length. Give the draw to layers as ``positions=``, by which rotary positions
    and labelers by distance count; or give the sampler to absolute positions, which then draw by themselves.

    Source: Ruoss et al. 2023, "Randomized Positional Encodings Boost Length Generalization of Transformers", section 3.

    Args:
        longest: how many positions there are to draw from: the longest sequence that the model will meet.

    Example:
        >>> torch.manual_seed(0)                                                # doctest: +ELLIPSIS
        <torch._C.Generator object at ...>
        >>> sampler, x = rg.nn.RandomPositions(100), torch.randn(2, 4, 16)
        >>> positions = sampler(x)
        >>> positions.shape, bool((positions.diff() > 0).all())
        (torch.Size([2, 4]), True)
        >>> layer = rg.RelationAttention(16, 4, labeler=rg.BucketedDistance())
        >>> layer(x, positions=positions).shape
        torch.Size([2, 4, 16])
        >>> sampler.eval()(x) is None                                           # positions 0, 1, 2, ...
        True
    """

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.longest = check.integer("longest", longest, minimum=1, maximum=2**24)

    def _drawn(self, positions: Tensor, rows: int, length: int, name: str) -> Tensor:
        if length > self.longest:
            raise ValueError(f"{name} must have at most longest = {self.longest} rows, got {length}")
        numbers = torch.rand(rows, self.longest, device=positions.device)
        chosen = numbers.topk(length, sorted=False).indices.sort().values
        return torch.take_along_dim(chosen, positions.clamp(min=0), 1)

    def extra_repr(self) -> str:
        """The number of positions."""
        return f"{self.longest}"


class ShiftedPositions(_Sampler):
    """Shift all positions of each sequence by one random number, SHAPE.

    A model with absolute positions then learns to look at distances. Distances stay what they are, so labels by
    distance and the scores of rotary self-attention do not change: give this sampler to absolute positions.

    Source: Kiyono et al. 2021, "SHAPE: Shifted Absolute Position Embedding for Transformers", section 3.

    Args:
        most: the largest shift; each draw is from 0 to ``most``, all equally likely.

    Example:
        >>> positions = rg.SinusoidalPositions(16, sampler=rg.nn.ShiftedPositions(100))
        >>> x = torch.randn(2, 4, 16)
        >>> torch.equal(positions(x), positions(x))                             # two draws
        False
        >>> model = rg.RelationTransformer(16, 4, 1, 1, 32, positions=positions)
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = check.integer("most", most, minimum=0, maximum=2**31)

    def _drawn(self, positions: Tensor, rows: int, length: int, name: str) -> Tensor:  # noqa: ARG002
        return positions + torch.randint(self.most + 1, (rows, 1), device=positions.device)

    def extra_repr(self) -> str:
        """The largest shift."""
        return f"{self.most}"


def check_sampler(sampler: Any) -> _Sampler | None:
    """The sampler of a module, or None."""
    if sampler is not None and not isinstance(sampler, _Sampler):
        got = type(sampler).__name__
        raise TypeError(f"sampler must be RandomPositions, ShiftedPositions or None, got {got}")
    return sampler
