"""The command line of the translation example: what it names, refuses and leaves whole."""

import signal

import pytest
import torch

pytest.importorskip("sacrebleu")
pytest.importorskip("tensorboard")
pytest.importorskip("tokenizers")

from examples.translation import cli, files, training
from examples.translation.settings import ModelSettings, TrainingSettings
from tests.examples.translation.cases import train, write_corpus


class TestCommands:
    @pytest.mark.parametrize(
        "name", ["prepare", "train", "average", "translate", "evaluate", "sweep", "speed", "report"]
    )
    def test_help(self, name, capsys):
        with pytest.raises(SystemExit, match="^0$"):
            cli.main([name, "--help"])
        text = capsys.readouterr().out
        assert text.startswith(f"usage: python -m examples.translation {name}")
        assert "None" not in text

    def test_help_of_train_names_every_setting_and_its_default(self, capsys):
        with pytest.raises(SystemExit, match="^0$"):
            cli.main(["train", "--help"])
        text = " ".join(capsys.readouterr().out.split())
        for kind in (ModelSettings, TrainingSettings):
            for field in kind.__dataclass_fields__.values():
                option = f"--{field.name.replace('_', '-')}"
                assert option in text
                assert f"(default: {field.default})" in text.split(option, 2)[2]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["train", "d", "r", "--positions", "absolute"], "invalid choice: 'absolute'"),
            (["train", "d", "r", "--steps", "many"], "invalid int value: 'many'"),
            (["train", "d", "r", "--precision", "float16"], "invalid choice: 'float16'"),
            (["train", "d", "r", "--", "--steps", "2"], "only sweep takes options after --, got --steps 2"),
            (["learn", "d"], "invalid choice: 'learn'"),
            ([], "required: COMMAND"),
        ],
    )
    def test_wrong_command_lines(self, arguments, message, capsys):
        with pytest.raises(SystemExit, match="^2$"):
            cli.main(arguments)
        assert message in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"steps": 0}, "steps must be at least 1, got 0"),
            ({"smoothing": 1}, "smoothing must be below 1, got 1.0"),
            ({"clip": -1}, "clip must be at least 0, got -1.0"),
            ({"keep": 0}, "keep must be at least 1, got 0"),
            ({"max_distance": -1}, "max_distance must be at least 0, got -1"),
            ({"heads": 3}, "3"),
            ({"dropout": 1.5}, "dropout"),
            ({"device": "nonsense"}, "device must be one that is here, such as 'cpu', got 'nonsense'"),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_wrong_values_are_one_line(self, data, tmp_path, values, message, capsys):
        assert train(data, tmp_path / "run", **{"steps": 1, **values}) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert message in line
        assert not (tmp_path / "run").exists()

    def test_missing_data_are_named(self, tmp_path, capsys):
        assert train(tmp_path / "nowhere", tmp_path / "run", steps=1) == 2
        assert f"error: [Errno 2] No such file or directory: '{tmp_path / 'nowhere'}" in capsys.readouterr().err
        assert cli.main(["translate", str(tmp_path / "none.pt")]) == 2
        assert f"error: [Errno 2] No such file or directory: '{tmp_path / 'none.pt'}'" in capsys.readouterr().err
        assert cli.main(["translate", str(tmp_path)]) == 2
        assert f"error: {tmp_path} must hold average.pt; write it with the command average" in capsys.readouterr().err

    def test_ctrl_c_while_preparing_leaves_nothing_half_written(self, tmp_path, monkeypatch, capsys):
        corpus = write_corpus(tmp_path / "corpus.txt", 60)
        arguments = ["prepare", str(tmp_path / "data"), "--train", str(corpus), "--held-out", "9"]
        assert cli.main([*arguments, "--vocabulary-size", "280"]) == 0
        before = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}
        calls, save = [], torch.save

        def interrupted(value, path):
            calls.append(path)
            save(value, path)
            raise KeyboardInterrupt

        monkeypatch.setattr(torch, "save", interrupted)
        assert cli.main([*arguments, "--vocabulary-size", "270"]) == 130
        assert len(calls) == 1
        assert capsys.readouterr().err.endswith("interrupted\n")
        assert {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()} == before

    def test_ctrl_c_while_translating_leaves_the_old_translations(self, finished, tmp_path, monkeypatch, capsys):
        def interrupted(*_, **__):
            raise KeyboardInterrupt

        (tmp_path / "in.txt").write_text("ein hund\n")
        (tmp_path / "out.txt").write_text("old\n")
        model = str(finished / "step-00000030.pt")
        arguments = ["translate", model, "--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.txt")]
        monkeypatch.setattr(cli, "translate", interrupted)
        assert cli.main(arguments) == 130
        assert capsys.readouterr().err.endswith("interrupted\n")
        assert (tmp_path / "out.txt").read_text() == "old\n"
        assert {path.name for path in tmp_path.iterdir()} == {"in.txt", "out.txt"}

    def test_a_second_ctrl_c_ends_at_once(self, capsys):
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        with training._asked_to_stop() as asked:
            assert not asked
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            assert asked == [signal.SIGTERM, signal.SIGTERM]
            with pytest.raises(KeyboardInterrupt, match="^$"):
                signal.raise_signal(signal.SIGINT)
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
        assert "stopping after this step; the checkpoint will be saved" in capsys.readouterr().out

    def test_a_preset_gives_way_to_options(self, data, tmp_path):
        assert train(data, tmp_path, "--preset", "base", steps=1) == 0
        model = files.load_json(tmp_path / "config.json")["model"]
        assert (model["width"], model["layers"], model["hidden"]) == (16, 1, 32)
        assert model["per_head"] is True
