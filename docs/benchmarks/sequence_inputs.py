"""Inputs for sequences: the same numbers for every way, and the float64 formula that checks each way."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from docs.benchmarks.sweeps import Sequence
from docs.benchmarks.ways import Made, Way, distance_from, with_gradients

SAMPLED_ROWS = 8
SMALL_LENGTH = 72


@dataclass(frozen=True)
class Meaning:
    """Describes what a way computes.

    Attributes:
        labels: ``"none"``; ``"distance"``, clipped at k; ``"arbitrary"``, R written out; ``"positions"``, i - j.
        tables: ``"none"``, ``"key"``, ``"both"``, or ``"tied"``, one table for keys and values.
    """

    labels: str = "distance"
    tables: str = "both"


class Inputs:
    """The numbers of one setting. Each is drawn on first use from its own seed, so that all ways get the same."""

    def __init__(self, setting: Sequence) -> None:
        self.setting = setting
        self.dtype = getattr(torch, setting.dtype)
        self.device = torch.device(setting.device)
        self._tables: dict[tuple[str, str], Tensor] = {}

    def _draw(self, seed: int, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*shape, generator=generator).to(self.device, self.dtype)

    def _projected(self, seed: int) -> Tensor:
        s = self.setting
        return self._draw(seed, s.batch, s.heads, s.length, s.size)

    @cached_property
    def qkv(self) -> dict[str, Tensor]:
        """Query, key and value ``[B, H, N, D]``, which require gradients."""
        names = ("query", "key", "value")
        return {name: self._projected(seed).requires_grad_() for seed, name in enumerate(names, 1)}

    @cached_property
    def grad(self) -> Tensor:
        """The gradient of the output."""
        return self._projected(4)

    def table(self, which: str, labels: str) -> Tensor:
        """A table ``[R, D]``; ``which`` is key or value."""
        if (which, labels) not in self._tables:
            rows = {"distance": 2 * self.setting.clip + 1, "positions": 2 * self.setting.length - 1}
            seed = 5 if which == "key" else 6
            drawn = self._draw(seed, rows.get(labels, self.setting.labels), self.setting.size)
            self._tables[which, labels] = (drawn / math.sqrt(self.setting.size)).requires_grad_()
        return self._tables[which, labels]

    @cached_property
    def written(self) -> Tensor:
        """``[N, N]``, labels in random order, in a small type."""
        s = self.setting
        kind = torch.int8 if s.labels < 128 else torch.int16
        generator = torch.Generator().manual_seed(7)
        return torch.randint(s.labels, (s.length, s.length), dtype=kind, generator=generator).to(self.device)

    def ids(self, labels: str, rows: Tensor | None = None) -> Tensor:
        """The label of every pair in some rows, int64."""
        at = torch.arange(self.setting.length, device=self.device)
        rows = at if rows is None else rows
        if labels == "arbitrary":
            return self.written[rows].long()
        if labels == "positions":
            return rows[:, None] - at + self.setting.length - 1
        clip = self.setting.clip
        return (at - rows[:, None]).clamp(-clip, clip) + clip

    def leaves(self, meaning: Meaning) -> dict[str, Tensor]:
        """All trainable tensors for ``meaning``."""
        leaves = dict(self.qkv)
        if meaning.tables != "none":
            leaves["key_table"] = self.table("key", meaning.labels)
        if meaning.tables == "both":
            leaves["value_table"] = self.table("value", meaning.labels)
        return leaves


def expected(inputs: Inputs, meaning: Meaning, rows: Tensor) -> dict[str, Tensor]:
    """Output and gradients of some rows, in float64, with a vector built for every pair."""
    exact = {name: x.detach().double().requires_grad_() for name, x in inputs.leaves(meaning).items()}
    picked = exact["query"][:, :, rows]
    scores = picked @ exact["key"].mT
    ids = None if meaning.tables == "none" else inputs.ids(meaning.labels, rows)
    if ids is not None:
        scores = scores + torch.einsum("bhid,ijd->bhij", picked, exact["key_table"][ids])
    weights = (scores / math.sqrt(inputs.setting.size)).softmax(-1)
    output = weights @ exact["value"]
    if ids is not None and meaning.tables != "key":
        table = exact["key_table" if meaning.tables == "tied" else "value_table"]
        output = output + torch.einsum("bhij,ijd->bhid", weights, table[ids])
    return with_gradients(output, exact, inputs.grad[:, :, rows].double())


def check(way: Way[Sequence], made: Made, inputs: Inputs) -> float:
    """Compare outputs, and gradients if there are any, with float64: all rows if short, else some."""
    length = inputs.setting.length
    whole = length <= SMALL_LENGTH
    rows = torch.arange(length) if whole else torch.linspace(0, length - 1, SAMPLED_ROWS).long()
    rows = rows.to(inputs.device)
    wanted = expected(inputs, way.meaning, rows)
    with torch.set_grad_enabled(made.trains):
        output = made.call()
    got = with_gradients(output, made.leaves, inputs.grad) if made.trains else {"output": output}
    if not whole:
        got = {name: x[:, :, rows] for name, x in got.items() if name in ("output", "query")}
        wanted["query"] = wanted["query"][:, :, rows]
    return distance_from(got, {name: wanted[name] for name in got}, inputs.dtype, way.name)
