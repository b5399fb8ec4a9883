"""What training writes to disk: models for averaging, one state to continue from, and models ready to translate."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from examples.translation.files import load_tensors, save_tensors
from examples.translation.model import Translator
from examples.translation.settings import ModelSettings
from examples.translation.vocabulary import Vocabulary

AVERAGE = "average.pt"
STATE = "latest.pt"
"""The file from which training continues, for any number of processes."""


def model_path(run: Path, step: int) -> Path:
    """The file for the model of a step."""
    return run / f"step-{step:08d}.pt"


def saved_models(run: Path) -> list[Path]:
    """The models of a run, oldest first."""
    return sorted(path for path in run.glob("step-*.pt") if re.fullmatch(r"step-\d{8,}\.pt", path.name))


def save_model(
    path: Path, state: dict[str, Any], settings: ModelSettings, vocabulary: Vocabulary, steps: Sequence[int]
) -> None:
    """Write a model's state with everything that translation needs."""
    save_tensors(path, _packed(state, asdict(settings), vocabulary.save_text(), steps))


def _packed(state: dict[str, Any], settings: dict[str, Any], vocabulary: str, steps: Sequence[int]) -> dict[str, Any]:
    return {"model": state, "settings": settings, "vocabulary": vocabulary, "steps": list(steps)}


def load_model(path: Path, device: torch.device | str = "cpu") -> tuple[Translator, Vocabulary]:
    """Load a model written by training or averaging, in evaluation mode.

    Raises:
        ValueError: the file is of another kind.
    """
    saved = _read(path)
    vocabulary = Vocabulary(saved["vocabulary"])
    model = Translator(ModelSettings(**saved["settings"]), len(vocabulary))
    try:
        model.load_state_dict(saved["model"])
    except RuntimeError as error:
        raise ValueError(f"{path} must hold the weights of its settings: {error}") from None
    return model.to(device).eval(), vocabulary


def steps_of(path: Path) -> list[int]:
    """The steps whose models a saved model is the mean of."""
    return _read(path, mmap=True)["steps"]  # without reading the weights


def _read(path: Path, *, mmap: bool = False) -> dict[str, Any]:
    saved = load_tensors(path, mmap=mmap)
    if not isinstance(saved, dict) or saved.keys() != {"model", "settings", "vocabulary", "steps"}:
        raise ValueError(f"{path} must be a model written by train or average")
    return saved


def average(paths: Sequence[Path], out: Path) -> list[int]:
    """Write the mean of several models of one training, and return their steps.

    Sums are in float64, so that the mean of equal models equals them exactly.

    Raises:
        ValueError: there is no path, or the models have different settings or vocabularies.
    """
    if not paths:
        raise ValueError("average needs at least one model, got none")
    first = _read(paths[0])
    sums = {name: value.double() for name, value in first["model"].items() if _is_float(value)}
    steps = list(first["steps"])
    for path in paths[1:]:
        saved = _read(path)
        if (saved["settings"], saved["vocabulary"]) != (first["settings"], first["vocabulary"]):
            raise ValueError(f"{path} must have the settings and the vocabulary of {paths[0]}")
        for name, total in sums.items():
            total += saved["model"][name]
        steps += saved["steps"]
    state = first["model"] | {name: (total / len(paths)).to(first["model"][name].dtype) for name, total in sums.items()}
    save_tensors(out, _packed(state, first["settings"], first["vocabulary"], steps))
    return steps


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def read_state(run: Path) -> dict[str, Any] | None:
    """The state from which a run continues; None for a new run.

    Raises:
        ValueError: the file is of another kind.
    """
    path = run / STATE
    if not path.exists():
        return None
    state = load_tensors(path, mmap=True)
    if not isinstance(state, dict) or "settings" not in state:
        raise ValueError(f"{path} must be the state of a training")
    return state
