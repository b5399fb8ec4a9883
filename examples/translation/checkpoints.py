"""What training writes to disk: models for averaging, one state to continue from, and models ready to translate."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from examples.translation.files import load_tensors, save_tensors
from examples.translation.model import Translator
from examples.translation.parallel import Alone, whole
from examples.translation.settings import ModelSettings
from examples.translation.vocabulary import Vocabulary

AVERAGE = "average.pt"
STATE = "latest.pt"
"""The file from which training continues, for any number of processes in any mode."""


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


def whole_state(trained: Alone, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Any]]:
    """The model's state, and each of Adam's moments by parameter: whole tensors, named as on one process.

    All processes call this, because they send their parts to each other.
    """
    found = {"model": trained.model.state_dict()}  # also splits again what fully_shard has gathered
    for name, parameter in trained.model.named_parameters():
        for moment, x in optimizer.state[parameter].items():
            found.setdefault(moment, {})[name] = x
    return {kind: _joined({name: _whole(x) for name, x in values.items()}) for kind, values in found.items()}


def read_state(run: Path) -> dict[str, Any] | None:
    """The state from which a run continues: that of :func:`whole_state`, and notes; None for a new run.

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


@torch.no_grad()
def load_state(state: Mapping[str, Any], trained: Alone, optimizer: torch.optim.Optimizer) -> None:
    """Fill the model and its optimizer from :func:`whole_state`."""
    for name, x in trained.model.state_dict().items():
        if isinstance(x, Tensor):
            _fill(x, _part(state["model"], name))
    for name, parameter in trained.model.named_parameters():
        moments = {"step": _part(state["step"], name).to(parameter.device, copy=True)}
        for moment in ("exp_avg", "exp_avg_sq"):
            moments[moment] = torch.zeros_like(parameter)
            _fill(moments[moment], _part(state[moment], name))
        optimizer.state[parameter] = moments


def _whole(x: Any) -> Any:
    return whole(x).cpu() if isinstance(x, Tensor) else x


def _joined(values: dict[str, Any]) -> dict[str, Any]:
    """One tensor for queries, keys and values where their projections are split, as they are by heads."""
    groups: dict[str, list[Any]] = {}
    for name, value in values.items():
        groups.setdefault(re.sub("[qkv]_proj_", "in_proj_", name), []).append(value)
    # all parts have counted the same steps
    return {name: torch.cat(x) if len(x) > 1 and x[0].dim() else x[0] for name, x in groups.items()}


def _part(values: Mapping[str, Tensor], name: str) -> Tensor:
    """The tensor of this name, or its part of a joined one."""
    if name in values:
        return values[name]
    joined, kind = values[re.sub("[qkv]_proj_", "in_proj_", name)], re.search("([qkv])_proj_", name)
    assert kind is not None
    return joined.chunk(3)["qkv".index(kind[1])] if joined.dim() else joined


def _fill(own: Any, x: Tensor) -> None:
    """Copy a whole tensor to one of this process, or the process's part to a DTensor."""
    if hasattr(own, "placements"):
        from torch.distributed.tensor import distribute_tensor

        x = distribute_tensor(x.to(own.device), own.device_mesh, own.placements, src_data_rank=None)
    own.copy_(x)
