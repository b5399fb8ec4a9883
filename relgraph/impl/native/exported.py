"""Attention in exported programs that run without Python: one operator, ``attention_native``, of ``exported.cc``.

:func:`compile_exported` makes a file that torch loads, in Python or C++. Once this process has loaded it,
``impl="native"`` inside ``torch.export`` puts the operator into the program. It computes forward only.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relgraph.call import Answer, Call
from relgraph.impl.native import compiler, found, problem
from relgraph.impl.native.compiler import Library, UnavailableError, compile_native
from relgraph.plan import DistanceIds, WrittenIds
from relgraph.score import DOT

NAME = "attention_native"

TARGET = "0x020b000000000000"
"""The oldest torch that the file serves, 2.11, as torch's headers write it."""

_SIZES = (
    "SCORES", "MOST_ROWS", "FEWEST_ROWS", "PANEL", "FEWEST_KEYS", "STEP", "LONG_TABLE", "PAIRS_PER_NUMBER", "FARTHEST",
)  # fmt: skip


def compile_exported() -> Path:
    """Compile the file for this processor, unless that is done already, and return it.

    Raises:
        UnavailableError: there is no compiler, it makes no file that torch loads, or the file cannot be kept.
    """
    torch_folder = Path(torch.__file__).parent
    known = {name: getattr(problem, name) for name in _SIZES}
    known["FEWEST_QUERIES"] = problem.FEWEST_QUERIES[torch.float32]
    known["GEMM32"] = ",".join(f'"{name}"' for name in found.GEMM[4])
    known |= {name: f'"{getattr(found, name)}"' for name in ("BLOCKED", "RELEASE", "PARALLEL")}
    flags = [f"-DTORCH_TARGET_VERSION={TARGET}", *(f"-DRELGRAPH_{name}={value}" for name, value in known.items())]
    flags += ["-isystem", str(torch_folder / "include"), f"-L{torch_folder / 'lib'}"]
    # torch's symbols are found through this file, whose own functions are never those of another library
    flags += ["-Wl,--no-as-needed", "-ltorch_cpu", "-Wl,-Bsymbolic"]
    path = compile_native(library=Library("exported", (compiler.HERE / "exported.cc",), tuple(flags), loads=False))
    # another process, because this one would keep the operator
    code = f"import sys, torch; torch.ops.load_library(sys.argv[1]); torch.ops.relgraph.{NAME}"
    tried = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    if tried.returncode:
        path.unlink(missing_ok=True)
        lines = tried.stderr.strip().splitlines() or [f"exit status {tried.returncode}"]
        raise UnavailableError(f"the compiler made no file that torch loads: {lines[-1]}", "install another compiler")
    return path


def taken() -> bool:
    """Whether ``impl="native"`` is the operator now: inside ``torch.export``, if this process has loaded the file."""
    return torch.compiler.is_exporting() and _loaded()


def _loaded() -> bool:
    if not hasattr(torch.ops.relgraph, NAME):
        return False
    _describe()
    return True


_loaded._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


@cache
def _describe() -> None:
    """Say what shapes the operator returns and that it has no derivative."""
    name = f"relgraph::{NAME}"
    torch.library.register_fake(name, _fake)
    torch.library.register_autograd(name, _no_derivative)


def _fake(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    batch, heads, rows, _size = query.shape
    return query.new_empty(batch, rows, heads, value.shape[-1]), query.new_empty(batch, heads, rows)


def _no_derivative(*_: Any) -> Any:
    raise NotImplementedError(f"relgraph::{NAME} has no derivative; export with impl='dense'")


def refusal(call: Call) -> str | None:
    """Why the operator cannot answer this call; None if it can."""
    plan, part, other = call.plan, call.plan.parts[0], "inside torch.export; use impl='dense'"
    if call.query.device.type != "cpu" or call.query.dtype != torch.float32:
        return f"needs float32 on the CPU {other}, got {call.query.dtype} on {call.query.device.type}"
    tables = {kind for kind in ("query", "rows", "weights") if getattr(call.tables[0], kind) is not None}
    no = {
        "need_weights": call.need_weights,
        "need_label_mass": call.need_mass,
        "dropout_p": call.dropout_p > 0.0,
        "sums of labels": len(plan.parts) > 1,
        "packed labels": plan.q_ptr is not None,
        "EdgeLabels": part.csr is not None,
        "labels by function": not isinstance(part.ids, DistanceIds | WrittenIds),
        "query_table": "query" in tables,
        "scores by row": "rows" in tables,
        "tables with a batch axis": bool(call.tables[0].batched),
        "q_offset as a tensor": isinstance(part.offset, Tensor) or isinstance(call.q_offset, Tensor),
        "score": call.score is not DOT,
        "value_map": call.value_map is not None,
        "edge_attr": call.edge is not None,
        "key_gate or value_gate": call.gates is not None,
    }
    return next((f"has no {name} {other}" for name, asked in no.items() if asked), None)


def attend(call: Call) -> Answer:
    """A call by the operator."""
    part, tables, mask = call.plan.parts[0], call.tables[0], call.mask
    if isinstance(part.ids, DistanceIds):
        ids, lookup, first = None, list(part.ids.lookup), part.ids.first
    else:
        assert isinstance(part.ids, WrittenIds)
        ids, lookup, first = part.ids.ids, [-1], 0  # AOTInductor cannot pass an empty list
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(torch.float32)
    output, lse = getattr(torch.ops.relgraph, NAME)(
        call.query, call.key, call.value, tables.key, tables.value, tables.bias, ids, mask, lookup, first, part.offset,
        part.num_labels, call.is_causal, call.q_offset, call.scale,
    )  # fmt: skip
    return Answer(output.transpose(1, 2), lse)
