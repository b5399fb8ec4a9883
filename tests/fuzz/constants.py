"""Block sizes and thresholds of the implementations: which there are, and other values for them, drawn from a seed.

The one place that names them. A name that is gone is an error.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, NamedTuple

import torch


class Constant(NamedTuple):
    """A number in a module, and the values that are drawn beside its own."""

    module: str
    name: str
    values: Sequence[Any]


DRAWN = (
    Constant("relgraph.impl.chunked.blocks", "BLOCK_SCORES", (1, 8, 60, 500)),
    Constant("relgraph.impl.chunked.blocks", "BLOCK_ROWS", (1, 2, 3, 7)),
    Constant("relgraph.impl.chunked.blocks", "FEWEST_ROWS", (1, 2, 5)),
    Constant("relgraph.impl.eager.rows", "BLOCK_NUMBERS", (1, 60, 500)),
    # rows of dense, as on a GPU: one row, some rows and everything
    Constant("relgraph.impl.budget", "CPU_BYTES", (1, 600, 5_000, 1 << 30)),
    Constant("relgraph.impl.rule", "PACKED_SHARE", (1,)),
    Constant("relgraph.impl.eager.dense", "NUMBERS_PER_SCORE", (1,)),
    Constant("relgraph.impl.eager.dense", "KEPT_PAIRS", (0,)),
    Constant("relgraph.impl.eager.sparse", "HELD", (1,)),
    Constant("relgraph.impl.rule", "DENSE_SCORES", (0, 30, 400)),
    Constant("relgraph.impl.rule", "SMALL_SCORES", (0, 30, 400)),
    Constant("relgraph.impl.chunked.groups", "SMALL_PAIRS", (0, 5, 30)),
    Constant("relgraph.impl.chunked.groups", "LEAST_FILLED", (0.0, 0.2, 1.0)),
    Constant("relgraph.impl.eager.sparse", "GATHERED", (0, 50)),
    Constant("relgraph.impl.eager.sparse", "RUN_NUMBERS", (1, 40)),
    Constant("relgraph.impl.eager.edges", "LABELS_A_PAIR", (0.0, 1.0, 1e9)),
    Constant("relgraph.impl.native.problem", "SCORES", (1, 60, 500)),
    # even ones: products in bfloat16 take pairs of rows
    Constant("relgraph.impl.native.problem", "MOST_ROWS", (2, 4, 8)),
    Constant("relgraph.impl.native.problem", "FEWEST_ROWS", (2, 4, 6)),
    Constant("relgraph.impl.native.problem", "PANEL", (64, 128)),
    Constant("relgraph.impl.native.problem", "FEWEST_KEYS", (1, 20)),
    Constant("relgraph.impl.native.problem", "STEP", (1, 16)),
    Constant("relgraph.impl.native.problem", "MOST_COLUMNS", (0, 5)),
    Constant("relgraph.impl.native.problem", "LONG_TABLE", (0, 5)),
    Constant("relgraph.impl.native.attend", "PAIRS_PER_NUMBER", (0.0, 1e9)),
    Constant("relgraph.impl.triton.tile_ids", "CHUNK_PAIRS", (1, 300, 2000)),
    Constant("relgraph.impl.triton.virtual", "MAX_BAND", (0, 3, 10)),
    Constant("relgraph.impl.triton.tables", "FARTHEST_ROW", (1, 5)),
    Constant("relgraph.impl.triton.attention_kernels", "ROWS", (4, 64)),
    Constant("relgraph.impl.by_function", "BLOCK_IDS", (1, 40, 300)),
    Constant("relgraph.impl.by_function", "FEWEST_ROWS", (1, 3)),
    Constant("relgraph.impl.by_function", "BLOCK_BYTES", (1,)),
    Constant("relgraph.labels.function", "FEW_PAIRS", (0, 20)),
    Constant("relgraph.labels.function", "PAIRS_AT_ONCE", (1, 30)),
    Constant("relgraph.labels.memory", "KEPT", (1,)),
    Constant("relgraph.impl.native.edges", "PAIRS_A_TASK", (1, 40)),
    Constant("relgraph.impl.native.edges", "PAIRS_A_LABEL", (0, 1)),
    Constant("relgraph.impl.native.edges", "MOST_PACKED", (0,)),
    Constant("relgraph.impl.native.edges", "MOST_PARTS", (0, 100)),
    Constant("relgraph.impl.native.edges", "TASKS_A_THREAD", (1, 7)),
    Constant("relgraph.impl.native.problem", "FEWEST_QUERIES", ({torch.float32: 1, torch.bfloat16: 1},)),
)

TILES = ((16, 16, 16), (16, 16, 16), (32, 16, 16), (16, 32, 16), (32, 32, 32), (32, 64, 32))
"""Rows and keys of a tile of the fused kernels and of a step in it; their products take no fewer than 16."""

NEEDS_TRITON = "relgraph.impl.triton"


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
            launch = importlib.import_module("relgraph.impl.triton.launch")
            kept.append((launch, "tiling", launch.tiling))
            tiling = importlib.import_module("relgraph.impl.triton.tiling")
            rows, keys, step = tile
            launch.tiling = lambda *_, **__: tiling.Tiling(rows, keys, 4, 1, step)
            told["tile"] = tile
        yield told
    finally:
        for module, name, value in reversed(kept):
            setattr(module, name, value)
