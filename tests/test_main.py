"""``python -m relgraph``: what it reports, and how it ends."""

from __future__ import annotations

import json
import platform
import runpy
import sys
import types

import pytest
import torch

import relgraph as rg
from relgraph import __main__ as report
from relgraph.impl import IMPLEMENTATIONS
from relgraph.impl.native import build
from relgraph.impl.triton import limits


@pytest.fixture(autouse=True)
def _no_triton(monkeypatch):
    monkeypatch.setattr(limits, "HAS_TRITON", False)
    monkeypatch.setattr(report, "gpus", list)


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")  # runpy's: the module is imported here too
def test_as_a_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["relgraph", "--json"])
    with pytest.raises(SystemExit, match="^0$"):
        runpy.run_module("relgraph", run_name="__main__")
    told = json.loads(capsys.readouterr().out)
    assert told["relgraph"] == rg.__version__
    assert told["python"] == platform.python_version()
    assert told["torch"] == torch.__version__
    assert told["tested"] == ((report.minor(torch.__version__), report.minor(told["python"])) in report.TESTED)
    assert set(told["packages"]) == {"torch-geometric", "networkx", "conllu", "matplotlib", "triton"}
    assert told["extras"]["torch-geometric"] == "pyg"
    assert told["devices"]["cpu"]["threads"] >= 1
    assert set(told["devices"]["cuda"]) == {"version", "driver", "devices"}
    if not told["devices"]["cuda"]["devices"]:
        assert told["typical_calls"] == []
    assert told["ok"] is True
    works = {one["impl"] for one in told["implementations"] if one["works"]}
    kernels = told["kernels"]
    assert kernels["built"] == ("native" in works)
    assert kernels["built"] == (kernels["why"] is None)
    assert {"reference", "dense", "chunked", "edges"} <= works


def test_text(capsys, no_kernels):
    assert report.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"relgraph          {rg.__version__}"
    assert f"cpu               {platform.machine()}, {torch.get_num_threads()} threads" in lines
    assert "cpu kernels       none: RELGRAPH_NATIVE=0 turns them off" in lines
    assert lines[-6:] == [
        "reference   cpu     works",
        "dense       cpu     works",
        "chunked     cpu     works",
        "edges       cpu     works",
        "native      cpu     not here: has no compiled kernels: RELGRAPH_NATIVE=0 turns them off; use impl='chunked'",
        "triton      cpu     not here: needs the package triton (pip install triton); use impl='chunked'",
    ]


def test_kernels_that_are_there(capsys):
    known = build.load()
    if isinstance(known, build.Missing):
        pytest.skip(str(known))
    assert report.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"cpu kernels       {known.path}" in lines
    assert "native      cpu     works" in lines
    told = report.kernels_as_json()
    assert (told["built"], told["path"], told["why"]) == (True, str(known.path), None)
    assert set(told["found"]) == {"gemm", "blocked", "blocked_half", "release", "parallel"}


def test_another_torch(monkeypatch, capsys, no_kernels):
    monkeypatch.setattr(torch, "__version__", "2.11.1+cpu")
    assert report.main([]) == 0
    tested = "torch 2.13 with Python 3.11, torch 2.15 with Python 3.12, torch 2.15 with Python 3.13"
    assert " " * 18 + f"not tested together; tested: {tested}" in capsys.readouterr().out.splitlines()


def test_an_implementation_that_raises(monkeypatch, capsys):
    def broken(call):
        raise RuntimeError("no such kernel")

    monkeypatch.setitem(IMPLEMENTATIONS, "chunked", broken)
    assert report.main([]) == 1
    assert "chunked     cpu     FAILS: edges only: RuntimeError: no such kernel" in capsys.readouterr().out


def test_an_implementation_that_is_wrong(monkeypatch, capsys):
    right = IMPLEMENTATIONS["dense"]

    def wrong(call):
        answer = right(call)
        return answer._replace(output=answer.output + 0.5)

    monkeypatch.setitem(IMPLEMENTATIONS, "dense", wrong)
    assert report.main(["--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    assert [one for one in told["implementations"] if not one["works"] and not one["refused"]] == [
        {
            "impl": "dense",
            "device": "cpu",
            "works": False,
            "why": "edges only: output is 5.0e-01 from the reference",
            "refused": False,
        }
    ]


# ---- a machine with a GPU: the CPU takes its place, and Triton's interpreter runs the kernels ----


@pytest.fixture
def gpu(monkeypatch, on_a_gpu):
    """Pretend to have one GPU."""
    found = types.SimpleNamespace(name="NVIDIA Example", major=9, minor=0, total_memory=80 * 2**30)
    monkeypatch.setattr(report, "gpus", lambda: [torch.device("cpu")])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: found)
    monkeypatch.setattr(report, "try_one", lambda impl, device: report.Tried(impl, device, True))


def test_on_a_gpu(gpu, monkeypatch, capsys):
    monkeypatch.setattr(report, "driver", lambda: "550.54.15")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert report.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "cuda              12.8, driver 550.54.15" in lines
    assert "cpu               NVIDIA Example, compute capability 9.0, 80.0 GiB" in lines
    taken = {line[36:]: line[26:36].strip() for line in lines if line.startswith("impl=None takes")}
    assert taken == {
        "distances, bfloat16": "triton",
        "distances, float32": "triton",
        "distances, float64": taken["distances, float64"],
        "distances, bfloat16, need_weights": "dense",
        "distances, bfloat16, one query row": "triton",
        "edges only, bfloat16": "triton",
    }
    assert taken["distances, float64"] in ("chunked", "native")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5", "550.54.15"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release", "570.86.10"),
        ("nothing", None),
    ],
)
def test_the_driver(monkeypatch, tmp_path, text, version):
    (tmp_path / "version").write_text(text)
    monkeypatch.setattr(report, "Path", lambda _: tmp_path / "version")
    assert report.driver() == version
    (tmp_path / "version").unlink()
    assert report.driver() is None
