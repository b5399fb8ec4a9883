"""The clocks of a training: how fast it goes, and when a model is due."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Meter:
    """Target tokens, and the seconds that training took without what pauses it."""

    def __init__(self) -> None:
        self.tokens = 0
        self._start = time.perf_counter()

    def read(self) -> tuple[int, float]:
        """What was counted since the last reading."""
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


class Clock:
    """The time since the last model was kept, where one is kept every so many seconds.

    Args:
        every: how many; 0 for a clock that is never over.
        waited: how many have gone by already.
    """

    def __init__(self, every: float, waited: float) -> None:
        self._every, self._start = every, time.monotonic() - waited

    def seconds(self) -> float:
        return time.monotonic() - self._start

    def is_over(self) -> bool:
        return 0 < self._every <= self.seconds()

    def restart(self) -> None:
        self._start = time.monotonic()
