"""Names that the doctests may use without importing them."""

import pytest
import torch

import relgraph as rg


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    torch.manual_seed(0)
    doctest_namespace["torch"] = torch
    doctest_namespace["rg"] = rg
    doctest_namespace.update({name: getattr(rg, name) for name in rg.__all__})
