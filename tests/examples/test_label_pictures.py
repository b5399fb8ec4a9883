"""The pictures' example runs as a script, learns what it says it learns, and writes every picture."""

from __future__ import annotations

import random
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("tqdm")

import matplotlib as mpl

mpl.use("Agg")
import torch
from matplotlib import pyplot as plt
from torch.nn.functional import normalize

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "label_pictures.py"
PICTURES = [
    "attention-graph", "attention-query", "attention-received", "attention-tokens", "attention-tree", "buckets",
    "clipped-distance", "dependencies", "mass", "norms", "priority", "product", "schema", "shortest-path", "similarity",
    "sum", "tree", "window",
]  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What the script leaves behind, and where it wrote."""
    folder, argv = tmp_path_factory.mktemp("pictures"), sys.argv
    sys.argv = [str(SCRIPT), "--quick", "--out", str(folder)]
    try:
        yield runpy.run_path(str(SCRIPT), run_name="__main__"), folder
    finally:
        sys.argv = argv
        plt.close("all")


@pytest.mark.slow
def test_every_picture_is_written_and_none_is_blank(ran):
    _, folder = ran
    assert sorted(path.stem for path in folder.iterdir()) == PICTURES
    for path in folder.glob("*.png"):
        picture = plt.imread(path)
        assert picture.shape[0] > 200 and picture[..., :3].std() > 0.02, path.name


def test_the_readers_have_learned_their_tasks(ran):
    names, _ = ran
    for reader, make in (("fetcher", "sequences"), ("climber", "trees"), ("chemist", "molecules")):
        symbols, labels, wanted = names[make](random.Random("other"))
        answer = names[reader](symbols, labels).argmax(-1)
        assert (answer == wanted)[wanted >= 0].double().mean() > 0.97, reader


def test_what_is_said_of_the_key_table_is_so(ran):
    names, _ = ran
    table = names["fetcher"].attention.tables.key().detach()
    before, after = names["distance"].names.index("-3"), names["distance"].names.index("2")
    assert set(table.norm(dim=-1).topk(2).indices.tolist()) == {before, after}
    cosines = normalize(table, dim=-1) @ normalize(table, dim=-1).T
    rest = [label for label in range(13) if label not in (before, after)]
    assert cosines[rest][:, rest].min() > 0.2
    assert cosines[[before, after]][:, rest].max() < 0.2 and cosines[before, after] < 0.2


def test_what_is_said_of_attention_is_so(ran):
    names, _ = ran
    weights, _ = names["climber"].look(torch.arange(8), names["steps"](names["expression"]))
    assert (weights[:, 7, 4] > 0.5).all(), "c looks at its grandparent, the product"
    weights, _ = names["chemist"].look(names["symbols"], names["hops"](names["molecule"]))
    assert names["ATOMS"][3] == "N" and (weights.mean(0)[5, 3] > 0.5), "atom 5 looks at the nitrogen"


def test_grids_agree(ran):
    names, _ = ran
    rg = names["rg"]
    assert torch.equal(names["grid"](3, 4).to_dense()[0], rg.Grid(1)(3, 4).to_dense()[0])
