"""The options that the examples share, each with what it is in the long and in the short mode."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

MEANINGS = {
    "seeds": "runs per row",
    "steps": "training steps per run",
    "epochs": "training epochs per run",
    "longest": "most tokens per function",
}


QUICK_NEEDS_NONE = "; --quick needs no files"


class Options(argparse.ArgumentParser):
    """The command line of an example: ``--quick``, ``--out``, ``--fresh``, and numbers that depend on the mode.

    Args:
        folder: the output folder.
        description: what the command does, for ``--help``.
        quick: what the short mode does, for ``--help``.
        apart: whether the short mode writes to the folder ``quick`` in ``folder``.
        rows: the option for rows, such as ``--rows``: all rows, those of the long mode, and those of the short mode.
        numbers: the options of :data:`MEANINGS`, each with its number in the long and in the short mode.
    """

    def __init__(
        self, folder: str, description: str, quick: str, *, apart: bool = False,
        rows: tuple[str, Sequence[str], Sequence[str], Sequence[str]] | None = None, **numbers: tuple[int, int],
    ) -> None:  # fmt: skip
        super().__init__(description=description)
        self.usual: dict[str, tuple[Any, Any]] = {"out": (Path(folder), Path(folder, *["quick"] * apart)), **numbers}
        self.add_argument("--quick", action="store_true", help=quick)
        if rows:
            name, all_rows, *usual = rows
            self.usual[name.removeprefix("--")] = (list(usual[0]), list(usual[1]))
            text = f"the rows to train, some of: {', '.join(map(repr, all_rows))}"
            self.add_argument(name, nargs="+", choices=all_rows, metavar="ROW", help=text)
        for name, (long, short) in numbers.items():
            text = f"{MEANINGS[name]} ({long}, quick {short})"
            self.add_argument(f"--{name}", type=positive(int), help=text)
        where = f"{folder}, quick: its folder quick" if apart else folder
        self.add_argument("--out", type=Path, help=f"output folder ({where})")
        self.add_argument("--fresh", action="store_true", help="start over and ignore earlier runs in --out")

    def find_data(self, arguments: argparse.Namespace, name: str, hint: str = "") -> Path:
        """A file or folder below ``--data``, RELGRAPH_DATA, or ``data``, which ``arguments.data`` becomes."""
        arguments.data = arguments.data or Path(os.environ.get("RELGRAPH_DATA", "data"))
        path = arguments.data / name
        if not path.exists():
            self.error(f"--data must name a folder with {name}, got {arguments.data}{hint}")
        return path

    def read(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """The options, with what is usual in the mode for those that are not given; ``seeds`` becomes a range.

        Torch then uses one thread.
        """
        arguments = self.parse_args(argv)
        for name, values in self.usual.items():
            if getattr(arguments, name) is None:
                setattr(arguments, name, values[arguments.quick])
        if "seeds" in self.usual:
            arguments.seeds = range(arguments.seeds)
        torch.set_num_threads(1)
        return arguments


def positive(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """A type for argparse: an ``int`` or ``float`` above 0 and finite."""

    def parse(text: str) -> Any:
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
        return value

    parse.__name__ = getattr(kind, "__name__", "")  # argparse prints this name for a value that does not parse
    return parse
