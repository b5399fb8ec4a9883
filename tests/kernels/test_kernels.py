"""Tests the report on compiled kernels: its refusals, its rules, and kernels for GPUs that are not present."""

import importlib.util
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from docs.kernels.__main__ import main
from docs.kernels.ahead import compile_kernel, specialise
from docs.kernels.configuration import Configuration, load
from docs.kernels.machine import Compiled, Loop
from docs.kernels.report import BEGIN, END, Row, compare, complaints, report, row, summary

ROOT = Path(__file__).parents[2]


def test_specialise():
    signature = {"q": "*bf16", "ids": "*u8:1", "n": "i32:16", "m": "i32"}
    types_, attrs = specialise(["q", "ids", "n", "m", "mask"], signature, {"mask": None})
    assert types_ == {"q": "*bf16", "ids": "*u8", "n": "i32", "m": "i32", "mask": "constexpr"}
    assert attrs == {(0,): [["tt.divisibility", 16]], (2,): [["tt.divisibility", 16]]}


def made(arch=90, *, spill=0, shared=0, loops=()):
    return Compiled("kernel", arch, 128, spill, spill, shared, 232448, 2, tuple(loops))


def a_row(name="labels", arch=90, *, loops=(), baseline=None, turns=(), held=True, read=True, **options):
    config = Configuration(name, None, {}, {}, 4, 2, baseline, turns=dict(turns), held=held)
    return Row(config if read else config._replace(loops=()), made(arch, **options), dict(loops))


def two_rows(uniform, mixed=180, turns=1, cycles=True):
    def loop(cost):
        return Loop(cost, cost if cycles else None, ("HGMMA",))

    loops = {"uniform": loop(uniform), "mixed": loop(mixed)}
    plain = a_row("plain", loops={"uniform": loop(100), "mixed": loop(150)})
    rows = [plain, a_row(loops=loops, baseline="plain", turns={"mixed": turns}), a_row("single", loops=loops)]
    compare(rows)
    return rows


def test_report():
    rows = two_rows(110)
    assert rows[1].ratios == {"uniform": 1.1, "mixed": 1.8}
    table = summary(rows)
    assert "| labels | 90 | 4 | 2 | HGMMA | 128 | 0 | 0 | 2 | 110 | 1.10 | 180 | 1.80 |" in table
    assert "| plain | 90 | 4 | 2 | HGMMA | 128 | 0 | 0 | 2 | 100 | – | 150 | – |" in table
    found = json.loads(report(rows))[1]
    assert found["ratios"] == {"uniform": 1.1, "mixed": 1.8}
    assert found["loops"]["mixed"] == {"instructions": 180, "cycles": 180, "tensor": ["HGMMA"]}


def test_complaints():
    assert complaints(two_rows(110, 300)) == []
    assert complaints(two_rows(111)) == ["labels on sm_90 takes 1.11 times its baseline in uniform tiles, above 1.1"]
    assert complaints(two_rows(100, 151, turns=2)) == [
        "labels on sm_90 takes 3.02 times its baseline in mixed tiles, above 3.0"
    ]
    some = {"uniform": Loop(1, 1, ("HGMMA",))}
    assert complaints([a_row(spill=8, loops=some)]) == ["labels on sm_90 spills 8 bytes by 8 instructions"]
    assert complaints([a_row(shared=232449, loops=some)]) == [
        "labels on sm_90 asks for 232449 bytes of shared memory, there are 232448"
    ]
    assert complaints([a_row()]) == ["labels on sm_90 has no inner loop to read"]
    assert complaints([a_row(read=False)]) == []
    older = {"uniform": Loop(1, 1, ("HMMA",)), "mixed": Loop(1, 1)}
    assert complaints([a_row(loops=older, turns={"uniform": 1})]) == [
        "labels on sm_90 uses HMMA in uniform tiles, not HGMMA"
    ]
    assert complaints([a_row(arch=80, loops=older, turns={"uniform": 1})]) == []
    assert complaints([a_row(arch=80, loops=older, turns={"mixed": 2})]) == [
        "labels on sm_80 uses no tensor cores in mixed tiles, not HMMA"
    ]
    assert complaints([a_row(loops=some, turns={"mixed": 2})]) == ["labels on sm_90 has no mixed loop to read"]
    rows = [a_row("a", spill=8, loops=some), a_row("b", spill=8, loops=some, held=False)]
    assert [line.split()[0] for line in complaints(rows)] == ["a"]


def test_loops_beyond_the_names_are_numbered():
    config = Configuration("one", None, {}, {}, loops=("edges",))
    assert list(row(config, made(loops=[Loop(2), Loop(2)])).loops) == ["edges", "loop 2"]


def listed(monkeypatch, *entries):
    module = types.ModuleType("listed")
    module.configurations = lambda: entries  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "listed", module)
    return load("listed")


def test_what_is_refused(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    one = Configuration("one", None, {}, {})
    with pytest.raises(ValueError, match=r"got twice: \[\('one', 90\)\]"):
        listed(monkeypatch, one._replace(archs=(80, 90)), one._replace(archs=(90,)))
    listed(monkeypatch, ("first", print, {}, {}))
    with pytest.raises(TypeError, match=r"fn must be a @triton.jit function, got builtin_function_or_method") as caught:
        main(["--configurations", "listed", "--arch", "80"])
    assert caught.value.__notes__ == ["while first was compiled for sm_80"]
    with pytest.raises(ValueError, match=r"missing \['n'\], unknown \['m'\], twice \['D'\]"):
        specialise(["n", "D"], {"m": "i32", "D": "i32"}, {"D": 64})
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(ValueError, match="TRITON_INTERPRET must be unset to compile, got '1'"):
        compile_kernel(print, {}, {}, 90)


def run_program(folder, *line):
    """A process where Triton compiles; it also finds modules in a folder."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]), "TRITON_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-W", "error", *map(str, line)], env=environment, cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done


def command(folder, *arguments):
    return run_program(folder, "-m", "docs.kernels", "--arch", "90", *arguments)


needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton to compile")


@needs_triton
def test_toy_kernel(tmp_path):
    """64 rows by 64 keys on 128 threads are 32 scores per thread: a label per row adds one or two instructions."""
    (tmp_path / "page.md").write_text(f"# Page\n{BEGIN}\n{END}\n")
    options = ["--only", "labels", "--json", "toy.json", "--docs", "page.md"]
    done = command(tmp_path, "--configurations", "docs.kernels.toy", *options)
    assert done.stderr == ""
    assert "[2/2] toy labels sm_90" in done.stdout
    plain, labels = json.loads((tmp_path / "toy.json").read_text())
    for each in (plain, labels):
        assert list(each["loops"]) == ["uniform", "mixed"]
        found = each["compiled"]
        assert found["spill_bytes"] == found["spill_instructions"] == 0
        assert 64 <= found["registers"] <= 255
        assert found["shared"] >= 3 * 64 * 64 * 2
        assert found["blocks"] >= 1
        for loop in each["loops"].values():
            assert loop["tensor"] == ["HGMMA"]
            assert loop["cycles"] >= loop["instructions"]
    before, uniform, mixed = (
        rest["loops"][name]["instructions"]
        for rest, name in ((plain, "uniform"), (labels, "uniform"), (labels, "mixed"))
    )
    assert 0 < uniform - before <= 64
    assert mixed - uniform >= 64  # a gather is a load and the computation of its address
    cycles = [labels["loops"]["mixed"]["cycles"], plain["loops"]["uniform"]["cycles"]]
    assert labels["ratios"]["mixed"] == pytest.approx(cycles[0] / cycles[1])
    assert (
        f"| toy labels | 90 | 4 | 2 | HGMMA | {labels['compiled']['registers']} | 0 |"
        in (tmp_path / "page.md").read_text()
    )


FITS = """
import sys, torch
from cuxray.archspec import lookup
from docs.kernels import configurations
from docs.kernels.ahead import compile_kernel
for arch in map(int, sys.argv[2:]):
    for config in configurations.kernels("distance", sys.argv[1], 128, arch):
        # a band of one distance has a width of 1, of which the compiler must not make a constant
        assert [p.name for p in config.fn.params if p.do_not_specialize] == ["low", "width"]
        made = compile_kernel(config.fn, config.signature, config.constexprs, arch, config.num_warps, config.num_stages)
        print(arch, config.name, made.shared, made.most_shared, made.blocks)
"""


def slow(arch, dtype):
    return pytest.param(arch, dtype, marks=pytest.mark.slow)


@needs_triton
@pytest.mark.parametrize(
    ("arch", "dtype"),
    [(86, "bf16"), *(slow(arch, "bf16") for arch in (80, 90, 100, 120)), *(slow(arch, "fp32") for arch in (86, 120))],
)
def test_each_gpu_holds_what_a_call_would_be_given(tmp_path, arch, dtype):
    """Heads of 128, the largest tiles: sm_86, sm_89 and sm_120 have 99 KiB of shared memory."""
    found = [text.rsplit(maxsplit=3) for text in run_program(tmp_path, "-c", FITS, dtype, arch).stdout.splitlines()]
    assert len(found) == 3
    for _, shared, most, blocks in found:
        assert int(shared) <= int(most)
        assert int(blocks) >= 1
    assert {int(most) for *_, most, _ in found} == {{80: 163, 90: 227, 100: 227}.get(arch, 99) * 1024}


AMD = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from docs.kernels import configurations
from docs.kernels.ahead import specialise
from relgraph.impl.triton import attention_pieces
attention_pieces.NVIDIA = triton.language.constexpr(False)
for config in configurations.kernels("distance", "bf16", 64, 80):
    constants = dict(config.constexprs)
    types, attrs = specialise(config.fn.arg_names, config.signature, constants)
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages, "enable_fp_fusion": True}
    made = triton.compile(ASTSource(config.fn, types, constants, attrs), GPUTarget("hip", "gfx942", 64), options)
    print(config.name, made.metadata.shared, "amdgcn" in made.asm)
"""


@needs_triton
@pytest.mark.slow
def test_compiles_for_amd(tmp_path):
    """The kernels use nothing that only NVIDIA has: they compile with the other backend in Triton's wheel."""
    lines = run_program(tmp_path, "-c", AMD).stdout.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert int(line.split()[-2]) <= 65536
        assert line.endswith("True")


@needs_triton
def test_amd_gets_tiles_that_fit_it(monkeypatch):
    """A capability of 9.4 means an MI300 there, and not an H100."""
    import torch

    from relgraph.impl.triton import tiling

    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert tiling.capability(torch.device("cuda")) == (8, 0)
