"""Absolute positions as sines and cosines of many wavelengths, added to the input."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from relgraph.arguments import check
from relgraph.nn.cache import KVCache
from relgraph.nn.masks import check_padding


class SinusoidalPositions(nn.Module):
    """Adds to row p: sin(p / 10000^(2i/E)) in column 2i and cos(p / 10000^(2i/E)) in column 2i + 1.

    Each call computes them, so that there is no longest sequence and nothing in ``state_dict``.

    Source: Vaswani et al. 2017, section 3.5.

    Args:
        d_model: E, the width of the input.
        dropout: probability in ``[0, 1)`` with which a number of the sum is dropped in training.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: ``d_model`` below 1, ``dropout`` outside ``[0, 1)``.

    Example:
        >>> positions = rg.SinusoidalPositions(4)
        >>> positions(torch.zeros(2, 4))
        tensor([[0.0000, 1.0000, 0.0000, 1.0000],
                [0.8415, 0.5403, 0.0100, 0.9999]])
    """

    def __init__(self, d_model: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.d_model = check.integer("d_model", d_model, minimum=1)
        self.dropout = nn.Dropout(check.probability("dropout", dropout))

    def forward(self, x: Tensor, offset: int | Tensor = 0) -> Tensor:
        """``x`` with its positions added, then dropout.

        Args:
            x: ``[B, N, E]`` or ``[N, E]``, floating.
            offset: position of the first row: an int, a scalar tensor or ``[B]``, integers. For a batch padded on the
                left it is minus the padding of each row; when decoding, the number of earlier rows.

        Returns:
            The shape and dtype of ``x``, ``[B, N, E]`` or ``[N, E]``.

        Raises:
            TypeError: an argument of the wrong kind.
            ValueError: another width than E, not floating; offsets that are not integers, or not one per batch row.

        Example:
            >>> positions, x = rg.SinusoidalPositions(4), torch.zeros(2, 3, 4)
            >>> whole, later = positions(x), positions(x[:, 2:], offset=2)          # only row 2, as when decoding
            >>> torch.equal(later, whole[:, 2:])
            True
        """
        check.floating("x", x)
        if x.dim() not in (2, 3) or x.shape[-1] != self.d_model:
            raise ValueError(f"x must have shape [B, N, {self.d_model}] or [N, {self.d_model}], got {list(x.shape)}")
        rows = torch.arange(x.shape[-2], device=x.device)
        if isinstance(offset, Tensor):
            offset = self._check_rows(offset, x)
        else:
            check.integer("offset", offset)
        dtype = torch.promote_types(x.dtype, torch.float32)
        return self.dropout(x + self.encode((rows + offset).to(dtype)).to(x.dtype))

    def encode(self, positions: Tensor) -> Tensor:
        """The vector of each position.

        Args:
            positions: ``[...]``, floating; computed in their dtype.

        Returns:
            ``[..., E]``.

        Raises:
            TypeError: not a Tensor.
            ValueError: not floating.

        Example:
            >>> rg.SinusoidalPositions(4).encode(torch.tensor([0.0, 0.5])).shape
            torch.Size([2, 4])
        """
        check.floating("positions", positions)
        even = torch.arange(0, self.d_model, 2, device=positions.device, dtype=positions.dtype)
        angle = positions[..., None] * torch.exp(even * (-math.log(10000.0) / self.d_model))
        waves = torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)
        return waves[..., : self.d_model]

    @staticmethod
    def _check_rows(offset: Tensor, x: Tensor) -> Tensor:
        """Offsets that broadcast against the rows of ``x``."""
        check.integer_tensor("offset", offset, dim=(0, 1))
        if not x.is_meta:
            check.data("offset", offset)
        offset = offset.to(x.device)
        if offset.dim() == 0:
            return offset
        if x.dim() != 3 or offset.shape[0] != x.shape[0]:
            wanted = "a scalar for x without a batch" if x.dim() != 3 else f"one number per batch row, {x.shape[0]}"
            raise ValueError(f"offset must be {wanted}, got {offset.shape[0]} numbers")
        return offset[:, None]

    def extra_repr(self) -> str:
        """The width."""
        return str(self.d_model)


def first_position(x: Tensor, key_padding_mask: Any, cache: KVCache | None) -> int | Tensor:
    """The position of the first row of ``x``, counted from the first token after the padding on the left.

    It is the number of earlier rows, which the cache holds, minus the leading padding (True, or floating and -inf), per
    batch row if anything is padded; negative if the first row itself is padding.
    """
    unbatched = x.dim() == 2
    batch, length = 1 if unbatched else x.shape[0], x.shape[-2]
    padding, past = check_padding(key_padding_mask, batch, length, unbatched=unbatched), 0
    check.same_device(x=x, key_padding_mask=padding)
    if cache is not None:
        cache.check(batch, length)
        padding, past = cache.joined_padding(padding, batch, length), len(cache)
    if padding is None:
        return past
    padded = padding if padding.dtype == torch.bool else padding.isneginf()
    leading = padded.long().cumprod(1).sum(1)
    return past - (leading[0] if unbatched else leading)
