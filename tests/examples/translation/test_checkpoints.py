"""What a training writes: its log, its models, and the state that it goes on from."""

import shutil

import pytest
import torch

pytest.importorskip("sacrebleu")
pytest.importorskip("tensorboard")
pytest.importorskip("tokenizers")

from examples.translation import checkpoints, cli, files, log
from examples.translation.settings import ModelSettings, TrainingSettings
from tests.examples.translation.cases import (
    FINISHED,
    TINY,
    build,
    curve,
    latest,
    metrics,
    partial_files,
    same_weights,
    train,
    write_corpus,
)


class TestFiles:
    def test_metrics_have_a_row_where_one_is_due(self, finished):
        text = (finished / "metrics.csv").read_text(encoding="utf-8").splitlines()
        assert text[0] == "step,split,loss,nll,learning_rate,tokens_per_second,seconds"
        rows = [(int(row["step"]), row["split"]) for row in metrics(finished)]
        assert [step for step, split in rows if split == "train"] == [4, 8, 12, 16, 20, 24, 28]
        assert [step for step, split in rows if split == "valid"] == [10, 20, 30]
        assert rows == sorted(rows)
        for row in metrics(finished):
            if row["split"] == "valid":
                assert {row[name] for name in ("loss", "learning_rate", "tokens_per_second", "seconds")} == {""}
            else:
                step = int(row["step"])
                wanted = 16**-0.5 * min(step**-0.5, step * 10**-1.5)
                assert float(row["learning_rate"]) == pytest.approx(wanted, rel=1e-8)
                assert float(row["tokens_per_second"]) > 0
        seconds = [float(row["seconds"]) for row in metrics(finished) if row["seconds"]]
        assert seconds == sorted(seconds)
        assert seconds[0] > 0

    def test_the_last_step_is_validated_and_saved_wherever_it_falls(self, data, tmp_path):
        assert train(data, tmp_path, steps=7, log_every=2, validate_every=5, save_every=5) == 0
        assert [row["step"] for row in metrics(tmp_path) if row["split"] == "valid"] == ["5", "7"]
        assert [path.name for path in checkpoints.saved_models(tmp_path)] == ["step-00000005.pt", "step-00000007.pt"]

    def test_the_last_models_are_kept(self, finished):
        assert [checkpoints.steps_of(path) for path in checkpoints.saved_models(finished)] == [[20], [25], [30]]
        names = {".lock", "config.json", "latest.pt", "metrics.csv", *(f"step-000000{n}.pt" for n in (20, 25, 30))}
        assert {path.name for path in finished.iterdir()} == names

    def test_config_tells_what_the_run_is(self, finished):
        config = files.load_json(finished / "config.json")
        assert ModelSettings.read(config["model"]) == ModelSettings(**TINY)
        assert TrainingSettings.read(config["training"]) == TrainingSettings(batch_tokens=128, **FINISHED)
        model, vocabulary = checkpoints.load_model(finished / "step-00000030.pt")
        assert config["parameters"] == sum(p.numel() for p in model.parameters())
        assert (config["vocabulary"], config["pairs"], config["processes"]) == (len(vocabulary), 320, 1)

    def test_a_line_that_was_cut_short_is_dropped(self, tmp_path):
        whole = ",".join(log.COLUMNS) + "\n5,train,1.5,1.25,0.1,100,1\n5,valid,,1.125,,,\n"
        for rest in ("", "6", "60,tr", "6,train,1.5,1.25,0.1,100", "\0\0\0", "7,train,1,1,1,1,1\n"):
            (tmp_path / "metrics.csv").write_text(whole + rest, encoding="utf-8")
            with log.Log(tmp_path, 6, False) as some:
                some.add(log.Row(6, "train", 2.0, 1.75, 0.5, 10.0, 2.0))
            assert (tmp_path / "metrics.csv").read_text(encoding="utf-8") == whole + "6,train,2,1.75,0.5,10,2\n"

    def test_half_written_files_of_a_killed_process_go(self, data, tmp_path):
        for name in (".latest.pt.123.partial", ".metrics.csv.9.partial", ".step-00000005.pt.9.partial"):
            (tmp_path / name).write_bytes(b"half")
        assert train(data, tmp_path, steps=2) == 0
        assert partial_files(tmp_path) == []

    @pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
    def test_a_block_that_fails_leaves_the_old_file(self, tmp_path, error):
        path = tmp_path / "kept.txt"
        files.save_text(path, "old")

        def write():
            with files.whole(path) as partial:
                partial.write_text("new, and not yet who")
                assert path.read_text() == "old"
                raise error("halfway")

        with pytest.raises(error, match="halfway"):
            write()
        assert path.read_text() == "old"
        assert [entry.name for entry in tmp_path.iterdir()] == ["kept.txt"]

    def test_an_interrupted_save_leaves_the_old_file(self, tmp_path, monkeypatch):
        path = tmp_path / "tensors.pt"
        files.save_tensors(path, [torch.ones(3)])

        def interrupted(value, partial):
            partial.write_bytes(b"PK half")
            raise KeyboardInterrupt

        monkeypatch.setattr(torch, "save", interrupted)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            files.save_tensors(path, [torch.zeros(3)])
        assert torch.equal(files.load_tensors(path)[0], torch.ones(3))
        assert [entry.name for entry in tmp_path.iterdir()] == ["tensors.pt"]

    def test_tensorboard_holds_the_log_also_after_lost_work(self, data, tmp_path):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        values = {"log_every": 2, "validate_every": 4, "save_every": 100, "warm_up": 10}
        train(data, tmp_path, tensorboard=True, steps=8, **values)
        saved = (tmp_path / "latest.pt").read_bytes()
        train(data, tmp_path, tensorboard=True, steps=14, **values)
        (tmp_path / "latest.pt").write_bytes(saved)  # as if killed after step 14, before a checkpoint
        train(data, tmp_path, tensorboard=True, steps=12, **values)
        train(data, tmp_path, tensorboard=True, steps=20, **values)
        board = EventAccumulator(str(tmp_path / "tensorboard"))
        board.Reload()
        assert {"train/loss", "train/nll", "train/learning_rate", "valid/nll"} <= set(board.Tags()["scalars"])
        for split, name in (("train", "loss"), ("train", "nll"), ("train", "learning_rate"), ("valid", "nll")):
            rows = [row for row in metrics(tmp_path) if row["split"] == split]
            events = board.Scalars(f"{split}/{name}")
            assert [event.step for event in events] == [int(row["step"]) for row in rows]
            assert [event.value for event in events] == pytest.approx([float(row[name]) for row in rows], rel=1e-6)
        assert [event.step for event in board.Scalars("train/loss")] == list(range(2, 21, 2))


class TestModels:
    def test_average_is_the_mean(self, finished, tmp_path):
        paths = checkpoints.saved_models(finished)
        assert checkpoints.average(paths, tmp_path / "mean.pt") == [20, 25, 30]
        parts = [torch.load(path, weights_only=True)["model"] for path in paths]
        mean = torch.load(tmp_path / "mean.pt", weights_only=True)
        assert mean["steps"] == [20, 25, 30]
        assert mean["model"].keys() == parts[0].keys()
        for name, value in mean["model"].items():
            if not value.is_floating_point():
                assert all(torch.equal(value, part[name]) for part in parts)
                continue
            wanted = torch.stack([part[name].double() for part in parts]).mean(0).float()
            torch.testing.assert_close(value, wanted, rtol=1e-7, atol=1e-9)
        assert not torch.equal(mean["model"]["embedding.weight"], parts[-1]["embedding.weight"])

    @pytest.mark.parametrize("times", [1, 2, 3, 7])
    def test_average_of_one_model_is_itself(self, finished, tmp_path, times):
        path = checkpoints.saved_models(finished)[-1]
        assert checkpoints.average([path] * times, tmp_path / "mean.pt") == [30] * times
        mean, own = (torch.load(p, weights_only=True) for p in (tmp_path / "mean.pt", path))
        assert all(torch.equal(mean["model"][name], value) for name, value in own["model"].items())
        assert (mean["settings"], mean["vocabulary"]) == (own["settings"], own["vocabulary"])

    def test_average_refuses_nothing_and_strangers(self, data, finished, tmp_path):
        with pytest.raises(ValueError, match="at least one model must be given"):
            checkpoints.average([], tmp_path / "mean.pt")
        assert train(data, tmp_path / "other", steps=1, positions="sinusoidal") == 0
        pair = [*checkpoints.saved_models(finished), tmp_path / "other" / "step-00000001.pt"]
        with pytest.raises(ValueError, match=r"step-00000001\.pt must have the settings and the vocabulary of .*20"):
            checkpoints.average(pair, tmp_path / "mean.pt")
        assert not (tmp_path / "mean.pt").exists()

    def test_average_command_takes_the_last(self, finished, tmp_path, capsys):
        run = tmp_path / "run"
        shutil.copytree(finished, run)
        for last, steps in ((None, [20, 25, 30]), (1, [30]), (2, [25, 30]), (3, [20, 25, 30])):
            assert cli.main(["average", str(run), *(["--last", str(last)] if last else [])]) == 0
            assert checkpoints.steps_of(run / "average.pt") == steps
            assert f"the mean of steps {', '.join(map(str, steps))}" in capsys.readouterr().out
        for last in (0, -1, 4):
            assert cli.main(["average", str(run), "--last", str(last)]) == 2
            assert f"error: --last must lie in [1, 3], the models of {run}, got {last}" in capsys.readouterr().err
        assert cli.main(["average", str(tmp_path)]) == 2
        assert f"error: {tmp_path} must hold the models of a training, found none" in capsys.readouterr().err

    def test_a_saved_model_predicts_as_the_trained_one(self, data, tmp_path):
        some = build(data, tmp_path, warm_up=10)
        for _ in range(20):
            some.update()
        checkpoints.save_model(tmp_path / "model.pt", some.model, some.vocabulary, [20])
        model, vocabulary = checkpoints.load_model(tmp_path / "model.pt")
        assert vocabulary == some.vocabulary
        assert model.settings == some.model.settings
        assert not model.training
        batch = some.valid.batch(torch.arange(5))
        with torch.no_grad():
            assert torch.equal(model(batch.source, batch.target)[1], some.model.eval()(batch.source, batch.target)[1])

    def test_load_model_refuses_another_file(self, finished, tmp_path):
        path, model = tmp_path / "model.pt", (finished / "step-00000030.pt").read_bytes()
        texts = [b"", b"hello\n", b"pt a", b"(((", b"Ein Hund.\n" * 50, bytes(1000)]
        for content in (*texts, model[: len(model) // 2], model[:-1]):
            path.write_bytes(content)
            with pytest.raises(ValueError, match=r"model\.pt must be a file that this program saved, and whole"):
                checkpoints.load_model(path)
        for value in ([1], {"weight": torch.ones(2)}, latest(finished)):
            torch.save(value, path)
            with pytest.raises(ValueError, match=r"model\.pt must be a model written by train or average"):
                checkpoints.load_model(path)
        with pytest.raises(FileNotFoundError, match=r"nothing\.pt"):
            checkpoints.load_model(tmp_path / "nothing.pt")

    def test_load_model_refuses_weights_that_do_not_fit(self, finished, tmp_path):
        saved = torch.load(finished / "step-00000030.pt", weights_only=True)
        torch.save({**saved, "settings": {**saved["settings"], "hidden": 64}}, tmp_path / "model.pt")
        with pytest.raises(ValueError, match=r"(?s)model\.pt must hold the weights of its settings: .*size mismatch"):
            checkpoints.load_model(tmp_path / "model.pt")
        torch.save({**saved, "settings": {"width": 3}}, tmp_path / "model.pt")
        with pytest.raises(ValueError, match="settings must have the names"):
            checkpoints.load_model(tmp_path / "model.pt")


class TestGoingOn:
    def test_more_steps_are_those_of_one_long_run(self, data, finished, tmp_path):
        run = tmp_path / "run"
        for steps in (10, 20, 30):
            assert train(data, run, **{**FINISHED, "steps": steps}) == 0
        assert curve(run) == curve(finished)
        assert same_weights(run, finished)
        assert {path.name for path in run.iterdir()} == {path.name for path in finished.iterdir()}

    def test_lost_work_is_done_again_to_the_last_bit(self, data, finished, tmp_path):
        run = tmp_path / "run"
        train(data, run, **{**FINISHED, "steps": 10})
        saved = (run / "latest.pt").read_bytes()
        train(data, run, **{**FINISHED, "steps": 25})
        (run / "latest.pt").write_bytes(saved)
        train(data, run, **FINISHED)
        assert curve(run) == curve(finished)
        assert same_weights(run, finished)

    def test_a_finished_run_stays_as_it_is(self, data, finished, capsys):
        def contents():
            return {path.name: path.read_bytes() for path in finished.iterdir()}

        before = contents()
        assert train(data, finished, **FINISHED) == 0
        assert contents() == before
        printed = capsys.readouterr().out
        assert "going on after step 30" in printed
        assert f"{finished}: 30 steps are done" in printed
        assert "writes" not in printed

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"width": 32}, "width=16, got 32"),
            ({"positions": "both"}, "positions='relative', got 'both'"),
            ({"seed": 1}, "seed=0, got 1"),
            ({"batch_tokens": 99}, "batch_tokens=128, got 99"),
            ({"accumulate": 2}, "accumulate=1, got 2"),
            ({"learning_rate": 0.5}, "learning_rate=1.0, got 0.5"),
            ({"dropout": 0.2}, "dropout=0.1, got 0.2"),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_other_settings_are_refused(self, data, finished, capsys, changed, message):
        before = {path.name: path.read_bytes() for path in finished.iterdir()}
        assert train(data, finished, **{**FINISHED, "steps": 40, **changed}) == 2
        assert f"error: {finished} was begun with {message}" in capsys.readouterr().err
        assert {path.name: path.read_bytes() for path in finished.iterdir()} == before

    @pytest.mark.parametrize(("pairs", "size", "name"), [(300, "300", "pairs"), (400, "290", "vocabulary")])
    def test_other_data_are_refused(self, finished, tmp_path, capsys, pairs, size, name):
        corpus = write_corpus(tmp_path / "corpus.txt", pairs)
        other = ["--train", str(corpus), "--held-out", "40", "--vocabulary-size", size]
        assert cli.main(["prepare", str(tmp_path / "data"), *other]) == 0
        assert train(tmp_path / "data", finished, **{**FINISHED, "steps": 40}) == 2
        assert f"error: {finished} was begun with {name}=" in capsys.readouterr().err

    def test_more_or_fewer_models_may_be_kept(self, data, finished, tmp_path):
        run = tmp_path / "run"
        shutil.copytree(finished, run)
        assert train(data, run, **{**FINISHED, "steps": 35, "keep": 1}) == 0
        assert [path.name for path in checkpoints.saved_models(run)] == ["step-00000035.pt"]

    def test_how_often_things_are_written_may_change(self, data, finished, tmp_path):
        runs = tmp_path / "often", tmp_path / "plain"
        for run, changed in zip(runs, ({"log_every": 1, "validate_every": 3, "save_every": 2}, {}), strict=True):
            shutil.copytree(finished, run)
            assert train(data, run, **{**FINISHED, "steps": 36, **changed}) == 0
        assert same_weights(*runs)
        assert [row["step"] for row in metrics(runs[0]) if row["split"] == "valid"] == ["10", "20", "30", "33", "36"]

    def test_a_training_that_diverges_ends(self, data, tmp_path, capsys):
        values = {**FINISHED, "learning_rate": 1e30, "clip": 0.0}
        assert train(data, tmp_path / "run", **values) == 2
        assert "error: the loss is nan at step 4: the training diverged" in capsys.readouterr().err
        assert not (tmp_path / "run" / "latest.pt").exists()
