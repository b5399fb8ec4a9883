"""The arguments that compile one kernel, and the source of the list of all kernels."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

ARCHITECTURES = (80, 86, 89, 90, 100, 120)


class Configuration(NamedTuple):
    """One kernel with everything that Triton needs to compile it.

    Attributes:
        name: its name in the report; names differ within one architecture.
        fn: the ``@triton.jit`` function.
        signature: type of every run-time argument, as ``"*bf16"``, ``"fp32"`` or ``"i32"``. A pointer counts as
            divisible by 16 bytes unless ``":1"`` follows, an integer only if ``":16"`` follows.
        constexprs: value of every other argument; ``None`` compiles an optional pointer out.
        num_warps: warps per program.
        num_stages: depth of the pipeline of loads.
        baseline: name of the configuration to compare with: the same kernel without labels.
        loops: names of the inner loops, in source order; empty if the loops are not to be read.
        pairs: pairs of query and key in one iteration of the first loop.
        turns: how many iterations of each loop do the work of one iteration of the first; 1 if left out. A loop
            with a number here must exist and use tensor cores.
        archs: architectures to run on.
        held: whether it must follow the rules on spills, loops and tensor cores; otherwise it is only reported.
    """

    name: str
    fn: Any
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 2
    baseline: str | None = None
    loops: tuple[str, ...] = ("uniform", "mixed", "other")
    pairs: int = 1
    turns: Mapping[str, int] = {}
    archs: tuple[int, ...] = ARCHITECTURES
    held: bool = True


def load(module: str) -> list[Configuration]:
    """All configurations that a module's ``configurations()`` yields, some as plain tuples of the same fields.

    Raises:
        ValueError: the list is empty, a name occurs twice for one architecture, or a baseline is missing.
    """
    found = [Configuration(*entry) for entry in import_module(module).configurations()]
    if not found:
        raise ValueError(f"{module}.configurations() must yield at least one configuration, got none")
    pairs = [(config.name, arch) for config in found for arch in config.archs]
    if twice := sorted({pair for pair in pairs if pairs.count(pair) > 1}):
        raise ValueError(f"names must differ on an architecture, got twice: {twice}")
    wanted = {(config.baseline, arch) for config in found if config.baseline for arch in config.archs}
    if missing := sorted(wanted - set(pairs)):
        raise ValueError(f"a baseline must be the name of a configuration of the same architecture, got {missing}")
    return found
