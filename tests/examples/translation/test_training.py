"""Tests the training of the translator: what an update computes, what is written, and how a run continues."""

import io
import shutil

import pytest
import torch

pytest.importorskip("sacrebleu")
pytest.importorskip("tokenizers")

from examples.translation import checkpoints, cli, evaluation, files, training
from examples.translation.search import Search, search, translate
from examples.translation.vocabulary import END
from tests.examples.translation.cases import FINISHED, assert_same_end, build, train, write_corpus


class TestUpdates:
    def test_the_rate_of_a_step_is_the_papers(self, data, tmp_path):
        some = build(data, tmp_path, warm_up=2, learning_rate=0.7)
        for step in range(1, 6):
            some.update()
            wanted = 0.7 * 16**-0.5 * min(step**-0.5, step * 2**-1.5)
            assert [group["lr"] for group in some.optimizer.param_groups] == [pytest.approx(wanted)]

    def test_validation_is_without_dropout_and_smoothing_and_draws_nothing(self, data, tmp_path):
        some = build(data, tmp_path, dropout=0.5, smoothing=0.25)
        before, found = torch.get_rng_state(), some.validate()
        assert torch.equal(torch.get_rng_state(), before)
        assert some.model.training
        singly = some.valid.batches(1, 1000, None)
        some.model.eval()
        total, tokens = evaluation.negative_log_likelihood(some.model, some.valid, singly)
        assert found == pytest.approx(total / tokens, rel=1e-5)

    def test_accumulated_batches_weigh_by_their_tokens(self, data, tmp_path):
        some = build(data, tmp_path, dropout=0.0, accumulate=3, batch_tokens=48)
        batches = some._next_batches()
        some.position = training.Position()
        counts = [batch.tokens for batch in batches]
        assert len(set(counts)) > 1
        losses = [some.model(batch.source, batch.given, batch.wanted, 0.1)[0] for batch in batches]
        loss = sum(losses) / sum(counts)
        wanted = torch.autograd.grad(loss, list(some.model.parameters()))
        found = []
        some.optimizer.step = lambda: found.extend(p.grad.clone() for p in some.model.parameters())
        some.update()
        torch.testing.assert_close(found, list(wanted), rtol=1e-4, atol=1e-6)


class TestLearnedPositions:
    def test_they_bound_training_translations_and_tests(self, data, tmp_path, capsys):
        assert train(data, tmp_path / "run", positions="learned", max_len=30, longest=31) == 2
        assert "error: max_len must be at least longest = 31 for learned positions, got 30" in capsys.readouterr().err
        some = build(data, tmp_path, positions="learned", max_len=34, longest=34)
        how, decode, end = Search(2, 0.6, 50), some.model.decode, torch.tensor([END])
        # no translation ends on its own
        some.model.decode = lambda *given, cache: decode(*given, cache=cache).index_fill(-1, end, -1e9)
        (full,) = some.vocabulary.encode([" ".join(["rot"] * 11)])
        assert len(full) == 33
        found = search(some.model.eval(), torch.tensor([[*full, END]]), how)
        assert len(found[0].ids) == 33
        with pytest.raises(ValueError, match="line 1: must have at most 33 tokens, got 36"):
            translate(some.model, some.vocabulary, ["rot " * 12], how)
        pairs = [("rot", "red"), ("rot", "red " * 40)]
        with pytest.raises(ValueError, match=r"pair 2: must have at most max_len = 34 tokens on each side, got \d+"):
            evaluation.evaluate(some.model, some.vocabulary, pairs, how)


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
        assert f"error: --last must be in [1, 3], the models of {run}, got 4" in capsys.readouterr().err

    def test_translations_and_measures_are_written(self, finished, tmp_path, capsys, monkeypatch):
        model = finished / "step-00000030.pt"
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"ein hund\r\n\nrot\n")))
        assert cli.main(["translate", str(model), "--beam", "2", "--extra", "5"]) == 0
        wanted = translate(*checkpoints.load_model(model), ["ein hund", "", "rot"], Search(2, 0.6, 5))
        assert capsys.readouterr().out.split("\n") == [*wanted, ""]
        (tmp_path / "other.tsv").write_text("ein hund\ta dog\n")
        tests = [str(tmp_path / "other.tsv"), "--output", str(tmp_path / "out"), "--extra", "3"]
        assert cli.main(["evaluate", str(model), *tests]) == 0
        measured = files.load_json(tmp_path / "out" / "results.json")
        assert (measured["averaged_steps"], measured["search"]["beam"]) == ([30], 4)
        assert {name: each["sentences"] for name, each in measured["tests"].items()} == {"other": 1}
        assert len((tmp_path / "out" / "other.translated.txt").read_text().splitlines()) == 1


class TestGoingOn:
    def test_lost_work_is_done_again_to_the_last_bit(self, data, finished, tmp_path):
        run = tmp_path / "run"
        train(data, run, **{**FINISHED, "steps": 10})
        saved = (run / "latest.pt").read_bytes()
        train(data, run, **{**FINISHED, "steps": 25})
        (run / "latest.pt").write_bytes(saved)
        (run / ".latest.pt.123.partial").write_bytes(b"half")
        with (run / "metrics.csv").open("a", encoding="utf-8") as log:
            log.write("6,train,1.5,1.25,0.1,100")
        train(data, run, **FINISHED)
        assert_same_end(run, finished)

    def test_a_finished_run_stays_as_it_is_whatever_is_asked(self, data, finished, tmp_path, capsys):
        def contents():
            return {path.name: path.read_bytes() for path in finished.iterdir()}

        before = contents()
        assert train(data, finished, **FINISHED) == 0
        assert f"{finished}: 30 steps are done" in capsys.readouterr().out
        for changed, message in (({"width": 32}, "width=16, got 32"), ({"seed": 1}, "seed=0, got 1")):
            assert train(data, finished, **{**FINISHED, "steps": 40, **changed}) == 2
            assert f"error: {finished} was started with {message}" in capsys.readouterr().err
        corpus = write_corpus(tmp_path / "corpus.txt", 300)
        other = ["--train", str(corpus), "--held-out", "40", "--vocabulary-size", "300"]
        assert cli.main(["prepare", str(tmp_path / "data"), *other]) == 0
        assert train(tmp_path / "data", finished, **{**FINISHED, "steps": 40}) == 2
        assert f"error: {finished} was started with pairs=" in capsys.readouterr().err
        assert contents() == before
