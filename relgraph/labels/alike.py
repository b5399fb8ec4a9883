"""Checks that labels are labels, cover the same pairs, and can be cut or written out."""

from __future__ import annotations

from typing import Any

import torch

from relgraph.arguments import check
from relgraph.arguments.hints import in_place_of_labels
from relgraph.labels.base import Labels


def check_labels(name: str, *given: Any) -> None:
    """Raise TypeError, which calls them ``name``, unless all are Labels."""
    for labels in given:
        if not isinstance(labels, Labels):
            raise TypeError(f"{name} must be Labels, got {in_place_of_labels(labels)}")


def common_batch(*sizes: int) -> int:
    """The batch size that these broadcast to; it may be 0."""
    return next((size for size in sizes if size != 1), 1)


def check_alike(a: Labels, b: Labels, name: str = "labels") -> None:
    """Raise ValueError, which calls them ``name``, unless both cover the same pairs on the same device."""
    if (a.q_len, a.k_len) != (b.q_len, b.k_len):
        raise ValueError(
            f"{name} must cover the same pairs, [N_q, N_k], got [{a.q_len}, {a.k_len}] and [{b.q_len}, {b.k_len}]"
        )
    if a.packed != b.packed:
        kinds = " and ".join(f"{type(x).__name__} {'with' if x.packed else 'without'} ptr" for x in (a, b))
        raise ValueError(
            f"{name} must both be packed or neither, got {kinds}; .dense() writes packed labels out as one matrix"
        )
    if a.batch_size != b.batch_size and not check.among(1, a.batch_size, b.batch_size):
        raise ValueError(f"{name} must have the same batch_size, or 1, got {a.batch_size} and {b.batch_size}")
    if a.device is not None and b.device is not None and a.device != b.device:
        raise ValueError(f"{name} must be on one device, got {a.device} and {b.device}")
    for mine, theirs in ((a.q_ptr, b.q_ptr), (a.k_ptr, b.k_ptr)):
        if mine is theirs or mine is None or theirs is None or not check.can_look_at_data(mine, theirs):
            continue
        if not torch.equal(mine, theirs):
            raise ValueError(f"{name} must have the same graph borders, got others")


def check_room(labels: Labels) -> None:
    """Raise ValueError if there are too many pairs to write out, pairs across graphs included."""
    check.written("q_len and k_len", labels.batch_size, labels.q_len, labels.k_len)


def check_slice(start: int, stop: int, length: int) -> None:
    """Raise an error unless ``start:stop`` is within ``length`` queries or keys."""
    check.integer("start", start, minimum=0, maximum=length)
    check.integer("stop", stop, minimum=start, maximum=length)
