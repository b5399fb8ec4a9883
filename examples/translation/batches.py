"""Encoded pairs, and the batches of an epoch: pairs of similar length, up to a number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from examples.translation.corpus import Pair
from examples.translation.files import load_tensors, save_tensors
from examples.translation.vocabulary import END, PAD, START, Vocabulary

ENCODED_AT_ONCE = 10_000


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
    def of(cls, rows: Sequence[Sequence[int]]) -> Self:
        lengths = torch.tensor([0, *map(len, rows)])
        return cls(torch.tensor([i for row in rows for i in row], dtype=torch.int32), lengths.cumsum(0))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The lists of all parts, one part after another."""
        parts = [cls.of([]), *parts]
        lengths = torch.cat([part.lengths for part in parts])
        return cls(torch.cat([part.ids for part in parts]), functional.pad(lengths.cumsum(0), (1, 0)))

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
        """The batch on a device; copies to a GPU do not wait."""
        if device.type != "cuda":
            return Batch(self.source.to(device), self.target.to(device))
        source, target = (x.pin_memory().to(device, non_blocking=True) for x in (self.source, self.target))
        return Batch(source, target)

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
    def encode(cls, pairs: Sequence[Pair], vocabulary: Vocabulary) -> Self:
        """Encode both sides of each pair."""
        source, target = [], []
        # Python lists take nine times the memory of a tensor, so encode only some pairs at once
        for start in range(0, len(pairs), ENCODED_AT_ONCE):
            some = pairs[start : start + ENCODED_AT_ONCE]
            source.append(Ragged.of([[*row, END] for row in vocabulary.encode([pair[0] for pair in some])]))
            target.append(Ragged.of([[START, *row, END] for row in vocabulary.encode([pair[1] for pair in some])]))
        return cls(Ragged.joined(source), Ragged.joined(target))

    def save(self, path: Path, vocabulary: Vocabulary) -> None:
        """Write the ids, and the fingerprint of their vocabulary."""
        tensors = [self.source.ids, self.source.starts, self.target.ids, self.target.starts]
        save_tensors(path, {"pairs": tensors, "vocabulary": vocabulary.fingerprint})

    @classmethod
    def load(cls, path: Path, vocabulary: Vocabulary) -> Self:
        """Read the ids from a file.

        Raises:
            ValueError: the file is of another kind, or holds ids of another vocabulary.
        """
        saved = load_tensors(path, mmap=True)
        if not isinstance(saved, dict) or saved.keys() != {"pairs", "vocabulary"}:
            raise ValueError(f"{path} must be ids that prepare wrote")
        if saved["vocabulary"] != vocabulary.fingerprint:
            raise ValueError(
                f"{path} must hold ids of the vocabulary in the same folder; run prepare again until it finishes"
            )
        ids, starts, target_ids, target_starts = saved["pairs"]
        return cls(Ragged(ids, starts), Ragged(target_ids, target_starts))

    def __len__(self) -> int:
        return len(self.source.starts) - 1

    def batch(self, index: Tensor) -> Batch:
        """The pairs at ``index``."""
        return Batch(self.source.padded(index), self.target.padded(index))

    def batches(self, tokens: int, longest: int, seed: int | None) -> list[Tensor]:
        """The pairs in each batch of an epoch.

        Args:
            tokens: the most tokens of a batch on either side, padding included; a longer pair gets its own batch.
            longest: leave out pairs with more tokens on a side.
            seed: seed of the order; None for short to long.
        """
        sources, targets = self.source.lengths, self.target.lengths - 1
        order = torch.arange(len(self))
        draws = torch.Generator().manual_seed(0 if seed is None else seed)
        if seed is not None:
            order = torch.randperm(len(self), generator=draws)
        order = order[torch.maximum(sources, targets)[order] <= longest]
        order = order[(targets * (int(sources.max()) + 1 if len(self) else 1) + sources)[order].argsort(stable=True)]
        sizes, rows, widest = [], 0, 0
        for width in torch.maximum(sources, targets)[order].tolist():
            if rows and max(widest, width) * (rows + 1) > tokens:
                sizes.append(rows)
                rows, widest = 0, 0
            rows, widest = rows + 1, max(widest, width)
        parts = list(order.split([*sizes, rows] if rows else sizes))
        if seed is None:
            return parts
        return [parts[i] for i in torch.randperm(len(parts), generator=draws).tolist()]
