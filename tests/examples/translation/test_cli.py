"""Tests the command line of the translation example: its presets, its errors, and its measure of speed."""

import argparse
import re

import pytest
import torch

import relgraph as rg

pytest.importorskip("sacrebleu")
pytest.importorskip("tokenizers")

from examples.translation import cli, files
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
    model = files.load_json(tmp_path / "config.json")["model"]
    assert (model["width"], model["layers"], model["hidden"], model["per_head"]) == (16, 1, 32, True)


def test_help_shows_every_default():
    (commands,) = (action.choices for action in cli._parser()._actions if action.choices)
    options = [(name, action) for name, parser in commands.items() for action in parser._actions]
    given = [
        (name, a) for name, a in options if a.option_strings and not a.required and a.default is not argparse.SUPPRESS
    ]
    assert {name for name, _ in given} == {*commands}
    missing = [f"{name} {a.option_strings[0]}" for name, a in given if "(default: " not in a.help]
    assert missing == []


def test_a_file_that_is_not_there_is_named(data, tmp_path, capsys):
    nothing = tmp_path / "nothing"
    for command, missing in (
        (["train", nothing, tmp_path / "run"], nothing / "vocabulary.json"),
        (["prepare", tmp_path / "out", "--train", nothing], nothing),
        (["evaluate", nothing, data / "test.tsv"], nothing),
        (["evaluate", nothing, tmp_path / "other"], tmp_path / "other"),
    ):
        assert cli.main(list(map(str, command))) == 2
        assert capsys.readouterr().err == f"error: {missing} does not exist\n"
    assert cli.main(["prepare", str(tmp_path / "out"), "--train", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"error: Is a directory: {tmp_path}\n"


def test_a_default_that_presets_change_names_theirs():
    (commands,) = (action.choices for action in cli._parser()._actions if action.choices)
    shown = " ".join(commands["train"].format_help().split())
    assert "width of the feed-forward networks (default: 512, base 1024, big 4096)" in shown
    assert "steps between two logged training losses (default: 50)" in shown


def test_speed_prints_both_and_their_ratio(data, capsys):
    assert cli.main(["speed", str(data), "--rounds", "2", "--steps", "1", "--batch-tokens", "64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    speeds = [float(re.search(r": ([\d,]+) ", line)[1].replace(",", "")) for line in lines[1:3]]
    ratio = float(re.search(r"time of relative divided by sinusoidal: ([\d.]+)", lines[3])[1])
    assert ratio == pytest.approx(speeds[0] / speeds[1], rel=0.5)
