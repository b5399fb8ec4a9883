"""Rotary positions: queries and keys turned by angles that grow with their positions."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from relgraph.arguments import check
from relgraph.call import Table, accumulation_dtype
from relgraph.call.offset import offsets_of
from relgraph.functional.region import active
from relgraph.labels import Labels
from relgraph.labels.borders import graph_of
from relgraph.labels.memory import Memory, plain_code
from relgraph.nn.cache import KVCache
from relgraph.nn.inputs import Inputs
from relgraph.nn.tables import RelationTables
from relgraph.score import compatibility


class RotaryPositions(nn.Module):
    """Turn queries and keys by angles that grow with their positions, so that a score sees the distance j - i.

    The D numbers of each head make D / 2 pairs (a, b). At position p, pair i is turned by the angle p / base^(2i/D)::

        (a, b) → (a cos - b sin, a sin + b cos)

    The product of a turned query and a turned key depends only on the distance of their positions. Give it to an
    attention as ``rotary=``: the layer turns queries and keys after their projections, keys before a cache takes them.
    Before its turn the query meets a key table and gets its biases, so that every term depends only on labels and
    distances::

        e_ij = (R_i (q_i + u)·R_j k_j + (q_i + v)·a^K[l_ij]) · scale + b[l_ij]

    where R_p turns by position p; u and v are ``content_bias`` and ``position_bias``. A query table is refused: its
    term needs the key before its turn, which a cache does not hold. Angles are computed in float32 or a wider type.

    Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", section 3.2.

    Args:
        head_dim: D, the size of each head; even.
        base: the base of the wavelengths, above 0. With larger bases, the slowest pairs turn more slowly.
        layout: which numbers make pair i: ``"half"`` takes i and i + D/2, as Llama does in Hugging Face's
            transformers; ``"interleaved"`` takes 2i and 2i + 1, as the paper and torchtune do.

    Raises:
        ValueError: an odd ``head_dim``, a ``base`` that is not positive, or an unknown layout.

    Example:
        >>> rotary = rg.RotaryPositions(8)
        >>> q, k = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 1, 8)          # B, H, N, D
        >>> near = (rotary(q, torch.tensor([0])) * rotary(k, torch.tensor([3]))).sum(-1)
        >>> far = (rotary(q, torch.tensor([50])) * rotary(k, torch.tensor([53]))).sum(-1)
        >>> torch.allclose(near, far, atol=1e-5)                             # both have the distance 3
        True
        >>> layer = rg.RelationAttention(16, 2, labeler=rg.ClippedDistance(4), rotary=rotary)
        >>> layer(torch.randn(1, 5, 16)).shape
        torch.Size([1, 5, 16])
    """

    def __init__(self, head_dim: int, *, base: float = 10000.0, layout: str = "half") -> None:
        super().__init__()
        self.head_dim = check.integer("head_dim", head_dim, minimum=2)
        if head_dim % 2:
            raise ValueError(f"head_dim must be even, because rotary positions turn pairs of numbers, got {head_dim}")
        self.base = check.finite("base", base)
        if self.base <= 0:
            raise ValueError(f"base must be above 0, got {base}")
        self.layout = check.choice("layout", layout, ("half", "interleaved"))
        self._waves = Memory(4)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Turn the rows of ``x``.

        Args:
            x: ``[B, H, N, D]``, floating: queries or keys.
            positions: ``[N]`` or ``[B, N]``, integers.

        Returns:
            The turned rows, ``[B, H, N, D]``, in the dtype of ``x``.

        Raises:
            ValueError: shapes or devices that do not fit.
        """
        check.floating("x", x)
        if x.dim() != 4 or x.shape[-1] != self.head_dim:
            raise ValueError(f"x must have shape [B, H, N, {self.head_dim}], got {list(x.shape)}")
        check.integer_tensor("positions", positions, dim=(1, 2))
        wanted = [x.shape[2]], [x.shape[0], x.shape[2]]
        if list(positions.shape) not in wanted:
            raise ValueError(f"positions must have shape {wanted[0]} or {wanted[1]}, got {list(positions.shape)}")
        check.same_device(x=x, positions=positions)
        return self._at(x, positions)

    def _of(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """The cosines and the sines at ``positions`` ``[..., N]``, ``[2, ..., N, 1, D / 2]``."""
        wide = torch.promote_types(dtype, torch.float32)
        even = torch.arange(0, self.head_dim, 2, device=positions.device, dtype=wide)
        angles = positions[..., None, None].to(wide) * (1.0 / self.base ** (even / self.head_dim))
        return torch.stack([angles.cos(), angles.sin()])

    def _between(self, start: int, stop: int, x: Tensor) -> Tensor:
        """The cosines and sines of rows that follow each other; the layer keeps those of the first rows."""
        if start < 0 or not plain_code():
            return self._of(torch.arange(start, stop, device=x.device), x.dtype)
        most = max(64, 1 << (stop - 1).bit_length())  # so that steps of decoding find them
        kept = self._waves.once(
            (most, x.device, x.dtype), lambda: self._of(torch.arange(most, device=x.device), x.dtype)
        )
        return kept[:, start:stop]

    def _rotate(self, x: Tensor, offset: int | Tensor, ptr: Tensor | None) -> Tensor:
        """Rows ``[B, H, N, D]`` turned, the first one at ``offset``; or packed ``[T, H, D]`` with borders ``ptr``."""
        if ptr is not None:
            return turned(x, self._of(_places(ptr, x.shape[0], offset), x.dtype), self.layout)
        rows, region = x.transpose(1, 2), active()  # the layer's order of memory
        length = rows.shape[1]
        if region is None and not isinstance(offset, Tensor):
            return turned(rows, self._between(offset, offset + length, x), self.layout).transpose(1, 2)
        places = torch.arange(length, device=x.device) if region is None else region.positions(length, x.device)
        own = offset[:, None] if isinstance(offset, Tensor) and offset.dim() == 1 else offset
        return turned(rows, self._of(places + own, x.dtype), self.layout).transpose(1, 2)

    def _at(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rows ``[B, H, N, D]``, or packed ``[T, H, D]``, turned by ``positions``, ``[N]``, ``[B, N]`` or ``[T]``."""
        waves = self._of(positions, x.dtype)
        if x.dim() == 3:
            return turned(x, waves, self.layout)
        return turned(x.transpose(1, 2), waves, self.layout).transpose(1, 2)

    def extra_repr(self) -> str:
        """The size of each head, and options that differ from their defaults."""
        parts = [str(self.head_dim)]
        parts += [f"base={self.base}"] * (self.base != 10000.0) + [f"layout={self.layout!r}"] * (self.layout != "half")
        return ", ".join(parts)


def turned(x: Tensor, waves: Tensor, layout: str) -> Tensor:
    """Rows ``[..., D]`` turned by cosines and sines, ``[2, ..., D / 2]``, in the same order of memory."""
    cos, sin = waves
    wide = x.to(waves.dtype)
    a, b = wide.chunk(2, -1) if layout == "half" else wide.unflatten(-1, (-1, 2)).unbind(-1)
    both = torch.addcmul(a * cos, b, sin, value=-1), torch.addcmul(b * cos, a, sin)
    whole = torch.cat(both, -1) if layout == "half" else torch.stack(both, -1).flatten(-2)
    return whole.to(x.dtype)


def check_rotary(rotary: Any, head_dim: int, score: Any, tables: RelationTables | None) -> RotaryPositions | None:
    """The rotary positions of a layer with heads of this size, this score and these tables."""
    if rotary is None:
        return None
    if not isinstance(rotary, RotaryPositions):
        raise TypeError(f"rotary must be RotaryPositions or None, got {type(rotary).__name__}")
    if rotary.head_dim != head_dim:
        raise ValueError(f"rotary must be for heads of the layer's head_dim = {head_dim}, got {rotary.head_dim}")
    if compatibility(score).replaces_dot:
        raise ValueError(f"rotary must be None with score={type(score).__name__}: turned pairs are for dot products")
    if tables is not None and "query" in tables.kinds:
        raise NotImplementedError(
            f"rotary cannot be combined with a query table, whose term needs keys that are not turned: leave 'query' "
            f"out of tables, got {list(tables.kinds)}"
        )
    return rotary


def label_scores(
    query: Tensor, key_table: Table, position_bias: Tensor | None, scale: float | None, packed: bool
) -> Any:
    """The scores (q_i + v)·a^K[r] · scale of each query before its turn, ``[B, H, N, R]``; for a sum one per part."""
    if key_table is None:
        return None
    if not isinstance(key_table, Tensor):
        return tuple(label_scores(query, part, position_bias, scale, packed) for part in key_table)
    device, dtype = query.device.type, accumulation_dtype(query.dtype)
    with torch.autocast(device, enabled=False) if check.has_autocast(device) else nullcontext():
        wide = (query.transpose(0, 1) if packed else query).to(dtype)
        if position_bias is not None:
            wide = wide + position_bias[:, None]
        scores = wide @ key_table.to(dtype).mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    return scores.transpose(0, 1) if packed else scores


def rotated_query(rotary: RotaryPositions, query: Tensor, inputs: Inputs) -> Tensor:
    """The queries of a layer, ``[B, H, N, D]`` or packed ``[T, H, D]``, turned."""
    if inputs.positions is not None:
        return rotary._at(query, inputs.positions)
    offset, labels = inputs.q_offset, inputs.labels
    if offset is None:
        offset = next((own for own in offsets_of(labels) if own is not None), 0)
    return rotary._rotate(query, offset, labels.q_ptr if inputs.packed and isinstance(labels, Labels) else None)


def rotated_key(rotary: RotaryPositions, key: Tensor, inputs: Inputs, cache: KVCache | None) -> Tensor:
    """The new keys of a layer, turned, before a cache takes them."""
    if inputs.positions is not None:
        return rotary._at(key, inputs.positions)
    labels, past = inputs.labels, 0 if cache is None else len(cache)
    return rotary._rotate(key, past, labels.k_ptr if inputs.packed and isinstance(labels, Labels) else None)


def _places(ptr: Tensor, length: int, offset: int | Tensor) -> Tensor:
    """The position of each of ``length`` packed rows in its graph, where row 0 of a graph is at ``offset``."""
    graph = graph_of(ptr, length)
    own = offset[graph] if isinstance(offset, Tensor) and offset.dim() == 1 and offset.shape[0] > 1 else offset
    return torch.arange(length, device=ptr.device) - ptr[graph] + own
