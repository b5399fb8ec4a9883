"""Training of the translation example: what an update computes, what is written, and how a run goes on."""

import math
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
    losses,
    metrics,
    partial_files,
    same_weights,
    train,
    write_corpus,
)


class TestUpdates:
    def test_the_rate_of_a_step_is_the_papers(self, data, tmp_path):
        some = build(data, tmp_path, warm_up=2, learning_rate=0.7)
        for step in range(1, 6):
            some.update()
            wanted = 0.7 * 16**-0.5 * min(step**-0.5, step * 2**-1.5)
            assert [group["lr"] for group in some.optimizer.param_groups] == [pytest.approx(wanted)]

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


class TestFiles:
    def test_metrics_have_a_row_where_one_is_due_and_the_last_models_are_kept(self, finished):
        text = (finished / "metrics.csv").read_text(encoding="utf-8").splitlines()
        assert text[0] == "step,split,loss,nll,learning_rate,tokens_per_second,seconds"
        steps = {
            split: [row["step"] for row in metrics(finished) if row["split"] == split] for split in ("train", "valid")
        }
        assert steps == {"train": ["4", "8", "12", "16", "20", "24", "28"], "valid": ["10", "20", "30"]}
        names = {".lock", "config.json", "latest.pt", "metrics.csv", *(f"step-000000{n}.pt" for n in (20, 25, 30))}
        assert {path.name for path in finished.iterdir()} == names

    def test_a_line_that_was_cut_short_is_dropped(self, tmp_path):
        whole = ",".join(log.COLUMNS) + "\n5,train,1.5,1.25,0.1,100,1\n5,valid,,1.125,,,\n"
        for rest in ("", "60,tr", "6,train,1.5,1.25,0.1,100", "\0\0\0", "7,train,1,1,1,1,1\n"):
            (tmp_path / "metrics.csv").write_text(whole + rest, encoding="utf-8")
            with log.Log(tmp_path, 6, False) as some:
                some.add(log.Row(6, "train", 2.0, 1.75, 0.5, 10.0, 2.0))
            assert (tmp_path / "metrics.csv").read_text(encoding="utf-8") == whole + "6,train,2,1.75,0.5,10,2\n"


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

    def test_a_training_that_diverges_ends(self, data, tmp_path, capsys):
        assert train(data, tmp_path / "run", **{**FINISHED, "learning_rate": 1e30, "clip": 0.0}) == 2
        assert "error: the loss is nan at step 4: the training diverged" in capsys.readouterr().err
        assert not (tmp_path / "run" / "latest.pt").exists()

    def test_a_preparation_that_was_stopped_is_not_trained_on(self, tmp_path, monkeypatch, capsys):
        corpus, save = write_corpus(tmp_path / "corpus.txt", 60), torch.save
        arguments = ["prepare", str(tmp_path / "data"), "--train", str(corpus), "--held-out", "9"]
        assert cli.main([*arguments, "--vocabulary-size", "280"]) == 0

        def interrupted(value, path):
            save(value, path)
            if "valid" in path.name:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(torch, "save", interrupted)
            assert cli.main([*arguments, "--vocabulary-size", "270"]) == 130
        assert train(tmp_path / "data", tmp_path / "run", steps=1) == 2
        message = "train.pt must hold ids of the vocabulary beside it; run prepare again, to its end"
        assert message in capsys.readouterr().err
