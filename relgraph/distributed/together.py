"""Raise an error on every process if one process has it, so that no process waits for the others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed

from relgraph.distributed.collectives import all_gather

KINDS = (ValueError, TypeError, NotImplementedError)
"""The errors that processes raise together."""

_SHOWN = 120
"""How many characters of a description an error shows."""


def raise_together(error: Exception | None, described: Mapping[str, str], device: torch.device, group: Any) -> None:
    """Raise the same error on every process if any has one, or if their descriptions of something differ.

    Every process calls this at the same point, with an ``error``, one of ``KINDS``, or None. ``described`` has for each
    argument a text that must be the same on all processes; it is empty if the error leaves nothing to describe. A
    difference is raised before an error, because it may be the cause.
    """
    size = distributed.get_world_size(group)
    if size == 1:
        if error is not None:
            raise error
        return
    kind = 0 if error is None else 1 + next(at for at, each in enumerate(KINDS) if isinstance(error, each))
    text = json.dumps(dict(described)) if described else ""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest() if text else b""
    mine = torch.tensor([kind, int.from_bytes(digest, "little", signed=True)], device=device)
    found = mine.new_empty(size * 2)
    all_gather(found, mine, group)
    kinds, digests = found.view(size, 2).T.tolist()
    if len({digest for digest in digests if digest}) > 1:
        raise _difference(_all_texts(text, group)) from error
    if any(kinds):
        texts = _all_texts("" if error is None else str(error), group)
        rank = next(rank for rank, kind in enumerate(kinds) if kind)
        where = "" if len(set(texts)) == 1 else f"; on process {rank}"
        raise KINDS[kinds[rank] - 1](f"{texts[rank]}{where}") from error


def _difference(texts: list[str]) -> ValueError:
    """The error for descriptions that differ: the first argument that does."""
    by_process = {rank: json.loads(text) for rank, text in enumerate(texts) if text}
    names = dict.fromkeys(name for described in by_process.values() for name in described)
    for name in names:
        said = {rank: described.get(name, "nothing") for rank, described in by_process.items()}
        if len(set(said.values())) > 1:
            got = ", ".join(f"{text[:_SHOWN]} on process {rank}" for rank, text in said.items())
            return ValueError(f"{name} must be the same on all processes, got {got}")
    raise AssertionError("descriptions with different digests differ")


def _all_texts(text: str, group: Any) -> list[str]:
    """The texts of all processes."""
    found = [""] * distributed.get_world_size(group)
    distributed.all_gather_object(found, text, group=group)
    return found
