"""Training: Adam, a learning rate that rises and falls, label smoothing, checkpoints that training can go on from."""

from __future__ import annotations

import hashlib
import math
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
from examples.translation.files import load_tensors, remove_partial, save_json, save_tensors
from examples.translation.log import Log, Row
from examples.translation.model import Translator
from examples.translation.processes import Processes
from examples.translation.settings import ModelSettings, TrainingSettings
from examples.translation.vocabulary import Vocabulary

LATEST = "latest.pt"
# settings that may change when a training goes on: they decide what is written and when it ends, not what is learned
FREE_TO_CHANGE = ("steps", "keep", "save_every", "log_every", "validate_every")


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
        ValueError: the run was begun with other settings, or there are too few pairs.
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
        vocabulary = (data / "vocabulary.json").read_text(encoding="utf-8")
        self.vocabulary = Vocabulary(vocabulary)
        self._vocabulary_hash = hashlib.sha256(vocabulary.encode()).hexdigest()[:12]
        self.pairs, self.valid = Pairs.load(data / "train.pt"), Pairs.load(data / "valid.pt")
        self.position = Position()
        self._groups: list[list[Tensor]] = []
        self._groups_epoch = -1
        torch.manual_seed(settings.seed)
        self.model = Translator(model, len(self.vocabulary)).to(processes.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)
        torch.manual_seed(settings.seed * 1000 + processes.rank + 1)
        # loss, negative log-likelihood and target tokens since the last line of the log
        self.window = torch.zeros(3, dtype=torch.float64, device=processes.device)
        self.seconds = 0.0
        if (run / LATEST).exists():
            self._go_on()
        if compiled:
            self.model.compile(dynamic=True)
        self.wrapped: nn.Module = self.model
        if processes.world > 1:
            ids = [processes.device.index] if processes.device.type == "cuda" else None
            self.wrapped = DistributedDataParallel(self.model, device_ids=ids)

    def train(self, *, tensorboard: bool = False, quiet: bool = False) -> bool:
        """Train to the last step; False when Ctrl-C or SIGTERM came first, with a checkpoint saved."""
        leads, settings, position = self.processes.leads, self.settings, self.position
        if leads:
            self.run.mkdir(parents=True, exist_ok=True)
            remove_partial(self.run)
            if position.step < settings.steps:
                save_json(self.run / "config.json", self.describe())
        with (
            Log(self.run, position.step, tensorboard) if leads else nullcontext() as log,
            tqdm(
                total=settings.steps, initial=position.step, unit="step", disable=quiet or not leads, dynamic_ncols=True
            ) as bar,
            _asked_to_stop() as asked,
        ):
            meter = _Meter()
            while position.step < settings.steps:
                tokens, stop = self.update(bool(asked))
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
                    due = last or position.step % settings.save_every == 0
                    if due or stop:
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
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "versions": {"python": platform.python_version(), "torch": torch.__version__, "relgraph": rg.__version__},
        }

    def learning_rate(self, step: int) -> float:
        """The rate of the step-th update, from 1. Source: Vaswani et al. 2017, section 5.3."""
        scale = self.settings.learning_rate * self.model.settings.width**-0.5
        return scale * min(step**-0.5, step * self.settings.warm_up**-1.5)

    @torch.no_grad()
    def validate(self) -> float:
        """The negative log-likelihood of a target token of the validation set."""
        self.model.eval()
        sums = torch.zeros(2, dtype=torch.float64)
        parts = self.valid.batches(self.settings.batch_tokens, self.settings.longest, None)
        for index in parts[self.processes.rank :: self.processes.world]:
            batch = self.valid.batch(index)
            moved = batch.to(self.processes.device)
            with self._precision():
                _, nll = self.model(moved.source, moved.target)
            sums += torch.tensor([float(nll), batch.tokens], dtype=torch.float64)
        self.model.train()
        total, tokens = self.processes.sum(*sums.tolist())
        return total / max(tokens, 1)

    def update(self, asked: bool = False) -> tuple[int, bool]:
        """One update; how many target tokens it took, and whether any process was asked to stop."""
        batches = self._next_batches()
        total, stop = self.processes.sum(sum(batch.tokens for batch in batches), float(asked))
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
        return int(total), stop > 0

    def _backward(self, batch: Batch, share: float) -> None:
        moved = batch.to(self.processes.device)
        with self._precision():
            loss, nll = self.wrapped(moved.source, moved.target, self.settings.smoothing)
        (loss * share).backward()
        self.window += torch.stack([loss.detach().double(), nll.double(), torch.tensor(float(batch.tokens)).to(nll)])

    def _precision(self) -> torch.autocast:
        device, wanted = self.processes.device.type, self.settings.precision
        if wanted == "auto":
            wanted = "bfloat16" if device == "cuda" and torch.cuda.is_bf16_supported() else "float32"
        return torch.autocast(device, torch.bfloat16, enabled=wanted == "bfloat16")

    def _next_batches(self) -> list[Batch]:
        """This process's batches of the next update."""
        position, world = self.position, self.processes.world
        if self._groups_epoch != position.epoch:
            size = world * self.settings.accumulate
            seed = self.settings.seed * 1_000_003 + position.epoch
            parts = self.pairs.batches(self.settings.batch_tokens, self.settings.longest, seed)
            self._groups = [parts[start : start + size] for start in range(0, len(parts) - size + 1, size)]
            self._groups_epoch = position.epoch
            if not self._groups:
                raise ValueError(f"an update takes {size} batches, but the training pairs fill {len(parts)} only")
        group = self._groups[position.group]
        position.group += 1
        if position.group == len(self._groups):
            position.epoch, position.group = position.epoch + 1, 0
        return [self.pairs.batch(index) for index in group[self.processes.rank :: world]]

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
        if not math.isfinite(loss):
            raise ValueError(f"the loss is {loss} at step {step}: the training diverged; lower the learning_rate")
        counted, seconds = meter.read()
        self.seconds += seconds
        if log is not None:
            speed = counted / seconds
            log.add(Row(step, "train", loss, nll, self.optimizer.param_groups[0]["lr"], speed, self.seconds))
            bar.set_postfix(loss=f"{loss:.3f}", tokens_per_second=f"{speed:,.0f}")

    def _save(self, log: Log | None, keep: bool) -> None:
        """Write the state to go on from, and where ``keep`` the model by itself; remove the oldest of these."""
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
            "settings": self._fixed(),
        }
        save_tensors(self.run / LATEST, state)
        for path in checkpoints.saved_models(self.run)[: -self.settings.keep]:
            path.unlink()

    def _fixed(self) -> dict[str, Any]:
        """The settings that cannot change when training goes on."""
        training = {name: value for name, value in asdict(self.settings).items() if name not in FREE_TO_CHANGE}
        data = {"pairs": len(self.pairs), "vocabulary": self._vocabulary_hash}
        return {**asdict(self.model.settings), **training, "processes": self.processes.world, **data}

    def _go_on(self) -> None:
        state = load_tensors(self.run / LATEST)
        for name, value in self._fixed().items():
            if state["settings"].get(name) != value:
                raise ValueError(f"{self.run} was begun with {name}={state['settings'].get(name)!r}, got {value!r}")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.position = Position(**state["position"])
        self.seconds = state["seconds"]
        own = state["own"][self.processes.rank]
        _set_random_state(own["random"], self.processes.device)
        self.window = own["window"].to(self.processes.device)


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


def _random_state(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _set_random_state(states: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda" and len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)


@contextmanager
def _asked_to_stop() -> Iterator[list[int]]:
    """A list that is empty until Ctrl-C or SIGTERM comes; a second Ctrl-C ends the program at once."""
    asked: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)
        tqdm.write("stopping after this step; the checkpoint will be saved")

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
