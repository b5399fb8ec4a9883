"""Files that are whole or not there at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

PARTIAL = ".partial"


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A path beside ``path`` to write to, which takes its place when the block ends well and vanishes otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        yield partial
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(path)
        sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """See to it that the names in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_partial(folder: Path) -> None:
    """Remove what a killed process left half written."""
    for path in folder.glob(f".*{PARTIAL}"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def partial_folder(path: Path) -> Path:
    """An empty folder beside ``path`` for several processes to write to; :func:`finish_folder` puts it in its place."""
    partial = path.with_name(f".{path.name}{PARTIAL}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


def finish_folder(partial: Path, path: Path) -> None:
    """Give a folder whose files are whole its name."""
    sync_folder(partial)
    if path.exists():
        shutil.rmtree(path)
    partial.replace(path)
    sync_folder(path.parent)


def save_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8."""
    with whole(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


def save_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON."""
    save_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def load_json(path: Path) -> Any:
    """Read JSON.

    Raises:
        ValueError: something else, naming the file.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} must hold JSON: {error}") from None


def save_tensors(path: Path, value: Any) -> None:
    """Write what ``torch.load(weights_only=True)`` reads again."""
    with whole(path) as partial:
        torch.save(value, partial)


def load_tensors(path: Path, *, mmap: bool = False) -> Any:
    """Read what :func:`save_tensors` wrote, to the CPU.

    Raises:
        ValueError: something else, naming the file.
    """
    path.open("rb").close()  # a file that cannot be opened says so by itself
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:  # on another file it raises whatever its bytes happen to lead to
        raise ValueError(f"{path} must be a file that this program saved, and whole") from error
