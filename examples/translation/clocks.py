"""Clocks for long work: its speed, and the time it still takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


def spell(seconds: float) -> str:
    """A time in a suitable unit: ``45 s``, ``24 min`` or ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


class Remaining:
    """Estimates how long work still takes from the part that is done; later estimates are better.

    Args:
        total: how many pieces of similar size the work has.
        done: how many were done before this clock started.
    """

    def __init__(self, total: float, done: float = 0) -> None:
        self._total, self._before = total, done
        self._start = time.perf_counter()

    def seconds(self, done: float) -> float:
        """The seconds left when ``done`` pieces are done.

        Args:
            done: must exceed what was done before the clock started.
        """
        passed = time.perf_counter() - self._start
        return passed / (done - self._before) * (self._total - done)


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
