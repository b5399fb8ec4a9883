"""All configurations of relgraph's kernels to compile ahead of time, and the same kernels without labels.

Tiles, warps and stages are those of a call (``relgraph.impl.triton.tiling``). Names have the form ``kernel labels dtype
head-size``; *none* is the kernel compiled without labels. The rules apply to the half types without options at heads of
64 and 128. Other sizes, float32 (multiplied without tensor cores) and options are only reported.

*row_vectors* is the small kernel before both backward kernels. *edges* are the kernels over listed pairs, with and
without 32 labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from docs.kernels.configuration import ARCHITECTURES, Configuration
from relgraph.impl.triton import attention_kernels, edge_kernels, launch, vector_kernels
from relgraph.impl.triton.tiling import Tiling, product_size, tiling

SIZES = (16, 32, 64, 128, 256)
HELD = (64, 128)
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

LABELS: dict[str, dict[str, Any]] = {
    "none": {"BAND": True, "HAS_BQ": False, "HAS_DP": False, "RP": 16},
    "distance": {"BAND": True, "HAS_BQ": True, "HAS_DP": True, "RP": 64},
    "written": {"BAND": False, "HAS_BQ": True, "HAS_DP": True, "RP": 32},
}
"""Without labels; with 2·16 + 1 distance labels; with 32 labels written out. Each has key and value tables."""

OPTIONS: dict[str, dict[str, Any]] = {
    "query table": {"HAS_CK": True},
    "dropout": {"DROPOUT": 1},
    "mask": {"MASK": 1},
}

FLOATS = {"scale": "fp32", "boost": "fp32", "bend": "fp32", "q_scale": "fp32", "k_scale": "fp32"}
ALIGNED = ("q_b", "q_h", "q_n", "k_b", "k_h", "k_n", "v_b", "v_h", "v_n")
IN_DTYPE = ("q_ptr", "k_ptr", "v_ptr", "do_ptr", "dq_ptr", "dk_ptr", "dv_ptr")
POINTERS = {
    "mask_ptr": "*u8", "seed_ptr": "*i64", "blocks_ptr": "*i32", "runs_ptr": "*i32", "tiles_ptr": "*i32",
    "ids_ptr": "*u8", "order_ptr": "*u8", "bounds_ptr": "*u8",
}  # fmt: skip


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
    for size in (64, 256):
        for dtype in ("bf16", "fp32"):
            yield from (row_vectors(labels, dtype, size) for labels in ("distance", "written"))
    for size in (16, 64, 128):
        for dtype in ("bf16", "fp32"):
            for labeled in (False, True):
                yield from over_edges(size, dtype, labeled)


def kernels(labels: str, dtype: str, size: int, arch: int, option: str = "") -> Iterator[Configuration]:
    """Forward and both backward kernels."""
    for fn in (attention_kernels.forward, attention_kernels.backward_rows, attention_kernels.backward_keys):
        tiles = tiling(fn.__name__, size, size, TYPES[dtype], divmod(arch, 10), by_distance=labels != "written")
        plain = "" if option == "query table" else option  # without labels there is also no query table
        yield Configuration(
            " ".join(filter(None, (fn.__name__, labels, dtype, str(size), option))),
            fn,
            signature(fn.arg_names, dtype),
            constants(fn.arg_names, labels, size, dtype, tiles, OPTIONS.get(option, {})),
            tiles.warps,
            tiles.stages,
            None if labels == "none" else " ".join(filter(None, (fn.__name__, "none", dtype, str(size), plain))),
            pairs=tiles.rows * tiles.keys,
            turns={
                "uniform": 1,
                "mixed": (tiles.rows if fn is attention_kernels.backward_keys else tiles.keys) // tiles.step,
            },
            archs=(arch,),
            held=not option and dtype != "fp32" and size in HELD,
        )


def constants(
    names: list[str], labels: str, size: int, dtype: str, tiles: Tiling, option: dict[str, Any]
) -> dict[str, Any]:
    """The compile-time arguments of a kernel."""
    chosen = {
        "D": size, "DV": size, "BD": product_size(size), "BDV": product_size(size),
        "BM": tiles.rows, "BN": tiles.keys, "STEP": tiles.step, "GROUP": 1, "PARTS": 1,
        "UPTO": dtype != "fp32", "HAS_CK": False,
        "MASK": 0, "DROPOUT": 0, "SCORE": 0, "NEGATED": False, "NVIDIA": True,
        "PRECISION": launch.precision(TYPES[dtype]), "SUMMED": 1 if dtype == "fp32" else 16,
        "FOLDED": "DROPOUT" not in option, **LABELS[labels], **option,
    }  # fmt: skip
    chosen["NEED_P"] = chosen["HAS_DP"]
    return {name: chosen[name] for name in names if name in chosen}


def signature(names: list[str], dtype: str) -> dict[str, str]:
    """The types of all other arguments; rows of queries, keys and values start at multiples of 16 numbers."""
    found = {}
    for name in names:
        if name in IN_DTYPE:
            found[name] = f"*{dtype}"
        elif name.endswith("_ptr"):
            found[name] = POINTERS.get(name, "*fp32")
        elif not name.isupper() or name in ("H", "C", "N_q", "N_k", "VECTORS"):
            found[name] = FLOATS.get(name, "i32:16" if name in ALIGNED else "i32")
    return found


def row_vectors(labels: str, dtype: str, size: int) -> Configuration:
    """The kernel that computes what backward needs per row; its loops run over columns, not pairs, and are not read."""
    fn, tables = vector_kernels.row_vectors, LABELS[labels]
    fixed = {
        "DV": size, "BDV": product_size(size), "BM": vector_kernels.ROWS, "BAND": tables["BAND"], "FOLDED": True,
        "HAS_DO": True, "HAS_DP": tables["HAS_DP"], "HAS_BQ": tables["HAS_BQ"], "HAS_DLSE": False,
        "LOWER": dtype != "fp32",
    }  # fmt: skip
    types = {name: "*fp32" if name.endswith("_ptr") else "i32" for name in fn.arg_names if name not in fixed}
    types["do_low_ptr"] = f"*{dtype}"
    return Configuration(f"row_vectors {labels} {dtype} {size}", fn, types, fixed, 4, 1, loops=())


def over_edges(size: int, dtype: str, labeled: bool) -> Iterator[Configuration]:
    """The three kernels over listed pairs: with key and value tables of 32 labels, or none; 20 pairs per query."""
    for fn in (edge_kernels.forward_kernel, edge_kernels.by_row_kernel, edge_kernels.by_key_kernel):
        options = edge_kernels.tiles(size, size, 32 if labeled else 0, 20.0)
        warps = options.pop("num_warps")
        missing = EDGES_MISSING if labeled else (*EDGES_MISSING, *EDGES_OF_LABELS)
        fixed = {
            **options,
            "HEADS": 8,
            "GROUP": 1,
            "JOINT": False,
            "SCORE": 0,
            "ANYWHERE": False,
            **dict.fromkeys(missing),
        }
        fixed = {name: fixed[name] for name in fn.arg_names if name in fixed}
        types = {name: _edge_type(name, dtype) for name in fn.arg_names if name not in fixed}
        name = fn.__name__.removesuffix("_kernel")
        yield Configuration(
            f"edges {name} {'labels' if labeled else 'none'} {dtype} {size}",
            fn,
            types,
            fixed,
            warps,
            1,
            f"edges {name} none {dtype} {size}" if labeled else None,
            loops=("edges",),
        )


EDGES_MISSING = ("BY_KEY", "AGAIN", "BY_KEY_GRAD", "ADDED", "FACTOR", "SEED", "MASS", "MASS_GRAD", "LSE_GRAD")
EDGES_OF_LABELS = ("BY_QUERY", "BY_QUERY_GRAD", "SUMS", "SUMS_GRAD")


def _edge_type(name: str, dtype: str) -> str:
    """The type of an argument of the kernels over listed pairs."""
    if name in ("Q", "K", "V", "Q_GRAD", "K_GRAD", "V_GRAD"):
        return f"*{dtype}"
    if name in ("ROW_PTR", "COL", "LABEL", "COL_PTR", "ROW", "PAIR"):
        return "*i32"
    if name.isupper():
        return "*fp32"
    if name in ("scale", "drop", "grow", "bend"):
        return "fp32"
    return "i32:16" if name.endswith(("_batch", "_head", "_row")) else "i32"
