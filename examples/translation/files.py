"""Writes files so that they are either complete or absent."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary path in the same folder, which replaces ``path`` if the block succeeds and is deleted otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")  # one name: the next write replaces what a kill left
    try:
        yield partial
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def save_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8."""
    with whole(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


def save_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON."""
    save_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def save_tensors(path: Path, value: Any) -> None:
    """Write a value that ``torch.load(weights_only=True)`` can read."""
    with whole(path) as partial:
        torch.save(value, partial)
