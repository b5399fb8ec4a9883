"""Compiles a Triton kernel for a GPU that need not be present."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from docs.kernels.configuration import ARCHITECTURES
from docs.kernels.machine import Compiled, read


def compile_kernel(
    fn: Any,
    signature: Mapping[str, str],
    constexprs: Mapping[str, Any],
    arch: int,
    num_warps: int = 4,
    num_stages: int = 2,
) -> Compiled:
    """Compile a ``@triton.jit`` function for ``sm_{arch}`` like the first launch, with fused multiply-adds.

    Raises:
        TypeError: ``fn`` is not such a function, for example one decorated for the interpreter.
        ValueError: Triton runs as an interpreter, the architecture is unknown, or as for ``specialise``.
    """
    if os.environ.get("TRITON_INTERPRET", "0").lower() not in ("", "0", "off", "false", "no", "n"):
        raise ValueError(f"TRITON_INTERPRET must be unset to compile, got {os.environ['TRITON_INTERPRET']!r}")
    # checked by name, so that a wrong argument does not load Triton
    if type(fn).__name__ != "JITFunction":
        raise TypeError(f"fn must be a @triton.jit function, got {type(fn).__name__}")
    if arch not in ARCHITECTURES:
        raise ValueError(f"arch must be one of {ARCHITECTURES}, got {arch!r}")
    types, attrs = specialise(fn.arg_names, signature, constexprs)
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    # explicit, because Triton 3.9 warns about the default and 3.10 reverses it
    options = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": True}
    source = ASTSource(fn, types, dict(constexprs), attrs)
    with _assembler(arch):
        kernel = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    return read(kernel.asm["cubin"], kernel.metadata.name, arch, kernel.metadata.shared, num_warps)


@contextmanager
def _assembler(arch: int) -> Iterator[None]:
    """Use CUDA 13's assembler for GPUs before sm_90, because nvdisasm cannot follow the output of CUDA 12's.

    A launch uses CUDA 12's assembler, so its registers may differ a little.
    """
    from triton import knobs

    before = os.environ.get("TRITON_PTXAS_PATH")
    if arch < 90 and before is None:
        os.environ["TRITON_PTXAS_PATH"] = knobs.nvidia.ptxas_blackwell.path
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("TRITON_PTXAS_PATH", None)


def specialise(
    names: list[str], signature: Mapping[str, str], constexprs: Mapping[str, Any]
) -> tuple[dict[str, str], dict[tuple[int], list[list[Any]]]]:
    """Triton's own signature, and which arguments are divisible by 16, as in a launch.

    Raises:
        ValueError: an argument is missing, unknown or given twice, or a type ends in an unknown hint.
    """
    given = [*signature, *constexprs]
    if sorted(given) != sorted(names):
        wrong = {"missing": set(names) - set(given), "unknown": set(given) - set(names)}
        wrong["twice"] = set(signature) & set(constexprs)
        problems = ", ".join(f"{what} {sorted(which)}" for what, which in wrong.items() if which)
        raise ValueError(f"signature and constexprs must name each argument of the kernel once, got {problems}")
    types, attrs = {}, {}
    for position, name in enumerate(names):
        types[name], _, hint = signature.get(name, "constexpr").partition(":")
        if hint not in ("", "1", "16"):
            raise ValueError(f"signature[{name!r}] must end in ':1', ':16' or neither, got {signature[name]!r}")
        if hint == "16" or (hint == "" and types[name].startswith("*")):
            attrs[(position,)] = [["tt.divisibility", 16]]
    return types, attrs
