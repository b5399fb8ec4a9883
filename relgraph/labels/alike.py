"""What two labels must have in common to be combined: the pairs, the device, the place they count from."""

from __future__ import annotations

import torch
from torch import Tensor

from relgraph import _check
from relgraph.labels import Labels


def check_alike(a: Labels, b: Labels) -> None:
    """Both cover the same pairs on the same device."""
    if (a.q_len, a.k_len) != (b.q_len, b.k_len):
        raise ValueError(
            f"labels must cover the same pairs, [N_q, N_k], got [{a.q_len}, {a.k_len}] and [{b.q_len}, {b.k_len}]"
        )
    if a.packed != b.packed:
        kinds = " and ".join(f"{type(x).__name__} {'with' if x.packed else 'without'} ptr" for x in (a, b))
        raise ValueError(
            f"labels must both be packed or neither, got {kinds}; .dense() writes packed labels out as one matrix"
        )
    if a.batch_size != b.batch_size and not _check.among(1, a.batch_size, b.batch_size):
        raise ValueError(f"labels must have the same batch_size, or 1, got {a.batch_size} and {b.batch_size}")
    if a.device is not None and b.device is not None and a.device != b.device:
        raise ValueError(f"labels must be on one device, got {a.device} and {b.device}")
    for mine, theirs in ((a.q_ptr, b.q_ptr), (a.k_ptr, b.k_ptr)):
        if mine is theirs or mine is None or theirs is None or not _check.can_look_at_data(mine, theirs):
            continue
        if not torch.equal(mine, theirs):
            raise ValueError("labels must have the same graph borders, got others")


def common_offset(a: int | Tensor | None, b: int | Tensor | None) -> int | Tensor | None:
    """The q_offset that both count from; unset is 0. Of equal ones, that with an entry a batch row is kept."""
    if a is None and b is None:
        return None
    x, y = 0 if a is None else a, 0 if b is None else b
    if not _same(x, y):
        shown = [value.tolist() if isinstance(value, Tensor) else value for value in (a, b)]
        raise ValueError(f"labels must count distances from the same q_offset, got {shown[0]} and {shown[1]}")
    return max((x, y), key=lambda value: value.dim() if isinstance(value, Tensor) else -1)


def _same(x: int | Tensor, y: int | Tensor) -> bool:
    """Whether two offsets are equal, as far as they can be seen."""
    if not isinstance(x, Tensor) and not isinstance(y, Tensor):
        return x == y
    seen = _check.can_look_at_data(*(value for value in (x, y) if isinstance(value, Tensor)))
    return not seen or bool(torch.as_tensor(x == y).all())
