"""The measurements of each configuration, as a table, as JSON, and as a list of broken rules."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from docs.kernels.configuration import Configuration
from docs.kernels.machine import Compiled, Loop

UNIFORM, MIXED = 1.10, 3.0
"""The most that a tile with one label, and one with several, may cost relative to a tile without labels."""

TENSOR = {90: "HGMMA", 100: "UTCHMMA"}
"""The tensor-core instruction of whole warp groups; older and smaller GPUs have HMMA."""

BEGIN, END = "<!-- kernels: begin -->", "<!-- kernels: end -->"


@dataclass
class Row:
    """One configuration on one architecture.

    Attributes:
        config: the configuration, without its function.
        compiled: the compiler's output.
        loops: for each name, the loop.
        ratios: for each loop's name, its cost relative to the baseline's first loop, which has no label: for all
            warps, and for the same number of pairs, since tiles may differ.
    """

    config: Configuration
    compiled: Compiled
    loops: dict[str, Loop]
    ratios: dict[str, float] = field(default_factory=dict)


def row(config: Configuration, compiled: Compiled) -> Row:
    """One row, not yet compared; loops without a name in the configuration get numbers."""
    found = compiled.loops if config.loops else ()
    names = [*config.loops, *(f"loop {n}" for n in range(len(config.loops) + 1, len(found) + 1))]
    return Row(config._replace(fn=None), compiled, dict(zip(names, found, strict=False)))


def compare(rows: Sequence[Row]) -> None:
    """Fill in the ratios of every row whose baseline is among the rows."""
    by_name = {(row.config.name, row.compiled.arch): row for row in rows}
    for row in rows:
        config = row.config
        other = by_name.get((config.baseline or "", row.compiled.arch))
        if other is None or not other.loops:
            continue
        plain = next(iter(other.loops.values())).cost * other.config.num_warps / other.config.pairs
        share = config.num_warps / config.pairs
        row.ratios = {name: loop.cost * config.turns.get(name, 1) * share / plain for name, loop in row.loops.items()}


def complaints(rows: Iterable[Row]) -> list[str]:
    """A sentence for each rule that a row breaks, and for everything that could not be checked."""
    return [f"{row.config.name} on sm_{row.compiled.arch} {what}" for row in rows for what in _broken(row)]


def _broken(row: Row) -> Iterable[str]:
    found, config = row.compiled, row.config
    if found.shared > found.most_shared:
        yield f"asks for {found.shared} bytes of shared memory, there are {found.most_shared}"
    if not row.loops and config.loops:
        yield "has no inner loop to read"
    elif config.baseline and not row.ratios:
        yield f"has nothing to be compared with: no loop in {config.baseline}"
    if not config.held:
        return
    if found.spill_bytes or found.spill_instructions:
        yield f"spills {found.spill_bytes} bytes by {found.spill_instructions} instructions"
    wanted = TENSOR.get(found.arch, "HMMA")
    for name in (name for name in ("uniform", "mixed") if name in config.turns):
        loop = row.loops.get(name)
        if loop is None:
            yield f"has no {name} loop to read"
        elif loop.tensor != (wanted,):
            yield f"uses {' and '.join(loop.tensor) or 'no tensor cores'} in {name} tiles, not {wanted}"
    if not found.blocks:
        yield "does not fit on a multiprocessor"
    for name, limit in (("uniform", UNIFORM), ("mixed", MIXED)):
        if row.ratios.get(name, 0.0) > limit:
            yield f"takes {row.ratios[name]:.2f} times its baseline in {name} tiles, above {limit}"


def report(rows: Sequence[Row]) -> str:
    """All figures as JSON."""
    found = ({**row.config._asdict(), **{k: v for k, v in asdict(row).items() if k != "config"}} for row in rows)
    return json.dumps([{name: x for name, x in one.items() if name != "fn"} for one in found], indent=1)


def summary(rows: Sequence[Row]) -> str:
    """A table in Markdown, with a column for the cost of each loop; costs in parentheses count instructions."""
    names = list(dict.fromkeys(name for row in rows for name in row.loops))
    head = ["kernel", "sm", "warps", "stages", "tensor cores", "registers", "spilled bytes", "shared bytes"]
    head += ["blocks per SM", *(f"{name} {what}" for name in names for what in ("cycles", "ratio"))]
    body = []
    for row in rows:
        made = row.compiled
        tensor = sorted({name for loop in row.loops.values() for name in loop.tensor})
        config = row.config
        cells = [
            config.name,
            made.arch,
            config.num_warps,
            config.num_stages,
            " ".join(tensor) or "–",
            made.registers,
            made.spill_bytes,
        ]
        cells += [made.shared, made.blocks]
        for name in names:
            loop = row.loops.get(name)
            cells.append("–" if loop is None else f"({loop.cost})" if loop.cycles is None else loop.cost)
            cells.append(f"{row.ratios[name]:.2f}" if name in row.ratios else "–")
        body.append(cells)
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def write_between_markers(path: Path, text: str) -> None:
    """Replace the text between the markers in a file.

    Raises:
        ValueError: the file does not have each marker once, in order.
    """
    old = path.read_text(encoding="utf-8")
    head, found, rest = old.partition(BEGIN)
    _, closed, tail = rest.partition(END)
    if not found or not closed or old.count(BEGIN) != 1 or old.count(END) != 1:
        raise ValueError(f"{path} must hold {BEGIN} and {END} once each, in this order")
    path.write_text(f"{head}{BEGIN}\n{text.strip()}\n{END}{tail}", encoding="utf-8")
