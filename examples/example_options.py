"""The options that the examples share, each with what it is in the long and in the short mode."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

MEANINGS = {
    "seeds": "runs per row",
    "steps": "training steps per run",
    "epochs": "training epochs per run",
    "longest": "most tokens per function",
}


class Options(argparse.ArgumentParser):
    """The command line of an example: ``--quick``, ``--out``, ``--fresh``, and numbers that depend on the mode.

    Args:
        folder: the output folder.
        description: what the command does, for ``--help``.
        quick: what the short mode does, for ``--help``.
        rows: all rows, those of the long mode, and those of the short mode.
        numbers: the options of :data:`MEANINGS`, each with its number in the long and in the short mode.
    """

    def __init__(
        self, folder: str, description: str, quick: str, *,
        rows: tuple[Sequence[str], Sequence[str], Sequence[str]], **numbers: tuple[int, int],
    ) -> None:  # fmt: skip
        super().__init__(description=description)
        self.usual: dict[str, tuple[Any, Any]] = {"out": (Path(folder), Path(folder, "quick")), **numbers}
        self.add_argument("--quick", action="store_true", help=quick)
        all_rows, long_rows, short_rows = rows
        self.usual["rows"] = (list(long_rows), list(short_rows))
        text = f"the rows to train, some of: {', '.join(map(repr, all_rows))}"
        self.add_argument("--rows", nargs="+", choices=all_rows, metavar="ROW", help=text)
        for name, (long, short) in numbers.items():
            text = f"{MEANINGS[name]} ({long}, quick {short})"
            self.add_argument(f"--{name}", type=positive, help=text)
        self.add_argument("--out", type=Path, help=f"output folder ({folder}, quick: its folder quick)")
        self.add_argument("--fresh", action="store_true", help="start over and ignore earlier runs in --out")

    def add_data(self, folder: str) -> None:
        """Add the option ``--data``."""
        self.add_argument("--data", type=Path, help=f"folder with {folder} (RELGRAPH_DATA, else data)")

    def find_data(self, arguments: argparse.Namespace, name: str) -> Path:
        """A file or folder below ``--data``, RELGRAPH_DATA, or ``data``, which ``arguments.data`` becomes."""
        arguments.data = arguments.data or Path(os.environ.get("RELGRAPH_DATA", "data"))
        path = arguments.data / name
        if not path.exists():
            self.error(f"--data must name a folder with {name}, got {arguments.data}; --help says what --quick needs")
        return path

    def read(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """The options, with what is usual in the mode for those that are not given; ``seeds`` becomes a range.

        Torch then uses one thread.
        """
        arguments = self.parse_args(argv)
        for name, values in self.usual.items():
            if getattr(arguments, name) is None:
                setattr(arguments, name, values[arguments.quick])
        arguments.seeds = range(arguments.seeds)
        torch.set_num_threads(1)
        return arguments


def positive(text: str) -> int:
    """A type for argparse: an int above 0."""
    if (value := int(text)) <= 0:
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return value
