"""Tests the translation example on several processes: every mode learns the same and continues from any other."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("sacrebleu")
pytest.importorskip("tokenizers")
if not torch.distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

from examples.translation.parallel import MODES
from tests.distributed.worlds import run_world
from tests.examples.translation import parallel_cases
from tests.examples.translation.cases import losses

PARTS = [("shards", 2), ("heads", 3)]
EXACT = {"rtol": 1e-9, "atol": 1e-12}
# the gradient of a key's bias is zero except for rounding, which Adam divides by its own size and 1e-9
MODEL = {"rtol": 1e-7, "atol": 1e-8}
STEPS = 10


@pytest.fixture(scope="module")
def world(data, tmp_path_factory):
    """A folder with a run of one process, which two processes continued, and what else these two found."""
    folder = tmp_path_factory.mktemp("world")
    parallel_cases.train(data, folder / "run", "data", 1)
    return folder, run_world(2, folder, parallel_cases.cases, data, folder, MODES, PARTS)


@pytest.mark.parametrize("mode", [*MODES, ("heads", "dropout")])
def test_every_mode_learns_what_one_process_does(data, world, mode, tmp_path):
    model = {"dropout": 0.3} if "dropout" in mode else {}
    wanted = parallel_cases.learned(parallel_cases.build(data, tmp_path, model=model))
    for found in world[1][mode]:
        assert not isinstance(found, str), found
        torch.testing.assert_close(found[0], wanted[0], **EXACT)
        torch.testing.assert_close(found[1], wanted[1], **MODEL)


def test_heads_that_do_not_divide_are_refused_on_every_process(world):
    wanted = "ValueError: heads must be a multiple of the 2 processes for 'heads', got 1"
    assert [found.split("\n", 1)[0] for found in world[1]["refused"]] == [wanted] * 2


def test_a_run_goes_on_from_one_process_through_modes_on_two_and_back(data, world, tmp_path):
    folder, found = world
    assert [found[part] for part in PARTS] == [[1, 1], [2, 2]]
    run, unbroken = folder / "run", tmp_path / "unbroken"
    assert parallel_cases.train(data, run, "data", STEPS) == 3
    parallel_cases.train(data, unbroken, "data", STEPS)
    for name in ("loss", "nll"):
        torch.testing.assert_close(losses(run, "train", name), losses(unbroken, "train", name), rtol=1e-7, atol=0)
    # every part of a run measures validation at its end
    torch.testing.assert_close(losses(run, "valid")[-1], losses(unbroken, "valid")[-1], rtol=1e-7, atol=0)
    ends = [torch.load(path / f"step-{STEPS:08d}.pt", weights_only=True)["model"] for path in (run, unbroken)]
    torch.testing.assert_close(*ends, **MODEL)
    assert not list(run.rglob("*.partial"))
