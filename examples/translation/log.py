"""The log of a training run: a line of values per measurement, in ``metrics.csv``; and its clock."""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from examples.translation.files import save_text

COLUMNS = ("step", "split", "loss", "nll", "learning_rate", "tokens_per_second", "seconds")


class Log:
    """Appends lines, after it drops those later than the step from which training continues.

    Args:
        run: the folder to write to.
        step: training continues from here; later lines belong to lost work.
    """

    def __init__(self, run: Path, step: int) -> None:
        path = run / "metrics.csv"
        save_text(path, _until(path, step))
        self._file = path.open("a", encoding="utf-8", newline="")

    def add(self, **values: Any) -> None:
        """Append a line with the values of some columns, losses in nats per target token, and flush it to the file."""
        cells = [values.get(name, "") for name in COLUMNS]
        csv.writer(self._file, lineterminator="\n").writerow(f"{x:.9g}" if isinstance(x, float) else x for x in cells)
        self._file.flush()

    def sync(self) -> None:
        """Make sure that all lines are on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _until(path: Path, step: int) -> str:
    """The log's text up to a step; a line that a kill cut short is always later than any checkpoint."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file) if len(row) == len(COLUMNS) and row[0].isdigit()]
        writer.writerows(row for row in rows if int(row[0]) <= step)
    return text.getvalue()


class Meter:
    """Counts target tokens, and the seconds of training without pauses."""

    def __init__(self) -> None:
        self.tokens = 0
        self._start = time.perf_counter()

    def read(self) -> tuple[int, float]:
        """Tokens and seconds since the last reading."""
        now = time.perf_counter()
        counted, seconds = self.tokens, now - self._start
        self.tokens, self._start = 0, now
        return counted, seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the time of this block."""
        begin = time.perf_counter()
        yield
        self._start += time.perf_counter() - begin
