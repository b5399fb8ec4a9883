"""The tensors of a file: safetensors, torch's format without any code in it, numpy's."""

from __future__ import annotations

import os
import pickle
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relgraph.arguments.brief import shown
from relgraph.interop.checkpoints.entries import as_tensor, listed

_TORCH = (".bin", ".pt", ".pth", ".ckpt")
_SUFFIXES = (".safetensors", *_TORCH, ".npz")
_UNREADABLE = (
    pickle.UnpicklingError, RuntimeError, EOFError, ValueError, TypeError, AttributeError, LookupError, AssertionError,
    struct.error, tokenize.TokenError, MemoryError,
)  # fmt: skip
"""The errors of torch and numpy for bytes that are not a file in their format, such as a text or half a download."""


def read(path: str | os.PathLike[str], *, key: str | None = None) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint, by name, on the CPU.

    This runs no code from the file: it reads torch's files by ``torch.load(weights_only=True)``, numpy's by
    ``numpy.load(allow_pickle=False)``, and ``.safetensors`` by the package of that name.

    Args:
        path: a file named ``.safetensors``, ``.bin``, ``.pt``, ``.pth``, ``.ckpt`` or ``.npz``.
        key: where in a torch file the state dict is, such as ``"model"`` or ``"state_dict"``; by default the file is
            the state dict.

    Returns:
        Names and tensors.

    Raises:
        TypeError: a path that is neither a string nor a path.
        ValueError: another suffix; a file that holds objects other than tensors, or is not in the format of its suffix;
            a ``key`` that does not exist, or a ``key`` for a file that is not torch's.
        ImportError: a ``.safetensors`` file without the package safetensors.
        OSError: a file that cannot be opened.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     torch.save({"model": {"weight": torch.ones(2)}, "step": 3}, f"{folder}/last.pt")
        ...     state = rg.interop.checkpoints.read(f"{folder}/last.pt", key="model")
        >>> state
        {'weight': tensor([1., 1.])}
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path must be a string or a path, got {type(path).__name__}")
    if key is not None and not isinstance(key, str):
        raise TypeError(f"key must be a string or None, got {type(key).__name__}")
    where = os.fspath(path)
    if not isinstance(where, str):
        raise TypeError(f"path must be a string or a path of letters, got {type(where).__name__}")
    suffix = Path(where).suffix
    if suffix not in _SUFFIXES:
        raise ValueError(f"path must end in one of {', '.join(_SUFFIXES)}, got {shown(where)}")
    if key is not None and suffix not in _TORCH:
        raise ValueError(f"key must be None for a {suffix} file, which holds one state dict, got {shown(key)}")
    if suffix == ".safetensors" and find_spec("safetensors") is None:
        raise ImportError("reading a .safetensors file needs the package safetensors: pip install safetensors")
    if not os.path.exists(where):
        raise FileNotFoundError(f"path must be that of a file, got {shown(where)}, which does not exist")
    if suffix == ".safetensors":
        return _read_safetensors(where)
    return _read_numpy(where) if suffix == ".npz" else _read_torch(where, key)


def _read_safetensors(path: str) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"path must be a file of safetensors, got {shown(path)}: {error}") from error


def _read_numpy(path: str) -> dict[str, Tensor]:
    import numpy

    found: dict[str, Tensor] = {}
    name = None
    with open(path, "rb") as file:  # numpy leaves a file open that it cannot read
        try:
            arrays = numpy.load(file, allow_pickle=False)
            if isinstance(arrays, numpy.ndarray):
                raise ValueError("it holds one array without a name")
            for name in arrays.files:
                found[name] = as_tensor(name, arrays[name])
        except (*_UNREADABLE, zipfile.BadZipFile, zlib.error) as error:
            at = "" if name is None else f" (array {name!r})"
            raise ValueError(f"path must be a .npz file of numbers, got {shown(path)}{at}: {error}") from error
    return found


def _read_torch(path: str, key: str | None) -> dict[str, Tensor]:
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        raise ValueError(
            f"path must be a file of torch.save that holds tensors and plain values only, got {shown(path)}: {error}"
        ) from error
    if key is not None:
        if not isinstance(loaded, Mapping) or key not in loaded:
            there = listed(loaded) if isinstance(loaded, Mapping) else type(loaded).__name__
            raise ValueError(f"key must name a part of the file, got {shown(key)}; it holds {there}")
        loaded = loaded[key]
    return _checked(loaded, "the file" if key is None else f"its part {key!r}")


def _checked(loaded: Any, what: str) -> dict[str, Tensor]:
    if not isinstance(loaded, Mapping):
        raise ValueError(f"path must be a file where {what} is a state dict, got {type(loaded).__name__}")
    for name, value in loaded.items():
        if not isinstance(name, str):
            raise ValueError(f"path must be a file where {what} has strings as names, got {shown(name)}")
        if not isinstance(value, Tensor):
            parts = [part for part, inner in loaded.items() if isinstance(inner, Mapping)]
            hint = f"; is it within key={parts[0]!r}?" if parts else ""
            raise ValueError(
                f"path must be a file where {what} maps names to tensors, got {type(value).__name__} as "
                f"{shown(name)}{hint}"
            )
    return dict(loaded)
