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


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The variables of the script after its run, and its folder."""
    folder, threads = tmp_path_factory.mktemp("tables"), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(SCRIPT), "--quick", "--out", str(folder)])
        names = runpy.run_path(str(SCRIPT), run_name="__main__")
    plt.close("all")
    torch.set_num_threads(threads)
    return names, folder


def test_it_draws(script):
    _, folder = script
    assert sorted(path.stem for path in folder.iterdir()) == ["attention", "mass", "table"]
    for path in folder.glob("*.png"):
        picture = plt.imread(path)
        assert picture.shape[0] > 200 and picture[..., :3].std() > 0.02, path.name


def test_answers_stand_at_the_distances_that_are_asked_for(script):
    names, _ = script
    symbols, asked = names["texts"](torch.Generator().manual_seed(0))
    assert symbols.shape == (names["TEXTS"], names["LENGTH"])
    for place in range(names["LENGTH"]):
        for which, distance in enumerate(names["DISTANCES"]):
            inside = 0 <= place + distance < names["LENGTH"]
            wanted = symbols[:, place + distance] if inside else torch.full((names["TEXTS"],), names["NOT_ASKED"])
            assert torch.equal(asked[:, place, which], wanted)


def test_table_and_attention_are_those_of_the_task(script):
    names, _ = script
    assert names["model"].right(*names["texts"](torch.Generator().manual_seed(7))) > 0.97
    shares = names["shares"](names["mass"])
    assert (shares.sum(-1) > 0.9).all(), "nearly all attention goes to the four distances"
    assert (shares.amax(0) > 0.3).all(), "each distance has a head that looks there"
    labels, bias = names["labeler"].names, names["layer"].tables.bias()
    best = {labels[row] for row in bias.amax(0).topk(len(names["DISTANCES"])).indices}
    assert best == {str(distance) for distance in names["DISTANCES"]}
