"""The kernels as a shared library: compiled at first use for this processor, kept in a cache, and loaded.

The C++ code includes no header of torch, so it compiles in seconds, and one library serves every version of torch. For
the reasons and the alternatives see docs/decisions/0014-kernels-compiled-at-first-use.md.

Each process reads four environment variables once:

- ``RELGRAPH_NATIVE=0`` turns the kernels off.
- ``RELGRAPH_CACHE`` is the folder of libraries; else ``relgraph`` in ``XDG_CACHE_HOME`` or ``~/.cache``.
- ``RELGRAPH_NATIVE_FLAGS`` are further flags for the compiler; ``-march`` or ``-mcpu`` among them names another
  processor than this one.
- ``CXX`` is the compiler; else the first of ``g++``, ``clang++`` and ``c++``.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from relgraph.impl.native.found import Found, find
from relgraph.impl.native.structs import CEdges, CPairs, CPart, CProblem

HERE = Path(__file__).parent
FLAGS = (
    "-std=c++17", "-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros",
    "-fassociative-math", "-fPIC", "-shared",
)  # fmt: skip
COMPILERS = ("g++", "clang++", "c++")

SWITCH = "RELGRAPH_NATIVE"
FOLDER = "RELGRAPH_CACHE"
MORE_FLAGS = "RELGRAPH_NATIVE_FLAGS"

STRUCTS = {
    "relgraph_problem_size": CProblem,
    "relgraph_part_size": CPart,
    "relgraph_edges_size": CEdges,
    "relgraph_edges_pairs_size": CPairs,
}
"""The functions that return how many bytes a struct has in C++, and the struct in Python."""


FUNCTIONS: dict[str, list[Any]] = {
    "relgraph_workspace": [ctypes.c_void_p],
    "relgraph_edges_room": [ctypes.c_void_p, ctypes.c_int64],
    "relgraph_edges_prepare": [*(ctypes.c_void_p,) * 4, *(ctypes.c_int64,) * 2],
    "relgraph_sort_pairs": [*(ctypes.c_int64,) * 3, *(ctypes.c_void_p,) * 7, ctypes.c_int8, *(ctypes.c_void_p,) * 3],
}
"""The functions that return a number, and their arguments."""


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


class _UnavailableError(Exception):
    """The kernels cannot be built or loaded: the reason, and what to do about it."""


_lock = threading.Lock()
_known: Kernels | Missing | None = None


def load() -> Kernels | Missing:
    """The kernels, which this compiles if necessary; or why there are none.

    This runs once per process; other threads wait. If a user can fix the problem, one message on stderr says how.
    """
    global _known
    if _known is None:
        with _lock:
            if _known is None:
                _known = _work_out()
                if isinstance(_known, Missing) and _known.advice is not None:
                    instead = "impl=None takes 'chunked' or 'edges'"
                    _say(f"no compiled CPU kernels, {instead}: {_known} ({SWITCH}=0 ends this line)")
    return _known


def loaded() -> Kernels | None:
    """The kernels if they are loaded already; nothing is compiled."""
    return _known if isinstance(_known, Kernels) else None


def missing() -> str | None:
    """Why there are no kernels, as text; None if they are loaded."""
    known = load()
    return None if isinstance(known, Kernels) else str(known)


# a call that is compiled by torch asks once, while it is traced; the decorator of torch.compiler would import dynamo
missing._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


def kernels() -> Kernels:
    """The kernels.

    Raises:
        NotImplementedError: there are none, and why. This can happen to a program that was exported on a machine with
            kernels.
    """
    known = load()
    if isinstance(known, Missing):
        raise NotImplementedError(f"impl='native' has no compiled kernels: {known}; use impl='chunked'")
    return known


def _forget_lock() -> None:
    """Replace the lock after a fork, which copies a held lock but not the thread that would release it."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)


def _say(line: str) -> None:
    print(f"relgraph: {line}", file=sys.stderr, flush=True)


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
        path = library()
        return _tried(_open(path), found, path)
    except _UnavailableError as error:
        return Missing(*error.args)


def library() -> Path:
    """The library's file; compiles it if it is missing.

    Raises:
        _UnavailableError: there is none and none can be made.
    """
    folder, flags, compiler = _folder(), _flags(), _compiler()
    sources = _hash(*flags, _target(flags), *(path.read_text(encoding="utf-8") for path in _files("*.cpp", "*.h")))
    if compiler is None:
        built = sorted(folder.glob(f"kernels-{sources}-*.so"))  # an image may come with a library and no compiler
        if not built:
            raise _UnavailableError(
                "there is no C++ compiler", "install g++ (Debian, Ubuntu: apt install g++) or set CXX"
            )
        return _trusted(built[0])
    path = folder / f"kernels-{sources}-{_hash(*compiler, _version(compiler))}.so"
    if not path.exists():
        _compile([*compiler, *flags, *map(str, _files("*.cpp"))], path)
    return _trusted(path)


def _files(*patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in HERE.glob(pattern))


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


# ---- the folder ----


def _folder() -> Path:
    """Where libraries are kept: a folder that no other user can write to."""
    advice = f"set {FOLDER} to a folder that can be written to"
    try:
        given = os.environ.get(FOLDER)
        cached = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(given).absolute() if given else Path(cached) / "relgraph"
    except RuntimeError:  # a user without an entry in the list of users
        raise _UnavailableError("this user has no home folder", advice) from None
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise _UnavailableError(f"the folder {folder} cannot be made ({error.strerror})", advice) from None
    return _trusted(folder)


def _trusted(path: Path) -> Path:
    """The path, if only this user or root can have written the file, because it runs as this user's code."""
    state = path.stat()
    if state.st_uid not in (0, os.getuid()) or state.st_mode & 0o022:
        raise _UnavailableError(
            f"{path} must belong to this user or root and be writable by no other",
            f"chmod go-w it, or set {FOLDER} to another folder",
        )
    return path


# ---- compiling ----


def _compiler() -> list[str] | None:
    """The command of the compiler, or None."""
    given = shlex.split(os.environ.get("CXX", ""))
    if given and shutil.which(given[0]) is None:
        raise _UnavailableError(f"the compiler CXX={given[0]} is not there", "set CXX to a C++ compiler, or unset it")
    return given or next(([path] for name in COMPILERS if (path := shutil.which(name))), None)


def _version(compiler: Sequence[str]) -> str:
    """The version text of the compiler."""
    return _run([*compiler, "--version"]).stdout


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command, without the libraries that this process preloads."""
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=env, stdin=subprocess.DEVNULL, errors="replace"
        )
    except OSError as error:
        raise _UnavailableError(f"the compiler {command[0]} does not run ({error.strerror})", "set CXX") from None


def _flags() -> list[str]:
    """All flags: for this processor, unless the environment names another one."""
    given = shlex.split(os.environ.get(MORE_FLAGS, ""))
    if any(flag.startswith(("-march", "-mcpu")) for flag in given):
        return [*FLAGS, *given]
    machine = platform.machine()
    if machine == "x86_64":
        # compilers prefer half a vector where a whole one once made processors slower
        wide = ["-mprefer-vector-width=512"] if "avx512f" in _processor().split() else []
        return [*FLAGS, "-march=native", *wide, *given]
    return [*FLAGS, *(["-mcpu=native"] if machine == "aarch64" else []), *given]


def _target(flags: Sequence[str]) -> str:
    """The target of a library: this processor if it is compiled for this one, else this kind of machine."""
    own = any(flag in ("-march=native", "-mcpu=native") for flag in flags)
    return platform.machine() + ("\n" + _processor() if own else "")


def _processor() -> str:
    """The processor's name and instructions."""
    wanted = ("model name", "flags", "Features", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def _compile(command: Sequence[str], path: Path) -> None:
    """Compile into a temporary file, then rename it, so that another process sees the whole library or nothing."""
    began = time.perf_counter()
    _say(f"compiling the CPU kernels, once for this machine, 10 to 20 seconds of {command[0]} ...")
    try:
        handle, name = tempfile.mkstemp(prefix="kernels-", suffix=".partial", dir=path.parent)
    except OSError as error:
        advice = f"set {FOLDER} to a folder that can be written to"
        raise _UnavailableError(f"the folder {path.parent} cannot be written to ({error.strerror})", advice) from None
    partial = Path(name)
    try:
        os.close(handle)
        done = _run([*command, "-o", name])
        if done.returncode:
            lines = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()
            print("\n".join(lines[:40]), file=sys.stderr)
            first = next((line for line in lines if "error" in line), lines[0])
            advice = "install another g++ or clang++ and set CXX to it"
            raise _UnavailableError(f"the compiler {command[0]} failed: {first.strip()}", advice)
        partial.chmod(0o755)
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    _say(f"compiled in {time.perf_counter() - began:.0f} s: {path}")


# ---- loading ----


def _open(path: Path) -> ctypes.CDLL:
    """The library, if both languages agree on the structs."""
    try:
        opened = ctypes.CDLL(str(path))
    except OSError as error:
        advice = f"delete it, or set {FOLDER} to a folder whose files may be run"
        raise _UnavailableError(f"the library {path} does not load ({error})", advice) from None
    for name, struct in STRUCTS.items():
        size = getattr(opened, name)
        size.restype = ctypes.c_int64
        if size() != ctypes.sizeof(struct):
            sizes = f"{size()} bytes in C++ and {ctypes.sizeof(struct)} in Python"
            raise _UnavailableError(f"{name} is {sizes}", "this is a mistake in relgraph: please report it")
    for name, arguments in FUNCTIONS.items():
        function = getattr(opened, name)
        function.restype, function.argtypes = ctypes.c_int64, arguments
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
        blocked_half=found.blocked_half if works("relgraph_blocked_half_works", found.blocked_half) else None,
    )
    if found.release is not None:  # this thread tried products in bfloat16
        ctypes.CFUNCTYPE(None, ctypes.c_bool)(found.release)(True)
    return Kernels(opened, usable, path)
