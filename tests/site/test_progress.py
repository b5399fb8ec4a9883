"""What the build of the site prints: the page it works on, and how long is left."""

import io

import pytest

from docs.site import progress
from docs.site.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    return now


def pages(bar, clock, step, number, seconds):
    """What Sphinx prints of a step; each page takes so long."""
    for at in range(1, number + 1):
        bar.read(f"{step}... [{100 * at // number:3d}%] page{at}\n")
        clock[0] += seconds


def test_a_first_build_tells_each_page_and_what_is_left_of_its_step(clock):
    out = io.StringIO()
    bar = Progress({}, out)
    bar.read("Running Sphinx v8\n")
    pages(bar, clock, "reading sources", 4, 60.0)
    pages(bar, clock, "writing output", 2, 10.0)
    bar.end()
    assert out.getvalue().splitlines() == [
        "reading sources: page1, page 1 of about 4",
        "reading sources: page2, page 2 of about 4; about 3 min left of this step",
        "reading sources: page3, page 3 of about 4; about 2 min left of this step",
        "reading sources: page4, page 4 of about 4; about 60 s left of this step",
        "reading sources: 4 pages in 4 min",
        "writing output: page1, page 1 of about 2",
        "writing output: page2, page 2 of about 2; about 10 s left of this step",
        "writing output: 2 pages in 20 s",
    ]
    assert bar.seconds == {"reading sources": 240.0, "writing output": 20.0}


def test_a_later_build_knows_the_steps_to_come_and_corrects_itself(clock):
    out = io.StringIO()
    bar = Progress({"reading sources": 50.0, "writing output": 20.0}, out)
    pages(bar, clock, "reading sources", 2, 40.0)
    lines = out.getvalue().splitlines()
    assert [line.split("; ")[1] for line in lines] == ["about 70 s left", "about 60 s left"]


def test_parts_are_named_after_they_are_done(clock):
    out = io.StringIO()
    bar = Progress({}, out)
    bar.read("generating gallery... [100%] one\n")
    clock[0] += 5.0
    bar.read("updating environment: [new config] 70 added, 0 changed, 0 removed\n")
    for at in (1, 2):
        clock[0] += 30.0
        bar.read(f"reading sources... [ {at * 50:2d}%] page{at} .. page{at + 35}\n")
    bar.end()
    assert out.getvalue().splitlines() == [
        "generating gallery: one, page 1 of about 1",
        "generating gallery: 1 pages in 5 s",
        "reading sources: page1, part 1 of about 2; about 30 s left of this step",
        "reading sources: page2, part 2 of about 2; about 0 s left of this step",
        "reading sources: 2 parts in 60 s",
    ]
    assert bar.seconds == {"generating gallery": 5.0, "reading sources": 60.0}


def test_steps_of_many_pages_print_now_and_then(clock):
    out = io.StringIO()
    pages(Progress({}, out), clock, "reading sources", 100, 1.0)
    told = [line.split(",")[0] for line in out.getvalue().splitlines()]
    assert told == [f"reading sources: page{at}" for at in range(1, 101, 5)]


def test_a_terminal_shows_one_line_that_changes(clock):
    out = Terminal()
    bar = Progress({}, out)
    pages(bar, clock, "reading sources", 100, 1.0)
    assert out.getvalue().count("\n") == 0 and out.getvalue().count("\r") == 100
    bar.end()
    assert out.getvalue().endswith("reading sources: 100 pages in 2 min\n")
