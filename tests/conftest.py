"""Fixtures for all tests: seeds, and names for doctests."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("relgraph", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("relgraph")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def poisoned():
    """Fills every fresh tensor with NaN, so that memory which is read before it is written shows."""
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
