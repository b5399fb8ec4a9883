"""Reading machine code: instructions, loops and the report, on snippets and on a toy kernel compiled for sm_90."""

import importlib.util
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.kernels.__main__ import main
from docs.kernels.ahead import Compiled, compile_kernel, resource_usage, specialise
from docs.kernels.configuration import Configuration, load
from docs.kernels.loops import Loop, inner_bodies, main_loops
from docs.kernels.report import BEGIN, END, Row, compare, complaints, report, row, write_between_markers
from docs.kernels.sass import Instruction, by_class, parse

ROOT = Path(__file__).parents[2]


def sass(*lines):
    """Instructions one after the other, as cuobjdump lays them out; a comment before each is its code."""
    text = "\n".join(
        f"        /*{16 * n:04x}*/       {line} ;      /* 0x0000000a00ff017b */\n{' ' * 60}/* 0x000fe200 */"
        for n, line in enumerate(lines)
    )
    return parse(f'\tcode for sm_90a\n\t\tFunction : kernel\n\t.headerflags @"EF"\n{text}\n')["kernel"]


def addresses(bodies):
    return [sorted(i.address // 16 for i in body) for body in bodies]


def test_parse():
    code = sass("LDC R1, c[0x0][0x28]", "@!P3 BRA 0x20", "BRA.U !UP0, 0x0", "@UP1 UMOV UR4, 0x1", "EXIT")
    assert code[0] == Instruction(0, "", "LDC", "R1, c[0x0][0x28]")
    assert code[1] == Instruction(16, "!P3", "BRA", "0x20")
    assert (code[1].target, code[1].conditional) == (0x20, True)
    assert (code[2].opcode, code[2].root, code[2].target, code[2].conditional) == ("BRA.U", "BRA", 0, True)
    assert (code[3].guard, code[3].kind) == ("UP1", "integer")
    assert (code[4].operands, code[4].target, code[4].conditional) == ("", None, False)


@pytest.mark.parametrize(
    ("kind", "opcodes"),
    [
        ("tensor", "HMMA.16816.F32.BF16 HGMMA.64x64x16.F32.BF16 UTCHMMA UTCQMMA IMMA.16832.S8.S8"),
        ("global", "LDG.E.128 STG.E LDGSTS.E.BYPASS.128 UTMALDG.4D UTMASTG.2D"),
        ("shared", "LDS.128 STS LDSM.16.MT88.4 STSM.16.M88.4 LDTM.x32 STTM.x32"),
        ("local", "LDL.LU.64 STL.64"),
        ("atomic", "RED.E.ADD.F32.FTZ.RN REDG.E.ADD ATOM.E.ADD ATOMG.E.CAS ATOMS.ADD"),
        ("special", "MUFU.EX2 MUFU.RCP"),
        ("shuffle", "SHFL.BFLY VOTEU.ANY REDUX.MAX CREDUX.MAX"),
        ("float", "FFMA FFMA2 FADD.FTZ FMUL FMNMX FMNMX3 FSEL FSETP.GEU.AND F2FP.BF16.F32.PACK_AB HFMA2.MMA I2FP.F32.S32"),
        ("control", "BRA.U BAR.SYNC.DEFER_BLOCKING WARPSYNC.ALL BSSY.RECONVERGENT SYNCS.PHASECHK DEPBAR.LE WARPGROUP.ARRIVE"),
        ("integer", "IMAD.WIDE.U32 IADD3 UIADD3 LEA.HI.X.SX32 ISETP.GE.AND SEL USEL LOP3.LUT CS2R S2R VIADDMNMX UPLOP3.LUT"),
        ("nop", "NOP"),
        ("other", "QUUX.E"),
    ],
)  # fmt: skip
def test_classes(kind, opcodes):
    assert {opcode: Instruction(0, "", opcode, "").kind for opcode in opcodes.split()} == dict.fromkeys(
        opcodes.split(), kind
    )


def test_loop_with_spills():
    code = sass(
        "MOV R1, RZ",
        "LDL.LU.64 R2, [R1+0x8]",
        "HMMA.16816.F32.BF16 R4, R8, R2, R4",
        "HMMA.16816.F32.BF16 R4, R8, R2, R4",
        "MUFU.EX2 R5, R4",
        "STL [R1+0x8], R5",
        "NOP",
        "ISETP.NE.AND P0, PT, R3, RZ, PT",
        "@P0 BRA 0x10",
        "STL [R1], R5",
        "EXIT",
        "BRA 0xb0",
    )
    (loop,) = main_loops(code)
    assert (loop.start, loop.instructions, loop.tensor, loop.exp2) == (16, 7, 2, 1)
    assert loop.classes == {"tensor": 2, "local": 2, "special": 1, "control": 1, "integer": 1}
    assert (loop.per_tensor, loop.per_exp2) == (3.5, 7.0)
    assert loop.shapes == ("HMMA.16816.F32.BF16",)
    assert by_class(code)["local"] == 3
    assert Compiled("kernel", 90, 32, 16, 0, code).spill_instructions == 3


def test_inner_loop_alone_counts_and_loops_come_by_address():
    code = sass(
        "FADD R0, R0, R1",  # 0: the outer loop
        "FADD R0, R0, R1",  # 1: the first inner loop
        "@P0 BRA 0x10",
        "LDG.E R2, [R4.64]",  # 3: the second
        "BRA.U !UP0, 0x30",
        "@P1 BRA 0x0",
        "EXIT",
    )
    assert addresses(inner_bodies(code)) == [[1, 2], [3, 4]]


def test_loops_without_tensor_cores_give_way_to_those_with():
    tail = ["@P0 BRA 0x0", "HMMA.16816.F32 R0, R0, R0, R0", "@P0 BRA 0x20", "EXIT"]
    assert [loop.start for loop in main_loops(sass("LDG.E R0, [R2.64]", *tail))] == [0x20]
    assert [loop.start for loop in main_loops(sass("LDG.E R0, [R2.64]", tail[0], "EXIT"))] == [0]


def test_waiting_behind_the_kernels_end_is_part_of_the_loop():
    code = sass(
        "UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8]",
        "SYNCS.PHASECHK.TRANS64.TRYWAIT P3, [UR35], R4",
        "@!P3 BRA 0x60",
        "LDTM.x32 R4, tmem[UR14]",
        "BRA.U !UP1, 0x0",
        "EXIT",
        "SYNCS.PHASECHK.TRANS64.TRYWAIT P3, [UR35], R4",
        "@!P3 BRA 0x60",
        "BRA 0x30",
    )
    assert addresses(inner_bodies(code)) == [[0, 1, 2, 3, 4, 6, 7, 8]]


def test_far_jump_out_of_a_loop_written_as_a_call():
    code = sass("FADD R0, R0, R1", "@P0 CALL.REL.NOINC 0x30", "BRA 0x0", "EXIT")
    assert addresses(inner_bodies(code)) == [[0, 1, 2]]


def test_far_jump_that_comes_back_is_in_the_loop():
    code = sass("FADD R0, R0, R1", "@P0 CALL.REL.NOINC 0x40", "@P1 BRA 0x0", "EXIT", "FMUL R0, R0, R0", "BRA 0x20")
    assert addresses(inner_bodies(code)) == [[0, 1, 2, 4, 5]]


def test_a_call_that_returns_stays_in_the_loop():
    code = sass(
        "FADD R0, R0, R1", "CALL.REL.NOINC 0x40", "@P0 BRA 0x0", "EXIT", "FMUL R0, R0, R0", "RET.REL.NODEC R2 0x0"
    )
    assert addresses(inner_bodies(code)) == [[0, 1, 2]]


def test_threads_that_wait_go_on_where_their_meeting_place_says():
    code = sass(
        "BSSY.RECONVERGENT B0, 0x50",
        "@P0 BRA 0x40",
        "FADD R0, R0, R1",
        "BSYNC.RECONVERGENT B0",  # goes on at 5
        "EXIT",
        "@P1 BRA 0x0",
        "EXIT",
    )
    assert addresses(inner_bodies(code)) == [[0, 1, 2, 3, 5]]


def test_no_way_leads_to_the_trap_at_the_end():
    assert main_loops(sass("FADD R0, R0, R1", "EXIT", "FADD R0, R0, R1", "BRA 0x20")) == []


jumps = st.lists(st.tuples(st.sampled_from(["", "@P0 ", "on"]), st.integers(0, 9)), min_size=1, max_size=10)


def expected(size, after):
    """Bodies of innermost loops by the definition: take the header away and the jump cannot be reached."""

    def reached(edges, start, without=None):
        seen, waiting = set(), [start]
        while waiting:
            node = waiting.pop()
            if node != without and node not in seen:
                seen.add(node)
                waiting += edges[node]
        return seen

    live = reached(after, 0)
    back = {n: [m for m in live if n in after[m]] for n in range(size)}
    loops = {}
    for tail in live:
        for header in after[tail]:
            if tail == header or tail not in reached(after, 0, without=header):
                loops.setdefault(header, {header}).update(reached(back, tail, without=header))
    return [sorted(body) for header, body in sorted(loops.items()) if not (loops.keys() - {header}) & body]


@given(jumps)
def test_any_jumps(jumps):
    """Node n is an addition and a jump to another node: always, if P0, or none."""
    size, lines, after = len(jumps), [], []
    for n, (when, target) in enumerate(jumps):
        target %= size
        lines += ["FADD R0, R0, R1", "FADD R0, R0, R1" if when == "on" else f"{when}BRA {32 * target:#x}"]
        following = [n + 1] if n + 1 < size else []
        after.append({"on": following, "": [target], "@P0 ": [target, *following]}[when])
    found = [sorted({a // 2 for a in body}) for body in addresses(inner_bodies(sass(*lines, "EXIT")))]
    assert found == expected(size, after)


def test_ratio_and_its_unit():
    base = Loop(0, 300, tensor=8, exp2=32, shapes=("HMMA.16816",))
    assert Loop(0, 330, tensor=8, exp2=32, shapes=("HMMA.16816",)).ratio(base) == (1.1, "turn")
    assert Loop(0, 660, tensor=16, exp2=66, shapes=("HMMA.16816",)).ratio(base) == (1.1, "tensor")
    assert Loop(0, 660, tensor=4, exp2=64, shapes=("HMMA.1688",)).ratio(base) == (1.1, "exp2")
    assert Loop(0, 330).ratio(base) == (1.1, "turn")
    told = Loop(0, 300, tensor=8, exp2=64, shapes=("UTCHMMA",))
    assert Loop(0, 165, tensor=8, exp2=32, shapes=("UTCHMMA",)).ratio(told) == (1.1, "exp2")


def test_resource_usage():
    text = """Resource usage:
 Common:
  GLOBAL:11 CONSTANT[4]:8
 Function first:
  REG:64 STACK:392 SHARED:1024 LOCAL:8 CONSTANT[0]:424 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function second:
  REG:158 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:424 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
    assert resource_usage(text) == {"first": (64, 400), "second": (158, 0)}


def test_specialise():
    signature = {"q": "*bf16", "ids": "*u8:1", "n": "i32:16", "m": "i32"}
    types_, attrs = specialise(["q", "ids", "n", "m", "mask"], signature, {"mask": None})
    assert types_ == {"q": "*bf16", "ids": "*u8", "n": "i32", "m": "i32", "mask": "constexpr"}
    assert attrs == {(0,): [["tt.divisibility", 16]], (2,): [["tt.divisibility", 16]]}


def a_row(name="labels", arch=90, *, spill=0, shared=0, loops=(), baseline=None):
    return Row(name, arch, 4, 2, 128, spill, spill, shared, dict(loops), baseline)


def two_rows(uniform):
    plain = a_row("plain", loops={"uniform": Loop(0, 100, {"float": 99, "control": 1}), "mixed": Loop(16, 150)})
    loops = {"uniform": Loop(0, uniform, {"float": uniform}), "mixed": Loop(16, 180)}
    rows = [plain, a_row(loops=loops, baseline="plain"), a_row("alone", loops=loops)]
    compare(rows)
    return rows


def test_report():
    rows = two_rows(110)
    assert rows[1].ratios == {"uniform": 1.1, "mixed": 1.8}
    table, data = report(rows)
    assert "| labels | 90 | 4 | 2 | 128 | 0 | 0 | 110 | 1.100 | 180 | 1.800 |" in table
    assert "| plain | 90 | 4 | 2 | 128 | 0 | 0 | 100 | – | 150 | – |" in table
    assert "| labels | 90 | uniform | 110 | – | – | turn | 110 | 0 |" in table
    told = json.loads(data)[1]
    assert told["ratios"] == {"uniform": 1.1, "mixed": 1.8}
    assert told["loops"]["mixed"]["instructions"] == 180


def test_complaints():
    assert complaints(two_rows(115)) == []
    assert complaints(two_rows(116)) == ["labels on sm_90 takes 1.160 times its baseline in uniform tiles, above 1.15"]
    some = {"uniform": Loop(0, 1)}
    assert complaints([a_row(spill=8, loops=some)]) == ["labels on sm_90 spills 8 bytes by 8 instructions"]
    assert complaints([a_row(arch=80, shared=166913, loops=some)]) == [
        "labels on sm_80 asks for 166913 bytes of shared memory, there are 166912"
    ]
    assert complaints([a_row()]) == ["labels on sm_90 has no inner loop to read"]
    bare = [a_row("plain", loops={}), a_row(loops=some, baseline="plain")]
    compare(bare)
    assert "labels on sm_90 has nothing to be compared with: no loop in plain" in complaints(bare)


def test_loops_beyond_the_names_are_numbered():
    code = sass("FADD R0, R0, R1", "@P0 BRA 0x0", "FADD R0, R0, R1", "@P0 BRA 0x20", "EXIT")
    config = Configuration("one", None, {}, {}, loops=("edges",))
    assert list(row(config, Compiled("one", 90, 8, 0, 0, code)).loops) == ["edges", "loop 2"]


def test_write_between_markers(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_between_markers(path, "new\n")
    assert path.read_text() == f"before\n{BEGIN}\nnew\n{END}\nafter\n"


def listed(monkeypatch, *entries):
    module = types.ModuleType("listed")
    module.configurations = lambda: entries  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "listed", module)
    return load("listed")


def test_plain_tuples_are_configurations(monkeypatch):
    plain = ("plain", None, {"n": "i32"}, {"D": 64}, 8, 3, None)
    first, second = listed(monkeypatch, plain, ("labels", *plain[1:6], "plain"))
    assert (first.num_warps, first.num_stages, first.baseline) == (8, 3, None)
    assert (second.baseline, second.loops) == ("plain", ("uniform", "mixed", "other"))


def test_an_error_names_what_was_compiled(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    listed(monkeypatch, ("first", print, {}, {}))
    with pytest.raises(TypeError, match="fn must be") as caught:
        main(["--configurations", "listed", "--arch", "80"])
    assert caught.value.__notes__ == ["while first was compiled for sm_80"]


def test_what_is_refused(monkeypatch, tmp_path):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    one = Configuration("one", None, {}, {})
    with pytest.raises(ValueError, match="text must hold functions as cuobjdump -sass prints them, got 'nothing'"):
        parse("nothing")
    with pytest.raises(ValueError, match=r"got \['empty'\]"):
        parse("Function : empty\n")
    with pytest.raises(NotImplementedError, match="an indirect jump hides where loops are: BRX at 0x0010"):
        main_loops(sass("FADD R0, R0, R1", "BRX R2 -0x10", "EXIT"))
    with pytest.raises(ValueError, match="at least one configuration, got none"):
        listed(monkeypatch)
    with pytest.raises(ValueError, match=r"got twice: \[\('one', 90\)\]"):
        listed(monkeypatch, one._replace(archs=(80, 90)), one._replace(archs=(90,)))
    with pytest.raises(ValueError, match=r"name of a configuration of the same architecture, got \[\('plain', 80\)"):
        listed(monkeypatch, one._replace(baseline="plain"))
    listed(monkeypatch, one)
    with pytest.raises(ValueError, match="--only and --arch must leave a configuration, got 'two'"):
        main(["--configurations", "listed", "--only", "two"])
    with pytest.raises(ValueError, match=r"missing \['n'\], unknown \['m'\], twice \['D'\]"):
        specialise(["n", "D"], {"m": "i32", "D": "i32"}, {"D": 64})
    with pytest.raises(ValueError, match=r"signature\['n'\] must end in ':1', ':16' or neither, got 'i32:8'"):
        specialise(["n"], {"n": "i32:8"}, {})
    with pytest.raises(TypeError, match=r"fn must be a @triton.jit function, got builtin_function_or_method"):
        compile_kernel(print, {}, {}, 90)
    with pytest.raises(ValueError, match=r"arch must be one of \(80, 90, 100\), got 75"):
        compile_kernel(type("JITFunction", (), {})(), {}, {}, 75)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(ValueError, match="TRITON_INTERPRET must be unset to compile, got '1'"):
        compile_kernel(print, {}, {}, 90)
    (tmp_path / "page.md").write_text(f"{END}\n{BEGIN}\n")
    with pytest.raises(ValueError, match=f"must hold {BEGIN} and {END} once each, in this order"):
        write_between_markers(tmp_path / "page.md", "text")


def command(folder, *arguments):
    """``python -m docs.kernels`` in a process where Triton compiles, finding modules in a folder too."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]), "TRITON_CACHE_DIR": str(folder / "cache")}
    line = [sys.executable, "-W", "error", "-m", "docs.kernels", "--arch", "90", *map(str, arguments)]
    return subprocess.run(line, env=environment, cwd=folder, capture_output=True, text=True)


needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton to compile")


@needs_triton
def test_toy_kernel(tmp_path):
    """64 rows by 64 keys on 128 threads are 32 scores a thread: a label a row costs one or two instructions a score."""
    (tmp_path / "page.md").write_text(f"# Page\n{BEGIN}\n{END}\n")
    options = [
        "--only",
        "labels",
        "--limit",
        1.25,
        "--json",
        "toy.json",
        "--docs",
        "page.md",
    ]  # the toy itself is held to nothing
    done = command(tmp_path, "--configurations", "docs.kernels.toy", *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert "[2/2] toy labels sm_90" in done.stdout
    plain, labels = json.loads((tmp_path / "toy.json").read_text())
    for each in (plain, labels):
        assert list(each["loops"]) == ["uniform", "mixed"]
        assert each["spill_bytes"] == each["spill_instructions"] == 0
        assert 64 <= each["registers"] <= 255
        assert each["shared"] >= 3 * 64 * 64 * 2
        for loop in each["loops"].values():
            assert loop["tensor"] == 8
            assert loop["exp2"] >= 32
            assert "other" not in loop["classes"]
    before, uniform, mixed = (
        rest["loops"][name]["instructions"]
        for rest, name in ((plain, "uniform"), (labels, "uniform"), (labels, "mixed"))
    )
    assert 0 < uniform - before <= 64
    assert mixed - uniform >= 64  # a gather is a load, and what finds the place
    assert labels["units"] == {"uniform": "turn", "mixed": "turn"}
    assert labels["ratios"]["uniform"] == pytest.approx(uniform / before)
    assert labels["ratios"]["mixed"] == pytest.approx(mixed / before)
    page = (tmp_path / "page.md").read_text()
    assert f"| toy labels | 90 | 4 | 2 | {labels['registers']} | 0 |" in page


@needs_triton
def test_a_kernel_that_spills_fails_the_command(tmp_path):
    (tmp_path / "spilling.py").write_text(
        "from docs.kernels.toy import configurations as all\n"
        "def configurations():\n"
        "    for one in all():\n"
        "        if one.baseline is None:\n"
        "            yield one._replace(num_warps=1)\n"
    )
    done = command(tmp_path, "--configurations", "spilling", "--jobs", "2")
    assert done.returncode == 1, done.stderr
    assert "toy on sm_90 spills" in done.stdout.splitlines()[-1]


def test_what_is_only_reported_is_not_complained_of():
    some = {"uniform": Loop(0, 1)}
    rows = [a_row("a", spill=8, loops=some), a_row("b", spill=8, loops=some)]
    rows[1].held = False
    assert [line.split()[0] for line in complaints(rows)] == ["a"]


@pytest.mark.slow
def test_relgraph_s_own_kernels_pass(tmp_path):
    """Labels by distance: forward and backward, compiled for one GPU as a call would have them."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "docs.kernels", "--only", "distance fp16 64", "--arch", "90"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no spills; uniform loops within 1.15" in done.stdout
    assert done.stdout.count("sm_90") == 6


def test_no_launch_makes_a_kernel_for_a_band_of_one_distance():
    """The compiler is told not to take a width of 1 for a constant, as a launch otherwise does."""
    program = """
from relgraph.impl.triton import attention_kernels as attention
for fn in (attention.forward, attention.backward_rows, attention.backward_keys):
    print([p.name for p in fn.params if p.do_not_specialize])
"""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['low', 'width']"] * 3
