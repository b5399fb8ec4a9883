"""Tests the command line of the translation example: its presets, its errors, and its measure of speed."""

import json
import re

import pytest
import torch

import relgraph as rg

pytest.importorskip("sacrebleu")
pytest.importorskip("tokenizers")

from examples.translation import cli, speed
from examples.translation.model import Translator
from examples.translation.settings import PRESETS, ModelSettings
from tests.examples.translation.cases import train


def test_a_preset_is_the_librarys_and_gives_way_to_options(data, tmp_path):
    for preset in ("base", "big"):
        with torch.device("meta"):
            ours = Translator(ModelSettings(**PRESETS[preset]), 300).transformer
            theirs = getattr(rg.RelationTransformer, preset)()
        shapes = [{name: p.shape for name, p in model.named_parameters()} for model in (ours, theirs)]
        dropout = [{m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)} for model in (ours, theirs)]
        assert (shapes[0], dropout[0], ours.nhead) == (shapes[1], dropout[1], theirs.nhead)
    assert train(data, tmp_path, "--preset", "base", steps=1) == 0
    model = json.loads((tmp_path / "results.json").read_text())["config"]["model"]
    assert (model["width"], model["layers"], model["hidden"], model["per_head"]) == (16, 1, 32, True)


def test_a_file_that_is_not_there_is_named(data, tmp_path, capsys):
    nothing = tmp_path / "nothing"
    for command, missing in (
        (["train", nothing, tmp_path / "run"], nothing / "vocabulary.json"),
        (["prepare", tmp_path / "out", "--train", nothing], nothing),
        (["translate", nothing], nothing / "model.pt"),
    ):
        assert cli.main(list(map(str, command))) == 2
        assert capsys.readouterr().err == f"error: {missing} does not exist\n"


def test_speed_prints_both_and_their_ratio(data, capsys, monkeypatch):
    for name, value in {"ROUNDS": 2, "STEPS": 1, "BATCH_TOKENS": 64}.items():
        monkeypatch.setattr(speed, name, value)
    assert cli.main(["speed", str(data)]) == 0
    lines = capsys.readouterr().out.splitlines()
    speeds = [float(re.search(r": ([\d,]+) ", line)[1].replace(",", "")) for line in lines[:2]]
    ratio = float(re.search(r"time of relative divided by sinusoidal: ([\d.]+)", lines[2])[1])
    assert ratio == pytest.approx(speeds[0] / speeds[1], rel=0.5)
