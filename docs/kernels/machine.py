"""Reads a compiled kernel: registers, spills, blocks per SM, and the cycles of one iteration of each inner loop.

cuxray (PyPI) reads machine code without a GPU: control flow, the compiler's schedule, and how many blocks fit on a
multiprocessor. Triton includes the disassemblers that it needs.

Cycles count the time in which a warp issues an instruction or waits for the fixed time that the compiler has set. They
exclude further time of loads, barriers and tensor cores, and conflicts between warps. cuxray does not read schedules of
sm_100 and later: there, loops are compared by instructions.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuxray.analyze.schedule import loop_schedule
from cuxray.archspec import lookup
from cuxray.occupancy import compute
from cuxray.parse import cfgdot, ctrl, resusage, sass

_TENSOR = re.compile(r"([HQI]|BG|HG|QG|IG|UTC[HQI])MMA")


@dataclass(frozen=True)
class Loop:
    """One iteration of an inner loop.

    Attributes:
        instructions: number of instructions; both sides of a branch count.
        cycles: cycles of one warp; None if the schedule cannot be read.
        tensor: the tensor-core instructions by name, such as HMMA (Ampere), HGMMA (Hopper) or UTCHMMA (Blackwell).
    """

    instructions: int
    cycles: int | None = None
    tensor: tuple[str, ...] = ()

    @property
    def cost(self) -> int:
        """Cycles, or instructions if the schedule cannot be read."""
        return self.instructions if self.cycles is None else self.cycles


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel.

    Attributes:
        name: name of the function.
        arch: 90 is sm_90.
        registers: per thread.
        spill_bytes: local memory per thread; Triton's kernels use it for spilled registers only.
        spill_instructions: loads and stores of local memory.
        shared: bytes of shared memory per program.
        most_shared: the most bytes of shared memory that a program may have.
        blocks: programs that fit on one multiprocessor.
        loops: the innermost loops in the order of their addresses; if any uses tensor cores, only such loops.
    """

    name: str
    arch: int
    registers: int
    spill_bytes: int
    spill_instructions: int
    shared: int
    most_shared: int
    blocks: int
    loops: tuple[Loop, ...]


def read(cubin: bytes, name: str, arch: int, shared: int, num_warps: int) -> Compiled:
    """Read a kernel's machine code; ``shared`` is the shared memory in bytes that a launch asks for."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        usage = resusage.parse(_tool("cuobjdump", "--dump-resource-usage", path))[name]
        function = sass.parse_gi(_tool("nvdisasm", "-c", "-gi", path)).functions[name]
        graph = cfgdot.parse(_tool("nvdisasm", "-cfg", path))[name]
        controls = ctrl.parse_sass_controls(_tool("cuobjdump", "-sass", path))[name]
    gpu = lookup(f"sm_{arch}")
    return Compiled(
        name,
        arch,
        usage.reg,
        usage.stack + usage.local,
        sum(map(sass.is_spill, function.instructions)),
        shared,
        gpu.smem_per_block_max,
        compute(gpu, usage.reg, 32 * num_warps, smem_dynamic=shared).blocks_per_sm,
        tuple(_loops(function, graph, controls if ctrl.arch_supported(f"sm_{arch}") else None)),
    )


def _loops(function: Any, graph: Any, controls: Any) -> Sequence[Loop]:
    """The innermost loops; one that only waits for a barrier is part of the loop around it."""
    bodies = {
        header: [i for i in function.instructions if i.block in members] for header, members in graph.loops.items()
    }
    tensor = {header for header, body in bodies.items() if any(map(_tensor_name, body))}
    wanted = tensor or set(bodies)
    inner = [header for header in wanted if not any(h != header and h in graph.loops[header] for h in wanted)]
    schedule = loop_schedule(function, graph, controls) if controls is not None else []
    cycles = {row["header"]: row["est_issue_stall_cycles_per_iter"] for row in schedule}
    inner.sort(key=lambda header: min(i.addr for i in bodies[header]))
    return [
        Loop(
            sum(not i.opcode.startswith("NOP") for i in bodies[header]),
            cycles.get(header),
            tuple(sorted({name for i in bodies[header] if (name := _tensor_name(i))})),
        )
        for header in inner
    ]


def _tensor_name(instruction: Any) -> str | None:
    """HMMA and its relatives, without modifiers."""
    found = _TENSOR.match(instruction.opcode)
    return found[0] if found else None


def _tool(name: str, *options: Any) -> str:
    from triton import knobs

    command = [getattr(knobs.nvidia, name).path, *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
