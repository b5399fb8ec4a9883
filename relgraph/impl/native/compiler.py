"""How the kernels become a shared library: the compiler, its flags, and the folder that keeps what it made.

This file imports the standard library only, so that ``packaging`` can run it where no torch is installed. Three
environment variables decide what is made and where it is kept:

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
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

HERE = Path(__file__).parent
BUNDLED = HERE / "libraries"
"""The folder of libraries that an installation brings."""

FLAGS = (
    "-std=c++17", "-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros",
    "-fassociative-math", "-fPIC", "-shared",
)  # fmt: skip
COMPILERS = ("g++", "clang++", "c++")

FOLDER = "RELGRAPH_CACHE"
MORE_FLAGS = "RELGRAPH_NATIVE_FLAGS"

ADVICE = "run python -m relgraph compile"

_log = logging.getLogger("relgraph")


class UnavailableError(Exception):
    """The kernels cannot be compiled or loaded: the reason, and what to do about it."""


def compile_native(folder: Path | None = None) -> Path:
    """Compile these sources for this processor, unless that is done already, and return the library's file.

    Args:
        folder: where to keep it; by default the folder of libraries that ``RELGRAPH_CACHE`` names.
    """
    if sys.platform != "linux":
        raise UnavailableError(f"they need Linux, got {sys.platform}")
    flags, compiler = native_flags(), find_compiler()
    if compiler is None:
        raise UnavailableError("there is no C++ compiler", "install g++ (Debian, Ubuntu: apt install g++) or set CXX")
    try:
        folder = _made(folder or cache_folder())
        path = folder / native_name(_hash(*compiler, _version(compiler)))
        if not path.exists():
            with _alone(folder):
                if not path.exists():  # another process may have made it meanwhile
                    compile_sources([*compiler, *flags], path)
        return trusted(path)
    except OSError as error:  # a full disk, a folder that another process removes
        raise UnavailableError(f"the library cannot be kept ({error})", f"set {FOLDER} to another folder") from None


def native_name(compiler: str) -> str:
    """The name of a library of these sources for this processor, by the hash of its compiler; ``*`` for any."""
    flags = native_flags()
    return f"kernels-{_hash(*flags, _target(flags), source_hash())}-{compiler}.so"


def source_files(*patterns: str) -> list[Path]:
    """The C++ files that match these patterns."""
    return sorted(path for pattern in patterns for path in HERE.glob(pattern))


def source_hash() -> str:
    """What stands for the sources inside a library."""
    return _hash(*(path.read_text(encoding="utf-8") for path in source_files("*.cpp", "*.h")))


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


# ---- the folder ----


_WRITABLE = f"set {FOLDER} to a folder that can be written to"


def cache_folder() -> Path:
    """The folder of libraries, which may be missing."""
    try:
        given = os.environ.get(FOLDER)
        cached = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(given).absolute() if given else Path(cached) / "relgraph"
    except RuntimeError:  # a user without an entry in the list of users
        raise UnavailableError("this user has no home folder", _WRITABLE) from None


def _made(folder: Path) -> Path:
    """The folder, which no other user can write to."""
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise UnavailableError(f"the folder {folder} cannot be made ({error.strerror})", _WRITABLE) from None
    return trusted(folder)


def trusted(path: Path) -> Path:
    """The path, if only this user or root can have written the file, because it runs as this user's code."""
    state = path.stat()
    if state.st_uid not in (0, os.getuid()) or state.st_mode & 0o022:
        raise UnavailableError(
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
        raise UnavailableError(f"{name}={given} cannot be split into words ({error})", f"set {name}") from None


def find_compiler() -> list[str] | None:
    """The command of the compiler, or None."""
    given = _words("CXX")
    if given and shutil.which(given[0]) is None:
        raise UnavailableError(f"the compiler CXX={given[0]} is not there", "set CXX to a C++ compiler, or unset it")
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
        raise UnavailableError(f"the compiler {command[0]} does not run ({error.strerror})", "set CXX") from None


def native_flags() -> list[str]:
    """All flags: for this processor, unless the environment names another one."""
    given = _words(MORE_FLAGS)
    if any(flag.startswith(("-march", "-mcpu")) for flag in given):
        return [*FLAGS, *given]
    machine = platform.machine()
    if machine == "x86_64":
        # compilers prefer half a vector where a whole one once made processors slower
        wide = ["-mprefer-vector-width=512"] if "avx512f" in processor().split() else []
        return [*FLAGS, "-march=native", *wide, *given]
    return [*FLAGS, *(["-mcpu=native"] if machine == "aarch64" else []), *given]


def _target(flags: Sequence[str]) -> str:
    """The target of a library: this processor if it is compiled for this one, else this kind of machine."""
    own = any(flag in ("-march=native", "-mcpu=native") for flag in flags)
    return platform.machine() + ("\n" + processor() if own else "")


def processor() -> str:
    """The processor's name and instructions."""
    wanted = ("model name", "flags", "Features", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def compile_sources(command: Sequence[str], path: Path, *, runs_here: bool = True) -> None:
    """Compile into a temporary file, load it, then rename it, so that only a whole library that works has the name.

    Args:
        command: the compiler and its flags.
        path: the library's file.
        runs_here: whether this process can load the library.
    """
    began = time.perf_counter()
    _log.info("relgraph compiles its CPU kernels, 10 to 20 seconds of %s ...", command[0])
    try:
        handle, name = tempfile.mkstemp(prefix="kernels-", suffix=".partial", dir=path.parent)
    except OSError as error:
        raise UnavailableError(f"the folder {path.parent} cannot be written to ({error.strerror})", _WRITABLE) from None
    partial = Path(name)
    advice = "install another g++ or clang++ and set CXX to it"
    try:
        os.close(handle)
        done = _run([*command, f'-DRELGRAPH_SOURCES="{source_hash()}"', *map(str, source_files("*.cpp")), "-o", name])
        if done.returncode:
            lines = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()
            _log.info("%s", "\n".join(lines[:40]))
            first = next((line for line in lines if "error" in line), lines[0])
            raise UnavailableError(f"the compiler {command[0]} failed: {first.strip()}", advice)
        if runs_here:
            runs = f"{advice}, or set {FOLDER} to a folder whose files may be run"
            open_library(partial, f"the compiler {command[0]} made no library that works", runs)
        partial.chmod(0o755)
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    _log.info("relgraph compiled its CPU kernels in %.0f s: %s", time.perf_counter() - began, path)


# ---- loading ----


def open_library(path: Path, broken: str, advice: str) -> ctypes.CDLL:
    """The library, if it is of these sources.

    Args:
        path: its file.
        broken: what to say if it does not load.
        advice: what to advise then.
    """
    try:
        if _is_cut_off(path):
            raise OSError("the file ends too early")
        opened = ctypes.CDLL(str(path))
        made_from = opened.relgraph_sources
    except (OSError, AttributeError) as error:  # a library without the function is an AttributeError
        raise UnavailableError(f"{broken} ({error})", advice) from None
    made_from.restype = ctypes.c_char_p
    if made_from().decode() != source_hash():
        raise UnavailableError(f"{path} was made from other sources", ADVICE)
    return opened


def _is_cut_off(path: Path) -> bool:
    """Whether a library lacks its end, by its own header: to load it would kill the process with a bus error."""
    with path.open("rb") as file:
        header = file.read(64)
    if len(header) < 64 or header[:4] != b"\x7fELF":
        return False  # the loader refuses it
    # 64-bit ELF: where the table of sections begins, which linkers write last, and the size and number of its entries
    begin, _, _, _, _, size, count = struct.unpack_from("=QIHHHHH", header, 0x28)
    return path.stat().st_size < begin + size * count
