"""Fixtures for all tests: seeds, and names for doctests."""

import os

import pytest
import torch
from hypothesis import settings

from relgraph.impl.native import build, problem
from relgraph.impl.triton import limits
from relgraph.labels.contents import HASHES, hash_of_bytes
from relgraph.plan import SORTERS
from relgraph.plan.memory import _by_ints

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is loaded: kernels then run on a CPU

settings.register_profile("relgraph", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("relgraph")


def pytest_generate_tests(metafunc):
    seeds = metafunc.config.getoption("--seeds")
    # hypothesis forbids one method on several instances; it draws many examples of its own anyway
    again = metafunc.cls is None or not getattr(metafunc.function, "is_hypothesis_test", False)
    if seeds > 1 and again:
        metafunc.parametrize("_seed", range(seeds), ids=lambda seed: f"seed{seed}", indirect=True)


@pytest.fixture
def _seed(request):
    """The seed of one run of a test; several with ``--seeds``."""
    return getattr(request, "param", 0)


@pytest.fixture(autouse=True)
def _seeded(_seed):
    torch.manual_seed(_seed)


@pytest.fixture
def poisoned():
    """Fills every fresh tensor with NaN, so that memory which is read before it is written shows."""
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def _kernels_are_there(request):
    """A test of ``impl="native"`` needs a compiler or a library that was built before."""
    given = getattr(request.node, "callspec", None)
    why = build.missing() if given is not None and given.params.get("impl") == "native" else None
    if why is not None:
        pytest.skip(f"no compiled kernels: {why}")


@pytest.fixture
def threads():
    """Sets the number of threads and takes it back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def short_panels(monkeypatch):
    """Compiled kernels take keys by panels of 64, where they would take 512: short inputs have several."""
    monkeypatch.setattr(problem, "PANEL", 64)
    monkeypatch.setattr(problem, "FEWEST_KEYS", 64)
    _by_ints.found.clear()  # structs have the numbers from which they were made
    yield
    _by_ints.found.clear()


@pytest.fixture
def no_kernels(monkeypatch):
    """A machine without compiled kernels."""
    monkeypatch.setattr(build, "_known", build.Missing("RELGRAPH_NATIVE=0 turns them off"))


@pytest.fixture(params=[True, False], ids=["kernels", "no kernels"])
def on_a_cpu(request, monkeypatch):
    """Return the implementation of many scores on a CPU, with compiled kernels and without; nothing is computed."""
    there = build.Kernels(None, None, None) if request.param else build.Missing("RELGRAPH_NATIVE=0 turns them off")
    monkeypatch.setattr(build, "_known", there)
    monkeypatch.delitem(SORTERS, "cpu")  # there is no library behind these kernels
    monkeypatch.setitem(HASHES, "cpu", hash_of_bytes)
    return "native" if request.param else "chunked"


@pytest.fixture
def on_a_gpu(monkeypatch):
    """A CPU that the rule takes for a GPU with Triton, where the kernels are asked for; nothing is computed."""
    monkeypatch.setattr(limits, "ASKED", True)
    monkeypatch.setattr(limits, "HAS_TRITON", True)
    monkeypatch.setattr(limits, "is_gpu", lambda _: True)
    monkeypatch.setattr(limits, "interpreted", lambda: True)
