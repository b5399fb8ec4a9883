"""What was measured of each configuration, as a table, as JSON, and as a list of what breaks the rules."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from docs.kernels.ahead import Compiled
from docs.kernels.configuration import Configuration
from docs.kernels.loops import Loop
from docs.kernels.sass import CLASSES

LIMIT = 1.15
SHARED = {80: 166912, 90: 232448, 100: 232448}
"""Bytes of shared memory a program may have: 163 and 227 KiB (CUDA C++ programming guide, compute capabilities)."""

RATIOS = """Loops are counted in instructions, both sides of a branch together. A ratio is against the first loop of the
same kernel without labels: per turn where both loops do the same work in one, else per tensor-core instruction or exp2.
"""
BEGIN, END = "<!-- kernels: begin -->", "<!-- kernels: end -->"


@dataclass
class Row:
    """One configuration on one architecture.

    Attributes:
        name: of the configuration.
        arch: 90 is sm_90.
        warps: a program.
        stages: of the pipeline.
        registers: a thread.
        spill_bytes: a thread.
        spill_instructions: loads and stores of local memory.
        shared: bytes a program.
        loops: name to what a loop holds.
        baseline: name of the configuration that it is compared with.
        ratios: name of a loop to its cost against the baseline's first loop, which carries no label.
        units: name of a loop to what the ratio counts by: ``turn``, ``tensor`` or ``exp2``.
        held: whether spills and slow uniform loops are complained of.
    """

    name: str
    arch: int
    warps: int
    stages: int
    registers: int
    spill_bytes: int
    spill_instructions: int
    shared: int
    loops: dict[str, Loop]
    baseline: str | None = None
    ratios: dict[str, float] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    held: bool = True


def row(config: Configuration, compiled: Compiled) -> Row:
    """One row, not yet compared; loops beyond the names that a configuration gives are numbered."""
    found = compiled.loops
    names = [*config.loops, *(f"loop {n}" for n in range(len(config.loops) + 1, len(found) + 1))]
    return Row(
        config.name,
        compiled.arch,
        config.num_warps,
        config.num_stages,
        compiled.registers,
        compiled.spill_bytes,
        compiled.spill_instructions,
        compiled.shared,
        dict(zip(names, found, strict=False)),
        config.baseline,
        held=config.held,
    )


def compare(rows: Sequence[Row]) -> None:
    """Fill in the ratios of every row that has a baseline among the rows."""
    by_name = {(row.name, row.arch): row for row in rows}
    for row in rows:
        baseline = by_name.get((row.baseline or "", row.arch))
        if baseline is None or not baseline.loops:
            continue
        first = next(iter(baseline.loops.values()))
        for name, loop in row.loops.items():
            row.ratios[name], row.units[name] = loop.ratio(first)


def complaints(rows: Iterable[Row], limit: float = LIMIT) -> list[str]:
    """A sentence for each spill, each uniform loop above the limit, and whatever could not be judged."""
    found = []
    for row in rows:
        where = f"{row.name} on sm_{row.arch}"
        if row.held and (row.spill_bytes or row.spill_instructions):
            found.append(f"{where} spills {row.spill_bytes} bytes by {row.spill_instructions} instructions")
        if row.shared > SHARED[row.arch]:
            found.append(f"{where} asks for {row.shared} bytes of shared memory, there are {SHARED[row.arch]}")
        if not row.loops:
            found.append(f"{where} has no inner loop to read")
        elif row.baseline and not row.ratios:
            found.append(f"{where} has nothing to be compared with: no loop in {row.baseline}")
        if row.held and row.ratios.get("uniform", 0.0) > limit:
            found.append(
                f"{where} takes {row.ratios['uniform']:.3f} times its baseline in uniform tiles, above {limit}"
            )
    return found


def report(rows: Sequence[Row]) -> tuple[str, str]:
    """The rows as Markdown and as JSON."""
    table = f"{summary(rows)}\n\n{RATIOS}\n{_contents(rows)}\n"
    return table, json.dumps([asdict(row) for row in rows], indent=1)


def summary(rows: Sequence[Row]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row.loops))
    head = ["kernel", "sm", "warps", "stages", "registers", "spilled bytes", "shared bytes"]
    head += [f"{name} {what}" for name in names for what in ("loop", "ratio")]
    body = []
    for row in rows:
        cells = [row.name, row.arch, row.warps, row.stages, row.registers, row.spill_bytes, row.shared]
        for name in names:
            cells.append(row.loops[name].instructions if name in row.loops else "–")
            cells.append(f"{row.ratios[name]:.3f}" if name in row.ratios else "–")
        body.append(cells)
    return _table(head, body)


def _contents(rows: Sequence[Row]) -> str:
    kinds = [kind for kind in CLASSES if any(kind in loop.classes for row in rows for loop in row.loops.values())]
    head = ["kernel", "sm", "loop", "instructions", "a tensor op", "an exp2", "ratio by", *kinds]
    body = []
    for row in rows:
        for name, loop in row.loops.items():
            costs = [loop.instructions, _number(loop.per_tensor), _number(loop.per_exp2), row.units.get(name, "–")]
            body.append([row.name, row.arch, name, *costs, *(loop.classes.get(kind, 0) for kind in kinds)])
    return _table(head, body)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _table(head: Sequence[str], body: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def write_between_markers(path: Path, text: str) -> None:
    """Replace what stands between the markers in a file.

    Raises:
        ValueError: the file does not hold each marker once, in order.
    """
    old = path.read_text(encoding="utf-8")
    head, found, rest = old.partition(BEGIN)
    _, closed, tail = rest.partition(END)
    if not found or not closed or old.count(BEGIN) != 1 or old.count(END) != 1:
        raise ValueError(f"{path} must hold {BEGIN} and {END} once each, in this order")
    path.write_text(f"{head}{BEGIN}\n{text.strip()}\n{END}{tail}", encoding="utf-8")
