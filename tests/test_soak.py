"""The soak runs, tells what grows, and sees a planted leak."""

from __future__ import annotations

from random import Random

import pytest
import torch

from tests import soak
from tests.soak import MIB, Sample, verdict


def samples(count=60, **measures):
    """Samples two seconds apart; each measure is a function of the number of the sample."""
    usual = {"memory": 400 * MIB, "handles": 6, "threads": 1, "tensors": 10, "labels": 6, "plans": 6, "kept": 0}
    return [
        Sample(2.0 * at, **{**usual, **{name: measure(at) for name, measure in measures.items()}})
        for at in range(count)
    ]


@pytest.mark.parametrize(
    "memory",
    [
        lambda at: (400 + Random(at).randint(0, 90)) * MIB,
        lambda at: (500 if at > 20 else 100 + 20 * at) * MIB,  # warming up
        lambda at: 400 * MIB + at * MIB // 8,  # less than noise
        lambda at: (900 - 8 * at) * MIB,
    ],
    ids=["noise", "warm-up", "slow", "falling"],
)
def test_what_does_not_grow(memory):
    assert verdict(samples(memory=memory)) == []


@pytest.mark.parametrize("name", soak.GROWTH)
def test_whatever_grows_is_reported(name):
    size = MIB if name == "memory" else 1
    (found,) = verdict(samples(**{name: lambda at: (10 * at + Random(at).randint(0, 9)) * size}))
    assert found.startswith(f"{name} grows steadily: ")
    assert found.endswith("by quarter of 1.3 minutes")


@pytest.mark.slow
def test_a_short_soak(capsys):
    assert soak.main(["--minutes", "0.05", "--threads", "2"]) == 0
    printed = capsys.readouterr().out
    assert "3 seconds, 2 threads, seed 0" in printed
    assert "handles" in printed
    assert "too short to tell whether anything grows" in printed
    assert printed.rstrip().endswith("nothing failed")


@pytest.mark.parametrize(
    "piece",
    [*soak.WORK[:1], *(pytest.param(piece, marks=pytest.mark.slow) for piece in soak.WORK[1:])],
    ids=lambda piece: piece.__name__,
)
def test_every_piece_of_work_runs_in_a_thread(piece, capsys):
    assert soak.soak(0.3, 2, every=0.3, pieces=(piece,)) == 0
    assert piece.__name__ in capsys.readouterr().out


def test_a_leak_is_seen(monkeypatch, capsys):
    held = []

    def leak(rng):
        held.extend(torch.zeros(300, 1024).unbind())

    monkeypatch.setattr(
        soak, "measure", lambda start: Sample(0.1 * len(held), len(held) * 4096, 6, 1, len(held), 6, 6, 0)
    )
    assert soak.soak(3.0, 1, every=0.02, pieces=(leak,)) == 1
    printed = capsys.readouterr().out
    assert "memory grows steadily" in printed
    assert "tensors grows steadily" in printed


def test_what_fails_ends_it(capsys):
    def broken(rng):
        raise ValueError("query must be something else")

    assert soak.soak(60, 2, pieces=(broken,)) == 1
    printed = capsys.readouterr().out
    assert "broken with Random(" in printed
    assert "ValueError: query must be something else" in printed


def test_new_labels_in_every_step_leave_resident_memory_flat():
    for step in range(50):
        soak.new_labels(Random(step))
    before = soak.measure(0.0)
    for step in range(50, 350):
        soak.new_labels(Random(step))
    after = soak.measure(0.0)
    assert after.memory - before.memory < 8 * MIB
    assert after.tensors <= before.tensors + 5
    assert after.kept <= before.kept + 5
