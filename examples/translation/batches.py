"""Encoded pairs, and the batches of an epoch: pairs of similar length, up to a number of tokens."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from examples.translation.files import save_tensors
from examples.translation.vocabulary import END, PAD, START, Vocabulary


@dataclass(frozen=True)
class Ragged:
    """Lists of ids in one tensor.

    Attributes:
        ids: ``[T]``, int32.
        starts: ``[N + 1]``, where each list begins, then where the last one ends.
    """

    ids: Tensor
    starts: Tensor

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> Self:
        ids, lengths = array("i"), [0]
        for row in rows:
            ids.extend(row)
            lengths.append(len(row))
        return cls(torch.from_numpy(np.array(ids, dtype=np.int32)), torch.tensor(lengths).cumsum(0))

    @property
    def lengths(self) -> Tensor:
        return self.starts.diff()

    def padded(self, index: Tensor) -> Tensor:
        """The lists at ``index``, ``[B, N]``, int64, padded on the right."""
        lengths = self.lengths[index]
        columns = torch.arange(int(lengths.max()) if len(index) else 0)
        inside = columns < lengths[:, None]
        at = torch.where(inside, self.starts[index][:, None] + columns, 0)
        return torch.where(inside, self.ids[at].long(), PAD)


@dataclass(frozen=True)
class Batch:
    """A padded batch of sentence pairs.

    Attributes:
        source: ``[B, M]``, with end.
        target: ``[B, N + 1]``, with start and end: the decoder reads all columns but the last and predicts all but
            the first.
    """

    source: Tensor
    target: Tensor

    def to(self, device: torch.device) -> Batch:
        return Batch(self.source.to(device), self.target.to(device))

    @property
    def given(self) -> Tensor:
        """``[B, N]``, the tokens that the decoder reads."""
        return self.target[:, :-1]

    @property
    def wanted(self) -> Tensor:
        """``[B, N]``, the token to predict after each of ``given``."""
        return self.target[:, 1:]

    @property
    def tokens(self) -> int:
        """How many target tokens the decoder must predict."""
        return int((self.wanted != PAD).sum())


@dataclass(frozen=True)
class Pairs:
    """Encoded pairs.

    Attributes:
        source: with end.
        target: with start and end.
    """

    source: Ragged
    target: Ragged

    @classmethod
    def encode(cls, pairs: Sequence[tuple[str, str]], vocabulary: Vocabulary) -> Self:
        """Encode both sides of each pair."""
        sources, targets = (vocabulary.encode([pair[side] for pair in pairs]) for side in (0, 1))
        return cls(Ragged.of([*row, END] for row in sources), Ragged.of([START, *row, END] for row in targets))

    def save(self, path: Path) -> None:
        save_tensors(path, [self.source.ids, self.source.starts, self.target.ids, self.target.starts])

    @classmethod
    def load(cls, path: Path) -> Self:
        ids, starts, target_ids, target_starts = torch.load(path, weights_only=True, mmap=True)
        return cls(Ragged(ids, starts), Ragged(target_ids, target_starts))

    def __len__(self) -> int:
        return len(self.source.starts) - 1

    @property
    def widths(self) -> Tensor:
        """``[N]``, the tokens on the longer side of each pair."""
        return torch.maximum(self.source.lengths, self.target.lengths - 1)

    def batch(self, index: Tensor) -> Batch:
        """The pairs at ``index``."""
        return Batch(self.source.padded(index), self.target.padded(index))

    def batches(self, tokens: int, longest: int | None = None, seed: int | None = None) -> list[Tensor]:
        """The pairs in each batch of an epoch.

        Args:
            tokens: the most tokens of a batch on either side, padding included; a longer pair gets its own batch.
            longest: leave out pairs with more tokens on a side.
            seed: seed of the order; None for short to long.
        """
        sources, targets, widths = self.source.lengths, self.target.lengths - 1, self.widths
        order = torch.arange(len(self))
        draws = torch.Generator().manual_seed(0 if seed is None else seed)
        if seed is not None:
            order = torch.randperm(len(self), generator=draws)
        if longest is not None:
            order = order[widths[order] <= longest]
        order = order[(targets * (int(sources.max()) + 1 if len(self) else 1) + sources)[order].argsort(stable=True)]
        sizes, rows, widest = [], 0, 0
        for width in widths[order].tolist():
            if rows and max(widest, width) * (rows + 1) > tokens:
                sizes.append(rows)
                rows, widest = 0, 0
            rows, widest = rows + 1, max(widest, width)
        parts = list(order.split([*sizes, rows] if rows else sizes))
        if seed is None:
            return parts
        return [parts[i] for i in torch.randperm(len(parts), generator=draws).tolist()]
