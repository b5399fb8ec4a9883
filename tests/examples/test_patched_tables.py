"""Tests the example of a patched model's tables: it learns its distances, and its pictures show them."""

import runpy
from pathlib import Path

import pytest
import torch
from matplotlib import pyplot as plt

pytest.importorskip("transformers")
PAGE = Path(__file__).resolve().parents[2] / "examples" / "patched_tables.py"


pytestmark = pytest.mark.slow


def test_it_learns_its_distances():
    names = runpy.run_path(str(PAGE), run_name="__main__")
    plt.close("all")
    assert names["share_right"](*names["texts"](torch.Generator().manual_seed(7))) > 0.97
    shares = names["shares"]
    assert (shares.sum(-1) > 0.9).all(), "nearly all attention goes to the four distances"
    assert (shares.amax(0) > 0.3).all(), "each distance has a head that looks there"
    labels, bias = names["labeler"].names, names["layer"].tables.bias()
    best = {labels[row] for row in bias.amax(0).topk(len(names["DISTANCES"])).indices}
    assert best == {str(distance) for distance in names["DISTANCES"]}
