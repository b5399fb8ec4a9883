"""Compare lengths, labels and options of a call among processes before any data travel.

Without this, a process could wait for rows that never come. Every process compares the same numbers, so all raise the
same error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed
from torch.utils import _pytree as pytree

from relgraph.distributed.collectives import all_gather
from relgraph.distributed.together import raise_together
from relgraph.labels import Labels


def fingerprint(labels: Labels | None, *, whole: bool) -> int:
    """A number that is equal for two labels only if they are equal; for cut labels, it covers their common part."""
    if labels is None:
        return 0
    tensors, spec = pytree.tree_flatten(labels)
    digest = hashlib.blake2b(digest_size=8)
    if not whole:
        digest.update(repr((type(labels).__name__, labels.num_labels, labels.k_len)).encode())
        return int.from_bytes(digest.digest(), "little", signed=True)
    digest.update(repr(spec).encode())
    for tensor in tensors:
        digest.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return int.from_bytes(digest.digest(), "little", signed=True)


def agree(
    numbers: dict[str, int],
    device: torch.device,
    group: Any,
    words: dict[str, Sequence[str]],
    error: Exception | None = None,
) -> None:
    """Raise ValueError, the same on every process, unless all give the same numbers.

    Args:
        numbers: the numbers to compare, by the words of the error.
        device: the device on which the processes exchange tensors.
        group: the processes.
        words: the meaning of some numbers, for the error.
        error: a TypeError or ValueError that this process has found, in place of numbers. Then all processes raise it.
    """
    size = distributed.get_world_size(group)
    if size == 1:
        if error is not None:
            raise error
        return
    mine = torch.tensor([*numbers.values(), int(error is not None)], dtype=torch.int64, device=device)
    found = mine.new_empty(size * len(mine))
    all_gather(found, mine, group)
    rows = found.view(size, len(mine)).tolist()
    if any(row[-1] for row in rows):
        raise_together(error, "", "", device, group)
    for at, name in enumerate(numbers):
        values = [row[at] for row in rows]
        if len(set(values)) == 1:
            continue
        if name == LABELS:
            others = [rank for rank, value in enumerate(values) if value != values[0]]
            raise ValueError(
                f"labels must be equal on all processes of the region, got others than those of process 0 on "
                f"{', '.join(map(str, others))}"
            )
        said = [words[name][value] if name in words else value for value in values]
        got = ", ".join(f"{value} on process {rank}" for rank, value in enumerate(said))
        raise ValueError(f"{name} must be the same on all processes of the region, got {got}")


LABELS = "labels"
"""The name of the number that represents the labels."""


def shared_seed(device: torch.device, group: Any, drawn: Tensor | None = None) -> Tensor:
    """A seed for dropout that process 0 draws from torch's generator of the device, as a single process would.

    Args:
        device: the device whose generator draws it.
        group: the processes that share it.
        drawn: the seed of process 0, if it has drawn one already.
    """
    seed = torch.randint(1 << 62, (), device=device) if drawn is None else drawn.clone()
    if distributed.get_world_size(group) > 1:
        distributed.broadcast(seed, distributed.get_global_rank(group, 0), group=group)
    return seed
