"""The state from which training continues: a file of one process, or a folder to which each process writes its part.

Any number of processes in any mode can read either. torch.distributed.checkpoint splits the parts anew. Attention's
projections have two forms: one matrix, or three if heads are split.
"""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from examples.translation.files import PARTIAL, finish_folder, load_tensors, partial_folder, save_tensors
from examples.translation.parallel import Alone

FILE = "latest.pt"
NOTES = "training.pt"
KINDS = ("q_proj_", "k_proj_", "v_proj_")


def saved_state(run: Path) -> Path | None:
    """The file or folder of the last checkpoint; None if there is none.

    Raises:
        ValueError: a file is of another kind.
    """
    folders = [path for path in run.glob("latest-*") if re.fullmatch(r"latest-\d{8,}", path.name)]
    found = [*folders, *([run / FILE] if (run / FILE).exists() else [])]
    if len(found) < 2:
        return found[0] if found else None
    # a kill came after a new checkpoint and before the removal of the old one
    return max(found, key=lambda path: read_notes(path)["position"]["step"])


def folder_path(run: Path, step: int) -> Path:
    """The folder to which several processes save the state after a step."""
    return run / f"latest-{step:08d}"


def read_notes(path: Path) -> dict[str, Any]:
    """The contents of a checkpoint except split tensors; for a file, all of it.

    Raises:
        ValueError: the file is of another kind.
    """
    notes = load_tensors(path / NOTES if path.is_dir() else path, mmap=not path.is_dir())
    if not isinstance(notes, dict) or "settings" not in notes:
        raise ValueError(f"{path} must be the state of a training")
    return notes


def save(run: Path, trained: Alone, optimizer: torch.optim.Optimizer, notes: dict[str, Any]) -> None:
    """Write a complete checkpoint and remove the previous one; all processes call this.

    Args:
        run: the folder of the run, which all processes can access.
        trained: the model.
        optimizer: its optimizer.
        notes: further values, which the first process writes.
    """
    processes = trained.processes
    if processes.world == 1:
        path = run / FILE
        state = {"model": trained.model.state_dict(), "optimizer": optimizer.state_dict()}
        save_tensors(path, {**state, **notes})
    else:
        from torch.distributed import checkpoint

        path = folder_path(run, notes["position"]["step"])
        if processes.leads:
            partial_folder(path)
        processes.wait()
        partial = path.with_name(f".{path.name}{PARTIAL}")
        checkpoint.save(_tensors(trained, optimizer), checkpoint_id=partial)
        if processes.leads:
            save_tensors(partial / NOTES, notes)
            finish_folder(partial, path)
    if processes.leads:
        for other in [*run.glob("latest-*"), *run.glob(FILE)]:
            if other != path and other.is_dir():
                shutil.rmtree(other)
            elif other != path:
                other.unlink()
    processes.wait()


def load(path: Path, trained: Alone, optimizer: torch.optim.Optimizer, names: Iterable[str]) -> None:
    """Load a checkpoint of any number of processes and any mode into model and optimizer; all processes call this.

    Args:
        path: from :func:`saved_state`.
        trained: the model.
        optimizer: its optimizer.
        names: the names of the parameters in a single process, in order.
    """
    if path.is_file():
        state = read_notes(path)
        if trained.processes.world == 1:
            trained.model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            return
        whole = {f"model.{name}": x for name, x in state["model"].items()}
        for number, name in enumerate(names):
            whole |= {f"optimizer.state.{name}.{kind}": x for kind, x in state["optimizer"]["state"][number].items()}
        own = _tensors(trained, optimizer)
    else:
        own = _tensors(trained, optimizer)
        whole = _read_folder(path, own)
    for name, x in own.items():
        if name in whole:
            _fill(x, whole[name])
        elif _sources(name)[0] in whole:
            _fill(x, _in_other_form(name, whole))


def _tensors(trained: Alone, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """All trained tensors by name, with Adam's moments; split tensors are DTensors.

    The tensors share memory with model and optimizer, so filling them loads the state.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    options = StateDictOptions(flatten_optimizer_state_dict=True)
    of_model, of_optimizer = get_state_dict(trained.model, optimizer, options=options)
    found = {f"model.{name}": x for name, x in of_model.items()}
    found |= {f"optimizer.{name}": x for name, x in of_optimizer.items()}
    return {name: x for name, x in found.items() if isinstance(x, Tensor)}


def _read_folder(path: Path, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Fill tensors saved under the same name; read the others whole and return them."""
    from torch import distributed
    from torch.distributed import checkpoint

    saved = checkpoint.FileSystemReader(path).read_metadata().state_dict_metadata
    same = {name: x for name, x in own.items() if name in saved}
    others = {source for name in own if name not in saved for source in _sources(name)}
    whole = {name: torch.empty(saved[name].size, dtype=saved[name].properties.dtype) for name in sorted(others)}
    with _without_warning():
        no_dist = not (distributed.is_available() and distributed.is_initialized())
        checkpoint.load({**same, **whole}, checkpoint_id=path, no_dist=no_dist)
    return whole


@contextmanager
def _without_warning() -> Any:
    """Silence the warning that one process loads without torch.distributed, which is intended."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


def _sources(name: str) -> list[str]:
    """The names of a projection's other form."""
    if "in_proj_" in name:
        return [name.replace("in_proj_", kind) for kind in KINDS]
    return [re.sub("[qkv]_proj_", "in_proj_", name)]


def _in_other_form(name: str, whole: Mapping[str, Tensor]) -> Tensor:
    """Join three projections into one, or take one of the three; the count of steps is the same for all."""
    parts = [whole[source] for source in _sources(name)]
    if parts[0].dim() == 0:
        return parts[0]
    if len(parts) == 3:
        return torch.cat(parts)
    (kind,) = (number for number, kind in enumerate(KINDS) if kind in name)
    return parts[0].chunk(3)[kind]


@torch.no_grad()
def _fill(own: Any, whole: Tensor) -> None:
    """Copy the whole to a tensor, or this process's part to a DTensor."""
    if hasattr(own, "placements"):
        from torch.distributed.tensor import distribute_tensor

        whole = whole.to(own.device)
        whole = distribute_tensor(whole, own.device_mesh, own.placements, src_data_rank=None)
    own.copy_(whole)
