"""Pictures are drawn without a screen, and every figure is closed behind its test."""

import matplotlib as mpl
import pytest

mpl.use("Agg")
from matplotlib import pyplot as plt


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")
