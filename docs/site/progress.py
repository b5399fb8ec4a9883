"""Progress of a build: which page Sphinx works on, and how long is left."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping
from typing import TextIO

from examples.translation.clocks import spell

AT = re.compile(r"(?P<step>\S[^\[]*?)\.* *\[ *(?P<percent>\d+)%\] (?P<page>\S+)(?P<part> \.\. \S+)?")
"""What Sphinx prints before each page: ``reading sources... [ 12%] howto/graphs``.

Where processes share a step, it prints a line after each part: ``reading sources... [ 14%] api/index .. index``.
"""

LINE_EVERY = 5.0
"""Seconds between two lines where there is no terminal; a step of few pages prints each."""

FEW = 40


class Progress:
    """Turns what Sphinx prints into lines with the page and the time left.

    Within a step, pages are taken to be equally long. What later steps take is known from the last build.

    Args:
        before: the seconds of each step in the last build, in order; empty if there was none.
        out: where to print.
    """

    def __init__(self, before: Mapping[str, float], out: TextIO = sys.stdout) -> None:
        self.seconds: dict[str, float] = {}
        self._before, self._out = dict(before), out
        self._step, self._pages, self._start, self._printed = "", 0, 0.0, float("-inf")
        self._unit, self._read = "page", time.perf_counter()

    def read(self, line: str) -> None:
        """Take a line of Sphinx's."""
        before, self._read = self._read, time.perf_counter()
        found = AT.match(line.strip())
        if found is None:
            return
        now = self._read
        if found["step"] != self._step:
            # Sphinx names a page before it works on it, and a part after: that step began with the line before
            start = before if found["part"] else now
            self.end(start)
            self._unit = "part" if found["part"] else "page"
            self._step, self._pages, self._start = found["step"], 0, start
            self._printed = float("-inf")
        done, self._pages = self._pages + (self._unit == "part"), self._pages + 1
        pages = max(self._pages, round(100 * self._pages / max(1, int(found["percent"]))))
        if not self._out.isatty() and pages > FEW and now - self._printed < LINE_EVERY and done:
            return
        self._printed = now
        where = f"{found['page']}, {self._unit} {self._pages} of about {pages}"
        text = f"{self._step}: {where}{self._left(done, pages)}"
        if self._out.isatty():
            print(f"\r\x1b[K{text}", end="", file=self._out, flush=True)
        else:
            print(text, file=self._out, flush=True)

    def _left(self, done: int, pages: int) -> str:
        """How long this step still takes, and with the last build's times all that follow."""
        steps = list(self._before)
        known = self._step in self._before
        if done:
            seconds = (time.perf_counter() - self._start) / done * (pages - done)
        elif known:
            seconds = self._before[self._step]
        else:
            return ""
        if not known:
            return f"; about {spell(seconds)} left of this step"
        after = sum(self._before[step] for step in steps[steps.index(self._step) + 1 :])
        return f"; about {spell(seconds + after)} left"

    def end(self, at: float | None = None) -> None:
        """The step is over, now or since a time of the clock; note how long it took."""
        if self._step:
            took = (time.perf_counter() if at is None else at) - self._start
            self.seconds[self._step] = self.seconds.get(self._step, 0.0) + took
            end = "\r\x1b[K" if self._out.isatty() else ""
            print(f"{end}{self._step}: {self._pages} {self._unit}s in {spell(took)}", file=self._out, flush=True)
        self._step = ""
