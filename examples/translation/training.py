"""Training: Adam, a learning rate that rises and falls, label smoothing, and checkpoints to continue from."""

from __future__ import annotations

import math
import os
import platform
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import relgraph as rg
from examples.translation import checkpoints
from examples.translation.batches import Batch, Pairs
from examples.translation.evaluation import negative_log_likelihood
from examples.translation.files import remove_partial, save_json, save_tensors
from examples.translation.log import Log, Meter
from examples.translation.model import Translator
from examples.translation.processes import Processes
from examples.translation.settings import ModelSettings, TrainingSettings
from examples.translation.vocabulary import Vocabulary

# settings that may change when a run continues: they affect what it writes and when it ends, not what it learns
FREE_TO_CHANGE = ("steps", "accumulate", "keep", "save_every", "log_every", "validate_every")


@dataclass
class Position:
    """The position in training: updates done, passes over the pairs, and the next group of batches in this pass."""

    step: int = 0
    epoch: int = 0
    group: int = 0


class Training:
    """One training run from its start or its latest checkpoint to its last step.

    The same settings, data and number of processes give the same losses, with or without interruption: a checkpoint
    includes the order, dropout and the sums of the log. A run may continue on another number of processes if
    ``accumulate`` makes up for it. Losses then agree up to rounding, except with dropout, which draws
    other masks.

    Args:
        data: the folder that ``prepare`` wrote.
        run: the folder to write to.
        model: settings of the model.
        settings: settings of the training.
        processes: this process among those that train together.
        compiled: whether to compile the model.

    Raises:
        ValueError: the run has other settings, too few pairs have at most ``longest`` tokens, or learned positions
            are fewer than that.
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
        if compiled:
            # each choice of implementation by size is a graph of its own; past the limit torch silently stops compiling
            torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
            self.model.compile(dynamic=True)
        self.wrapped: nn.Module = self.model
        if processes.world > 1:
            ids = [processes.device.index] if processes.device.type == "cuda" else None
            self.wrapped = DistributedDataParallel(self.model, device_ids=ids)
        self.optimizer = torch.optim.Adam(self.model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)
        # loss, negative log-likelihood and target tokens since the last line of the log
        self.window = torch.zeros(3, dtype=torch.float64, device=processes.device)
        self.seconds = 0.0
        self._seed()
        if (saved := checkpoints.read_state(run)) is not None:
            self._go_on(saved)
        self._groups, self._groups_epoch = self._groups_of(self.position.epoch), self.position.epoch

    def train(self, *, quiet: bool = False) -> bool:
        """Train to the last step; return False after Ctrl-C or SIGTERM, with a checkpoint saved.

        Args:
            quiet: print no line every ``log_every`` steps.
        """
        leads, settings, position = self.processes.leads, self.settings, self.position
        with (
            closing(Log(self.run, position.step)) if leads else nullcontext() as log,
            _asked_to_stop(leads) as asked,
        ):
            if leads:
                remove_partial(self.run)
                if position.step < settings.steps:
                    save_json(self.run / "config.json", self.describe())
            meter = Meter()
            while position.step < settings.steps:
                tokens, stop = self.update(bool(asked))
                meter.tokens += tokens
                if position.step % settings.log_every == 0:
                    line = self._log_loss(log, meter)
                    if leads and not quiet:
                        print(f"step {position.step:,} of {settings.steps:,}: {line}", flush=True)
                last = position.step == settings.steps
                with meter.paused():
                    if last or position.step % settings.validate_every == 0:
                        nll = self.validate()
                        if log is not None:
                            log.add(step=position.step, split="valid", nll=nll)
                    due = last or position.step % settings.save_every == 0
                    if due or stop:
                        self._save(log, due)
                if stop:
                    break
        self.processes.wait()
        return position.step >= settings.steps

    def describe(self) -> dict[str, Any]:
        """A description of the run, for ``config.json``."""
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
        """How many training pairs have more tokens than ``longest`` and are left out."""
        lengths = torch.maximum(self.pairs.source.lengths, self.pairs.target.lengths - 1)
        return int((lengths > self.settings.longest).sum())

    def learning_rate(self, step: int) -> float:
        """The rate of the step-th update, from 1. Source: Vaswani et al. 2017, section 5.3."""
        scale = self.settings.learning_rate * self.model.settings.width**-0.5
        return scale * min(step**-0.5, step * self.settings.warm_up**-1.5)

    def validate(self) -> float:
        """The negative log-likelihood per target token of the validation set."""
        parts = self.valid.batches(self.settings.batch_tokens, self.settings.longest, None)
        self.model.eval()
        with self._precision():
            found = negative_log_likelihood(self.model, self.valid, self._own(parts))
        self.model.train()
        total, tokens = self.processes.sum(*found)
        return total / tokens

    def update(self, stop: bool = False) -> tuple[int, bool]:
        """Make one update; return its target tokens, and whether any process wants to stop."""
        batches = self._next_batches()
        tokens, stops = map(round, self.processes.sum(sum(batch.tokens for batch in batches), float(stop)))
        self.position.step += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(self.position.step)
        self.model.train()
        for number, batch in enumerate(batches, 1):
            waits = self.processes.world > 1 and number < len(batches)  # gradients are sent with the last batch
            with self.wrapped.no_sync() if waits else nullcontext():  # type: ignore[operator]
                self._backward(batch, self.processes.world / tokens)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return tokens, stops > 0

    def _backward(self, batch: Batch, share: float) -> None:
        batch = batch.to(self.processes.device)
        with self._precision():
            loss, nll = self.wrapped(batch.source, batch.given, batch.wanted, self.settings.smoothing)
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
        position = self.position
        if self._groups_epoch != position.epoch:
            self._groups, self._groups_epoch = self._groups_of(position.epoch), position.epoch
        group = self._groups[position.group]
        position.group += 1
        if position.group == len(self._groups):
            position.epoch, position.group = position.epoch + 1, 0
        return [self.pairs.batch(index) for index in self._own(group)]

    def _own(self, parts: list[Tensor]) -> list[Tensor]:
        """This process's batches."""
        return parts[self.processes.rank :: self.processes.world]

    def _groups_of(self, epoch: int) -> list[list[Tensor]]:
        """The batches of an epoch, grouped by update; an incomplete last group is left out."""
        size = self._batches_per_update
        seed = self.settings.seed * 1_000_003 + epoch
        parts = self.pairs.batches(self.settings.batch_tokens, self.settings.longest, seed)
        if len(parts) < size:
            raise ValueError(f"an update takes {size} batches, but the training pairs only fill {len(parts)}")
        return [parts[start : start + size] for start in range(0, len(parts) - size + 1, size)]

    def take_window(self) -> tuple[float, float]:
        """Loss and negative log-likelihood per target token since the last call."""
        loss, nll, tokens = self.processes.sum(*self.window.tolist())
        self.window.zero_()
        return loss / max(tokens, 1), nll / max(tokens, 1)

    def _log_loss(self, log: Log | None, meter: Meter) -> str:
        """Log the loss since the last line; return the line as readable text.

        Raises:
            ValueError: the loss is not finite any more.
        """
        (loss, nll), step = self.take_window(), self.position.step
        self._refuse_divergence(loss)
        counted, seconds = meter.read()
        self.seconds += seconds
        rate, speed = self.optimizer.param_groups[0]["lr"], counted / seconds
        if log is not None:
            log.add(
                step=step, split="train", loss=loss, nll=nll, learning_rate=rate, tokens_per_second=speed,
                seconds=self.seconds,
            )  # fmt: skip
        return f"loss {loss:.3f}, learning rate {rate:.3g}, {speed:,.0f} tokens/s"

    def _save(self, log: Log | None, keep: bool) -> None:
        """Write the state to continue from and, if ``keep``, the model; remove the oldest models."""
        self._refuse_divergence(self.processes.sum(float(self.window[0]))[0])
        own = self.processes.gather({"random": _random_state(self.processes.device), "window": self.window.cpu()})
        if log is not None:
            log.sync()
        step = self.position.step
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "position": asdict(self.position),
            "own": own,
            "seconds": self.seconds,
            "settings": self._fixed(),
        }
        if self.processes.leads:
            if keep:
                path = checkpoints.model_path(self.run, step)
                checkpoints.save_model(path, state["model"], self.model.settings, self.vocabulary, [step])
            save_tensors(self.run / checkpoints.STATE, state)
            for path in checkpoints.saved_models(self.run)[: -self.settings.keep]:
                path.unlink()

    def _refuse_divergence(self, loss: float) -> None:
        if not math.isfinite(loss):
            step = self.position.step
            raise ValueError(f"the loss is {loss} at step {step}: the training diverged; lower the learning_rate")

    @property
    def _batches_per_update(self) -> int:
        return self.processes.world * self.settings.accumulate

    def _fixed(self) -> dict[str, Any]:
        """The settings that cannot change when training continues."""
        training = {name: value for name, value in asdict(self.settings).items() if name not in FREE_TO_CHANGE}
        data = {"pairs": len(self.pairs), "vocabulary": self.vocabulary.fingerprint[:12]}
        return {**asdict(self.model.settings), **training, "batches_per_update": self._batches_per_update, **data}

    def _go_on(self, saved: dict[str, Any]) -> None:
        before = saved["settings"]
        for name, value in self._fixed().items():
            if before.get(name) != value:
                hint = " (processes times accumulate)" if name == "batches_per_update" else ""
                raise ValueError(f"{self.run} was started with {name}={before.get(name)!r}, got {value!r}{hint}")
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.position = Position(**saved["position"])
        self.seconds = saved["seconds"]
        own, processes = saved["own"], self.processes
        if len(own) == processes.world:
            _set_random_state(own[processes.rank]["random"], processes.device)
        else:
            self._seed()
        if processes.leads:
            self.window = torch.stack([each["window"] for each in own]).sum(0).to(processes.device)

    def _seed(self) -> None:
        """Seed dropout, which draws other masks on each process."""
        torch.manual_seed(self.settings.seed * 1000 + self.processes.rank + 1 + self.position.step * 1_000_003)


def _random_state(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _set_random_state(states: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda" and len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)


@contextmanager
def _asked_to_stop(tell: bool) -> Iterator[list[int]]:
    """A list that gets an entry on Ctrl-C or SIGTERM; ``tell`` prints a message. A second Ctrl-C ends the program."""
    asked: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)
        if tell:  # not print: the signal may interrupt a print
            os.write(2, b"\nstopping after this step; the checkpoint will be saved\n")

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
