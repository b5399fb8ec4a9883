"""The sweeps: lengths, sizes of heads, labels, edges and graphs, on a CPU, on a GPU and in a smoke run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Sequence:
    """Attention over a sequence: B batch, H heads, N length, D size, R labels; distances are clipped at R // 2."""

    batch: int = 1
    heads: int = 8
    length: int = 1024
    size: int = 64
    labels: int = 32
    device: str = "cpu"
    dtype: str = "float32"

    @property
    def clip(self) -> int:
        """k of clipped distances: 2k + 1 labels."""
        return self.labels // 2


@dataclass(frozen=True)
class Edges:
    """A graph layer over edges: 20 edges per node, some types, H heads of C channels."""

    edges: int = 200_000
    types: int = 20
    heads: int = 8
    size: int = 16
    device: str = "cpu"
    dtype: str = "float32"

    @property
    def nodes(self) -> int:
        return max(self.edges // 20, 1)

    @property
    def width(self) -> int:
        return self.heads * self.size


@dataclass(frozen=True)
class Packed:
    """A batch of small graphs of 5 to ``most`` nodes; the label of every pair is its shortest path, up to 10."""

    graphs: int = 64
    most: int = 200
    heads: int = 8
    size: int = 16
    device: str = "cpu"
    dtype: str = "float32"


WIDE = "length128"
"""On a GPU, the sweep of lengths again with heads of 128 numbers, which have different tiles."""

Setting = Sequence | Edges | Packed
KINDS: dict[str, type[Setting]] = {"Sequence": Sequence, "Edges": Edges, "Packed": Packed}


@dataclass(frozen=True)
class Sweep:
    """One axis of variation.

    Attributes:
        name: the sweep, and the name of its files and tables.
        field: the varied field.
        axis: its name in plots.
        settings: the settings, from small to large.
    """

    name: str
    field: str
    axis: str
    settings: tuple[Setting, ...]

    def described(self) -> dict[str, Any]:
        """The sweep for a JSON file."""
        return {"field": self.field, "axis": self.axis, "settings": [described(setting) for setting in self.settings]}


def sweeps(device: str, quick: bool, dtype: str | None = None) -> list[Sweep]:
    """All axes. A smoke run has all of them, at very small sizes."""
    cuda = device.startswith("cuda")
    options: dict[str, Any] = {"device": device, "dtype": dtype or ("bfloat16" if cuda else "float32")}
    if quick:
        line = Sequence(heads=2, length=128, size=16, labels=8, **options)
        edges = Edges(edges=2_000, heads=2, size=8, **{**options, "dtype": dtype or "float32"})
        packed = Packed(graphs=4, most=30, heads=2, size=8, **options)
        points: tuple[tuple[int, ...], ...] = ((128, 256), (16, 32), (8, 32), (2_000, 8_000), (4, 8))
    elif cuda:
        line = Sequence(heads=16, length=4096, **options)
        edges = Edges(**{**options, "dtype": dtype or "float32"})
        packed = Packed(**options)
        points = (
            (512, 1024, 2048, 4096, 8192, 16384), (16, 32, 64, 128), (2, 8, 32, 128, 512),
            (20_000, 200_000, 500_000, 2_000_000), (16, 64, 256, 1024),
        )  # fmt: skip
    else:
        line, edges, packed = Sequence(**options), Edges(**options), Packed(**options)
        points = (
            (256, 512, 1024, 2048, 4096), (16, 32, 64, 128), (2, 8, 32, 128, 512),
            (6_000, 20_000, 60_000, 200_000, 600_000, 2_000_000), (16, 64, 256),
        )  # fmt: skip
    axes = (
        ("length", line, "n, sequence length"), ("size", line, "d, size of a head"),
        ("labels", line, "R, number of labels"), ("edges", edges, "E, number of edges"),
        ("graphs", packed, "graphs in a batch"),
    )  # fmt: skip
    found = [
        Sweep(field, field, axis, tuple(replace(base, **{field: value}) for value in values))
        for (field, base, axis), values in zip(axes, points, strict=True)
    ]
    if not cuda:
        return found
    length, size, labels, edges_alone, graphs = found
    wide = replace(length, name=WIDE, settings=tuple(replace(s, size=2 * line.size) for s in length.settings))
    return [
        length,
        edges_alone,
        wide,
        graphs,
        size,
        labels,
    ]  # the most important ones come first, in case time is short


def described(setting: Setting) -> dict[str, Any]:
    """The setting for a JSON file."""
    return {"kind": type(setting).__name__, **asdict(setting)}


def restored(given: dict[str, Any]) -> Setting:
    """The setting from a JSON file."""
    rest = dict(given)
    return KINDS[rest.pop("kind")](**rest)


def each(chosen: list[Sweep]) -> Iterator[tuple[Sweep, Setting]]:
    """Every point of every sweep."""
    for sweep in chosen:
        for setting in sweep.settings:
            yield sweep, setting
