"""Training of the translation example: what an update computes, what is written, and how a run goes on."""

import math
import re
import shutil

import pytest
import torch
from torch import nn

pytest.importorskip("sacrebleu")
pytest.importorskip("tensorboard")
pytest.importorskip("tokenizers")

from examples.translation import checkpoints, cli, files, log, training
from examples.translation.search import Search, translate
from tests.examples.translation.cases import (
    FINISHED,
    WORDS,
    build,
    curve,
    latest,
    losses,
    metrics,
    partial_files,
    same_weights,
    train,
    write_corpus,
)


class TestUpdates:
    def test_update_is_adams_by_hand_with_the_rate_of_its_step(self, data, tmp_path):
        some = build(data, tmp_path, dropout=0.0, warm_up=2, learning_rate=0.7)
        before = [p.detach().double() for p in some.model.parameters()]
        first, second = [torch.zeros_like(p) for p in before], [torch.zeros_like(p) for p in before]
        wanted, step = list(before), some.optimizer.step
        for number in range(1, 4):

            def note(number=number):
                rate = 0.7 * 16**-0.5 * min(number**-0.5, number * 2**-1.5)
                for i, p in enumerate(some.model.parameters()):
                    g = p.grad.double()
                    first[i] = 0.9 * first[i] + 0.1 * g
                    second[i] = 0.98 * second[i] + 0.02 * g**2
                    mean, square = first[i] / (1 - 0.9**number), second[i] / (1 - 0.98**number)
                    wanted[i] = wanted[i] - rate * mean / (square.sqrt() + 1e-9)
                step()

            some.optimizer.step = note
            some.update()
        for p, value in zip(some.model.parameters(), wanted, strict=True):
            torch.testing.assert_close(p.double(), value, rtol=1e-4, atol=1e-5)

    def test_validation_is_without_dropout_and_smoothing_and_draws_nothing(self, data, tmp_path):
        some = build(data, tmp_path, dropout=0.5, smoothing=0.25)
        some.model.eval()
        total, before = 0.0, torch.get_rng_state()
        for i in range(len(some.valid)):
            batch = some.valid.batch(torch.tensor([i]))
            scores = some.model.decode(batch.target[:, :-1], *some.model.encode(batch.source))[0].double()
            total += nn.functional.cross_entropy(scores, batch.target[0, 1:], reduction="sum").item()
        some.model.train()
        assert some.validate() == pytest.approx(total / int((some.valid.target.lengths - 1).sum()), rel=1e-5)
        assert torch.equal(torch.get_rng_state(), before)
        assert some.model.training

    @pytest.mark.parametrize("clip", [0.0, 0.05])
    def test_accumulated_batches_weigh_by_their_tokens_and_clip_bounds_the_norm(self, data, tmp_path, clip):
        some = build(data, tmp_path, dropout=0.0, accumulate=3, batch_tokens=48, clip=clip)
        batches = some._next_batches()
        some.position = training.Position()
        counts = [batch.tokens for batch in batches]
        assert len(set(counts)) > 1
        loss = sum(some.model(batch.source, batch.target, 0.1)[0] for batch in batches) / sum(counts)
        wanted = torch.autograd.grad(loss, list(some.model.parameters()))
        found, norm = [], float(nn.utils.get_total_norm(wanted))
        some.optimizer.step = lambda: found.extend(p.grad.clone() for p in some.model.parameters())
        some.update()
        assert norm > 0.1
        torch.testing.assert_close(found, [g * (clip / norm if clip else 1) for g in wanted], rtol=1e-4, atol=1e-6)

    def test_compiled_or_in_bfloat16_a_model_learns_nearly_the_same(self, data, tmp_path, monkeypatch):
        whole = nn.Module.compile
        # inductor takes minutes on a CPU; what is ours ends where the traced graph begins
        monkeypatch.setattr(nn.Module, "compile", lambda self, **how: whole(self, backend="eager", **how))
        kinds = {"compiled": True}, {"precision": "bfloat16"}, {}
        fast, half, plain = (build(data, tmp_path, dropout=0.0, **kind) for kind in kinds)
        for some in (fast, half, plain):
            some.update()
        wanted = plain.take_window()
        assert fast.take_window() == pytest.approx(wanted, rel=1e-5)
        assert half.take_window() == pytest.approx(wanted, rel=5e-3)
        assert {p.dtype for p in half.model.parameters()} == {torch.float32}

    @pytest.mark.slow
    def test_loss_falls_below_what_a_model_that_ignores_its_source_can_reach(self, data, tmp_path):
        values = {"steps": 500, "warm_up": 100, "learning_rate": 0.5, "dropout": 0, "batch_tokens": 256}
        assert train(data, tmp_path / "run", width=32, validate_every=100, save_every=500, **values) == 0
        found = losses(tmp_path / "run", "valid")
        lines = (data / "valid.tsv").read_text(encoding="utf-8").splitlines()
        words = sum(len(line.split("\t")[1].split()) for line in lines)
        some = build(data, tmp_path / "none")
        floor = words * math.log(len(WORDS)) / int((some.valid.target.lengths - 1).sum())
        assert found[0] > floor > 1
        assert found[-1] < 0.6 * floor

    def test_every_epoch_takes_every_pair_in_another_order(self, data, tmp_path):
        some = build(data, tmp_path)
        epochs = [[], []]
        while some.position.epoch < 2:
            epochs[some.position.epoch] += some._next_batches()
        texts = [[tuple(i for i in row if i) for batch in epoch for row in batch.target.tolist()] for epoch in epochs]
        assert len(texts[0]) == len(some.pairs)
        assert sorted(texts[0]) == sorted(texts[1])
        assert texts[0] != texts[1]


class TestFiles:
    def test_metrics_have_a_row_where_one_is_due_and_the_last_models_are_kept(self, finished):
        text = (finished / "metrics.csv").read_text(encoding="utf-8").splitlines()
        assert text[0] == "step,split,loss,nll,learning_rate,tokens_per_second,seconds"
        rows = [(int(row["step"]), row["split"]) for row in metrics(finished)]
        assert [step for step, split in rows if split == "train"] == [4, 8, 12, 16, 20, 24, 28]
        assert [step for step, split in rows if split == "valid"] == [10, 20, 30]
        for row in metrics(finished):
            if row["split"] == "valid":
                assert {row[name] for name in ("loss", "learning_rate", "tokens_per_second", "seconds")} == {""}
            else:
                wanted = 16**-0.5 * min(int(row["step"]) ** -0.5, int(row["step"]) * 10**-1.5)
                assert float(row["learning_rate"]) == pytest.approx(wanted, rel=1e-8)
        names = {".lock", "config.json", "latest.pt", "metrics.csv", *(f"step-000000{n}.pt" for n in (20, 25, 30))}
        assert {path.name for path in finished.iterdir()} == names

    def test_a_line_that_was_cut_short_is_dropped(self, tmp_path):
        whole = ",".join(log.COLUMNS) + "\n5,train,1.5,1.25,0.1,100,1\n5,valid,,1.125,,,\n"
        for rest in ("", "60,tr", "6,train,1.5,1.25,0.1,100", "\0\0\0", "7,train,1,1,1,1,1\n"):
            (tmp_path / "metrics.csv").write_text(whole + rest, encoding="utf-8")
            with log.Log(tmp_path, 6, False) as some:
                some.add(log.Row(6, "train", 2.0, 1.75, 0.5, 10.0, 2.0))
            assert (tmp_path / "metrics.csv").read_text(encoding="utf-8") == whole + "6,train,2,1.75,0.5,10,2\n"

    def test_a_block_that_fails_leaves_the_old_file(self, tmp_path):
        path = tmp_path / "kept.txt"
        files.save_text(path, "old")
        for error in (KeyboardInterrupt, ValueError):

            def write(error=error):
                with files.whole(path) as partial:
                    partial.write_text("new, and not yet who")
                    raise error("halfway")

            with pytest.raises(error, match="halfway"):
                write()
            assert path.read_text() == "old"
            assert [entry.name for entry in tmp_path.iterdir()] == ["kept.txt"]

    def test_tensorboard_holds_the_log_also_after_lost_work(self, data, tmp_path):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        values = {"log_every": 2, "validate_every": 4, "save_every": 100, "warm_up": 10}
        train(data, tmp_path, tensorboard=True, steps=8, **values)
        saved = (tmp_path / "latest.pt").read_bytes()
        train(data, tmp_path, tensorboard=True, steps=14, **values)
        (tmp_path / "latest.pt").write_bytes(saved)  # as if killed after step 14, before a checkpoint
        train(data, tmp_path, tensorboard=True, steps=12, **values)
        board = EventAccumulator(str(tmp_path / "tensorboard"))
        board.Reload()
        for split, name in (("train", "loss"), ("train", "learning_rate"), ("valid", "nll")):
            rows = [row for row in metrics(tmp_path) if row["split"] == split]
            events = board.Scalars(f"{split}/{name}")
            assert [event.step for event in events] == [int(row["step"]) for row in rows]
            assert [event.value for event in events] == pytest.approx([float(row[name]) for row in rows], rel=1e-6)


class TestModels:
    def test_average_is_the_mean_and_the_command_takes_the_last(self, finished, tmp_path, capsys):
        run = tmp_path / "run"
        shutil.copytree(finished, run)
        assert cli.main(["average", str(run), "--last", "2"]) == 0
        assert "the mean of steps 25, 30" in capsys.readouterr().out
        parts = [torch.load(path, weights_only=True)["model"] for path in checkpoints.saved_models(run)[1:]]
        mean = torch.load(run / "average.pt", weights_only=True)
        assert mean["steps"] == [25, 30]
        for name, value in mean["model"].items():
            wanted = torch.stack([part[name].double() for part in parts]).mean(0).to(value.dtype)
            torch.testing.assert_close(value, wanted, rtol=1e-7, atol=1e-9)
        assert cli.main(["average", str(run), "--last", "4"]) == 2
        assert f"error: --last must lie in [1, 3], the models of {run}, got 4" in capsys.readouterr().err

    def test_average_refuses_models_of_other_settings(self, data, finished, tmp_path):
        assert train(data, tmp_path / "other", steps=1, positions="sinusoidal") == 0
        pair = [*checkpoints.saved_models(finished), tmp_path / "other" / "step-00000001.pt"]
        with pytest.raises(ValueError, match=r"step-00000001\.pt must have the settings and the vocabulary of .*20"):
            checkpoints.average(pair, tmp_path / "mean.pt")

    def test_a_saved_model_predicts_as_the_trained_one(self, data, tmp_path):
        some = build(data, tmp_path, warm_up=10)
        some.update()
        checkpoints.save_model(tmp_path / "model.pt", some.model, some.vocabulary, [1])
        model, vocabulary = checkpoints.load_model(tmp_path / "model.pt")
        assert vocabulary == some.vocabulary
        assert not model.training
        batch = some.valid.batch(torch.arange(5))
        with torch.no_grad():
            assert torch.equal(model(batch.source, batch.target)[1], some.model.eval()(batch.source, batch.target)[1])

    def test_load_model_refuses_another_file(self, finished, tmp_path):
        path, model = tmp_path / "model.pt", (finished / "step-00000030.pt").read_bytes()
        for content in (b"", b"hello\n", model[: len(model) // 2]):
            path.write_bytes(content)
            with pytest.raises(ValueError, match=r"model\.pt must be a file that this program saved, and whole"):
                checkpoints.load_model(path)
        torch.save(latest(finished), path)
        with pytest.raises(ValueError, match=r"model\.pt must be a model written by train or average"):
            checkpoints.load_model(path)
        saved = torch.load(finished / "step-00000030.pt", weights_only=True)
        torch.save({**saved, "settings": {**saved["settings"], "hidden": 64}}, path)
        with pytest.raises(ValueError, match=r"(?s)model\.pt must hold the weights of its settings: .*size mismatch"):
            checkpoints.load_model(path)

    def test_translations_and_measures_are_written(self, data, finished, tmp_path):
        model, output = finished / "step-00000030.pt", tmp_path / "out.txt"
        (tmp_path / "in.txt").write_bytes(b"ein hund\r\n\nrot\n")
        arguments = ["translate", str(model), "--beam", "2", "--extra", "5", "--input", str(tmp_path / "in.txt")]
        assert cli.main([*arguments, "--output", str(output)]) == 0
        wanted = translate(*checkpoints.load_model(model), ["ein hund", "", "rot"], Search(2, 0.6, 5))
        assert output.read_text().split("\n") == [*wanted, ""]
        (tmp_path / "other.tsv").write_text("ein hund\ta dog\n")
        for test in (data / "test.tsv", tmp_path / "other.tsv"):
            assert cli.main(["evaluate", str(model), str(test), "--output", str(tmp_path / "out"), "--extra", "3"]) == 0
        measured = files.load_json(tmp_path / "out" / "results.json")["tests"]
        assert {name: each["sentences"] for name, each in measured.items()} == {"test": 40, "other": 1}


class TestGoingOn:
    def test_lost_work_is_done_again_to_the_last_bit(self, data, finished, tmp_path):
        run = tmp_path / "run"
        train(data, run, **{**FINISHED, "steps": 10})
        saved = (run / "latest.pt").read_bytes()
        train(data, run, **{**FINISHED, "steps": 25})
        (run / "latest.pt").write_bytes(saved)
        (run / ".latest.pt.123.partial").write_bytes(b"half")
        train(data, run, **FINISHED)
        assert curve(run) == curve(finished)
        assert same_weights(run, finished)
        assert partial_files(run) == []

    def test_a_finished_run_stays_as_it_is_whatever_is_asked(self, data, finished, tmp_path, capsys):
        def contents():
            return {path.name: path.read_bytes() for path in finished.iterdir()}

        before = contents()
        assert train(data, finished, **FINISHED) == 0
        assert f"{finished}: 30 steps are done" in capsys.readouterr().out
        for changed, message in (({"width": 32}, "width=16, got 32"), ({"seed": 1}, "seed=0, got 1")):
            assert train(data, finished, **{**FINISHED, "steps": 40, **changed}) == 2
            assert f"error: {finished} was begun with {message}" in capsys.readouterr().err
        corpus = write_corpus(tmp_path / "corpus.txt", 300)
        other = ["--train", str(corpus), "--held-out", "40", "--vocabulary-size", "300"]
        assert cli.main(["prepare", str(tmp_path / "data"), *other]) == 0
        assert train(tmp_path / "data", finished, **{**FINISHED, "steps": 40}) == 2
        assert f"error: {finished} was begun with pairs=" in capsys.readouterr().err
        assert contents() == before

    def test_how_often_things_are_written_may_change(self, data, finished, tmp_path):
        runs = tmp_path / "often", tmp_path / "plain"
        for run, changed in zip(runs, ({"log_every": 1, "validate_every": 3, "save_every": 2}, {}), strict=True):
            shutil.copytree(finished, run)
            assert train(data, run, **{**FINISHED, "steps": 36, **changed}) == 0
        assert same_weights(*runs)

    def test_a_training_that_diverges_ends(self, data, tmp_path, capsys):
        assert train(data, tmp_path / "run", **{**FINISHED, "learning_rate": 1e30, "clip": 0.0}) == 2
        assert "error: the loss is nan at step 4: the training diverged" in capsys.readouterr().err
        assert not (tmp_path / "run" / "latest.pt").exists()

    def test_one_training_at_a_time_in_a_folder(self, data, tmp_path, capsys):
        with training._alone_in(tmp_path / "run"):
            assert train(data, tmp_path / "run", steps=1) == 2
            assert f"{tmp_path / 'run'} must have no other training at work in it" in capsys.readouterr().err

    @pytest.mark.parametrize("saves", [0, 1, 2])
    def test_a_preparation_that_was_stopped_is_not_trained_on(self, tmp_path, monkeypatch, capsys, saves):
        corpus, calls, save = write_corpus(tmp_path / "corpus.txt", 60), [], torch.save
        arguments = ["prepare", str(tmp_path / "data"), "--train", str(corpus), "--held-out", "9"]
        assert cli.main([*arguments, "--vocabulary-size", "280"]) == 0
        before = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}

        def interrupted(value, path):
            calls.append(path)
            if len(calls) > saves:
                raise KeyboardInterrupt
            save(value, path)

        with monkeypatch.context() as patch:
            patch.setattr(torch, "save", interrupted)
            patch.setattr("examples.translation.preparation.write_pairs", lambda *_: interrupted(None, None))
            assert cli.main([*arguments, "--vocabulary-size", "270"]) == 130
        if not saves:
            assert {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()} == before
            return
        assert train(tmp_path / "data", tmp_path / "run", steps=1) == 2
        message = r"train\.pt must hold ids of the vocabulary beside it; run prepare again, to its end"
        assert re.search(message, capsys.readouterr().err)
