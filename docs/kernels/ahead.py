"""Compiles a Triton kernel for a GPU that is not there, and takes down what it asks of one."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs.kernels.configuration import ARCHITECTURES
from docs.kernels.loops import Loop, main_loops
from docs.kernels.sass import Instruction, parse

_USAGE = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")


@dataclass(frozen=True)
class Compiled:
    """A kernel's machine code and what it takes.

    Attributes:
        name: of the function.
        arch: 90 is sm_90.
        registers: a thread.
        spill_bytes: local memory a thread; Triton's kernels use it for spilled registers alone.
        shared: bytes of shared memory a program.
        code: all instructions.
    """

    name: str
    arch: int
    registers: int
    spill_bytes: int
    shared: int
    code: tuple[Instruction, ...]

    @property
    def spill_instructions(self) -> int:
        """Loads and stores of local memory."""
        return sum(i.kind == "local" for i in self.code)

    @property
    def loops(self) -> list[Loop]:
        """The inner loops in order; see ``main_loops``."""
        return main_loops(self.code)


def compile_kernel(
    fn: Any,
    signature: Mapping[str, str],
    constexprs: Mapping[str, Any],
    arch: int,
    num_warps: int = 4,
    num_stages: int = 2,
) -> Compiled:
    """Compile for ``sm_{arch}`` as the first launch would, with multiplications and additions fused.

    Args:
        fn: a ``@triton.jit`` function.
        signature: type of every run-time argument; see ``Configuration``.
        constexprs: value of every other argument.
        arch: one of ARCHITECTURES.
        num_warps: warps a program.
        num_stages: how deep loads are pipelined.
    Raises:
        TypeError: ``fn`` is something else, as a function that was decorated for the interpreter.
        ValueError: Triton runs as an interpreter, the architecture is not known, or see ``specialise``.
    """
    if os.environ.get("TRITON_INTERPRET", "0").lower() not in ("", "0", "off", "false", "no", "n"):
        raise ValueError(f"TRITON_INTERPRET must be unset to compile, got {os.environ['TRITON_INTERPRET']!r}")
    # told by its name, so that a wrong argument does not load Triton
    if type(fn).__name__ != "JITFunction":
        raise TypeError(f"fn must be a @triton.jit function, got {type(fn).__name__}")
    if arch not in ARCHITECTURES:
        raise ValueError(f"arch must be one of {ARCHITECTURES}, got {arch!r}")
    types, attrs = specialise(fn.arg_names, signature, constexprs)
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    # told rather than left to the default, which Triton 3.9 warns of and 3.10 turns round
    options = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": True}
    source = ASTSource(fn, types, dict(constexprs), attrs)
    kernel = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    return read_cubin(kernel.asm["cubin"], kernel.metadata.name, arch, kernel.metadata.shared)


def specialise(
    names: list[str], signature: Mapping[str, str], constexprs: Mapping[str, Any]
) -> tuple[dict[str, str], dict[tuple[int], list[list[Any]]]]:
    """Triton's own signature and which arguments are divisible by 16, as a launch would find them.

    Raises:
        ValueError: an argument is missing, unknown or there twice, or a type ends in an unknown hint.
    """
    given = [*signature, *constexprs]
    if sorted(given) != sorted(names):
        wrong = {"missing": set(names) - set(given), "unknown": set(given) - set(names)}
        wrong["twice"] = set(signature) & set(constexprs)
        told = ", ".join(f"{what} {sorted(which)}" for what, which in wrong.items() if which)
        raise ValueError(f"signature and constexprs must name each argument of the kernel once, got {told}")
    types, attrs = {}, {}
    for position, name in enumerate(names):
        types[name], _, hint = signature.get(name, "constexpr").partition(":")
        if hint not in ("", "1", "16"):
            raise ValueError(f"signature[{name!r}] must end in ':1', ':16' or neither, got {signature[name]!r}")
        if hint == "16" or (hint == "" and types[name].startswith("*")):
            attrs[(position,)] = [["tt.divisibility", 16]]
    return types, attrs


def read_cubin(cubin: bytes, name: str, arch: int, shared: int) -> Compiled:
    """Ask cuobjdump, which comes with Triton, what is in a compiled kernel."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        usage = _cuobjdump("--dump-resource-usage", path)
        code = _cuobjdump("-sass", path)
    registers, spill_bytes = resource_usage(usage)[name]
    return Compiled(name, arch, registers, spill_bytes, shared, parse(code)[name])


def resource_usage(text: str) -> dict[str, tuple[int, int]]:
    """Registers and bytes of local memory of every function, as ``cuobjdump --dump-resource-usage`` prints them."""
    return {name: (int(reg), int(stack) + int(local)) for name, reg, stack, local in _USAGE.findall(text)}


def _cuobjdump(option: str, path: Path) -> str:
    from triton import knobs

    command = [knobs.nvidia.cuobjdump.path, option, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
