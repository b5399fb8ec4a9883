"""Training: Adam, a learning rate that rises and falls, label smoothing, checkpoints that training can go on from."""

from __future__ import annotations

import fcntl
import math
import os
import platform
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

import relgraph as rg
from examples.translation import checkpoints
from examples.translation.batches import Batch, Pairs
from examples.translation.evaluation import negative_log_likelihood
from examples.translation.files import load_tensors, remove_partial, save_json, save_tensors
from examples.translation.log import Log, Row
from examples.translation.model import Translator
from examples.translation.processes import Processes
from examples.translation.settings import ModelSettings, TrainingSettings
from examples.translation.vocabulary import Vocabulary

LATEST = "latest.pt"
# settings that may change when a training goes on: they decide what is written and when it ends, not what is learned
FREE_TO_CHANGE = ("steps", "keep", "save_every", "save_minutes", "log_every", "validate_every")


@dataclass
class Position:
    """Where in the training: updates done, and the next group of batches of which pass over the pairs."""

    step: int = 0
    epoch: int = 0
    group: int = 0


class Training:
    """One training from its start, or from its latest checkpoint, to its last step.

    The same settings, data and number of processes give the same losses, whether or not training was broken off in
    between: order, dropout and the sums of the log are part of a checkpoint.

    Args:
        data: the folder that ``prepare`` wrote.
        run: the folder to write to.
        model: settings of the model.
        settings: settings of the training.
        processes: this process among those that train together.
        compiled: whether to compile the model.

    Raises:
        ValueError: the run was begun with other settings, too few pairs have at most ``longest`` tokens, or learned
            positions are fewer than that.
    """

    def __init__(
        self,
        data: Path,
        run: Path,
        model: ModelSettings,
        settings: TrainingSettings,
        processes: Processes,
        *,
        compiled: bool = False,
    ) -> None:
        self.run, self.settings, self.processes = run, settings, processes
        self.vocabulary = Vocabulary.load(data / "vocabulary.json")
        self.pairs, self.valid = (Pairs.load(data / name, self.vocabulary) for name in ("train.pt", "valid.pt"))
        if not self.valid.batches(settings.batch_tokens, settings.longest, None):
            raise ValueError(f"longest must leave pairs to validate on, got {settings.longest}")
        self.position = Position()
        torch.manual_seed(settings.seed)
        self.model = Translator(model, len(self.vocabulary)).to(processes.device)
        if self.model.longest is not None and self.model.longest < settings.longest:
            raise ValueError(
                f"max_len must be at least longest = {settings.longest} for learned positions, got {self.model.longest}"
            )
        self.optimizer = torch.optim.Adam(self.model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)
        torch.manual_seed(settings.seed * 1000 + processes.rank + 1)
        # loss, negative log-likelihood and target tokens since the last line of the log
        self.window = torch.zeros(3, dtype=torch.float64, device=processes.device)
        self.seconds = 0.0
        # seconds that had gone by since the last model was kept, when a training that goes on was broken off
        self.waited = 0.0
        if (run / LATEST).exists():
            self._go_on()
        self._groups, self._groups_epoch = self._groups_of(self.position.epoch), self.position.epoch
        if compiled:
            # every choice of implementation by size is a graph of its own; a full list would fall back in silence
            torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
            self.model.compile(dynamic=True)
        self.wrapped: nn.Module = self.model
        if processes.world > 1:
            ids = [processes.device.index] if processes.device.type == "cuda" else None
            self.wrapped = DistributedDataParallel(self.model, device_ids=ids)

    def train(self, *, tensorboard: bool = False, quiet: bool = False) -> bool:
        """Train to the last step; False when Ctrl-C or SIGTERM came first, with a checkpoint saved."""
        leads, settings, position = self.processes.leads, self.settings, self.position
        with (
            _alone_in(self.run) if leads else nullcontext(),
            Log(self.run, position.step, tensorboard) if leads else nullcontext() as log,
            _bar(settings.steps, position.step, shown=leads and not quiet) as bar,
            _asked_to_stop(leads) as asked,
        ):
            if leads:
                remove_partial(self.run)
                if position.step < settings.steps:
                    save_json(self.run / "config.json", self.describe())
            meter, clock = _Meter(), _Clock(settings.save_minutes * 60, self.waited)
            while position.step < settings.steps:
                # one process's clock speaks for all, so that all save after the same step
                tokens, stop, minutes_are_over = self.update(bool(asked), leads and clock.is_over())
                meter.tokens += tokens
                bar.update()
                if position.step % settings.log_every == 0:
                    self._log_loss(log, bar, meter)
                last = position.step == settings.steps
                with meter.paused():
                    if last or position.step % settings.validate_every == 0:
                        nll = self.validate()
                        if log is not None:
                            log.add(Row(position.step, "valid", None, nll))
                    by_steps = settings.save_minutes == 0 and position.step % settings.save_every == 0
                    due = last or by_steps or minutes_are_over
                    if due:
                        clock.restart()
                    if due or stop:
                        self.waited = clock.seconds()
                        self._save(log, due)
                if stop:
                    break
        self.processes.wait()
        return position.step >= settings.steps

    def describe(self) -> dict[str, Any]:
        """What the run is, for ``config.json``."""
        return {
            "model": asdict(self.model.settings),
            "training": asdict(self.settings),
            "processes": self.processes.world,
            "device": self.processes.device.type,
            "threads": torch.get_num_threads(),
            "vocabulary": len(self.vocabulary),
            "pairs": len(self.pairs),
            "too_long": self.too_long,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "versions": {"python": platform.python_version(), "torch": torch.__version__, "relgraph": rg.__version__},
        }

    @property
    def too_long(self) -> int:
        """How many training pairs are left out for having more tokens than ``longest``."""
        lengths = torch.maximum(self.pairs.source.lengths, self.pairs.target.lengths - 1)
        return int((lengths > self.settings.longest).sum())

    def learning_rate(self, step: int) -> float:
        """The rate of the step-th update, from 1. Source: Vaswani et al. 2017, section 5.3."""
        scale = self.settings.learning_rate * self.model.settings.width**-0.5
        return scale * min(step**-0.5, step * self.settings.warm_up**-1.5)

    def validate(self) -> float:
        """The negative log-likelihood of a target token of the validation set."""
        parts = self.valid.batches(self.settings.batch_tokens, self.settings.longest, None)
        self.model.eval()
        with self._precision():
            own = negative_log_likelihood(self.model, self.valid, parts[self.processes.rank :: self.processes.world])
        self.model.train()
        total, tokens = self.processes.sum(*own)
        return total / tokens

    def update(self, stop: bool = False, save: bool = False) -> tuple[int, bool, bool]:
        """One update; how many target tokens it took, and whether any process wants to stop, and to save."""
        batches = self._next_batches()
        total, stops, saves = self.processes.sum(sum(batch.tokens for batch in batches), float(stop), float(save))
        self.position.step += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(self.position.step)
        self.model.train()
        for number, batch in enumerate(batches, 1):
            held = number < len(batches) and isinstance(self.wrapped, DistributedDataParallel)
            with self.wrapped.no_sync() if held else nullcontext():  # type: ignore[operator]
                self._backward(batch, self.processes.world / total)
        if self.settings.clip > 0:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return int(total), stops > 0, saves > 0

    def _backward(self, batch: Batch, share: float) -> None:
        moved = batch.to(self.processes.device)
        with self._precision():
            loss, nll = self.wrapped(moved.source, moved.target, self.settings.smoothing)
        (loss * share).backward()
        self.window[:2] += torch.stack([loss.detach(), nll]).double()
        self.window[2] += batch.tokens

    def _precision(self) -> torch.autocast:
        device, wanted = self.processes.device.type, self.settings.precision
        if wanted == "auto":
            has = device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
            wanted = "bfloat16" if has else "float32"
        return torch.autocast(device, torch.bfloat16, enabled=wanted == "bfloat16")

    def _next_batches(self) -> list[Batch]:
        """This process's batches of the next update."""
        position, world = self.position, self.processes.world
        if self._groups_epoch != position.epoch:
            self._groups, self._groups_epoch = self._groups_of(position.epoch), position.epoch
        group = self._groups[position.group]
        position.group += 1
        if position.group == len(self._groups):
            position.epoch, position.group = position.epoch + 1, 0
        return [self.pairs.batch(index) for index in group[self.processes.rank :: world]]

    def _groups_of(self, epoch: int) -> list[list[Tensor]]:
        """The batches of an epoch by update; what does not fill one is left out of this epoch."""
        size = self.processes.world * self.settings.accumulate
        seed = self.settings.seed * 1_000_003 + epoch
        parts = self.pairs.batches(self.settings.batch_tokens, self.settings.longest, seed)
        if len(parts) < size:
            raise ValueError(f"an update takes {size} batches, but the training pairs fill {len(parts)} only")
        return [parts[start : start + size] for start in range(0, len(parts) - size + 1, size)]

    def take_window(self) -> tuple[float, float]:
        """Loss and negative log-likelihood of a target token since this was last asked."""
        loss, nll, tokens = self.processes.sum(*self.window.tolist())
        self.window.zero_()
        return loss / max(tokens, 1), nll / max(tokens, 1)

    def _log_loss(self, log: Log | None, bar: Any, meter: _Meter) -> None:
        """A line with the loss since the last one.

        Raises:
            ValueError: the loss is no number any more.
        """
        (loss, nll), step = self.take_window(), self.position.step
        self._refuse_divergence(loss)
        counted, seconds = meter.read()
        self.seconds += seconds
        if log is not None:
            speed = counted / seconds
            log.add(Row(step, "train", loss, nll, self.optimizer.param_groups[0]["lr"], speed, self.seconds))
            bar.set_postfix(loss=f"{loss:.3f}", tokens_per_second=f"{speed:,.0f}")

    def _save(self, log: Log | None, keep: bool) -> None:
        """Write the state to go on from, and where ``keep`` the model by itself; remove the oldest of these."""
        self._refuse_divergence(self.processes.sum(float(self.window[0]))[0])
        own = self.processes.gather({"random": _random_state(self.processes.device), "window": self.window.cpu()})
        if log is None:
            return
        log.sync()
        step = self.position.step
        if keep:
            checkpoints.save_model(checkpoints.model_path(self.run, step), self.model, self.vocabulary, [step])
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "position": asdict(self.position),
            "own": own,
            "seconds": self.seconds,
            "waited": self.waited,
            "settings": self._fixed(),
        }
        save_tensors(self.run / LATEST, state)
        for path in checkpoints.saved_models(self.run)[: -self.settings.keep]:
            path.unlink()

    def _refuse_divergence(self, loss: float) -> None:
        if not math.isfinite(loss):
            step = self.position.step
            raise ValueError(f"the loss is {loss} at step {step}: the training diverged; lower the learning_rate")

    def _fixed(self) -> dict[str, Any]:
        """The settings that cannot change when training goes on."""
        training = {name: value for name, value in asdict(self.settings).items() if name not in FREE_TO_CHANGE}
        data = {"pairs": len(self.pairs), "vocabulary": self.vocabulary.fingerprint[:12]}
        return {**asdict(self.model.settings), **training, "processes": self.processes.world, **data}

    def _go_on(self) -> None:
        state = load_tensors(self.run / LATEST)
        if not isinstance(state, dict) or "settings" not in state:
            raise ValueError(f"{self.run / LATEST} must be the state of a training")
        before = {name: getattr(ModelSettings, name) for name in ModelSettings.later} | state["settings"]
        for name, value in self._fixed().items():
            if before.get(name) != value:
                raise ValueError(f"{self.run} was begun with {name}={before.get(name)!r}, got {value!r}")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.position = Position(**state["position"])
        self.seconds, self.waited = state["seconds"], state.get("waited", 0.0)
        own = state["own"][self.processes.rank]
        _set_random_state(own["random"], self.processes.device)
        self.window = own["window"].to(self.processes.device)


def _bar(steps: int, done: int, *, shown: bool) -> Any:
    """Progress on a terminal; where lines go to a file there is none."""
    return tqdm(
        total=steps, initial=done, unit="step", leave=False, dynamic_ncols=True, disable=None if shown else True
    )


@contextmanager
def _alone_in(run: Path) -> Iterator[None]:
    """A run's folder for this process; it is free again when the process ends, however it ends.

    Raises:
        ValueError: another process trains there.
    """
    run.mkdir(parents=True, exist_ok=True)
    with (run / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{run} must have no other training at work in it") from None
        yield


class _Meter:
    """Target tokens, and the seconds that training took without what pauses it."""

    def __init__(self) -> None:
        self.tokens = 0
        self._start = time.perf_counter()

    def read(self) -> tuple[int, float]:
        """What was counted since the last reading."""
        now = time.perf_counter()
        counted, seconds = self.tokens, now - self._start
        self.tokens, self._start = 0, now
        return counted, seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the time of this block."""
        begin = time.perf_counter()
        yield
        self._start += time.perf_counter() - begin


class _Clock:
    """The time since the last model was kept, where one is kept every so many seconds.

    Args:
        every: how many; 0 for a clock that is never over.
        waited: how many have gone by already.
    """

    def __init__(self, every: float, waited: float) -> None:
        self._every, self._start = every, time.monotonic() - waited

    def seconds(self) -> float:
        return time.monotonic() - self._start

    def is_over(self) -> bool:
        return 0 < self._every <= self.seconds()

    def restart(self) -> None:
        self._start = time.monotonic()


def _random_state(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _set_random_state(states: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda" and len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)


@contextmanager
def _asked_to_stop(tell: bool) -> Iterator[list[int]]:
    """A list that is empty until Ctrl-C or SIGTERM comes, which ``tell`` says; a second Ctrl-C ends the program."""
    asked: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)
        if tell:  # not by print: the signal may have come in the midst of one
            os.write(2, b"\nstopping after this step; the checkpoint will be saved\n")

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
