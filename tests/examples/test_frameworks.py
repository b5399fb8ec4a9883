"""Tests the examples of training frameworks on one and two processes: they train like the plain loop."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from torch import distributed

if not distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def printed(framework, processes):
    """The output of the example, run as its page says."""
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"needs {framework}")
    command = [str(EXAMPLES / f"with_{framework}.py")]
    if processes > 1:
        command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", *command]
    run = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("framework", ["lightning", "accelerate"])
def test_training_is_that_of_a_plain_loop(framework, processes):
    text = printed(framework, processes)
    assert f"processes: {processes}" in text
    first, last = map(float, re.search(r"loss: (\S+) in the first step, (\S+) in the last", text).groups())
    assert last < first / 2
    off = float(re.search(r"from a plain loop on one process: (\S+)", text)[1])
    assert off < 1e-3
