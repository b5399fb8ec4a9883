"""The compiled kernels: the library that fits this processor, loaded; or why there is none.

The C++ code includes no header of torch, so one library serves every version of torch. Nothing is compiled here:
an installation brings libraries, and ``python -m relgraph compile`` makes one for this processor (``compiler.py``). The
first of these that works is taken:

1. one that was compiled from these sources for this very processor, in the cache or at install;
2. the library of the installation for the newest kind of processor whose instructions this one has.

Each process reads ``RELGRAPH_NATIVE`` once; 0 turns the kernels off. For the reasons and the alternatives see
docs/decisions/0043-kernels-come-with-the-package.md.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from relgraph.impl.native import compiler
from relgraph.impl.native.compiler import UnavailableError
from relgraph.impl.native.found import Found, find
from relgraph.impl.native.structs import CEdges, CPairs, CPart, CProblem
from relgraph.labels.contents import HASHES, hash_of_bytes

SWITCH = "RELGRAPH_NATIVE"

_AVX2 = "avx avx2 bmi1 bmi2 f16c fma abm movbe"
KINDS = {
    "x86_64": {"x86-64-v4": f"{_AVX2} avx512f avx512bw avx512cd avx512dq avx512vl", "x86-64-v3": _AVX2},
    "aarch64": {"aarch64": ""},
}
"""By machine, the kinds of processors that wheels have a library for, newest first, and the instructions of each."""

STRUCTS = {
    "relgraph_problem_size": CProblem,
    "relgraph_part_size": CPart,
    "relgraph_edges_size": CEdges,
    "relgraph_edges_pairs_size": CPairs,
}
"""The functions that return how many bytes a struct has in C++, and the struct in Python."""


FUNCTIONS: dict[str, list[Any]] = {
    "relgraph_workspace": [ctypes.c_void_p],
    "relgraph_forward": [ctypes.c_void_p],
    "relgraph_backward": [ctypes.c_void_p],
    "relgraph_edges_forward": [ctypes.c_void_p],
    "relgraph_edges_backward": [ctypes.c_void_p],
    "relgraph_edges_factors": [ctypes.c_void_p, ctypes.c_void_p],
    "relgraph_edges_room": [ctypes.c_void_p, ctypes.c_int64],
    "relgraph_edges_prepare": [*(ctypes.c_void_p,) * 4, *(ctypes.c_int64,) * 2],
    "relgraph_sort_pairs": [*(ctypes.c_int64,) * 3, *(ctypes.c_void_p,) * 7, ctypes.c_int8, *(ctypes.c_void_p,) * 3],
}
"""The functions that return a number, and their arguments; if one caught an exception, they raise one."""

OUT_OF_MEMORY, FAILED = -(1 << 63), 1 - (1 << 63)
"""The numbers of functions that caught an exception, those of ``boundary.h``."""

_log = logging.getLogger("relgraph")


@dataclass(frozen=True)
class Kernels:
    """The loaded library, and the functions that it takes from torch.

    Attributes:
        library: its functions.
        found: products of matrices and threads; those that do not work here are None.
        path: the library's file.
    """

    library: ctypes.CDLL
    found: Found
    path: Path


@dataclass(frozen=True)
class Missing:
    """Why there are no kernels.

    Attributes:
        reason: what is missing.
        advice: what to do about it; None if nothing can be done, or if the user wants no kernels.
    """

    reason: str
    advice: str | None = None

    def __str__(self) -> str:
        return self.reason if self.advice is None else f"{self.reason}; {self.advice}"


_lock = threading.Lock()
_known: Kernels | Missing | None = None


def load() -> Kernels | Missing:
    """The kernels, or why there are none; nothing is compiled.

    This runs once per process; other threads wait. If a user can fix the problem, one line of the log says how.
    """
    global _known
    if _known is None:
        with _lock:
            if _known is None:
                _known = _work_out()
                if isinstance(_known, Missing) and _known.advice is not None:
                    what = "relgraph has no compiled CPU kernels, impl=None takes 'chunked' or 'edges'"
                    _log.warning("%s: %s (%s=0 ends this line)", what, _known, SWITCH)
    return _known


def loaded() -> Kernels | None:
    """The kernels if they are loaded already."""
    return _known if isinstance(_known, Kernels) else None


def _first_hash(address: int, count: int) -> int:
    """The number for so many bytes at this address; from now on by the kernels, if there are any."""
    known, found = load(), hash_of_bytes
    if isinstance(known, Kernels):
        found = known.library["relgraph_hash"]  # an object of its own, which looks for no exceptions
        found.restype, found.argtypes = ctypes.c_uint64, [ctypes.c_void_p, ctypes.c_uint64]
    HASHES["cpu"] = found
    return found(address, count)


HASHES["cpu"] = _first_hash


def missing() -> str | None:
    """Why there are no kernels, as text; None if they are loaded."""
    known = _known or load()
    return None if isinstance(known, Kernels) else str(known)


# a call that is compiled by torch asks once, while it is traced; the decorator of torch.compiler would import dynamo
missing._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


def kernels() -> Kernels:
    """The kernels."""
    known = _known or load()
    if isinstance(known, Missing):
        raise NotImplementedError(f"impl='native' has no compiled kernels: {known}; use impl='chunked'")
    return known


def _forget_lock() -> None:
    """Replace the lock after a fork, which copies a held lock but not the thread that would release it."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)


def _work_out() -> Kernels | Missing:
    switch = os.environ.get(SWITCH, "1")
    if switch == "0":
        return Missing(f"{SWITCH}=0 turns them off")
    if switch != "1":
        return Missing(f"{SWITCH} must be 0 or 1, got {switch!r}", f"set {SWITCH}")
    if sys.platform != "linux":
        return Missing(f"they need Linux, got {sys.platform}")
    found = find()
    if set(found.gemm) != {4, 8}:
        return Missing("this build of torch has no BLAS that can be called")
    try:
        opened, path = _library()
    except UnavailableError as error:
        return Missing(*error.args)
    return _tried(opened, found, path)


def _library() -> tuple[ctypes.CDLL, Path]:
    """The first library that works, and its file."""
    failed: list[UnavailableError] = []
    for path in libraries():
        try:
            if path.parent != compiler.BUNDLED:  # who can write there could change this module as well
                compiler.trusted(path.parent)
                compiler.trusted(path)
            opened = _open(path)
        except OSError as error:  # another process may empty the folder
            failed.append(UnavailableError(f"the library {path} cannot be read ({error})", "delete it"))
        except UnavailableError as error:
            failed.append(error)
        else:
            if failed:
                _log.warning("relgraph takes the CPU kernels of %s: %s", path, "; ".join(failed[0].args))
            return opened, path
    if failed:
        raise failed[0]
    advice = compiler.ADVICE
    if compiler.find_compiler() is None:
        advice = f"install g++ (Debian, Ubuntu: apt install g++), then {advice}"
    raise UnavailableError("no library here is of these sources and for this processor", advice)


def libraries() -> Iterator[Path]:
    """The files that may serve this processor, best first."""
    own = compiler.native_name("*")
    with suppress(UnavailableError):  # a user without a home has no cache
        yield from sorted(compiler.cache_folder().glob(own))  # none in a folder that is missing
    yield from sorted(compiler.BUNDLED.glob(own))
    if os.environ.get(compiler.MORE_FLAGS):  # only a library with these flags will do
        return
    has = set(compiler.processor().split())
    for kind, needs in KINDS.get(platform.machine(), {}).items():
        path = compiler.BUNDLED / f"kernels-{kind}.so"
        if has.issuperset(needs.split()) and path.exists():
            yield path


def _open(path: Path) -> ctypes.CDLL:
    """The library, if it is of these sources, has all functions and both languages agree on the structs."""
    advice = f"delete it, or set {compiler.FOLDER} to a folder whose files may be run"
    opened = compiler.open_library(path, f"the library {path} does not load", advice)
    opened.relgraph_message.restype = ctypes.c_char_p
    sizes = {name: getattr(opened, name) for name in STRUCTS}
    functions = {name: getattr(opened, name) for name in FUNCTIONS}
    for name, size in sizes.items():
        size.restype = ctypes.c_int64
        if size() != ctypes.sizeof(STRUCTS[name]):
            both = f"{size()} bytes in C++ and {ctypes.sizeof(STRUCTS[name])} in Python"
            raise UnavailableError(f"{name} is {both}", "this is a mistake in relgraph: please report it")
    message = opened.relgraph_message

    def number(result: int, function: Any, _: Any) -> int:
        """The number that a function returned, or the exception that it caught."""
        if result > FAILED:
            return result
        why = f"impl='native' failed in {function.__name__}: {message().decode(errors='replace')}"
        raise MemoryError(why) if result == OUT_OF_MEMORY else RuntimeError(why)

    for name, function in functions.items():
        function.restype, function.argtypes, function.errcheck = ctypes.c_int64, FUNCTIONS[name], number
    return opened


def _tried(opened: ctypes.CDLL, found: Found, path: Path) -> Kernels | Missing:
    """The kernels with those of torch's functions that give right products."""

    def works(name: str, address: int | None) -> bool:
        test = getattr(opened, name)
        test.restype, test.argtypes = ctypes.c_int64, [ctypes.c_void_p]
        return address is not None and test(address) == 1

    if not (works("relgraph_gemm32_works", found.gemm[4]) and works("relgraph_gemm64_works", found.gemm[8])):
        return Missing("the BLAS of this build of torch does not multiply as expected")
    usable = replace(
        found,
        blocked=found.blocked if works("relgraph_blocked_works", found.blocked) else None,
        # without the function that releases the matrix unit, torch's own products after it could be wrong
        blocked_half=found.blocked_half
        if found.release is not None and works("relgraph_blocked_half_works", found.blocked_half)
        else None,
    )
    if found.release is not None:  # this thread tried products in bfloat16
        ctypes.CFUNCTYPE(None, ctypes.c_bool)(found.release)(True)
    return Kernels(opened, usable, path)
