"""Block sizes and thresholds of the implementations: which there are, and other values for them, drawn from a seed.

The one place that names them. A name that is gone, or a new number that nobody has decided about, is an error.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, NamedTuple


class Constant(NamedTuple):
    """A number in a module, and the values that are drawn beside its own."""

    module: str
    name: str
    values: Sequence[Any]


DRAWN = (
    Constant("relgraph.impl.blocks", "BLOCK_SCORES", (1, 8, 60, 500)),
    Constant("relgraph.impl.blocks", "BLOCK_ROWS", (1, 2, 3, 7)),
    Constant("relgraph.impl.blocks", "FEWEST_ROWS", (1, 2, 5)),
    Constant("relgraph.impl.rule", "DENSE_SCORES", (0, 30, 400)),
    Constant("relgraph.impl.groups", "SMALL_PAIRS", (0, 5, 30)),
    Constant("relgraph.impl.groups", "LEAST_FILLED", (0.0, 0.2, 1.0)),
    Constant("relgraph.impl.sparse", "GATHERED", (0, 50)),
    Constant("relgraph.impl.sparse", "RUN_NUMBERS", (1, 40)),
    Constant("relgraph.impl.edges", "LABELS_A_PAIR", (0.0, 1.0, 1e9)),
    Constant("relgraph.impl.tilemap_ids", "CHUNK_PAIRS", (1, 300, 2000)),
    Constant("relgraph.impl.virtual", "MAX_BAND", (0, 3, 10)),
    Constant("relgraph.impl.fused", "KEPT_CONSTANTS", (1,)),
    Constant("relgraph.impl.kernels.launch", "KEPT_MAPS", (1,)),
)

FIXED = {
    "relgraph.impl.chunked": {"_INPUTS", "_OUTPUTS"},
    "relgraph.impl.fused": {"_INPUTS", "_OUTPUTS", "MOST_SIZE", "MOST_COLUMNS", "HAS_TRITON"},
    "relgraph.impl.groups": {"SPREAD"},
    "relgraph.impl.rows": {"PER_LN2"},
    "relgraph.impl.tilemap_ids": {"NO_LIMIT"},
    "relgraph.impl.virtual": {"FAR_LEFT", "BEYOND"},
    "relgraph.impl.kernels.launch": {"LOG2E"},
    "relgraph.impl.kernels.edges_kernels": {"NUMBERS_A_THREAD", "LN_2"},
}
"""Numbers that no speed hangs on, or that say what a kernel can do: they stay as they are."""

TILES = ((16, 16), (16, 16), (32, 16), (16, 32))
"""Rows and keys of a tile of the fused kernels, whose products take no fewer."""

NEEDS_TRITON = "relgraph.impl.kernels"


def find(constant: Constant) -> Any:
    """The module of a constant.

    Raises:
        AttributeError: there is no such number any more.
    """
    module = importlib.import_module(constant.module)
    if not hasattr(module, constant.name):
        raise AttributeError(
            f"tests/fuzz/constants.py names {constant.module}.{constant.name}, which is gone: name what took its place"
        )
    return module


@contextmanager
def drawn(seed: int, *, triton: bool = False) -> Iterator[dict[str, Any]]:
    """Constants drawn from a seed, about half of them their own value; what was there is put back."""
    rng = Random(f"constants {seed}")
    kept: list[tuple[Any, str, Any]] = []
    told: dict[str, Any] = {}
    try:
        for constant in DRAWN:
            value = rng.choice(constant.values) if rng.random() < 0.6 else None
            if constant.module.startswith(NEEDS_TRITON) and not triton:
                continue
            module = find(constant)
            if value is not None:
                kept.append((module, constant.name, getattr(module, constant.name)))
                setattr(module, constant.name, value)
                told[constant.name] = value
        tile = rng.choice(TILES)
        if triton:
            launch = importlib.import_module("relgraph.impl.kernels.launch")
            kept.append((launch, "tiling", launch.tiling))
            launch.tiling = lambda *_, **__: launch.Tiling(*tile, 4, 1)
            told["tile"] = tile
        yield told
    finally:
        for module, name, value in reversed(kept):
            setattr(module, name, value)
