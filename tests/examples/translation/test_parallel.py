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
from tests.examples.translation.cases import losses, train

FEW, ALL, FOUR = "two processes, in short", "two processes", "four processes"
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in (ALL, FOUR)]
IN_WORLDS = pytest.mark.parametrize("name", [FEW, *SLOW])
SIZES = {FEW: 2, ALL: 2, FOUR: 4}
MODES_OF = {FEW: (), ALL: MODES, FOUR: MODES}
PARTS = [("shards", 2), ("heads", 3)]
EXACT = {"rtol": 1e-9, "atol": 1e-12}
# the gradient of a key's bias is zero except for rounding, which Adam divides by its own size and 1e-9
MODEL = {"rtol": 1e-7, "atol": 1e-8}
STEPS = 10


@pytest.fixture(scope="module")
def world(data, tmp_path_factory):
    """The folder of a world, and the results of its processes, which run once."""
    known = {}

    def found(name):
        if name not in known:
            folder = tmp_path_factory.mktemp("world")
            parallel_cases.train(data, folder / "run", "data", 1)
            given = data, folder, MODES_OF[name], PARTS
            known[name] = folder, run_world(SIZES[name], folder, parallel_cases.cases, *given)
        return known[name]

    return found


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    """What one process learns, for each dropout."""
    run = tmp_path_factory.mktemp("alone")
    return {p: parallel_cases.learned(parallel_cases.build(data, run, model={"dropout": p})) for p in (0.0, 0.3)}


@pytest.fixture(scope="module")
def unbroken(data, tmp_path_factory):
    """The uninterrupted run of one process."""
    run = tmp_path_factory.mktemp("unbroken") / "run"
    parallel_cases.train(data, run, "data", STEPS)
    return run


def check_same(found, wanted):
    for each in found:
        assert not isinstance(each, str), each
        torch.testing.assert_close(each[0], wanted[0], **EXACT)
        torch.testing.assert_close(each[1], wanted[1], **MODEL)


@pytest.mark.parametrize("name", SLOW)
def test_every_mode_learns_what_one_process_does(world, alone, name):
    for mode in MODES_OF[name]:
        check_same(world(name)[1][mode], alone[0.0])


@IN_WORLDS
def test_heads_draw_the_dropout_of_one_process(world, alone, name):
    check_same(world(name)[1]["heads", "dropout"], alone[0.3])


@IN_WORLDS
def test_heads_that_do_not_divide_are_refused_on_every_process(world, name):
    wanted = f"ValueError: heads must be a multiple of the {SIZES[name]} processes for 'heads', got 1"
    assert [found.split("\n", 1)[0] for found in world(name)[1]["refused"]] == [wanted] * SIZES[name]


def check_same_end(run, unbroken):
    """Check for the same losses at each step and the same model at the end, without unfinished files."""
    for name in ("loss", "nll"):
        torch.testing.assert_close(losses(run, "train", name), losses(unbroken, "train", name), rtol=1e-7, atol=0)
    # every part of a run measures validation at its end
    torch.testing.assert_close(losses(run, "valid")[-1], losses(unbroken, "valid")[-1], rtol=1e-7, atol=0)
    ends = [torch.load(path / f"step-{STEPS:08d}.pt", weights_only=True)["model"] for path in (run, unbroken)]
    torch.testing.assert_close(*ends, **MODEL)
    assert not list(run.rglob("*.partial"))


class TestGoingOn:
    """Continue from a checkpoint of other processes in another mode."""

    @IN_WORLDS
    def test_from_one_process_through_modes_on_several_and_back(self, data, world, unbroken, name):
        folder, found = world(name)
        assert [found[part] for part in PARTS] == [[begun] * SIZES[name] for begun in (1, 2)]
        run = folder / "run"
        assert parallel_cases.train(data, run, "data", STEPS) == 3
        check_same_end(run, unbroken)

    @pytest.mark.slow
    @pytest.mark.parametrize(("mode", "other"), [("shards", "heads"), ("heads", "data")])
    def test_from_two_to_four_to_one(self, data, unbroken, tmp_path, mode, other):
        for size, parts in ((2, [(mode, 2)]), (4, [(mode, 3), (other, 4)])):
            (tmp_path / str(size)).mkdir()
            found = run_world(size, tmp_path / str(size), parallel_cases.cases, data, tmp_path, (), parts)
            assert [found[part] for part in parts] == [[begun] * size for begun in ([0] if size == 2 else [2, 3])]
        assert parallel_cases.train(data, tmp_path / "run", "data", STEPS) == 4
        check_same_end(tmp_path / "run", unbroken)

    def test_another_number_of_batches_is_refused(self, data, tmp_path, capsys):
        run = tmp_path / "run"
        assert train(data, run, accumulate=2, steps=1) == 0
        assert train(data, run, accumulate=3, steps=2) == 2
        wanted = f"error: {run} was started with batches_per_update=2, got 3 (processes times accumulate)"
        assert wanted in capsys.readouterr().err
