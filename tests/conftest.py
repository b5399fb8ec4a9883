"""Fixtures for all tests: seeds, and names for doctests."""

import os

import pytest
import torch
from hypothesis import settings

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
