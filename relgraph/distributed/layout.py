"""Which rows of a sequence each process holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from relgraph.arguments import check

Run = tuple[int, int]
"""A run of rows, ``start:stop`` among all rows."""

LAYOUTS = ("even", "head-tail")
"""How rows can be split."""

MOST_PROCESSES = 1 << 20
"""More processes than any machine has: a larger number is a mistake."""


@dataclass(frozen=True)
class Layout:
    """Which rows of a sequence or of a packed batch each process holds; all hold the same number.

    Args:
        length: N, the number of rows; a multiple of ``processes``, or of twice as many for ``"head-tail"``.
        processes: P.
        kind: ``"even"`` gives each process one run of rows, in the order of the processes. ``"head-tail"`` gives each
            two runs, one from the head and one from the tail: process r holds chunks r and 2P - 1 - r of 2P. That is
            equal work for causal attention, where late rows see more.

    Example:
        >>> layout = rg.distributed.Layout(8, 2, "head-tail")
        >>> layout.runs(0)
        ((0, 2), (6, 8))
        >>> layout.shard(torch.arange(8), 0, dim=0)
        tensor([0, 1, 6, 7])
    """

    length: int
    processes: int
    kind: Literal["even", "head-tail"] = "even"

    def __post_init__(self) -> None:
        check.integer("processes", self.processes, minimum=1, maximum=MOST_PROCESSES)
        check.length("length", self.length)
        check.choice("kind", self.kind, LAYOUTS)
        if self.length % self._chunks:
            what = f"{self.processes} processes"
            what = what if self.kind == "even" else f"2 runs for each of {what}"
            raise ValueError(
                f"length must be a multiple of {self._chunks}, for {what}, got {self.length}: pad the sequence"
            )

    @property
    def _chunks(self) -> int:
        return self.processes if self.kind == "even" else 2 * self.processes

    def runs(self, rank: int) -> tuple[Run, ...]:
        """The runs of rows of a process.

        Args:
            rank: the number of the process.

        Returns:
            ``(start, stop)`` of each, in the order in which its shard holds them.
        """
        check.integer("rank", rank, minimum=0, maximum=self.processes - 1)
        size = self.length // self._chunks
        held = (rank,) if self.kind == "even" else (rank, self._chunks - 1 - rank)
        return tuple((at * size, (at + 1) * size) for at in held)

    def positions(self, rank: int, device: Any = None) -> Tensor:
        """The position of each row of a process among all rows.

        Args:
            rank: the number of the process.
            device: device of the result.

        Returns:
            ``[n]``, int64.

        Example:
            >>> rg.distributed.Layout(8, 2, "head-tail").positions(1)
            tensor([2, 3, 4, 5])
        """
        device = None if device is None else check.device("device", device)
        return torch.cat([torch.arange(*run, device=device) for run in self.runs(rank)])

    def shard(self, x: Tensor, rank: int, dim: int = 1) -> Tensor:
        """Cut out the rows of a process.

        Args:
            x: all rows, N on axis ``dim``, such as ``[B, N, E]``, or ``[T, E]`` packed with ``dim=0``.
            rank: the number of the process.
            dim: the axis of the rows.

        Returns:
            Its rows, a copy, such as ``[B, n, E]``.

        Example:
            >>> rg.distributed.Layout(4, 2).shard(torch.arange(4)[None], rank=1)
            tensor([[2, 3]])
        """
        check_axis(x, dim)
        if x.shape[dim] != self.length:
            raise ValueError(f"x must be {self.length} long on axis dim={dim}, as the layout, got {list(x.shape)}")
        return torch.cat([x.narrow(dim, start, stop - start) for start, stop in self.runs(rank)], dim)


def check_axis(x: Any, dim: Any) -> None:
    """Raise an error unless ``dim`` is an axis of the tensor ``x``."""
    dims = check.tensor("x", x).dim()
    check.integer("dim", dim)
    if not -dims <= dim < dims:
        raise ValueError(f"dim must be an axis of x, got dim={dim} for x of shape {list(x.shape)}")
