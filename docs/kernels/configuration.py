"""What one kernel is compiled with, and where the list of all of them comes from."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

ARCHITECTURES = (80, 86, 89, 90, 100, 120)


class Configuration(NamedTuple):
    """One kernel with all that Triton wants to know before it compiles.

    Attributes:
        name: what the report calls it; the names of one architecture differ.
        fn: the ``@triton.jit`` function.
        signature: type of every argument that is given at run time, as ``"*bf16"``, ``"fp32"`` or ``"i32"``. A pointer
            counts as divisible by 16 bytes unless ``":1"`` follows, an integer where ``":16"`` follows.
        constexprs: value of every other argument; ``None`` compiles an optional pointer out.
        num_warps: warps a program.
        num_stages: how deep loads are pipelined.
        baseline: name of the configuration to compare with: the same kernel without labels.
        loops: what the inner loops are called, in the order of the source; none if they are not to be read.
        pairs: pairs of query and key in one turn of the first loop.
        turns: how many turns of each loop do the work of one turn of the first; 1 where left out. A loop that has a
            number here must be there, and use tensor cores.
        archs: where it is meant to run.
        held: whether the rules on spills, loops and tensor cores are held against it; else it is only reported.
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
    """All that ``configurations()`` of a module yields, plain tuples of the same fields among them.

    Raises:
        ValueError: the list is empty, a name is there twice on one architecture, or a baseline is missing.
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
