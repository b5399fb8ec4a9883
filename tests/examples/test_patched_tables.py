"""Tests the example of a patched model's tables: as a script it learns its distances and writes every picture."""

import runpy
import sys
from pathlib import Path

import matplotlib as mpl
import pytest
import torch
from matplotlib import pyplot as plt

pytest.importorskip("transformers")
mpl.use("Agg")
SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "patched_tables.py"


pytestmark = pytest.mark.slow


def test_it_learns_its_distances_and_draws(tmp_path, monkeypatch):
    threads = torch.get_num_threads()
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--quick", "--out", str(tmp_path)])
    names = runpy.run_path(str(SCRIPT), run_name="__main__")
    plt.close("all")
    torch.set_num_threads(threads)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["attention", "mass", "table"]
    assert names["model"].right(*names["texts"](torch.Generator().manual_seed(7))) > 0.97
    shares = names["shares"](names["mass"])
    assert (shares.sum(-1) > 0.9).all(), "nearly all attention goes to the four distances"
    assert (shares.amax(0) > 0.3).all(), "each distance has a head that looks there"
    labels, bias = names["labeler"].names, names["layer"].tables.bias()
    best = {labels[row] for row in bias.amax(0).topk(len(names["DISTANCES"])).indices}
    assert best == {str(distance) for distance in names["DISTANCES"]}
