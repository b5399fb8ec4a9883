"""Training of the translation example: what it computes, what it writes, and what it refuses."""

import math
import shutil
import signal

import pytest
import torch
from torch import nn

pytest.importorskip("sacrebleu")
pytest.importorskip("tensorboard")
pytest.importorskip("tokenizers")

from examples.translation import checkpoints, cli, files, log, processes, training
from examples.translation.settings import ModelSettings, TrainingSettings
from tests.examples.translation_cases import (
    WORDS,
    curve,
    latest,
    losses,
    metrics,
    options,
    partial_files,
    same_weights,
    write_corpus,
)

ALONE = processes.Processes(0, 1, torch.device("cpu"))
TINY = {"width": 16, "heads": 2, "layers": 1, "hidden": 32}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translation")
    corpus = write_corpus(folder / "corpus.txt")
    sizes = ["--held-out", "40", "--vocabulary-size", "300"]
    assert cli.main(["prepare", str(folder / "data"), "--train", str(corpus), *sizes]) == 0
    return folder / "data"


def train(data, run, *flags, tensorboard=False, **values):
    """The exit status of a training."""
    board = [] if tensorboard else ["--no-tensorboard"]
    return cli.main(["train", str(data), str(run), *board, *flags, *options(**values)])


def build(data, run, compiled=False, **values):
    """A tiny training that has not begun; what is no setting of the model is one of the training."""
    model = {name: values.pop(name) for name in list(values) if name in ModelSettings.__dataclass_fields__}
    settings = TrainingSettings(**{"batch_tokens": 128, "precision": "float32", **values})
    return training.Training(data, run, ModelSettings(**{**TINY, **model}), settings, ALONE, compiled=compiled)


def gradients(some, monkeypatch):
    """One update of a training: its gradients as the optimizer saw them."""
    seen = []

    def note():
        seen.extend(p.grad.clone() for p in some.model.parameters())

    monkeypatch.setattr(some.optimizer, "step", note)
    some.update()
    return seen


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """A run of 30 steps with a model saved every 5 and three of them kept."""
    run = tmp_path_factory.mktemp("finished") / "run"
    assert train(data, run, **FINISHED) == 0
    return run


# a log line every 4 steps, so that runs broken off after 10 or 25 are in the midst of one
FINISHED = {"steps": 30, "log_every": 4, "validate_every": 10, "save_every": 5, "keep": 3, "warm_up": 10}


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
        assert plain._take_window() == pytest.approx((float(nll), float(nll)), rel=1e-5)
        assert smooth._take_window() == pytest.approx((float(0.75 * nll + 0.25 * uniform), float(nll)), rel=1e-5)
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
        (loss, nll), (wanted, wanted_nll) = half._take_window(), full._take_window()
        assert loss != wanted
        assert (loss, nll) == pytest.approx((wanted, wanted_nll), rel=5e-3)
        for _ in range(60):
            half.update()
        assert half._take_window()[0] < 0.8 * loss
        assert {p.dtype for p in half.model.parameters()} == {torch.float32}

    def test_compiled_model_learns_the_same(self, data, tmp_path, monkeypatch):
        whole = nn.Module.compile
        # inductor takes minutes on a CPU; what is ours ends where the traced graph begins
        monkeypatch.setattr(nn.Module, "compile", lambda self, **how: whole(self, backend="eager", **how))
        fast, slow = (build(data, tmp_path, dropout=0.0, compiled=on) for on in (True, False))
        for some in (fast, slow):
            for _ in range(2):
                some.update()
        assert fast._take_window() == pytest.approx(slow._take_window(), rel=1e-5)
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
        names = {"config.json", "latest.pt", "metrics.csv", *(f"step-000000{n}.pt" for n in (20, 25, 30))}
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
        with pytest.raises(KeyboardInterrupt):
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
        assert "going on after step 30" in capsys.readouterr().out

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
