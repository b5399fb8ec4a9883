"""Which rows of a sequence each process holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.brief import shown

MOST_PROCESSES = 1 << 20
"""More processes than any machine has: a larger number is a mistake, and would fill the memory with runs."""

MOST_ROWS = check.MOST_POSITIONS


@dataclass(frozen=True)
class Layout:
    """Which rows of a sequence, of a packed batch or of one graph each process holds, as runs of rows.

    Args:
        runs: for each process its runs ``(start, stop)``, in the order in which its shard holds them. The runs of all
            processes cover rows 0 to N - 1, each once. A process without a run gets the empty run ``(0, 0)``.

    Raises:
        TypeError: runs that are not ints.
        ValueError: rows that are missing or come twice, or a run of negative length.

    Example:
        >>> layout = rg.distributed.Layout.head_tail(8, 2)
        >>> layout.runs
        (((0, 2), (6, 8)), ((2, 4), (4, 6)))
        >>> layout.shard(torch.arange(8), 0, dim=0)
        tensor([0, 1, 6, 7])
    """

    runs: tuple[tuple[tuple[int, int], ...], ...]

    def __post_init__(self) -> None:
        ends = []
        wanted = "a tuple of runs (start, stop) for each process"
        for rank, runs in enumerate(_tuple("runs", self.runs, wanted)):
            for run in _tuple(f"runs[{rank}]", runs, wanted):
                if len(_tuple(f"runs[{rank}]", run, wanted)) != 2:
                    raise ValueError(f"runs[{rank}] must hold pairs (start, stop), got {shown(run)}")
                start = check.length(f"runs[{rank}]", run[0])
                ends.append((start, check.integer(f"runs[{rank}]", run[1], minimum=start, maximum=MOST_ROWS)))
        at = 0
        for start, stop in sorted(ends):
            if start != at:
                raise ValueError(
                    f"runs must cover every row once, got {'no' if start > at else 'a second'} run at {at}"
                )
            at = stop
        # each process has a run, so that no code joins an empty list of runs
        object.__setattr__(self, "runs", tuple(runs or ((0, 0),) for runs in self.runs))

    @classmethod
    def even(cls, length: int, processes: int) -> Layout:
        """Give each process one run, in the order of the processes, all of the same length.

        Args:
            length: N, the number of rows; a multiple of ``processes``.
            processes: how many processes there are.

        Returns:
            The layout.

        Raises:
            TypeError: not ints.
            ValueError: a length that the processes do not divide.

        Example:
            >>> rg.distributed.Layout.even(6, 2).runs
            (((0, 3),), ((3, 6),))
        """
        size = _share(length, processes, 1)
        return cls(tuple(((rank * size, (rank + 1) * size),) for rank in range(processes)))

    @classmethod
    def head_tail(cls, length: int, processes: int) -> Layout:
        """Give each process two runs, one from the head and one from the tail: equal work for causal attention.

        A causal row sees all rows before it, so late rows cost more. Process r holds chunks r and 2P - 1 - r of 2P.

        Args:
            length: N, the number of rows; a multiple of twice ``processes``.
            processes: P.

        Returns:
            The layout.

        Raises:
            TypeError: not ints.
            ValueError: a length that is not such a multiple.

        Example:
            >>> rg.distributed.Layout.head_tail(12, 3).runs
            (((0, 2), (10, 12)), ((2, 4), (8, 10)), ((4, 6), (6, 8)))
        """
        size, last = _share(length, processes, 2), 2 * processes - 1
        chunks = [(at * size, (at + 1) * size) for at in range(2 * processes)]
        return cls(tuple((chunks[rank], chunks[last - rank]) for rank in range(processes)))

    @classmethod
    def by_cost(cls, costs: Tensor | Sequence[float], processes: int) -> Layout:
        """Give each process one run, in the order of the processes, of nearly equal cost.

        Args:
            costs: ``[N]``, the work of each row, such as the number of keys that it sees; see
                :func:`~relgraph.distributed.row_costs`.
            processes: how many processes there are.

        Returns:
            The layout. Runs differ in length; a run is empty if one row costs more than a share.

        Raises:
            TypeError: an argument of the wrong kind.
            ValueError: costs that are not one finite number per row, or negative.

        Example:
            >>> rg.distributed.Layout.by_cost([1.0, 1.0, 1.0, 3.0], 2).runs
            (((0, 3),), ((3, 4),))
        """
        check.integer("processes", processes, minimum=1, maximum=MOST_PROCESSES)
        if isinstance(costs, Tensor):
            check.data("costs", check.tensor("costs", costs))
            if costs.is_complex():
                raise TypeError(f"costs must be real, got dtype {costs.dtype}")
        else:
            listed = check.items("costs", costs, "numbers", most=check.MOST_IDS)
            costs = [check.finite("costs", cost) for cost in listed]
        work = torch.as_tensor(costs, dtype=torch.float64, device="cpu")
        if work.dim() != 1 or not bool((work.isfinite() & (work >= 0)).all()):
            raise ValueError(f"costs must be one finite number per row, not negative, got shape {list(work.shape)}")
        done = torch.cat([work.new_zeros(1), work.cumsum(0)])
        targets = done[-1] * torch.arange(1, processes, dtype=torch.float64) / processes
        after = torch.searchsorted(done, targets).clamp(max=work.shape[0])
        before = (after - 1).clamp(min=0)
        nearer = torch.where(targets - done[before] < done[after] - targets, before, after)
        borders = [0, *nearer.tolist(), work.shape[0]]
        return cls(tuple(((borders[rank], borders[rank + 1]),) for rank in range(processes)))

    @property
    def processes(self) -> int:
        """How many processes there are."""
        return len(self.runs)

    @property
    def length(self) -> int:
        """N, the rows of all processes together."""
        return sum(self.lengths)

    @property
    def lengths(self) -> list[int]:
        """How many rows each process holds."""
        return [sum(stop - start for start, stop in runs) for runs in self.runs]

    def positions(self, rank: int, device: Any = None) -> Tensor:
        """The position of each row of a process among all rows.

        Args:
            rank: the number of the process.
            device: device of the result.

        Returns:
            ``[n]``, int64.

        Raises:
            TypeError: a process that is not an int.
            ValueError: a process that does not exist.

        Example:
            >>> rg.distributed.Layout.head_tail(8, 2).positions(1)
            tensor([2, 3, 4, 5])
        """
        check.integer("rank", rank, minimum=0, maximum=self.processes - 1)
        device = None if device is None else check.device("device", device)
        return torch.cat([torch.arange(start, stop, device=device) for start, stop in self.runs[rank]])

    def shard(self, x: Tensor, rank: int, dim: int = 1) -> Tensor:
        """Cut out the rows of a process.

        Args:
            x: all rows, N on axis ``dim``, such as ``[B, N, E]``, or ``[T, E]`` packed with ``dim=0``.
            rank: the number of the process.
            dim: the axis of the rows.

        Returns:
            Its rows, a copy, such as ``[B, n, E]``.

        Raises:
            TypeError: not a Tensor, or a process or axis that is not an int.
            ValueError: a length other than N, or a process or an axis that does not exist.

        Example:
            >>> rg.distributed.Layout.even(4, 2).shard(torch.arange(4)[None], rank=1)
            tensor([[2, 3]])
        """
        check_axis(x, dim)
        check.integer("rank", rank, minimum=0, maximum=self.processes - 1)
        if x.shape[dim] != self.length:
            raise ValueError(f"x must be {self.length} long on axis dim={dim}, as the layout, got {list(x.shape)}")
        return torch.cat([x.narrow(dim, start, stop - start) for start, stop in self.runs[rank]], dim)


def in_turn(layout: Layout) -> bool:
    """Whether the shards of all processes, one after the other, are all rows in order."""
    runs = [run for runs in layout.runs for run in runs]
    return runs == sorted(runs)


def shards_of(layout: Layout, x: Tensor, dim: int) -> list[Tensor]:
    """The rows of each process; a view if they are one run."""
    return [
        x.narrow(dim, runs[0][0], runs[0][1] - runs[0][0]) if len(runs) == 1 else layout.shard(x, rank, dim)
        for rank, runs in enumerate(layout.runs)
    ]


def in_order(layout: Layout, shards: Sequence[Tensor], dim: int) -> Tensor:
    """All rows in order, from the shards of all processes."""
    pieces = []
    for runs, shard in zip(layout.runs, shards, strict=True):
        parts = shard.split([stop - start for start, stop in runs], dim)
        pieces += [(start, stop, part) for (start, stop), part in zip(runs, parts, strict=True)]
    pieces.sort(key=lambda piece: piece[:2])
    return torch.cat([part for _, _, part in pieces], dim)


def _share(length: Any, processes: Any, runs: int) -> int:
    """The length of each run."""
    check.integer("processes", processes, minimum=1, maximum=MOST_PROCESSES)
    check.length("length", length)
    if length % (processes * runs):
        what = f"{processes} processes" if runs == 1 else f"{runs} runs for each of {processes} processes"
        raise ValueError(f"length must be a multiple of {processes * runs}, for {what}, got {length}: pad the sequence")
    return length // (processes * runs)


def check_axis(x: Any, dim: Any) -> None:
    """Raise an error unless ``dim`` is an axis of the tensor ``x``."""
    dims = check.tensor("x", x).dim()
    check.integer("dim", dim)
    if not -dims <= dim < dims:
        raise ValueError(f"dim must be an axis of x, got dim={dim} for x of shape {list(x.shape)}")


def _tuple(name: str, value: Any, wanted: str) -> tuple[Any, ...]:
    """``value``; an error unless it is a tuple."""
    if not isinstance(value, tuple):
        raise TypeError(f"{name} must be {wanted}, got {type(value).__name__}")
    return value
