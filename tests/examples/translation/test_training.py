"""Training of the translation example: what an update computes."""

import math

import pytest
import torch
from torch import nn

pytest.importorskip("sacrebleu")
pytest.importorskip("tensorboard")
pytest.importorskip("tokenizers")

from examples.translation import training
from tests.examples.translation.cases import WORDS, build, losses, train


def gradients(some, monkeypatch):
    """One update of a training: its gradients as the optimizer saw them."""
    seen = []

    def note():
        seen.extend(p.grad.clone() for p in some.model.parameters())

    monkeypatch.setattr(some.optimizer, "step", note)
    some.update()
    return seen


class TestUpdates:
    def test_learning_rate_rises_and_falls_as_the_formula(self, data, tmp_path):
        some = build(data, tmp_path, warm_up=40, learning_rate=0.7)
        for step in (1, 2, 39, 40, 41, 400, 100_000):
            wanted = 0.7 * 16**-0.5 * min(step**-0.5, step * 40**-1.5)
            assert some.learning_rate(step) == pytest.approx(wanted, rel=1e-12)
        rates = [some.learning_rate(step) for step in range(1, 200)]
        assert rates.index(max(rates)) + 1 == 40
        assert some.learning_rate(20) == pytest.approx(some.learning_rate(40) / 2)
        assert some.learning_rate(160) == pytest.approx(some.learning_rate(40) / 2)

    def test_update_takes_the_rate_of_its_step(self, data, tmp_path):
        some = build(data, tmp_path, warm_up=5)
        for step in range(1, 9):
            some.update()
            assert {group["lr"] for group in some.optimizer.param_groups} == {some.learning_rate(step)}

    def test_optimizer_is_the_papers(self, data, tmp_path):
        optimizer = build(data, tmp_path).optimizer
        assert type(optimizer) is torch.optim.Adam
        (group,) = optimizer.param_groups
        assert group["betas"] == (0.9, 0.98)
        assert (group["eps"], group["weight_decay"], group["amsgrad"]) == (1e-9, 0, False)

    def test_update_is_adams_by_hand(self, data, tmp_path):
        some = build(data, tmp_path, dropout=0.0, warm_up=5)
        before = [p.detach().double() for p in some.model.parameters()]
        first, second = [torch.zeros_like(p) for p in before], [torch.zeros_like(p) for p in before]
        wanted, step = list(before), some.optimizer.step
        for number in range(1, 4):

            def note(number=number):
                for i, p in enumerate(some.model.parameters()):
                    g = p.grad.double()
                    first[i] = 0.9 * first[i] + 0.1 * g
                    second[i] = 0.98 * second[i] + 0.02 * g**2
                    mean, square = first[i] / (1 - 0.9**number), second[i] / (1 - 0.98**number)
                    wanted[i] = wanted[i] - some.learning_rate(number) * mean / (square.sqrt() + 1e-9)
                step()

            some.optimizer.step = note
            some.update()
        for p, value in zip(some.model.parameters(), wanted, strict=True):
            torch.testing.assert_close(p.double(), value, rtol=1e-4, atol=1e-5)

    def test_smoothing_enters_the_loss_alone(self, data, tmp_path):
        plain = build(data, tmp_path, dropout=0.0, smoothing=0.0)
        smooth = build(data, tmp_path, dropout=0.0, smoothing=0.25)
        batch = smooth._next_batches()[0]
        smooth.position = training.Position()
        with torch.no_grad():
            memory, padding = smooth.model.encode(batch.source)
            log_probs = smooth.model.decode(batch.target[:, :-1], memory, padding).double().log_softmax(-1)
        wanted, real = batch.target[:, 1:], batch.target[:, 1:] != 0
        nll = -log_probs.gather(-1, wanted[..., None])[..., 0][real].mean()
        uniform = -log_probs.mean(-1)[real].mean()
        for some in (plain, smooth):
            some.update()
        assert plain.take_window() == pytest.approx((float(nll), float(nll)), rel=1e-5)
        assert smooth.take_window() == pytest.approx((float(0.75 * nll + 0.25 * uniform), float(nll)), rel=1e-5)
        assert smooth.validate() == pytest.approx(_mean_nll(smooth.model, smooth.valid), rel=1e-5)

    def test_validation_is_without_dropout_and_draws_nothing(self, data, tmp_path):
        some = build(data, tmp_path, dropout=0.5)
        wanted, before = _mean_nll(some.model, some.valid), torch.get_rng_state()
        assert some.validate() == pytest.approx(wanted, rel=1e-5)
        assert torch.equal(torch.get_rng_state(), before)
        assert some.model.training

    def test_accumulated_batches_weigh_by_their_tokens(self, data, tmp_path, monkeypatch):
        some = build(data, tmp_path, dropout=0.0, accumulate=3, batch_tokens=48)
        batches = some._next_batches()
        some.position = training.Position()
        counts = [batch.tokens for batch in batches]
        assert len(batches) == 3
        assert len(set(counts)) > 1
        parameters = list(some.model.parameters())
        sums = [some.model(batch.source, batch.target, 0.1)[0] for batch in batches]
        by_tokens = torch.autograd.grad(sum(sums) / sum(counts), parameters, retain_graph=True)
        by_batches = torch.autograd.grad(sum(s / n for s, n in zip(sums, counts, strict=True)) / 3, parameters)
        found = gradients(some, monkeypatch)
        torch.testing.assert_close(found, list(by_tokens), rtol=1e-4, atol=1e-6)
        assert max(float((a - b).abs().max()) for a, b in zip(found, by_batches, strict=True)) > 1e-4

    @pytest.mark.parametrize(("clip", "factor"), [(0.0, 1.0), (1e9, 1.0), (0.05, None)])
    def test_clip_bounds_the_norm(self, data, tmp_path, monkeypatch, clip, factor):
        free = gradients(build(data, tmp_path, dropout=0.0), monkeypatch)
        norm = float(nn.utils.get_total_norm(free))
        assert norm > 0.1
        found = gradients(build(data, tmp_path, dropout=0.0, clip=clip), monkeypatch)
        factor = clip / norm if factor is None else factor
        torch.testing.assert_close(found, [g * factor for g in free], rtol=1e-4, atol=1e-8)

    def test_bfloat16_begins_near_float32(self, data, tmp_path):
        values = {"dropout": 0.0, "warm_up": 20}
        half, full = (build(data, tmp_path, precision=name, **values) for name in ("bfloat16", "float32"))
        for some in (half, full):
            some.update()
        (loss, nll), (wanted, wanted_nll) = half.take_window(), full.take_window()
        assert loss != wanted
        assert (loss, nll) == pytest.approx((wanted, wanted_nll), rel=5e-3)
        for _ in range(60):
            half.update()
        assert half.take_window()[0] < 0.8 * loss
        assert {p.dtype for p in half.model.parameters()} == {torch.float32}

    def test_compiled_model_learns_the_same(self, data, tmp_path, monkeypatch):
        whole = nn.Module.compile
        # inductor takes minutes on a CPU; what is ours ends where the traced graph begins
        monkeypatch.setattr(nn.Module, "compile", lambda self, **how: whole(self, backend="eager", **how))
        fast, slow = (build(data, tmp_path, dropout=0.0, compiled=on) for on in (True, False))
        for some in (fast, slow):
            for _ in range(2):
                some.update()
        assert fast.take_window() == pytest.approx(slow.take_window(), rel=1e-5)
        assert fast.model.state_dict().keys() == slow.model.state_dict().keys()
        torch.testing.assert_close(list(fast.model.parameters()), list(slow.model.parameters()), rtol=1e-3, atol=1e-4)

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
        assert (found.diff() < 0).all()

    def test_an_update_needs_enough_pairs(self, data, tmp_path, capsys):
        assert train(data, tmp_path / "run", steps=2, accumulate=1000) == 2
        assert "error: an update takes 1000 batches, but the training pairs fill" in capsys.readouterr().err

    def test_every_epoch_takes_every_pair_in_another_order(self, data, tmp_path):
        some = build(data, tmp_path, accumulate=1)
        epochs = [[], []]
        while some.position.epoch < 2:
            epochs[some.position.epoch] += some._next_batches()
        texts = [[tuple(row) for batch in epoch for row in batch.target.tolist()] for epoch in epochs]
        strip = [sorted(tuple(i for i in row if i) for row in epoch) for epoch in texts]
        assert len(texts[0]) == len(some.pairs)
        assert strip[0] == strip[1]
        assert texts[0] != texts[1]


def _mean_nll(model, pairs):
    """One pair at a time, without padding, in double precision at the end."""
    model.eval()
    total = 0.0
    with torch.no_grad():
        for i in range(len(pairs)):
            batch = pairs.batch(torch.tensor([i]))
            memory, padding = model.encode(batch.source)
            scores = model.decode(batch.target[:, :-1], memory, padding)[0].double()
            total += float(nn.functional.cross_entropy(scores, batch.target[0, 1:], reduction="sum"))
    model.train()
    return total / int((pairs.target.lengths - 1).sum())
