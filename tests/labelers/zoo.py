"""Random labels of every kind, and the labels that a rule makes of two written out by a loop."""

from __future__ import annotations

import random
from typing import NamedTuple

import torch
from torch import Tensor

from relgraph.labels import BlockLabels, DenseLabels, DistanceLabels, EdgeLabels, Labels


class Setting(NamedTuple):
    """The pairs that labels cover."""

    q_len: int
    k_len: int
    q_offset: int | Tensor | None = None
    ptr: Tensor | None = None
    q_ptr: Tensor | None = None
    batch: int = 1


PADDED = (
    "distance",
    "dense",
    "dense batch",
    "edge",
    "edge to -1",
    "edge to id",
    "edge to distance",
    "edge to dense",
    "edge to edge",
    "edge batch",
    "edge batch to distance",
    "edge first",
)
PACKED = ("distance", "block", "edge", "edge to -1", "edge to id", "edge to distance", "edge to block", "edge first")


def padded_setting(rng: random.Random) -> Setting:
    offsets = (None, 0, 2, torch.tensor(1), torch.tensor([0, 3]))
    return Setting(rng.randint(0, 5), rng.randint(0, 5), rng.choice(offsets), batch=2)


def packed_setting(rng: random.Random) -> Setting:
    def borders(graphs):
        return torch.tensor([0, *(rng.randint(0, 3) for _ in range(graphs))]).cumsum(0)

    ptr, q_ptr = borders(3), borders(3)
    q_ptr = rng.choice([None, q_ptr])
    offset = rng.choice([None, 1, torch.tensor(2), torch.tensor([0, 2, 1])])
    q_len = int(ptr[-1] if q_ptr is None else q_ptr[-1])
    return Setting(q_len, int(ptr[-1]), offset, ptr, q_ptr)


def make(kind: str, setting: Setting, rng: random.Random, num_labels: int = 3) -> Labels:
    """Make random labels of a kind."""
    q_len, k_len, q_offset, ptr, q_ptr, batch = setting
    if kind == "distance":
        left = rng.randint(0, 3)
        lookup = [rng.randint(-2, num_labels - 1) for _ in range(left + rng.randint(1, 4))]
        return DistanceLabels(
            q_len, k_len, lookup=lookup, left=left, num_labels=num_labels, q_offset=q_offset, ptr=ptr, q_ptr=q_ptr
        )
    if kind.startswith("dense"):
        codes = torch.tensor(
            [rng.randint(-2, num_labels - 1) for _ in range(batch * q_len * k_len)], dtype=torch.int64
        ).view(batch, q_len, k_len)
        codes = codes if kind == "dense batch" else codes[:1]
        return DenseLabels(codes.clamp(min=-1), num_labels, attend=codes > -2)
    if kind == "block":
        assert ptr is not None
        count = int((ptr.diff() * (ptr if q_ptr is None else q_ptr).diff()).sum())
        codes = torch.tensor([rng.randint(-2, num_labels - 1) for _ in range(count)], dtype=torch.int64)
        return BlockLabels(codes.clamp(min=-1), num_labels, ptr, q_ptr=q_ptr, attend=codes > -2)
    return _edges(kind, setting, rng, num_labels)


def _edges(kind: str, setting: Setting, rng: random.Random, num_labels: int) -> EdgeLabels:
    q_len, k_len, _, ptr, q_ptr, batch = setting
    default = None
    if " to " in kind:
        goal = kind.split(" to ")[1]
        if goal in ("-1", "id"):
            default = -1 if goal == "-1" else rng.randint(0, num_labels - 1)
        else:
            default = make(goal, setting, rng, num_labels - 1)
    if kind == "edge first":
        default = rng.randint(-1, num_labels - 1)
    rows = batch if "batch" in kind else 1
    places = [(b, i, j) for b in range(rows) for i in range(q_len) for j in range(k_len) if _same_graph(setting, i, j)]
    listed = rng.sample(places, rng.randint(0, len(places)))
    if kind == "edge first" and listed:
        listed += rng.choices(listed, k=2)
    columns = torch.tensor(listed, dtype=torch.int64).view(-1, 3).T
    return EdgeLabels(
        columns[[2, 1]],
        torch.tensor([rng.randint(-1, num_labels - 1) for _ in listed], dtype=torch.int64),
        num_labels,
        q_len=q_len,
        k_len=k_len,
        default=default,
        duplicates="first" if kind == "edge first" else "error",
        ptr=ptr,
        q_ptr=q_ptr,
        batch=columns[0] if rows > 1 else None,
        batch_size=rows,
    )


def _same_graph(setting: Setting, i: int, j: int) -> bool:
    if setting.ptr is None:
        return True
    q_ptr = setting.ptr if setting.q_ptr is None else setting.q_ptr
    return sum(int(b) <= i for b in q_ptr[1:]) == sum(int(b) <= j for b in setting.ptr[1:])


def codes(labels: Labels) -> Tensor:
    """Return ids, with -2 where a pair does not attend."""
    ids, attend = labels.to_dense()
    return ids.masked_fill(~attend, -2)


def one(rule: str, a: int, b: int, r_a: int, r_b: int) -> int:
    """Combine the codes of one pair."""
    if rule == "product":
        if a == -2 or b == -2:
            return -2
        return -1 if a == -1 or b == -1 else a * r_b + b
    if rule == "first_of":
        if a != -1:
            return a
        return b if b < 0 else r_a + b
    return -2 if b == -2 else a


def loop(rule: str, a: Labels, b: Labels) -> Tensor:
    """Combine two labels by a rule, pair by pair."""
    x, y = torch.broadcast_tensors(codes(a), codes(b))
    out = [
        one(rule, p, q, a.num_labels, b.num_labels)
        for p, q in zip(x.flatten().tolist(), y.flatten().tolist(), strict=True)
    ]
    return torch.tensor(out, dtype=torch.int64).view(x.shape)
