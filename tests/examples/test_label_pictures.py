"""Tests the example of pictures: it runs as a script, learns its tasks, and writes every picture."""

import random
import runpy
import sys
from pathlib import Path

import matplotlib as mpl
import pytest
import torch
from matplotlib import pyplot as plt

mpl.use("Agg")
SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "label_pictures.py"
PICTURES = [
    "attention-graph", "attention-query", "attention-received", "attention-tokens", "attention-tree", "buckets",
    "clipped-distance", "dependencies", "mass", "norms", "priority", "product", "schema", "shortest-path", "similarity",
    "sum", "tree", "window",
]  # fmt: skip


@pytest.mark.slow
def test_the_script_learns_its_tasks_and_draws(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--quick", "--out", str(tmp_path)])
    names = runpy.run_path(str(SCRIPT), run_name="__main__")
    plt.close("all")
    assert sorted(path.stem for path in tmp_path.iterdir()) == PICTURES
    for path in tmp_path.glob("*.png"):
        picture = plt.imread(path)
        assert picture.shape[0] > 200 and picture[..., :3].std() > 0.02, path.name
    for reader, make in (("fetcher", "sequences"), ("climber", "trees"), ("chemist", "molecules")):
        symbols, labels, wanted = names[make](random.Random("other"))
        answer = names[reader](symbols, labels).argmax(-1)
        assert (answer == wanted)[wanted >= 0].double().mean() > 0.97, reader
    norms, labels = names["fetcher"].attention.tables.key().norm(dim=-1), names["distance"].names
    assert {labels[row] for row in norms.topk(2).indices} == {"-3", "2"}
    weights, _ = names["climber"].look(torch.arange(8), names["steps"](names["expression"]))
    assert (weights[:, 7, 4] > 0.5).all(), "c looks at its grandparent, the product"
    weights, _ = names["chemist"].look(names["symbols"], names["hops"](names["molecule"]))
    assert names["ATOMS"][3] == "N" and (weights.mean(0)[5, 3] > 0.5), "atom 5 looks at the nitrogen"
