"""Which instructions a kernel runs again and again: the natural loops of its machine code, and what they hold.

A loop is a jump back to a place that every way to the jump passes (its header), with all that lies between. Code that
ptxas moved behind the kernel's end belongs to the loop it returns to. A loop that only waits, as for a barrier
in memory, is no loop of its own but part of the one around it. Counts are static: both sides of a branch count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from docs.kernels.sass import Instruction, by_class

_WORK = {"tensor", "global", "shared", "local", "special", "float"}
_ENDS = {"BRA", "JMP", "CALL", "EXIT", "RET", "KILL", "BSYNC"}
_INDIRECT = {"BRX", "BRXU", "JMX", "JMXU"}


@dataclass(frozen=True)
class Loop:
    """What one turn of a loop holds, NOPs left out.

    Attributes:
        start: address of its header.
        instructions: how many there are.
        classes: how many of each class.
        tensor: how many tensor-core instructions.
        exp2: how many exp2 of the special function unit.
        shapes: the tensor-core opcodes, which on sm_80 and sm_90 name the shape.
    """

    start: int
    instructions: int
    classes: dict[str, int] = field(default_factory=dict)
    tensor: int = 0
    exp2: int = 0
    shapes: tuple[str, ...] = ()

    @property
    def per_tensor(self) -> float | None:
        """Instructions for each tensor-core instruction."""
        return self.instructions / self.tensor if self.tensor else None

    @property
    def per_exp2(self) -> float | None:
        """Instructions for each exp2."""
        return self.instructions / self.exp2 if self.exp2 else None

    def ratio(self, baseline: Loop) -> tuple[float, str]:
        """Cost against another loop's, and by what unit: the pipeliner may unroll one and not the other.

        Per turn where both do the same work in one, else per tensor-core instruction where both use the same ones
        (those of sm_100 do not tell their shape), else per exp2, else per turn after all.
        """
        same = self.shapes == baseline.shapes and not any(opcode.startswith("UTC") for opcode in self.shapes)
        if (self.shapes, self.tensor, self.exp2) != (baseline.shapes, baseline.tensor, baseline.exp2):
            if same and self.per_tensor and baseline.per_tensor:
                return self.per_tensor / baseline.per_tensor, "tensor"
            if self.per_exp2 and baseline.per_exp2:
                return self.per_exp2 / baseline.per_exp2, "exp2"
        return self.instructions / baseline.instructions, "turn"


def main_loops(instructions: Sequence[Instruction]) -> list[Loop]:
    """The innermost loops by address; where any of them use tensor cores, those alone."""
    innermost = [_describe(body) for body in inner_bodies(instructions)]
    return [loop for loop in innermost if loop.tensor] or innermost


def inner_bodies(instructions: Sequence[Instruction]) -> list[list[Instruction]]:
    """The instructions of every innermost loop that works, header first."""
    blocks = _blocks(instructions)
    loops = {header: body for header, body in _natural_loops(blocks).items() if _works(blocks, body)}
    inner = [
        (header, body)
        for header, body in loops.items()
        if not any(other != header and other in body for other in loops)
    ]
    return [
        blocks[header].instructions + [i for b in sorted(body - {header}) for i in blocks[b].instructions]
        for header, body in sorted(inner)
    ]


def _describe(body: Sequence[Instruction]) -> Loop:
    tensor = [i.opcode for i in body if i.kind == "tensor"]
    return Loop(
        start=body[0].address,
        instructions=sum(i.kind != "nop" for i in body),
        classes=by_class(body),
        tensor=len(tensor),
        exp2=sum(i.opcode.startswith("MUFU.EX2") for i in body),
        shapes=tuple(sorted(set(tensor))),
    )


@dataclass
class _Block:
    """A run of instructions that is entered at its start alone, and where it may go; blocks go by their address."""

    instructions: list[Instruction]
    after: set[int]


def _works(blocks: dict[int, _Block], body: set[int]) -> bool:
    return any(i.kind in _WORK for b in body for i in blocks[b].instructions)


def _blocks(instructions: Sequence[Instruction]) -> dict[int, _Block]:
    """Basic blocks that can be reached, by address, each with the blocks that may follow it."""
    for i in instructions:
        if i.root in _INDIRECT:
            raise NotImplementedError(f"an indirect jump hides where loops are: {i.opcode} at {i.address:#06x}")
    starts = {instructions[0].address} | {i.target for i in instructions if i.root in _ENDS and i.target is not None}
    starts |= {b.address for a, b in pairwise(instructions) if a.root in _ENDS}
    joins = _joins(instructions)
    start, blocks = instructions[0].address, dict[int, _Block]()
    for position, i in enumerate(instructions):
        if i.address in starts:
            start = i.address
            blocks[start] = _Block([], set())
        blocks[start].instructions.append(i)
        following = instructions[position + 1].address if position + 1 < len(instructions) else None
        if i.root in _ENDS or following in starts:
            blocks[start].after = _after(i, following, joins)
    return _reachable(blocks, instructions[0].address)


def _after(last: Instruction, following: int | None, joins: dict[int, int]) -> set[int]:
    """Where a block may go; a call may return, and ptxas also writes a far jump out of a loop as a call."""
    goes = {last.target} if last.root in ("BRA", "JMP", "CALL") else set()
    if last.root == "BSYNC":
        goes = {joins.get(last.address, following)}
    elif last.root not in _ENDS or last.root == "CALL" or last.conditional:
        goes.add(following)
    return {address for address in goes if address is not None}


def _joins(instructions: Sequence[Instruction]) -> dict[int, int]:
    """Where the threads that wait at a BSYNC go on: the place that the BSSY before it names."""
    places: dict[str, int] = {}
    joins = {}
    for i in instructions:
        barrier = i.operands.split(",")[0]
        if i.root == "BSSY" and i.target is not None:
            places[barrier] = i.target
        elif i.root == "BSYNC" and barrier in places:
            joins[i.address] = places[barrier]
    return joins


def _reachable(blocks: dict[int, _Block], entry: int) -> dict[int, _Block]:
    seen, waiting = {entry}, [entry]
    while waiting:
        new = {b for b in blocks[waiting.pop()].after if b in blocks} - seen
        seen |= new
        waiting += new
    return {
        address: _Block(block.instructions, block.after & seen) for address, block in blocks.items() if address in seen
    }


def _natural_loops(blocks: dict[int, _Block]) -> dict[int, set[int]]:
    """Header to body; jumps back to one header make one loop."""
    before: dict[int, set[int]] = {address: set() for address in blocks}
    for address, block in blocks.items():
        for following in block.after:
            before[following].add(address)
    dominators = _dominators(blocks, before)
    loops: dict[int, set[int]] = {}
    for tail, block in blocks.items():
        for header in block.after & dominators[tail]:
            loops.setdefault(header, {header}).update(_body(header, tail, before))
    return loops


def _body(header: int, tail: int, before: dict[int, set[int]]) -> set[int]:
    body, waiting = {header, tail}, [tail] if tail != header else []
    while waiting:
        new = before[waiting.pop()] - body
        body |= new
        waiting += new
    return body


def _dominators(blocks: dict[int, _Block], before: dict[int, set[int]]) -> dict[int, set[int]]:
    """For each block those that every way from the entry passes, itself among them."""
    entry = next(iter(blocks))
    everything = set(blocks)
    found = {address: {entry} if address == entry else everything for address in blocks}
    changed = True
    while changed:
        changed = False
        for address in blocks:
            if address == entry:
                continue
            new = {address} | set.intersection(*(found[b] for b in before[address]))
            changed |= new != found[address]
            found[address] = new
    return found
