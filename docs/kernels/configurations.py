"""All configurations of relgraph's kernels to compile ahead of time, and the same kernels without labels.

Tiles, warps and stages are those of a call (``relgraph.impl.triton.tiling``). Names have the form ``kernel labels dtype
head-size``; *none* is the kernel compiled without labels. The rules apply to the half types without options at heads of
64 and 128. Other sizes, float32 (multiplied without tensor cores) and options are only reported.

*edges* are the kernels over listed pairs, with and without 32 labels; *row_vectors* prepares backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from docs.kernels.configuration import ARCHITECTURES, Configuration
from relgraph.impl.triton import attention_kernels, edge_kernels
from relgraph.impl.triton.tiling import edge_tiling, product_size, tiling

SIZES = (16, 32, 64, 128, 256)
HELD = (64, 128)
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

WRITTEN = ("ids_ptr", "order_ptr", "bounds_ptr")
OF_LABELS = ("bq_ptr", "bq_run_ptr", "db_ptr", "dp_ptr", "dp_run_ptr", "p_ptr")
LABELS: dict[str, tuple[int, tuple[str, ...]]] = {
    "none": (16, OF_LABELS + WRITTEN),
    "distance": (64, WRITTEN),
    "written": (32, ()),
}
"""Columns of sums and absent tensors: without labels; with 2·16 + 1 distance labels; with 32 labels written out."""

OPTIONS: dict[str, tuple[str, ...]] = {
    "query table": ("ck_ptr", "ck_run_ptr", "dc_ptr"),
    "dropout": ("seed_ptr",),
    "mask": ("mask_ptr",),
}
"""The tensors that each option adds."""

RARE = (
    "keep_ptr", "dlse_ptr", "added_ptr", "factor_ptr", "again_ptr",
    *(name for names in OPTIONS.values() for name in names),
)  # fmt: skip
"""Tensors that are absent from a plain call."""

IN_DTYPE = ("q_ptr", "k_ptr", "v_ptr", "dq_ptr", "dk_ptr", "dv_ptr")
POINTERS = {
    "mask_ptr": "*u8", "seed_ptr": "*i64", "ids_ptr": "*u8", "order_ptr": "*u8", "bounds_ptr": "*u8",
    **dict.fromkeys(("blocks_ptr", "runs_ptr", "tiles_ptr"), "*i32"),
    **dict.fromkeys(("begin_ptr", "other_ptr", "label_ptr", "pair_ptr"), "*i32"),
}  # fmt: skip
FLOATS = ("scale", "boost", "q_scale", "k_scale", "drop", "grow")
ALIGNED = ("q", "k", "v")


def configurations() -> Iterator[Configuration]:
    """All configurations."""
    for arch in ARCHITECTURES:
        for size in SIZES:
            for dtype in TYPES:
                if dtype == "fp16" and size not in HELD:
                    continue
                for labels in LABELS:
                    yield from kernels(labels, dtype, size, arch)
        for option in OPTIONS:
            for labels in LABELS:
                if option != "query table" or labels != "none":
                    yield from kernels(labels, "bf16", 64, arch, option)
    for size in HELD:
        yield from vectors(size)
    for size in (16, 64, 128):
        for dtype in ("bf16", "fp32"):
            for kind in ("none", "labels"):
                yield from over_edges(size, dtype, kind)


def kernels(labels: str, dtype: str, size: int, arch: int, option: str = "") -> Iterator[Configuration]:
    """Forward and both backward kernels."""
    columns, absent = LABELS[labels]
    for name in ("forward", "backward_rows", "backward_keys"):
        fn: Any = getattr(attention_kernels, name)
        tiles = tiling(name, size, size, TYPES[dtype], divmod(arch, 10), by_distance=labels != "written")
        plain = "" if option == "query table" else option  # without labels there is also no query table
        constants = {
            "D": size, "DV": size, "BD": product_size(size), "BDV": product_size(size),
            "BM": tiles.rows, "BN": tiles.keys, "STEP": tiles.step, "GROUP": 1, "PARTS": 1, "RP": columns,
            "PRECISION": "ieee", "DROPOUT": "drawn" if option == "dropout" else "none",
        }  # fmt: skip
        yield Configuration(
            " ".join(filter(None, (name, labels, dtype, str(size), option))),
            fn,
            *arguments(fn, dtype, constants, absent, OPTIONS.get(option, ()), {"do_ptr": f"*{dtype}"}),
            tiles.warps,
            tiles.stages,
            None if labels == "none" else " ".join(filter(None, (name, "none", dtype, str(size), plain))),
            pairs=tiles.rows * tiles.keys,
            turns={"uniform": 1, "mixed": (tiles.rows if name == "backward_keys" else tiles.keys) // tiles.step},
            archs=(arch,),
            held=not option and dtype != "fp32" and size in HELD,
        )


def vectors(size: int) -> Iterator[Configuration]:
    """What backward computes per query row before its kernels start, with and without labels."""
    fn: Any = attention_kernels.row_vectors
    constants = {"DV": size, "BDV": product_size(size), "BM": attention_kernels.ROWS}
    for labels, absent in (("none", (*OF_LABELS, "sums_ptr")), ("labels", ())):
        found = arguments(fn, "bf16", constants, absent, (), {"do_low_ptr": "*bf16"})
        yield Configuration(f"row_vectors {labels} bf16 {size}", fn, *found, loops=())


def arguments(
    fn: Any, dtype: str, constants: Mapping[str, Any], absent: tuple[str, ...], present: tuple[str, ...] = (),
    types: Mapping[str, str] = {},
) -> tuple[dict[str, str], dict[str, Any]]:  # fmt: skip
    """Types of the run-time arguments and values of the others; strides of rows are multiples of 16 elements."""
    missing = {*absent, *RARE} - {*present}
    fixed = {**dict.fromkeys(missing), **constants}
    fixed = {name: fixed[name] for name in fn.arg_names if name in fixed}
    found = {}
    for name in fn.arg_names:
        if name in fixed:
            continue
        if name in IN_DTYPE:
            found[name] = f"*{dtype}"
        elif name.endswith("_ptr"):
            found[name] = POINTERS.get(name, "*fp32")
        elif name in FLOATS:
            found[name] = "fp32"
        else:
            tensor, _, axis = name.partition("_")
            found[name] = "i32:16" if tensor in ALIGNED and axis in ("b", "h", "n") else "i32"
    return found | {name: type for name, type in types.items() if name in found}, fixed


def over_edges(size: int, dtype: str, kind: str) -> Iterator[Configuration]:
    """The three kernels over listed pairs: with key and value tables of 32 labels, or none; degree 20."""
    for name in ("forward", "by_row", "by_key"):
        fn: Any = getattr(edge_kernels, f"{name}_kernel")
        constants = edge_tiling(size, size, 32 if kind == "labels" else 0, 20.0)
        warps = constants.pop("num_warps")
        constants |= {"H": 8, "GROUP": 1, "JOINT": False, "PART": False}
        yield Configuration(
            f"edges {name} {kind} {dtype} {size}",
            fn,
            *arguments(fn, dtype, constants, () if kind == "labels" else OF_LABELS),
            warps,
            1,
            None if kind == "none" else f"edges {name} none {dtype} {size}",
            loops=("edges",),
        )
