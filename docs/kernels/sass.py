"""Machine code as ``cuobjdump -sass`` prints it, read into instructions and sorted into classes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

_LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][A-Z0-9]*(?:\.\w+)*)\s*([^;]*?)\s*;")
_FUNCTION = re.compile(r"Function : (\S+)")
_ADDRESS = re.compile(r"0x([0-9a-f]+)$")

_CLASSES = {
    "tensor": r"(UTC)?[A-Z]G?MMA",
    "global": r"LD|ST|LDG|STG|LDGSTS|UTMA\w+|UBLK\w+|CCTL\w*",
    "shared": r"LDS|STS|LDSM|STSM|MOVM|LDTM|STTM|UTCCP|LDTRAM",
    "local": r"LDL|STL",
    "atomic": r"RED|REDG|REDS|UREDG\w*|ATOM|ATOMG|ATOMS",
    "special": r"MUFU",
    "shuffle": r"SHFL|VOTE|VOTEU|MATCH|C?REDUX\w*",
    "float": r"[FHD](FMA|ADD|MUL|MNMX|SEL|SET|SETP|CHK|RND|SWZADD)\d*(_\w+)?|HFMA2\w*|F2FP?|F2F\w*|F2I\w*|I2FP?|I2F\w*"
    r"|U(F|H)(FMA|ADD|MUL|MNMX|SEL|SETP?|RND)\d*|UF2\w+|UI2F\w*",
    "control": r"BRA|BRX|BRXU|JMP|JMX|JMXU|CALL|RET|EXIT|KILL|BPT|BREAK|BSSY|BSYNC|BMOV|YIELD|BAR|B2R|WARPSYNC"
    r"|NANOSLEEP|DEPBAR|LDGDEPBAR|MEMBAR|ERRBAR|FENCE|SYNCS|ARRIVES|WARPGROUP\w*|ELECT|UTCBAR|UTCATOMSWS|UTCSHIFT"
    r"|UVIRTCOUNT|U?CGABAR\w*|USETMAXREG|ACQBULK|ENDCOLLECTIVE|PREEXIT",
    "integer": r"U?(IMAD\w*|IADD\w*|VIADD\w*|V?I?MNMX\d*|VIMNMX\w*|IABS|LEA|LOP3?|SHF|SHL|SHR|PRMT|SEL|ISETP?|PLOP3"
    r"|SGXT|BMSK|BREV|FLO|POPC|IDP\w*|MOV|LDC|P2R|R2P|P2UR|VABSDIFF\w*|VHMNMX)"
    r"|CS2U?R|S2U?R|R2UR|LDCU|UP2UR|UR2UP|UR2R|LEPC|GETLMEMBASE",
    "nop": r"NOP",
}
_PATTERNS = [(name, re.compile(pattern)) for name, pattern in _CLASSES.items()]
CLASSES = (*(name for name in _CLASSES if name != "nop"), "other")
"""The classes in which a loop is told; ``shared`` holds tensor memory too, and NOP is no work."""


@dataclass(frozen=True)
class Instruction:
    """One line: ``/*01a0*/ @!P3 BRA 0x2520 ;`` has the guard ``!P3``, which is empty where nothing guards."""

    address: int
    guard: str
    opcode: str
    operands: str

    @property
    def root(self) -> str:
        """The opcode without what modifies it."""
        return self.opcode.split(".")[0]

    @property
    def kind(self) -> str:
        """One of CLASSES, or ``nop``; ``other`` for an opcode that no class knows."""
        return _kind(self.root)

    @property
    def target(self) -> int | None:
        """The address that stands as the last operand."""
        found = _ADDRESS.search(self.operands)
        return int(found[1], 16) if found else None

    @property
    def conditional(self) -> bool:
        """Whether it may do nothing: guarded, or a branch that names a predicate before its target."""
        return self.guard != "" or (self.root == "BRA" and "," in self.operands)


@cache
def _kind(root: str) -> str:
    return next((name for name, pattern in _PATTERNS if pattern.fullmatch(root)), "other")


def parse(text: str) -> dict[str, tuple[Instruction, ...]]:
    """The instructions of every function.

    Raises:
        ValueError: no function, or one without a single instruction.
    """
    name, *bodies = _FUNCTION.split(text)
    functions = {name: _instructions(body) for name, body in zip(bodies[::2], bodies[1::2], strict=True)}
    if not functions or not all(functions.values()):
        raise ValueError(
            f"text must hold functions as cuobjdump -sass prints them, got {sorted(functions) or name[:60]!r}"
        )
    return functions


def _instructions(body: str) -> tuple[Instruction, ...]:
    return tuple(Instruction(int(a, 16), guard, opcode, rest) for a, guard, opcode, rest in _LINE.findall(body))


def by_class(instructions: Iterable[Instruction]) -> dict[str, int]:
    """How many of each class there are, in the order of CLASSES."""
    counts = Counter(instruction.kind for instruction in instructions)
    return {name: counts[name] for name in CLASSES if counts[name]}
