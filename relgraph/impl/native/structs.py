"""The structs that both languages share, read from ``problem.h`` and ``edges.h``, which declare them."""

from __future__ import annotations

import ctypes
import re
from ctypes import POINTER, Structure
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_NUMBERS: dict[str, Any] = {"int64_t": ctypes.c_int64, "double": ctypes.c_double}


def read_structs(*headers: str) -> dict[str, type[Structure]]:
    """The structs of these headers, in order; each may hold those before it.

    The headers declare plain data: numbers, arrays, structs and pointers. A pointer to a struct has a type of its own;
    any other one, and a function, is an address.
    """
    found: dict[str, type[Structure]] = {}
    for header in headers:
        text = re.sub("//.*", "", (_HERE / header).read_text(encoding="utf-8"))
        for name, body in re.findall(r"struct (\w+) \{(.*?)\};", text, re.DOTALL):
            fields = [field for line in body.split(";")[:-1] for field in _fields(line, found)]
            found[name] = type(name, (Structure,), {"_fields_": fields})
    return found


def _fields(declaration: str, structs: dict[str, type[Structure]]) -> list[tuple[str, Any]]:
    """The fields of one declaration, such as ``int64_t seed, origin[4]`` or ``const Part* parts``."""
    kind, names = declaration.strip().removeprefix("const ").split(maxsplit=1)
    pointers = kind.endswith("*")
    kind = kind.rstrip("*")
    fields = []
    for field in names.split(","):
        name, length = re.findall(r"(\w+)(?:\[(\d+)\])?", field)[0]
        made = _NUMBERS.get(kind) or structs.get(kind, ctypes.c_void_p)
        if pointers or "*" in field:
            made = POINTER(structs[kind]) if kind in structs else ctypes.c_void_p
        fields.append((name, made * int(length) if length else made))
    return fields


_FOUND = read_structs("problem.h", "edges.h")
CTensor: Any = _FOUND["Tensor"]
CPart: Any = _FOUND["Part"]
CProblem: Any = _FOUND["Problem"]
CPairs: Any = _FOUND["EdgePairs"]
CEdges: Any = _FOUND["EdgeProblem"]
