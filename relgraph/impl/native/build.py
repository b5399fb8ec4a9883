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
import logging
import os
import platform
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
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
    "relgraph_forward": [ctypes.c_void_p],
    "relgraph_backward": [ctypes.c_void_p],
    "relgraph_edges_forward": [ctypes.c_void_p],
    "relgraph_edges_backward": [ctypes.c_void_p],
    "relgraph_edges_factors": [ctypes.c_void_p, ctypes.c_void_p],
    "relgraph_edges_room": [ctypes.c_void_p, ctypes.c_int64],
    "relgraph_edges_prepare": [*(ctypes.c_void_p,) * 4, *(ctypes.c_int64,) * 2],
    "relgraph_edges_number": [ctypes.c_void_p, ctypes.c_int64],
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


class _UnavailableError(Exception):
    """The kernels cannot be built or loaded: the reason, and what to do about it."""


_lock = threading.Lock()
_known: Kernels | Missing | None = None
_looked_for = False


def load() -> Kernels | Missing:
    """The kernels, which this compiles if necessary; or why there are none.

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
    """The kernels if they are loaded already; nothing is compiled."""
    return _known if isinstance(_known, Kernels) else None


def ready() -> bool:
    """Whether the kernels are there without waiting for a compiler: loaded, or kept by an earlier process.

    This looks for kept ones once per process, so that a small call does not look each time.
    """
    global _looked_for
    if _known is None and not _looked_for:
        _looked_for = True
        if os.environ.get(SWITCH, "1") == "1" and _kept_before():
            load()
    return isinstance(_known, Kernels)


def _kept_before() -> bool:
    """Whether an earlier process has compiled these sources for this processor."""
    try:
        return any(_named_folder().glob(f"kernels-{_sources(_flags())}-*.so"))  # none in a folder that is missing
    except (_UnavailableError, OSError):
        return False


def missing() -> str | None:
    """Why there are no kernels, as text; None if they are loaded."""
    known = _known or load()
    return None if isinstance(known, Kernels) else str(known)


# a call that is compiled by torch asks once, while it is traced; the decorator of torch.compiler would import dynamo
missing._dynamo_marked_constant = ready._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


def kernels() -> Kernels:
    """The kernels.

    Raises:
        NotImplementedError: there are none, and why. This can happen to a program that was exported on a machine with
            kernels.
    """
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
        path = library()
        advice = f"delete it, or set {FOLDER} to a folder whose files may be run"
        return _tried(_open(path, f"the library {path} does not load", advice), found, path)
    except _UnavailableError as error:
        return Missing(*error.args)
    except OSError as error:  # a full disk, a folder that another process removes
        return Missing(f"the library cannot be kept or read ({error})", f"set {FOLDER} to another folder")


def library() -> Path:
    """The library's file; compiles it if it is missing.

    Raises:
        _UnavailableError: there is none and none can be made.
    """
    folder, flags, compiler = _folder(), _flags(), _compiler()
    sources = _sources(flags)
    if compiler is None:
        built = sorted(folder.glob(f"kernels-{sources}-*.so"))  # an image may come with a library and no compiler
        if not built:
            raise _UnavailableError(
                "there is no C++ compiler", "install g++ (Debian, Ubuntu: apt install g++) or set CXX"
            )
        return _trusted(built[0])
    path = folder / f"kernels-{sources}-{_hash(*compiler, _version(compiler))}.so"
    if not path.exists():
        with _alone(folder):
            if not path.exists():  # another process may have made it meanwhile
                _compile([*compiler, *flags, *map(str, _files("*.cpp"))], path)
    return _trusted(path)


def _files(*patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in HERE.glob(pattern))


def _sources(flags: Sequence[str]) -> str:
    """What stands for the sources, the flags and the processor in the name of a library."""
    return _hash(*flags, _target(flags), *(path.read_text(encoding="utf-8") for path in _files("*.cpp", "*.h")))


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


# ---- the folder ----


_WRITABLE = f"set {FOLDER} to a folder that can be written to"


def _named_folder() -> Path:
    """The folder of libraries, which may be missing."""
    try:
        given = os.environ.get(FOLDER)
        cached = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(given).absolute() if given else Path(cached) / "relgraph"
    except RuntimeError:  # a user without an entry in the list of users
        raise _UnavailableError("this user has no home folder", _WRITABLE) from None


def _folder() -> Path:
    """Where libraries are kept: a folder that no other user can write to."""
    folder = _named_folder()
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise _UnavailableError(f"the folder {folder} cannot be made ({error.strerror})", _WRITABLE) from None
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


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which ends with the process that holds it, and remove what killed processes left.

    On file systems without locks nothing is held or removed.
    """
    import fcntl  # not there on every system that can import this file

    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _log.warning("relgraph waits for another process, which compiles the CPU kernels")
                fcntl.flock(handle, fcntl.LOCK_EX)
            for left in folder.glob("kernels-*.partial"):
                left.unlink(missing_ok=True)
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # closing would not do: a process forked meanwhile has the handle too
        os.close(handle)


# ---- compiling ----


def _words(name: str) -> list[str]:
    """The words of an environment variable, split as a shell does."""
    given = os.environ.get(name, "")
    try:
        return shlex.split(given)
    except ValueError as error:
        raise _UnavailableError(f"{name}={given} cannot be split into words ({error})", f"set {name}") from None


def _compiler() -> list[str] | None:
    """The command of the compiler, or None."""
    given = _words("CXX")
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
    given = _words(MORE_FLAGS)
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
    """Compile into a temporary file, load it, then rename it, so that only a whole library that works has the name."""
    began = time.perf_counter()
    _log.warning("relgraph compiles its CPU kernels, once for this machine, 10 to 20 seconds of %s ...", command[0])
    try:
        handle, name = tempfile.mkstemp(prefix="kernels-", suffix=".partial", dir=path.parent)
    except OSError as error:
        advice = f"set {FOLDER} to a folder that can be written to"
        raise _UnavailableError(f"the folder {path.parent} cannot be written to ({error.strerror})", advice) from None
    partial = Path(name)
    advice = "install another g++ or clang++ and set CXX to it"
    try:
        os.close(handle)
        done = _run([*command, "-o", name])
        if done.returncode:
            lines = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()
            _log.info("%s", "\n".join(lines[:40]))
            first = next((line for line in lines if "error" in line), lines[0])
            raise _UnavailableError(f"the compiler {command[0]} failed: {first.strip()}", advice)
        runs = f"{advice}, or set {FOLDER} to a folder whose files may be run"
        _open(partial, f"the compiler {command[0]} made no library that works", runs)
        partial.chmod(0o755)
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    _log.info("relgraph compiled its CPU kernels in %.0f s: %s", time.perf_counter() - began, path)


# ---- loading ----


def _is_cut_off(path: Path) -> bool:
    """Whether a library lacks its end, by its own header: to load it would kill the process with a bus error."""
    with path.open("rb") as file:
        header = file.read(64)
    if len(header) < 64 or header[:4] != b"\x7fELF":
        return False  # the loader refuses it
    # 64-bit ELF: where the table of sections begins, which linkers write last, and the size and number of its entries
    begin, _, _, _, _, size, count = struct.unpack_from("=QIHHHHH", header, 0x28)
    return path.stat().st_size < begin + size * count


def _open(path: Path, broken: str, advice: str) -> ctypes.CDLL:
    """The library, if it has all functions and both languages agree on the structs; else what to say and to advise."""
    try:
        if _is_cut_off(path):
            raise OSError("the file ends too early")
        opened = ctypes.CDLL(str(path))
        opened.relgraph_message.restype = ctypes.c_char_p
        sizes = {name: getattr(opened, name) for name in STRUCTS}
        functions = {name: getattr(opened, name) for name in FUNCTIONS}
    except (OSError, AttributeError) as error:  # a library without one of the functions is an AttributeError
        raise _UnavailableError(f"{broken} ({error})", advice) from None
    for name, size in sizes.items():
        size.restype = ctypes.c_int64
        if size() != ctypes.sizeof(STRUCTS[name]):
            both = f"{size()} bytes in C++ and {ctypes.sizeof(STRUCTS[name])} in Python"
            raise _UnavailableError(f"{name} is {both}", "this is a mistake in relgraph: please report it")
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
        blocked_half=found.blocked_half if works("relgraph_blocked_half_works", found.blocked_half) else None,
    )
    if found.release is not None:  # this thread tried products in bfloat16
        ctypes.CFUNCTYPE(None, ctypes.c_bool)(found.release)(True)
    return Kernels(opened, usable, path)
