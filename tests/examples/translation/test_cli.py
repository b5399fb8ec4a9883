"""The command line of the translation example: what it names, refuses and leaves whole."""

import io
import re
import signal
from dataclasses import asdict

import pytest
import torch

import relgraph as rg

pytest.importorskip("sacrebleu")
pytest.importorskip("tensorboard")
pytest.importorskip("tokenizers")

from examples.translation import checkpoints, cli, files, sweep, training
from examples.translation.batches import Pairs
from examples.translation.model import Translator
from examples.translation.report import results
from examples.translation.search import Search, translate
from examples.translation.settings import PRESETS, ModelSettings, TrainingSettings
from examples.translation.vocabulary import Vocabulary
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
            ({"steps": 0}, "steps must be a number of at least 1, got 0"),
            ({"smoothing": 1}, "smoothing must be below 1, got 1.0"),
            ({"clip": -1}, "clip must be a number of at least 0, got -1.0"),
            ({"keep": 0}, "keep must be a number of at least 1, got 0"),
            ({"max_distance": -1}, "max_distance must be a number of at least 0, got -1"),
            ({"heads": 3}, "nhead"),
            ({"dropout": 1.5}, "dropout must"),
            ({"learning_rate": "nan"}, "learning_rate must be a number of at least 0, got nan"),
            ({"smoothing": "inf"}, "smoothing must be a number of at least 0, got inf"),
            ({"longest": 1}, "longest must leave pairs to validate on, got 1"),
            ({"accumulate": 9999}, "an update takes 9999 batches"),
            ({"device": "meta"}, "device must be a CPU or a GPU of CUDA's, got 'meta'"),
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

    @pytest.mark.parametrize("saves", [1, 2])
    def test_ids_of_two_vocabularies_are_not_trained_on(self, tmp_path, monkeypatch, capsys, saves):
        corpus, calls, save = write_corpus(tmp_path / "corpus.txt", 60), [], torch.save
        arguments = ["prepare", str(tmp_path / "data"), "--train", str(corpus), "--held-out", "9"]
        assert cli.main([*arguments, "--vocabulary-size", "280"]) == 0

        def interrupted(value, path):
            calls.append(path)
            if len(calls) > saves:
                raise KeyboardInterrupt
            save(value, path)

        with monkeypatch.context() as patch:
            patch.setattr(torch, "save", interrupted)
            patch.setattr("examples.translation.preparation.write_pairs", lambda *_: interrupted(None, None))
            assert cli.main([*arguments, "--vocabulary-size", "270"]) == 130
        assert train(tmp_path / "data", tmp_path / "run", steps=1) == 2
        message = r"train\.pt must hold ids of the vocabulary beside it; run prepare again, to its end"
        assert re.search(message, capsys.readouterr().err)
        assert cli.main([*arguments, "--vocabulary-size", "270"]) == 0
        assert train(tmp_path / "data", tmp_path / "run", steps=1) == 0

    def test_one_training_at_a_time_in_a_folder(self, data, tmp_path, capsys):
        with training._alone_in(tmp_path / "run"):
            assert train(data, tmp_path / "run", steps=1) == 2
            assert f"{tmp_path / 'run'} must have no other training at work in it" in capsys.readouterr().err
            assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]
        assert train(data, tmp_path / "run", steps=1) == 0

    def test_pairs_that_are_too_long_are_told(self, data, tmp_path, capsys):
        assert train(data, tmp_path / "run", steps=1, longest=6) == 0
        told = re.search(r": (\d+) pairs of more than --longest tokens are left out", capsys.readouterr().out)
        vocabulary = Vocabulary.load(data / "vocabulary.json")
        pairs = Pairs.load(data / "train.pt", vocabulary)
        assert int(told[1]) == len(pairs) - sum(map(len, pairs.batches(99, 6, None)))
        assert int(told[1]) > 0

    def test_translations_go_from_input_to_output(self, finished, tmp_path, monkeypatch, capsys):
        assert cli.main(["average", str(finished)]) == 0
        (tmp_path / "in.txt").write_bytes(b"ein hund\r\n\nrot\n")
        arguments = ["translate", str(finished), "--beam", "2", "--extra", "5"]
        output = tmp_path / "out.txt"
        assert cli.main([*arguments, "--input", str(tmp_path / "in.txt"), "--output", str(output)]) == 0
        model, vocabulary = checkpoints.load_model(finished / "average.pt")
        wanted = translate(model, vocabulary, ["ein hund", "", "rot"], Search(2, 0.6, 5))
        assert output.read_text().split("\n") == [*wanted, ""]
        capsys.readouterr()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"ein hund\r\n\nrot\n")))
        assert cli.main(arguments) == 0
        assert capsys.readouterr().out == output.read_text()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"ein\n\xff\n")))
        assert cli.main(arguments) == 2
        assert "error: standard input, line 2: must be UTF-8" in capsys.readouterr().err

    def test_measures_of_one_model_are_kept_together(self, data, finished, tmp_path, capsys):
        model, one, other = finished / "step-00000030.pt", data / "test.tsv", tmp_path / "other.tsv"
        other.write_text("ein hund\ta dog\n")
        arguments = ["evaluate", str(model), "--output", str(tmp_path / "out"), "--extra", "3"]
        for test in (one, other):
            assert cli.main([*arguments, str(test)]) == 0
        measured = files.load_json(tmp_path / "out" / "results.json")
        assert list(measured["tests"]) == ["test", "other"]
        assert measured["tests"]["test"]["sentences"] == 40
        assert (tmp_path / "out" / "other.translated.txt").read_text().count("\n") == 1
        assert cli.main([*arguments, str(other), "--beam", "1"]) == 0
        assert list(files.load_json(tmp_path / "out" / "results.json")["tests"]) == ["other"]
        assert "nrefs:1|case:mixed|eff:no|tok:13a" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("text", "message"),
        [("", "must hold at least one pair, found none"), ("a\tb\nc\t\n", "line 2: must have a source and a target")],
    )
    def test_a_test_set_is_measured_whole_or_not_at_all(self, finished, tmp_path, capsys, text, message):
        (tmp_path / "test.tsv").write_text(text)
        assert cli.main(["evaluate", str(finished / "step-00000030.pt"), str(tmp_path / "test.tsv")]) == 2
        assert message in capsys.readouterr().err

    def test_speed_prints_both_and_their_ratio(self, data, capsys):
        assert cli.main(["speed", str(data), "--rounds", "2", "--steps", "1", "--batch-tokens", "64"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split(":")[0] for line in lines[1:3]] == ["sinusoidal", "relative"]
        speeds = [float(re.search(r": ([\d,]+) ", line)[1].replace(",", "")) for line in lines[1:3]]
        ratio = float(re.search(r"time of relative beside sinusoidal: ([\d.]+)", lines[3])[1])
        assert ratio == pytest.approx(speeds[0] / speeds[1], rel=0.5)

    @pytest.mark.parametrize("preset", ["base", "big"])
    def test_presets_are_the_librarys(self, preset):
        with torch.device("meta"):
            ours = Translator(ModelSettings(**PRESETS[preset]), 300).transformer
            theirs = getattr(rg.RelationTransformer, preset)()

        def parts(model):
            shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
            return shapes, {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)}, model.nhead

        assert parts(ours) == parts(theirs)

    def test_the_sweep_trains_every_row_of_the_report(self):
        rows = set()
        for model in sweep.models():
            args = cli._parser().parse_args(["train", "data", "run", *model.options])
            settings = ModelSettings(**cli._given(args, ModelSettings))
            rows.add(results.Variant.of(asdict(settings)))
        distances = {results.relative(distance) for distance in (0, 1, 2, 4, 8, 16, 64)}
        assert rows == {*results.COMPARED, *results.ONE_TABLE, *distances}
        assert len(rows) == len(sweep.models())

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

    def test_a_second_ctrl_c_ends_at_once(self, capfd):
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        with training._asked_to_stop(True) as asked:
            assert not asked
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            assert asked == [signal.SIGTERM, signal.SIGTERM]
            with pytest.raises(KeyboardInterrupt, match="^$"):
                signal.raise_signal(signal.SIGINT)
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
        assert "stopping after this step; the checkpoint will be saved" in capfd.readouterr().err

    def test_a_preset_gives_way_to_options(self, data, tmp_path):
        assert train(data, tmp_path, "--preset", "base", steps=1) == 0
        model = files.load_json(tmp_path / "config.json")["model"]
        assert (model["width"], model["layers"], model["hidden"]) == (16, 1, 32)
        assert model["per_head"] is True
