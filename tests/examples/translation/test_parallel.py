"""Tests the translation example on two processes: they learn what one does, and continue its run."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("sacrebleu")
pytest.importorskip("tokenizers")
if not torch.distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

from tests.distributed.worlds import run_world
from tests.examples.translation import parallel_cases
from tests.examples.translation.cases import losses

EXACT = {"rtol": 1e-9, "atol": 1e-12}
# the gradient of a key's bias is zero except for rounding, which Adam divides by its own size and 1e-9
MODEL = {"rtol": 1e-7, "atol": 1e-8}
STEPS = 10


@pytest.fixture(scope="module")
def world(data, tmp_path_factory):
    """A folder with a run of one process, which two processes continued, and what else these two found."""
    folder = tmp_path_factory.mktemp("world")
    parallel_cases.train(data, folder / "run", 1)
    return folder, run_world(2, folder, parallel_cases.cases, data, folder)


def test_two_processes_learn_what_one_does(data, world, tmp_path):
    wanted = parallel_cases.learned(parallel_cases.build(data, tmp_path))
    for found in world[1]["learned"]:
        assert not isinstance(found, str), found
        torch.testing.assert_close(found[0], wanted[0], **EXACT)
        torch.testing.assert_close(found[1], wanted[1], **MODEL)


def test_a_run_goes_on_from_one_process_to_two_and_back(data, world, tmp_path):
    folder, found = world
    assert found["begun"] == [1, 1]
    run, unbroken = folder / "run", tmp_path / "unbroken"
    assert parallel_cases.train(data, run, STEPS) == 2
    parallel_cases.train(data, unbroken, STEPS)
    for name in ("loss", "nll"):
        torch.testing.assert_close(losses(run, "train", name), losses(unbroken, "train", name), rtol=1e-7, atol=0)
    # every part of a run measures validation at its end
    torch.testing.assert_close(losses(run, "valid")[-1], losses(unbroken, "valid")[-1], rtol=1e-7, atol=0)
    ends = [torch.load(path / f"step-{STEPS:08d}.pt", weights_only=True) for path in (run, unbroken)]
    torch.testing.assert_close(*ends, **MODEL)
    assert not list(run.rglob("*.partial"))
