"""Tests the training of the translator: what an update computes, what is written, and how a run continues."""

import io
import json
import shutil

import pytest
import torch

pytest.importorskip("sacrebleu")
pytest.importorskip("tokenizers")

from examples.translation import cli, evaluation, training
from examples.translation.search import Search, search, translate
from examples.translation.vocabulary import END
from tests.examples.translation.cases import FINISHED, assert_same_end, build, train


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
        singly = some.valid.batches(1)
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


def test_learned_positions_bound_translations(data, tmp_path):
    some = build(data, tmp_path, positions="learned", max_len=34, longest=34)
    how, decode, end = Search(2, 0.6, 50), some.model.decode, torch.tensor([END])
    # no translation ends on its own
    some.model.decode = lambda *given, cache: decode(*given, cache=cache).index_fill(-1, end, -1e9)
    (full,) = some.vocabulary.encode([" ".join(["rot"] * 11)])
    assert len(full) == 33
    found = search(some.model.eval(), torch.tensor([[*full, END]]), how)
    assert len(found[0].ids) == 33
    with pytest.raises(ValueError, match="must lie within the max_len = 34 learned positions"):
        translate(some.model, some.vocabulary, ["rot " * 12], how)


def test_the_result_is_the_mean_of_the_kept_models_with_its_measures(data, finished, capsys, monkeypatch):
    parts = [torch.load(path, weights_only=True) for path in training.saved_models(finished)]
    saved = torch.load(finished / "model.pt", weights_only=True)["model"]
    for name, value in saved.items():
        wanted = torch.stack([part[name].double() for part in parts]).mean(0).to(value.dtype)
        torch.testing.assert_close(value, wanted, rtol=1e-7, atol=1e-9)
    results = json.loads((finished / "results.json").read_text())
    assert (results["averaged_steps"], results["search"]["beam"]) == ([20, 25, 30], 4)
    assert {name: each["sentences"] for name, each in results["tests"].items()} == {"test": 40}
    translated = (finished / "test.translated.txt").read_text().splitlines()
    assert len(translated) == len(torch.load(finished / "statistics.pt")["test"]) == 40
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"ein hund\r\n\nrot\n")))
    assert cli.main(["translate", str(finished), "--beam", "2", "--extra", "5"]) == 0
    wanted = translate(*training.load_model(finished), ["ein hund", "", "rot"], Search(2, 0.6, 5))
    assert capsys.readouterr().out.split("\n") == [*wanted, ""]


class TestGoingOn:
    def test_lost_work_is_done_again_to_the_last_bit(self, data, finished, tmp_path):
        run = tmp_path / "run"
        train(data, run, **{**FINISHED, "steps": 10})
        saved = (run / "latest.pt").read_bytes()
        train(data, run, **{**FINISHED, "steps": 25})
        (run / "latest.pt").write_bytes(saved)
        (run / ".latest.pt.partial").write_bytes(b"half")
        with (run / "metrics.csv").open("a", encoding="utf-8") as log:
            log.write("6,train,1.5,1.25,0.1")
        train(data, run, **FINISHED)
        assert_same_end(run, finished)

    def test_a_finished_run_stays_as_it_is_whatever_is_asked(self, data, finished, tmp_path, capsys):
        def contents():
            return {path.name: path.read_bytes() for path in finished.iterdir()}

        before = contents()
        assert train(data, finished, **FINISHED) == 0
        assert f"{finished}: 30 steps are done and measured in" in capsys.readouterr().out
        for changed, message in (({"width": 32}, "width=16, got 32"), ({"seed": 1}, "seed=0, got 1")):
            assert train(data, finished, **{**FINISHED, "steps": 40, **changed}) == 2
            assert f"error: {finished} was started with {message}" in capsys.readouterr().err
        other = shutil.copytree(data, tmp_path / "data")
        shutil.copy(other / "valid.pt", other / "train.pt")
        assert train(other, finished, **{**FINISHED, "steps": 40}) == 2
        assert f"error: {finished} was started with pairs=" in capsys.readouterr().err
        assert contents() == before

    def test_another_search_or_mean_measures_a_finished_run_again(self, data, finished, tmp_path):
        run = shutil.copytree(finished, tmp_path / "run")
        for changed, beam, averaged in (({"beam": 1}, 1, [20, 25, 30]), ({"keep": 2}, 4, [25, 30])):
            (run / "test.translated.txt").unlink()
            assert train(data, run, **{**FINISHED, **changed}) == 0
            results = json.loads((run / "results.json").read_text())
            assert (results["search"]["beam"], results["averaged_steps"]) == (beam, averaged)
            assert (run / "test.translated.txt").exists()
