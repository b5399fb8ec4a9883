"""Where kernels come from: the compiler, the cache, libraries that an installation brings, and machines without them."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import relgraph as rg
from relgraph.impl.native import build, compiler
from relgraph.impl.native.compiler import UnavailableError, compile_native
from relgraph.impl.native.found import find

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="kernels are compiled on Linux alone")
pytestmark = LINUX

COPYING = """\
#!/bin/sh
if [ "$1" = --version ]; then echo "copying 1.0"; exit; fi
echo "$LD_PRELOAD" >> '{log}'
while [ "$1" != -o ]; do shift; done
sleep 0.5
cp '{library}' "$2"
"""
FAILING = """\
#!/bin/sh
[ "$1" = --version ] && exit
while [ "$1" != -o ]; do shift; done
echo half > "$2"
echo "note: something" >&2
echo "fatal error: no such header" >&2
exit 1
"""


@pytest.fixture(scope="session")
def real():
    """The kernels of this machine."""
    known = build.load()
    if isinstance(known, build.Missing):
        pytest.skip(str(known))
    return known


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A process that has not asked for kernels yet, with an empty cache, no library of its own and nothing set."""
    for name in (build.SWITCH, compiler.MORE_FLAGS, "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(build, "_known", None)
    folder = tmp_path / "cache"
    monkeypatch.setenv(compiler.FOLDER, str(folder))
    monkeypatch.setattr(compiler, "BUNDLED", tmp_path / "bundled")
    return folder


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "no programs"))


def script(path: Path, text: str) -> str:
    """A program of this text."""
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def copying(fresh, real, monkeypatch, tmp_path):
    """A compiler that takes half a second to copy the library of this machine; returns its log, a line per call."""
    log = tmp_path / "log"
    monkeypatch.setenv("CXX", script(tmp_path / "copying", COPYING.format(log=log, library=real.path)))
    return log


@pytest.fixture
def log(caplog):
    """The lines that are logged."""
    caplog.set_level(logging.INFO, logger="relgraph")
    return caplog


def reason() -> str:
    """Why a process that has not asked for kernels yet has none."""
    build._known = None
    known = build.load()
    assert isinstance(known, build.Missing)
    return str(known)


def not_compiled() -> str:
    """Why nothing is compiled."""
    with pytest.raises(UnavailableError, match=".") as raised:
        compile_native()
    return "; ".join(raised.value.args)


def forked(work) -> int:
    """A forked process that does this work and ends with 0 where it returns true."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn where there are threads
        child = os.fork()
    if child == 0:
        os._exit(0 if work() else 1)
    return child


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# ---- a machine with a compiler ----


def test_this_machine_has_kernels_if_it_has_a_compiler(real):
    assert set(real.found.gemm) == {4, 8}
    assert build.kernels() is build.load() is real
    for name, struct in build.STRUCTS.items():
        assert getattr(real.library, name)() == ctypes.sizeof(struct)


def test_the_library_is_compiled_once_and_stored(copying, fresh, log, monkeypatch, tmp_path):
    """A library that was loaded before Python is not loaded into the compiler. A stored library needs no compiler."""
    monkeypatch.setenv("LD_PRELOAD", "/of/a/sanitizer.so")
    first = compile_native()
    assert list(fresh.iterdir()) == [first]
    assert stat.S_IMODE(first.stat().st_mode) == 0o755
    assert compile_native() == first
    assert copying.read_text() == "\n"
    started, ended = log.messages
    assert started.startswith("relgraph compiles its CPU kernels, 10 to 20 seconds of ")
    assert ended.startswith("relgraph compiled its CPU kernels in ")
    assert ended.endswith(f" s: {first}")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path / "no programs"))
    assert isinstance(build.load(), build.Kernels)
    assert build.load().path == first


def test_threads_that_come_at_once_load_once(copying):
    compile_native()
    got = []
    threads = [threading.Thread(target=lambda: got.append(build.load())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert isinstance(got[0], build.Kernels)
    assert all(one is got[0] for one in got)


def test_a_forked_process_has_no_lock_of_its_parent():
    """It does not wait for a thread that it does not have."""
    with build._lock:
        child = forked(lambda: build._lock.acquire(blocking=False))
    assert ended(child) == 0


def test_the_name_of_a_library_says_what_it_depends_on(copying, fresh, monkeypatch, tmp_path):
    def name(**changes):
        with monkeypatch.context() as patch:
            for what, value in changes.items():
                if what.startswith("RELGRAPH_"):
                    patch.setenv(what, value)
                else:
                    patch.setattr(compiler, what, value)
            return compile_native().name

    monkeypatch.setattr(compiler, "compile_sources", lambda command, path, **_: path.write_text(""))
    usual = name()
    assert name() == usual
    sources = tmp_path / "sources"
    shutil.copytree(compiler.HERE, sources)
    assert name(HERE=sources) == usual
    (sources / "labels.h").write_text("// changed\n" + (sources / "labels.h").read_text())
    others = [
        name(RELGRAPH_NATIVE_FLAGS="-g"),
        name(processor=lambda: "another"),
        name(_version=lambda compiler: "copying 1.1"),
        name(RELGRAPH_NATIVE_FLAGS="-march=x86-64-v3"),
        name(HERE=sources),
    ]
    assert len({usual, *others}) == 1 + len(others)
    # compiled for a kind of processor, it serves all of them
    assert name(RELGRAPH_NATIVE_FLAGS="-march=x86-64-v3", processor=lambda: "another") == others[3]


def test_flags_are_for_this_processor_unless_another_is_named(fresh, monkeypatch):
    def flags(machine, processor="", more=""):
        monkeypatch.setattr(compiler.platform, "machine", lambda: machine)
        monkeypatch.setattr(compiler, "processor", lambda: processor)
        monkeypatch.setenv(compiler.MORE_FLAGS, more)
        assert compiler.native_flags()[: len(compiler.FLAGS)] == [*compiler.FLAGS]
        return compiler.native_flags()[len(compiler.FLAGS) :]

    assert flags("x86_64", "flags : avx2 avx512f") == ["-march=native", "-mprefer-vector-width=512"]
    assert flags("x86_64", "flags : avx2") == ["-march=native"]
    assert flags("x86_64", "flags : avx2", "-march=x86-64-v3 -g") == ["-march=x86-64-v3", "-g"]
    assert flags("aarch64") == ["-mcpu=native"]
    assert flags("riscv64") == []


# ---- a machine without kernels ----


def test_calls_go_on_without_a_compiler(fresh, no_compiler, log):
    """Nothing is compiled by itself, and the log says once what to do."""
    x = torch.randn(1, 2, 600, 4)
    assert rg.relation_attention(x, x, x, None).shape == x.shape
    choice = rg.which_impl(x, x, x, None)
    assert choice.impl == "chunked"
    wanted = (
        "no library here is of these sources and for this processor; "
        "install g++ (Debian, Ubuntu: apt install g++), then run python -m relgraph compile"
    )
    assert choice.refused["native"] == f"impl='native' has no compiled kernels: {wanted}; use impl='chunked'"
    for call in (lambda: rg.relation_attention(x, x, x, None, impl="native"), build.kernels):
        with pytest.raises(NotImplementedError, match=f"no compiled kernels: {re.escape(wanted)}; use impl='chunked'"):
            call()
    assert log.messages == [
        f"relgraph has no compiled CPU kernels, impl=None takes 'chunked' or 'edges': {wanted} "
        "(RELGRAPH_NATIVE=0 ends this line)"
    ]
    assert not_compiled() == "there is no C++ compiler; install g++ (Debian, Ubuntu: apt install g++) or set CXX"


def test_the_switch_and_other_systems(fresh, monkeypatch, log):
    monkeypatch.setenv(build.SWITCH, "0")
    assert reason() == "RELGRAPH_NATIVE=0 turns them off"
    monkeypatch.delenv(build.SWITCH)
    with monkeypatch.context() as patch:
        patch.setattr(build.sys, "platform", "darwin")
        assert reason() == not_compiled() == "they need Linux, got darwin"
    assert log.messages == []  # nothing can be done about either
    assert not fresh.exists()
    monkeypatch.setenv(build.SWITCH, "off")
    assert reason() == "RELGRAPH_NATIVE must be 0 or 1, got 'off'; set RELGRAPH_NATIVE"
    assert "got 'off'" in log.messages[0]


def test_a_compiler_that_is_not_there_or_does_not_run(fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "c++-of-nobody -O0")
    assert not_compiled() == "the compiler CXX=c++-of-nobody is not there; set CXX to a C++ compiler, or unset it"
    broken = script(tmp_path / "broken", "#!/no/such/shell\n")
    monkeypatch.setenv("CXX", broken)
    assert not_compiled() == f"the compiler {broken} does not run (No such file or directory); set CXX"
    for name in (compiler.MORE_FLAGS, "CXX"):
        monkeypatch.setenv(name, "g++ '-O2")
        assert not_compiled() == f"{name}=g++ '-O2 cannot be split into words (No closing quotation); set {name}"
        monkeypatch.delenv(name)


def test_a_compiler_that_fails_leaves_nothing(fresh, monkeypatch, tmp_path, log):
    failing = script(tmp_path / "failing", FAILING)
    monkeypatch.setenv("CXX", failing)
    assert not_compiled() == (
        f"the compiler {failing} failed: fatal error: no such header; install another g++ or clang++ and set CXX to it"
    )
    assert list(fresh.iterdir()) == []
    assert log.messages[1] == "note: something\nfatal error: no such header"


PRETENDING = """\
#!/bin/sh
[ "$1" = --version ] && exit
while [ "$1" != -o ]; do shift; done
{does}
"""
PRETENCES = {
    "no file": ('rm "$2"', "No such file or directory"),
    "an empty file": ("true", "file too short"),
    "no library": ('echo library > "$2"', "file too short"),
    "a library of something else": ('cp {other} "$2"', "undefined symbol: relgraph_sources"),
    "half a library": ('head -c 20000 {other} > "$2"', "the file ends too early"),
}


@pytest.mark.parametrize("what", PRETENCES)
def test_a_compiler_that_only_pretends_leaves_nothing(what, fresh, monkeypatch, tmp_path):
    does, why = PRETENCES[what]
    other = sys.modules["_ctypes"].__file__
    pretending = script(tmp_path / "pretending", PRETENDING.format(does=does.format(other=other)))
    monkeypatch.setenv("CXX", pretending)
    found = not_compiled()
    assert found.startswith(f"the compiler {pretending} made no library that works (")
    assert why in found
    assert list(fresh.iterdir()) == []


def test_an_interrupt_or_an_emptied_folder_leaves_nothing(fresh, copying, monkeypatch):
    compile_, run = compiler.compile_sources, compiler._run

    def interrupted(command):
        if "-o" in command:
            raise KeyboardInterrupt("while it compiles")
        return run(command)

    with monkeypatch.context() as patch:
        patch.setattr(compiler, "_run", interrupted)
        with pytest.raises(KeyboardInterrupt, match="while it compiles"):
            compile_native()
    assert list(fresh.iterdir()) == []
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "compile_sources", lambda command, path, **_: (compile_(command, path), path.unlink()))
        found = not_compiled()
    assert found.startswith("the library cannot be kept ([Errno 2] No such file or directory: ")
    assert found.endswith("; set RELGRAPH_CACHE to another folder")
    assert compile_native().exists()
    monkeypatch.setattr(build, "libraries", lambda: iter([fresh / "gone.so"]))
    assert reason().startswith(f"the library {fresh}/gone.so cannot be read ([Errno 2] No such file or directory: ")


def test_what_others_can_write_to_is_refused(fresh, copying, monkeypatch):
    fresh.mkdir()
    fresh.chmod(0o777)
    assert not_compiled() == (
        f"{fresh} must belong to this user or root and be writable by no other; "
        "chmod go-w it, or set RELGRAPH_CACHE to another folder"
    )
    assert not copying.exists()
    fresh.chmod(0o755)
    path = compile_native()
    path.chmod(0o775)
    assert reason().startswith(f"{path} must belong to this user or root and be writable by no other")
    owner = fresh.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    if owner == 0:  # root's are taken
        os.chown(fresh, 1234, -1)
    assert reason().startswith(f"{fresh} must belong to this user or root")


def test_a_folder_that_cannot_be_made_or_written_to(fresh, copying, monkeypatch, tmp_path):
    advice = "; set RELGRAPH_CACHE to a folder that can be written to"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(compiler.FOLDER, str(tmp_path / "file" / "cache"))
    assert not_compiled() == f"the folder {tmp_path}/file/cache cannot be made (Not a directory){advice}"
    monkeypatch.setenv(compiler.FOLDER, "/proc")
    assert not_compiled().startswith("the folder /proc cannot be written to (")
    assert not_compiled().endswith(advice)
    monkeypatch.delenv(compiler.FOLDER)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/proc/self")  # not even root can
    assert not_compiled() == f"the folder /proc/self/.cache/relgraph cannot be made (No such file or directory){advice}"

    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(compiler.Path, "home", home)
    assert not_compiled() == f"this user has no home folder{advice}"


@pytest.mark.parametrize("size", [17, 40_000])
def test_a_library_that_was_cut_off(size, fresh, copying):
    path = compile_native()
    begin = path.read_bytes()[:size]
    path.unlink()  # not written over: this process has loaded the file
    path.write_bytes(begin)
    assert reason().startswith(f"the library {path} does not load (")
    assert reason().endswith("; delete it, or set RELGRAPH_CACHE to a folder whose files may be run")


def test_structs_must_be_the_same_in_both_languages(fresh, copying, monkeypatch):
    class Other(ctypes.Structure):
        _fields_ = (("one", ctypes.c_int64),)

    monkeypatch.setattr(build, "STRUCTS", {"relgraph_part_size": Other})
    compile_native()
    assert "relgraph_part_size is " in reason()
    assert " bytes in C++ and 8 in Python; this is a mistake in relgraph: please report it" in reason()


# ---- what torch has ----

GEMM = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 13)
BLOCKED = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6, ctypes.c_bool, *[ctypes.c_void_p] * 3, ctypes.c_bool)


def address(function):
    return ctypes.cast(function, ctypes.c_void_p).value


def test_functions_of_torch_that_are_wrong_or_absent_are_not_used(fresh, copying, monkeypatch):
    compile_native()
    found, idle, idle_blocked = find(), GEMM(lambda *_: None), BLOCKED(lambda *_: None)

    def given(**changes):
        monkeypatch.setattr(build, "_known", None)
        monkeypatch.setattr(build, "find", lambda: replace(found, **changes))

    for blocked in (address(idle_blocked), None):
        given(blocked=blocked, blocked_half=None)
        known = build.load()
        assert (known.found.blocked, known.found.blocked_half) == (None, None)
        assert known.found.gemm == found.gemm
    for size in (4, 8):
        given(gemm={**found.gemm, size: address(idle)})
        assert reason() == "the BLAS of this build of torch does not multiply as expected"
    given(gemm={4: found.gemm[4]})
    assert reason() == "this build of torch has no BLAS that can be called"


# ---- when it is loaded ----

FIRST_CALLS = """
import os, sys, torch, relgraph as rg
from relgraph.impl.native import build
assert build._known is None
os.environ["RELGRAPH_NATIVE"] = "0"
x, table = torch.randn(1, 1, 600, 4, requires_grad=True), torch.randn(2, 4, requires_grad=True)
edges = rg.EdgeLabels(torch.tensor([[0, 1], [1, 2]]), torch.tensor([0, 1]), 2, q_len=600)
both = (rg.DenseLabels(torch.zeros(600, 600, dtype=torch.int8), 2), edges)
sum(rg.relation_attention(x, x, x, labels, table, dropout_p=0.1).sum() for labels in both).backward()
assert [rg.which_impl(x, x, x, labels).impl for labels in both] == ["chunked", "edges"]
assert "sympy" not in sys.modules and "torch._dynamo" not in sys.modules

build._known, x = None, x.detach()
del os.environ["RELGRAPH_NATIVE"]
f = torch.compile(lambda x: rg.relation_attention(x, x, x, None), fullgraph=True, backend="eager")
torch.testing.assert_close(f(x), rg.relation_attention(x, x, x, None, impl="dense"))
assert isinstance(build._known, build.Kernels)  # though no eager call asked for them
"""


def test_the_first_calls_of_a_process(real):
    """An import loads no kernels; without kernels dynamo is not imported; compiled code asks for kernels."""
    environment = {**os.environ, compiler.FOLDER: str(real.path.parent)}
    done = subprocess.run([sys.executable, "-c", FIRST_CALLS], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


# ---- libraries that an installation brings ----


@pytest.fixture
def bundled(fresh, real, monkeypatch):
    """Makes a library of an installation from the one of this machine."""
    compiler.BUNDLED.mkdir()

    def make(kind: str, *, sources: str | None = None) -> Path:
        path = compiler.BUNDLED / f"kernels-{kind}.so"
        whole = real.path.read_bytes()
        path.write_bytes(whole if sources is None else whole.replace(compiler.source_hash().encode(), sources.encode()))
        return path

    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return make


@pytest.mark.parametrize("kind", ["x86-64-v3", "x86-64-v4"])
def test_the_newest_library_that_this_processor_allows(kind, bundled, monkeypatch):
    """A native build comes before all of them, and flags ask for their own."""
    both = {name: bundled(name) for name in ("x86-64-v3", "x86-64-v4")}
    monkeypatch.setattr(compiler, "processor", lambda: f"flags : fpu {build.KINDS['x86_64'][kind]} more")
    known = build.load()
    assert isinstance(known, build.Kernels)
    assert known.path == both[kind]
    own = compiler.BUNDLED / compiler.native_name("any")
    shutil.copy(both[kind], own)
    assert next(build.libraries()) == own
    monkeypatch.setenv(compiler.MORE_FLAGS, "-g")
    assert list(build.libraries()) == []


def test_no_library_for_an_older_processor_or_another_machine(bundled, monkeypatch):
    bundled("x86-64-v3")
    monkeypatch.setattr(compiler, "processor", lambda: "flags : fpu sse4_2 avx")
    assert list(build.libraries()) == []
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert list(build.libraries()) == []
    assert [bundled("aarch64")] == list(build.libraries())


def test_a_library_never_hides_newer_sources(bundled, fresh, monkeypatch):
    """Other sources need other kernels; the reason says how to get them."""
    monkeypatch.setattr(compiler, "processor", lambda: build.KINDS["x86_64"]["x86-64-v3"])
    stale = bundled("x86-64-v3", sources="0" * 16)
    assert reason() == f"{stale} was made from other sources; run python -m relgraph compile"
    assert not fresh.exists()


def test_a_broken_native_build_is_passed_over_with_a_line(bundled, fresh, monkeypatch, log):
    monkeypatch.setattr(compiler, "processor", lambda: build.KINDS["x86_64"]["x86-64-v3"])
    fresh.mkdir()
    broken, whole = fresh / compiler.native_name("any"), bundled("x86-64-v3")
    broken.write_text("broken")
    known = build.load()
    assert isinstance(known, build.Kernels)
    assert known.path == whole
    assert log.messages[0].startswith(
        f"relgraph takes the CPU kernels of {whole}: the library {broken} does not load ("
    )


# ---- other processors and compilers: object files alone, nothing is run ----

SYSTEMS = {
    "x86-64 without AVX": ["-march=x86-64"],
    "x86-64 with AVX2": ["-march=x86-64-v3"],
    "x86-64 with AVX-512": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
    "Arm": [],
}
ARM = "aarch64-linux-gnu-g++"  # clang++ takes its headers


def needed(*programs):
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("program", ["g++", "clang++"])
def test_they_compile_for_other_processors(program, system, tmp_path):
    """Without a warning, but for clang's that it did not turn a loop into vector code."""
    needed(program, *[ARM] * (system == "Arm"))
    if system != "Arm" and platform.machine() != "x86_64":
        pytest.skip("compilers of this machine are for another kind of processor")
    command = [program, *SYSTEMS[system]]
    if system == "Arm":
        command = [ARM] if program == "g++" else ["clang++", "--target=aarch64-linux-gnu"]
    command += ["-Wall", "-Wextra", "-Wno-pass-failed", "-c", *(flag for flag in compiler.FLAGS if flag != "-shared")]
    for source in compiler.source_files("*.cpp"):
        output = tmp_path / f"{source.stem}.o"
        done = subprocess.run([*command, str(source), "-o", str(output)], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_clang_makes_a_library_that_loads(fresh, monkeypatch):
    needed("clang++")
    monkeypatch.setenv("CXX", "clang++")
    compile_native()
    assert isinstance(build.load(), build.Kernels)
