"""Absolute positions, added to the input: sines and cosines of many wavelengths, or learned vectors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from relgraph.arguments import check
from relgraph.functional.region import active
from relgraph.nn.cache import KVCache
from relgraph.nn.masks import check_padding
from relgraph.nn.position_samplers import RandomPositions, ShiftedPositions, check_sampler


class _Positions(nn.Module, ABC):
    """A vector for each position, added to the rows of an input."""

    _name = "x"  # what errors call the input; a model has other names

    def __init__(self, d_model: int, dropout: float = 0.0, sampler: Any = None) -> None:
        super().__init__()
        self.d_model = check.integer("d_model", d_model, minimum=1)
        self.dropout = nn.Dropout(check.probability("dropout", dropout))
        self.sampler = check_sampler(sampler)

    def forward(self, x: Tensor, offset: int | Tensor = 0) -> Tensor:
        """Add positions to ``x``, then apply dropout.

        Args:
            x: ``[B, N, E]`` or ``[N, E]``, floating.
            offset: position of the first row: an int, a scalar tensor or ``[B]``, integers. For a batch padded on the
                left, give minus the padding of each row; when decoding, the number of earlier rows.

        Returns:
            The shape and dtype of ``x``, ``[B, N, E]`` or ``[N, E]``.

        Raises:
            ValueError: another width than E, not floating; offsets that are not integers, or not one per batch row; for
                learned positions, rows beyond the last one, or on another device; in training, more rows than the
                sampler draws positions for, or an ``offset`` above 0 with :class:`~relgraph.nn.RandomPositions`.

        Example:
            >>> positions, x = rg.SinusoidalPositions(4), torch.zeros(2, 3, 4)
            >>> whole, later = positions(x), positions(x[:, 2:], offset=2)          # only row 2, as when decoding
            >>> torch.equal(later, whole[:, 2:])
            True
        """
        check.floating("x", x)
        if x.dim() not in (2, 3) or x.shape[-1] != self.d_model:
            raise ValueError(f"x must have shape [B, N, {self.d_model}] or [N, {self.d_model}], got {list(x.shape)}")
        if isinstance(offset, Tensor):
            offset = _check_rows(offset, x)
        else:
            self._check_last(self._name, check.integer("offset", offset) + x.shape[-2] - 1)
        if self.training and isinstance(self.sampler, RandomPositions):
            _check_offset_of_draw(offset)
        region = active()
        length, device = x.shape[-2], x.device
        rows = torch.arange(length, device=device) if region is None else region.positions(length, device)
        return self._add(x, rows + offset)

    def _add(self, x: Tensor, positions: Tensor) -> Tensor:
        """``x`` with the vectors of ``positions``, ``[N]`` or ``[B, N]``, added, then dropout."""
        if self.sampler is not None:
            positions = self.sampler._move(positions, x, self._name)
        return self.dropout(x + self._vectors(positions, x))

    def _check_last(self, name: str, last: int) -> None:
        """Raise ValueError if there is no position ``last``."""

    @abstractmethod
    def _vectors(self, positions: Tensor, x: Tensor) -> Tensor:
        """The vector of each position, ``[..., E]``, in the dtype of the rows ``x``."""

    def extra_repr(self) -> str:
        """The width; a sampler prints itself."""
        return str(self.d_model)


class SinusoidalPositions(_Positions):
    """Add sin(p / 10000^(2i/E)) to column 2i of row p, and cos(p / 10000^(2i/E)) to column 2i + 1.

    Each call computes these numbers, so sequences may have any length and ``state_dict`` holds nothing.

    Source: Vaswani et al. 2017, section 3.5.

    Args:
        d_model: E, the width of the input.
        dropout: probability in ``[0, 1)`` with which an element of the sum is dropped in training.
        sampler: draws the positions in training: :class:`~relgraph.nn.RandomPositions` or
            :class:`~relgraph.nn.ShiftedPositions`; None for 0, 1, 2, ...

    Example:
        >>> positions = rg.SinusoidalPositions(4)
        >>> positions(torch.zeros(2, 4))
        tensor([[0.0000, 1.0000, 0.0000, 1.0000],
                [0.8415, 0.5403, 0.0100, 0.9999]])
    """

    def __init__(
        self, d_model: int, dropout: float = 0.0, *, sampler: RandomPositions | ShiftedPositions | None = None
    ) -> None:
        super().__init__(d_model, dropout, sampler)

    def encode(self, positions: Tensor) -> Tensor:
        """The vector of each position.

        Args:
            positions: ``[...]``, floating; computed in their dtype.

        Returns:
            ``[..., E]``.

        Raises:
            ValueError: not floating.
        """
        check.floating("positions", positions)
        even = torch.arange(0, self.d_model, 2, device=positions.device, dtype=positions.dtype)
        angle = positions[..., None] * torch.exp(even * (-math.log(10000.0) / self.d_model))
        waves = torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)
        return waves[..., : self.d_model]

    def _vectors(self, positions: Tensor, x: Tensor) -> Tensor:
        return self.encode(positions.to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)


class LearnedPositions(_Positions):
    """Add a learned vector to row p: row p of ``weight``, ``[max_len, E]``.

    There are ``max_len`` positions; rows beyond them raise an error. Rows before position 0, which are padding on the
    left, get no vector.

    Source: Gehring et al. 2017, section 3.1; compared with sinusoids in Vaswani et al. 2017, table 3, row E.

    Args:
        d_model: E, the width of the input.
        max_len: how many positions there are.
        dropout: probability in ``[0, 1)`` with which an element of the sum is dropped in training.
        device: device of the vectors.
        dtype: floating type of the vectors.
        sampler: as in :class:`~relgraph.SinusoidalPositions`; it must not draw positions from ``max_len`` on.

    Raises:
        ValueError: sizes below 1 or a parameter of more than 2³¹ elements, ``dropout`` outside ``[0, 1)``.

    Example:
        >>> positions = rg.nn.LearnedPositions(4, max_len=10)
        >>> x = torch.zeros(2, 3, 4)
        >>> torch.equal(positions(x)[0], positions.weight[:3])
        True
        >>> positions(x, offset=8)
        Traceback (most recent call last):
        ValueError: x must lie within the max_len = 10 learned positions, from 0 to 9, got a row at position 10
    """

    def __init__(
        self,
        d_model: int,
        max_len: int,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        sampler: RandomPositions | ShiftedPositions | None = None,
    ) -> None:
        super().__init__(d_model, dropout, sampler)
        self.max_len = check.integer("max_len", max_len, minimum=1)
        check.parameter_size(d_model=d_model, max_len=max_len)
        self.weight = nn.Parameter(torch.empty(max_len, d_model, **check.parameter_place(device, dtype)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the vectors anew, normally distributed with a standard deviation of 1 / √E."""
        nn.init.normal_(self.weight, std=self.d_model**-0.5)

    def encode(self, positions: Tensor) -> Tensor:
        """The vector of each position.

        Args:
            positions: ``[...]``, integers below ``max_len``; those below 0 have the vector 0. Eager mode on a CPU
                checks for larger positions; elsewhere torch's own lookup fails.

        Returns:
            ``[..., E]``.

        Raises:
            ValueError: not integers, on another device than the layer, or beyond the last position.
        """
        check.integer_tensor("positions", positions, dim=check.tensor("positions", positions).dim())
        check.same_device(**{"the layer": self.weight, "positions": positions})
        self._check_all("positions", positions)
        return self._rows(positions)

    def _vectors(self, positions: Tensor, x: Tensor) -> Tensor:
        check.same_device(**{"the layer": self.weight, self._name: x})
        self._check_all(self._name, positions)
        return self._rows(positions).to(x.dtype)

    def _rows(self, positions: Tensor) -> Tensor:
        rows = embedding(positions.long().clamp(min=0), self.weight)
        return rows.masked_fill((positions < 0)[..., None], 0.0)

    def _check_all(self, name: str, positions: Tensor) -> None:
        if positions.device.type == "cpu" and positions.numel() > 0 and check.can_look_at_data(positions):
            self._check_last(name, int(positions.max()))

    def _check_last(self, name: str, last: int) -> None:
        if last >= self.max_len:
            raise ValueError(
                f"{name} must lie within the max_len = {self.max_len} learned positions, from 0 to {self.max_len - 1}, "
                f"got a row at position {last}"
            )

    def extra_repr(self) -> str:
        """The width and the number of positions."""
        return f"{self.d_model}, max_len={self.max_len}"


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


def _check_offset_of_draw(offset: int | Tensor) -> None:
    """A draw has a position for each row of a call, not for rows of earlier calls."""
    if isinstance(offset, Tensor):
        last = int(offset.max()) if offset.numel() and check.can_look_at_data(offset) else 0
    else:
        last = offset
    if last > 0:
        raise ValueError(f"offset must be at most 0 in training with RandomPositions, which draw anew, got {last}")


def first_position(name: str, x: Tensor, key_padding_mask: Any, cache: KVCache | None) -> int | Tensor:
    """The position of the first row of ``x``: the number of rows in the cache, minus the leading padding of each."""
    unbatched = x.dim() == 2
    batch, length = 1 if unbatched else x.shape[0], x.shape[-2]
    mask = f"{name}_key_padding_mask"
    padding, past = check_padding(key_padding_mask, batch, length, unbatched=unbatched, name=mask), 0
    check.same_device(**{name: x, mask: padding})
    if cache is not None:
        cache._check_room(batch, length)
        padding, past = cache._joined_padding(padding, batch, length), len(cache)
    if padding is None:
        return past
    region = active()
    if region is not None:
        padding = region.all_keys(padding)
    padded = padding if padding.dtype == torch.bool else padding.isneginf()
    leading = padded.long().cumprod(1).sum(1)
    return past - (leading[0] if unbatched else leading)


def check_sides(positions: Any, d_model: int) -> tuple[Any, Any]:
    """The modules that add absolute positions to source and target, or None: from one choice for both or a pair."""
    if not isinstance(positions, (tuple, list)):
        positions = (positions, positions)
    if len(positions) != 2:
        raise ValueError(f"positions must be one for both sides, or two for source and target, got {len(positions)}")
    sides = tuple(
        SinusoidalPositions(d_model) if isinstance(side, str) and side == "sinusoidal" else side for side in positions
    )
    for side in sides:
        if isinstance(side, str):
            raise ValueError(f"positions must be 'sinusoidal', LearnedPositions or None, got {side!r}")
        if side is not None and not isinstance(side, _Positions):
            got = type(side).__name__
            raise TypeError(f"positions must be 'sinusoidal', a module such as LearnedPositions, or None, got {got}")
        if side is not None and side.d_model != d_model:
            raise ValueError(f"positions must have d_model = {d_model}, got {side.d_model}")
    for name, side in zip(("src", "tgt"), sides, strict=True):
        if isinstance(side, _Positions):
            side._name = "src or tgt" if sides[0] is sides[1] else name
    return sides[0], sides[1]
