"""Training: Adam, a learning rate that rises and falls, label smoothing, and checkpoints to continue from."""

from __future__ import annotations

import math
import platform
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import relgraph as rg
from examples.translation.batches import Batch, Pairs
from examples.translation.evaluation import negative_log_likelihood
from examples.translation.files import save_tensors, save_text
from examples.translation.model import Translator
from examples.translation.processes import Processes
from examples.translation.settings import ModelSettings, TrainingSettings
from examples.translation.vocabulary import Vocabulary

STATE, LOG, MODEL = "latest.pt", "metrics.csv", "model.pt"
COLUMNS = ("step", "split", "loss", "nll", "learning_rate", "tokens_per_second")
# settings that may change when a run continues: they affect what it writes and when it ends, not what it learns
FREE_TO_CHANGE = ("steps", "accumulate", "keep", "save_every", "log_every", "validate_every", "compile")


@dataclass
class Position:
    """The position in training: updates done, passes over the pairs, and the next group of batches in this pass."""

    step: int = 0
    epoch: int = 0
    group: int = 0


class Training:
    """One training run from its start or its latest checkpoint to its last step.

    The same settings, data and number of processes give the same losses, with or without interruption: order and
    dropout follow from the seed and the step, and a checkpoint includes the sums of the log. A run may continue on
    another number of processes if ``accumulate`` makes up for it. Losses then agree up to rounding, except with
    dropout, which draws other masks.

    Args:
        data: the folder that ``prepare`` wrote.
        run: the folder to write to.
        model: settings of the model.
        settings: settings of the training.
        processes: this process among those that train together.

    Raises:
        ValueError: the run has other settings, or too few pairs have at most ``longest`` tokens.
    """

    def __init__(
        self, data: Path, run: Path, model: ModelSettings, settings: TrainingSettings, processes: Processes
    ) -> None:
        self.run, self.settings, self.processes = run, settings, processes
        self.vocabulary = Vocabulary.load(data)
        self.pairs, self.valid = (Pairs.load(data / name) for name in ("train.pt", "valid.pt"))
        if not self.valid.batches(settings.batch_tokens, settings.longest):
            raise ValueError(f"longest must leave pairs to validate on, got {settings.longest}")
        self.position = Position()
        torch.manual_seed(settings.seed)
        self.model = Translator(model, len(self.vocabulary)).to(processes.device)
        if settings.compile:
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
        if (run / STATE).exists():
            self._go_on(torch.load(run / STATE, weights_only=True, map_location="cpu", mmap=True))
        self._groups, self._groups_epoch = self._groups_of(self.position.epoch), self.position.epoch

    def train(self) -> None:
        """Train to the last step."""
        settings, position, leads = self.settings, self.position, self.processes.leads
        with self._open_log() if leads else nullcontext() as log:
            begun, tokens = time.perf_counter(), 0
            while position.step < settings.steps:
                tokens += self.update()
                if position.step % settings.log_every == 0:
                    rate, speed = self.learning_rate(position.step), tokens / (time.perf_counter() - begun)
                    loss, nll = self.take_window()
                    if log:
                        _write(log, position.step, "train", loss, nll, rate, speed)
                        where = f"step {position.step:,} of {settings.steps:,}"
                        print(f"{where}: loss {loss:.3f}, rate {rate:.3g}, {speed:,.0f} tokens/s", flush=True)
                    begun, tokens = time.perf_counter(), 0
                paused, last = time.perf_counter(), position.step == settings.steps
                if last or position.step % settings.validate_every == 0:
                    nll = self.validate()
                    if log:
                        _write(log, position.step, "valid", "", nll, "", "")
                if last or position.step % settings.save_every == 0:
                    self._save()
                begun += time.perf_counter() - paused

    def describe(self) -> dict[str, Any]:
        """A description of the run, for its results."""
        return {
            "model": asdict(self.model.settings),
            "training": asdict(self.settings),
            "processes": self.processes.world,
            "device": self.processes.device.type,
            "vocabulary": len(self.vocabulary),
            "pairs": int((self.pairs.widths <= self.settings.longest).sum()),
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "versions": {"python": platform.python_version(), "torch": torch.__version__, "relgraph": rg.__version__},
        }

    def learning_rate(self, step: int) -> float:
        """The rate of the step-th update, from 1. Source: Vaswani et al. 2017, section 5.3."""
        scale = self.settings.learning_rate * self.model.settings.width**-0.5
        return scale * min(step**-0.5, step * self.settings.warm_up**-1.5)

    def validate(self) -> float:
        """The negative log-likelihood per target token of the validation set."""
        parts = self.valid.batches(self.settings.batch_tokens, self.settings.longest)
        self.model.eval()
        with self._precision():
            found = negative_log_likelihood(self.model, self.valid, self._own(parts))
        total, tokens = self.processes.sum(*found)
        return total / tokens

    def update(self) -> int:
        """Make one update; return its target tokens."""
        batches, settings, processes = self._next_batches(), self.settings, self.processes
        tokens = round(processes.sum(sum(batch.tokens for batch in batches))[0])
        self.position.step += 1
        # dropout draws other masks in each step and on each process
        torch.manual_seed((settings.seed * 10**8 + self.position.step) * 1000 + processes.rank)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(self.position.step)
        self.model.train()
        for number, batch in enumerate(batches, 1):
            waits = processes.world > 1 and number < len(batches)  # gradients are sent with the last batch
            with self.wrapped.no_sync() if waits else nullcontext():  # type: ignore[operator]
                self._backward(batch.to(processes.device), processes.world / tokens)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return tokens

    def _backward(self, batch: Batch, share: float) -> None:
        with self._precision():
            loss, nll = self.wrapped(batch.source, batch.given, batch.wanted, self.settings.smoothing)
        (loss * share).backward()
        self.window[:2] += torch.stack([loss.detach(), nll]).double()
        self.window[2] += batch.tokens

    def _precision(self) -> torch.autocast:
        enabled = self.settings.precision == "bfloat16"
        return torch.autocast(self.processes.device.type, torch.bfloat16, enabled=enabled)

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
        loss, nll, tokens = self._summed_window()
        self.window.zero_()
        return loss / max(tokens, 1), nll / max(tokens, 1)

    def _summed_window(self) -> list[float]:
        sums = self.processes.sum(*self.window.tolist())
        if not math.isfinite(sums[0]):
            step = self.position.step
            raise ValueError(f"the loss is {sums[0]} at step {step}: the training diverged; lower the learning_rate")
        return sums

    def _open_log(self) -> TextIO:
        """The log, without lines later than the step from which training continues: they belong to lost work."""
        path = self.run / LOG
        lines = path.read_text(encoding="utf-8").splitlines()[1:] if path.exists() else []
        # a line that a kill cut short is later than any checkpoint
        rows = [row for line in lines if len(row := line.split(",")) == len(COLUMNS)]
        rows = [COLUMNS, *(row for row in rows if int(row[0]) <= self.position.step)]
        save_text(path, "".join(f"{','.join(row)}\n" for row in rows))
        return path.open("a", encoding="utf-8")

    def _save(self) -> None:
        """Write the state to continue from and the model; remove the oldest models."""
        window = self._summed_window()
        if not self.processes.leads:
            return
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "position": asdict(self.position),
            "window": window,
            "settings": self._fixed(),
        }
        save_tensors(self.run / f"step-{self.position.step:08d}.pt", state["model"])
        save_tensors(self.run / STATE, state)
        for path in saved_models(self.run)[: -self.settings.keep]:
            path.unlink()

    @property
    def _batches_per_update(self) -> int:
        return self.processes.world * self.settings.accumulate

    def _fixed(self) -> dict[str, Any]:
        """The settings that cannot change when training continues."""
        training = {name: value for name, value in asdict(self.settings).items() if name not in FREE_TO_CHANGE}
        data = {"pairs": len(self.pairs), "vocabulary": self.vocabulary.fingerprint}
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
        if self.processes.leads:
            self.window += torch.tensor(saved["window"], dtype=torch.float64, device=self.processes.device)


def _write(log: TextIO, *cells: Any) -> None:
    log.write(",".join(f"{cell:.9g}" if isinstance(cell, float) else str(cell) for cell in cells) + "\n")
    log.flush()


def saved_models(run: Path) -> list[Path]:
    """The models of a run, oldest first."""
    return sorted(run.glob("step-*.pt"))


def average(run: Path, settings: ModelSettings, vocabulary: Vocabulary, keep: int) -> list[int]:
    """Write the mean of the last models of a run, ready to translate, to ``model.pt``; return their steps.

    Sums are in float64, so that the mean of equal models equals them exactly.
    """
    paths = saved_models(run)[-keep:]
    models = [torch.load(path, weights_only=True, map_location="cpu", mmap=True) for path in paths]
    state = models[-1]
    for name, last in state.items():
        if last.is_floating_point():
            state[name] = (sum(model[name].double() for model in models) / len(models)).to(last.dtype)
    save_tensors(run / MODEL, {"model": state, "settings": asdict(settings), "vocabulary": vocabulary.text})
    return [int(path.stem.removeprefix("step-")) for path in paths]


def load_model(run: Path, device: torch.device | str = "cpu") -> tuple[Translator, Vocabulary]:
    """The averaged model of a run, in evaluation mode, and its vocabulary."""
    saved = torch.load(run / MODEL, weights_only=True, map_location="cpu")
    vocabulary = Vocabulary(saved["vocabulary"])
    model = Translator(ModelSettings(**saved["settings"]), len(vocabulary))
    model.load_state_dict(saved["model"])
    return model.to(device).eval(), vocabulary
