"""Tests training runs as real processes: killed, interrupted, several at once, and swept."""

import os
import random
import re
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("sacrebleu")
pytest.importorskip("tokenizers")

from examples.translation import checkpoints, cli, files
from tests.examples.translation.cases import ROOT, assert_same_end, latest, metrics, options

KILLS = 4
STEPS = 300
SETTINGS = {"log_every": 1, "validate_every": 20, "save_every": 5, "keep": 1000, "warm_up": 50, "dropout": 0.1}
PATIENCE = 120
STARTED = []


@pytest.fixture(autouse=True)
def _none_left():
    """Make sure that a failed test leaves no process behind."""
    yield
    for process in STARTED:
        if process.poll() is None:
            process.terminate()
            process.wait(PATIENCE)
    STARTED.clear()


def start(data, run, launcher=(), **values):
    """Start a training run in a separate process; its output goes to ``run.txt``."""
    train = ["-m", "examples.translation", "train", data, run]
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_VISIBLE_DEVICES": "",
    }
    with run.with_name(f"{run.name}.txt").open("w") as output:
        call = list(map(str, [sys.executable, *launcher, *train, *options(**values)]))
        STARTED.append(subprocess.Popen(call, cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT))
    return STARTED[-1]


def printed(run):
    return run.with_name(f"{run.name}.txt").read_text()


def opened(run):
    """Identifies the log file: every start of a training run replaces it."""
    path = run / "metrics.csv"
    return path.stat().st_ino if path.exists() else None


def logged(run):
    """The last step of the log."""
    return max((int(row["step"]) for row in metrics(run) if row["split"] == "train" and row["nll"]), default=0)


def wait_for_step(process, run, step, before):
    """Wait until a process with a log file other than ``before`` has logged a step."""
    end = time.monotonic() + PATIENCE
    while opened(run) == before or logged(run) < step:
        assert process.poll() is None, f"it ended before step {step}:\n{printed(run)}"
        assert time.monotonic() < end, f"it has not come to step {step}:\n{printed(run)}"
        time.sleep(0.002)


@pytest.mark.slow
def test_killed_again_and_again_it_ends_as_if_never_killed(data, tmp_path):
    unbroken, run, draws, saved = tmp_path / "unbroken", tmp_path / "run", random.Random(0), [0]
    assert start(data, unbroken, steps=STEPS, **SETTINGS).wait(PATIENCE) == 0
    for kill in range(KILLS):
        before, share = opened(run), (STEPS - saved[-1]) // (KILLS - kill + 1)
        process = start(data, run, steps=STEPS, **SETTINGS)
        wait_for_step(process, run, saved[-1] + draws.randint(0, 2 * share - 1), before)
        time.sleep(draws.uniform(0, 0.03))
        process.kill()
        assert process.wait(PATIENCE) == -signal.SIGKILL
        begin = f"continuing after step {saved[-1]}," if saved[-1] else "a new training,"
        assert begin in printed(run)
        done = [row["step"] for row in metrics(run) if row["split"] == "train"]
        assert done == [str(i + 1) for i in range(len(done))]
        saved.append(latest(run)["position"]["step"] if (run / "latest.pt").exists() else 0)
        assert saved[-2] <= saved[-1] < STEPS
        assert len(done) - saved[-1] <= SETTINGS["save_every"]
    assert start(data, run, steps=STEPS, **SETTINGS).wait(PATIENCE) == 0
    assert_same_end(run, unbroken)
    models = [path.name for path in checkpoints.saved_models(unbroken)]
    assert [path.name for path in checkpoints.saved_models(run)] == models


@pytest.mark.slow
def test_a_sweep_does_what_is_missing_and_tells_of_what_failed(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    training = ("--", *options(steps=4, save_every=2, keep=2))
    sweep = ["sweep", str(data), str(tmp_path / "a"), "--only", "none", "sinusoidal", "--seeds", "1", *training]
    assert cli.main(sweep) == 0
    for positions in ("none", "sinusoidal"):
        run = tmp_path / "a" / f"{positions}-seed0"
        results, config = (files.load_json(run / f"{name}.json") for name in ("results", "config"))
        assert results["averaged_steps"] == [2, 4]
        assert {name: test["sentences"] for name, test in results["tests"].items()} == {"test": 40}
        assert (config["model"]["positions"], config["training"]["seed"]) == (positions, 0)
        assert re.search(r"test: perplexity [\d.]+, BLEU", run.with_name(f"{run.name}.txt").read_text())
    assert cli.main([*sweep[:4], "base-relative-16", *sweep[6:]]) == 0
    run = tmp_path / "a" / "base-relative-16-seed0"
    assert files.load_json(run / "results.json")["averaged_steps"] == [4]
    shaped = files.load_json(run / "config.json")["model"]
    assert (shaped["width"], shaped["hidden"], shaped["layers"], shaped["per_head"]) == (128, 256, 1, True)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert cli.main(sweep) == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert cli.main([*sweep, "--smoothing", "0.2"]) == 2
    assert f"error: {tmp_path / 'a'} holds runs with the options [" in capsys.readouterr().err
    failing = ["sweep", str(data), str(tmp_path / "b"), "--only", "none", "--seeds", "1", *training]
    assert cli.main([*failing, "--smoothing", "2"]) == 1
    run = tmp_path / "b" / "none-seed0"
    assert f"failed: {run}; see {run}.txt" in capsys.readouterr().err
    assert not run.exists()
