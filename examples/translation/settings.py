"""The settings of a run, for the model and for the training, which are saved with everything that the run writes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

POSITIONS = ("none", "sinusoidal", "shifted", "learned", "rotary", "alibi", "relative", "both")
PRECISIONS = ("float32", "bfloat16")


def _at_least(settings: Any, lowest: float, *names: str) -> None:
    for name in names:
        if not lowest <= getattr(settings, name) < math.inf:
            raise ValueError(f"{name} must be a number of at least {lowest}, got {getattr(settings, name)}")


@dataclass(frozen=True)
class ModelSettings:
    """The model: its sizes, and what its attention knows about positions.

    Attributes:
        positions: none; sinusoidal, or shifted (the same from a random position on, SHAPE); learned; rotary; alibi (a
            fixed bias by distance); relative; or both (relative and sinusoidal).
        max_len: number of learned positions on each side, which no sentence may exceed; the largest random shift; and
            the distance from which on the bias of alibi stays the same.
        max_distance: k; distances are clipped to [-k, k].
        key_table: whether relative positions have the vectors a^K.
        value_table: whether relative positions have the vectors a^V.
        per_head: whether each head has its own vectors.
        width: width of the embeddings and layers.
        heads: number of heads of each attention.
        layers: number of layers in the encoder, and in the decoder.
        hidden: width of the feed-forward networks.
        dropout: probability of dropout.
    """

    positions: str = "relative"
    max_len: int = 256
    max_distance: int = 16
    key_table: bool = True
    value_table: bool = True
    per_head: bool = False
    width: int = 128
    heads: int = 4
    layers: int = 2
    hidden: int = 512
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.positions not in POSITIONS:
            raise ValueError(f"positions must be one of {list(POSITIONS)}, got {self.positions!r}")
        _at_least(self, 1, "max_len", "width", "heads", "layers", "hidden")
        _at_least(self, 0, "max_distance", "dropout")


PRESETS: dict[str, dict[str, Any]] = {
    "small": {},
    "base": {"width": 512, "heads": 8, "layers": 6, "hidden": 1024, "per_head": True},
    "big": {"width": 1024, "heads": 16, "layers": 6, "hidden": 4096, "dropout": 0.3, "max_distance": 8},
}


@dataclass(frozen=True)
class TrainingSettings:
    """The training run.

    Attributes:
        steps: number of updates.
        batch_tokens: the most tokens of a batch on either side, padding included.
        accumulate: batches per update and process.
        longest: leave out pairs with more tokens on a side.
        warm_up: steps in which the learning rate rises.
        learning_rate: factor of width^-0.5 · min(step^-0.5, step · warm_up^-1.5).
        smoothing: weight of label smoothing.
        seed: seed of initial values, order and dropout.
        log_every: steps between two logged training losses.
        validate_every: steps between two measurements of the validation loss.
        save_every: steps between two checkpoints.
        keep: how many checkpoints to keep; their mean is the result.
        precision: type of the matrix products; bfloat16 pays where the processor has instructions for it.
        compile: compile the model, which pays on a GPU.
    """

    steps: int = 100_000
    batch_tokens: int = 4096
    accumulate: int = 1
    longest: int = 256
    warm_up: int = 4000
    learning_rate: float = 1.0
    smoothing: float = 0.1
    seed: int = 0
    log_every: int = 50
    validate_every: int = 1000
    save_every: int = 1000
    keep: int = 10
    precision: str = "float32"
    compile: bool = False

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {list(PRECISIONS)}, got {self.precision!r}")
        names = ("steps", "batch_tokens", "accumulate", "longest", "warm_up", "log_every", "validate_every")
        _at_least(self, 1, *names, "save_every", "keep")
        _at_least(self, 0, "learning_rate", "smoothing")
        if self.smoothing >= 1:
            raise ValueError(f"smoothing must be below 1, got {self.smoothing}")
