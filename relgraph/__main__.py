"""``python -m relgraph``: versions, devices, and which implementations work here and why not.

This compares values and gradients of every implementation with ``reference`` in float64 on tiny problems. On a GPU it
also shows which implementation ``impl=None`` takes for typical calls. The exit status is 1 if an implementation that
should work does not, else 0.

``python -m relgraph compile`` compiles the kernels of ``native`` from the sources that are installed, for this very
processor, and keeps them in the cache. That takes 10 to 20 seconds of a C++ compiler. With ``--exported`` it makes the
file that exported programs load: docs/howto/deploy.md.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import relgraph as rg
from relgraph.impl import IMPLEMENTATIONS
from relgraph.impl.native import build, compiler, exported
from relgraph.impl.native.compiler import UnavailableError

PACKAGES = {
    "torch-geometric": ("torch_geometric", "pyg"),
    "networkx": ("networkx", "networkx"),
    "conllu": ("conllu", "conllu"),
    "matplotlib": ("matplotlib", "plot"),
    "triton": ("triton", "triton"),
}
"""Optional packages: the module of each, and the extra of relgraph that installs it."""

TOLERANCE = 1e-4
"""The largest error of float32, for values and gradients of about 1."""

TESTED = {("2.13", "3.11"), ("2.15", "3.12"), ("2.15", "3.13")}
"""The versions of torch and Python that the tests passed with: the pinned ones in each run of CI, others by hand."""

LOST = {
    "blocked": "without oneDNN's product of float32 in this torch: BLAS multiplies, which is slower",
    "blocked_half": "without oneDNN's product of bfloat16 in this torch: float32 multiplies, which is slower",
    "release": "without the function of this torch that releases the matrix unit: none is used for bfloat16",
    "parallel": "without the threads of this torch: kernels use one",
}
"""What it means that the kernels have not found a function of torch, or that it does not work here."""


class Tried(NamedTuple):
    """Whether one implementation works on one kind of device, and why not."""

    impl: str
    device: str
    works: bool
    why: str | None = None
    refused: bool = False

    def __str__(self) -> str:
        state = "works" if self.works else "not here" if self.refused else "FAILS"
        return f"{self.impl:<12}{self.device:<8}{state}{f': {self.why}' if self.why else ''}"


class Taken(NamedTuple):
    """What ``impl=None`` takes for one typical call on a GPU."""

    device: str
    call: str
    impl: str

    def __str__(self) -> str:
        return f"{'impl=None takes':<18}{self.device:<8}{self.impl:<10}{self.call}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m relgraph", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("command", nargs="?", choices=["compile"], help="compile the CPU kernels, instead of a report")
    parser.add_argument("--exported", action="store_true", help="compile the file for exported programs")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    options = parser.parse_args(arguments)
    if options.exported and options.command != "compile":
        parser.error("--exported belongs to compile")
    if options.command == "compile":
        return compile_exported_file() if options.exported else compile_kernels()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # failures go into the report
        taken = [one for gpu in gpus() for one in typical_calls(gpu)]
        devices = ["cpu", *map(str, gpus())]
        tried = [try_one(impl, device) for device in devices for impl in IMPLEMENTATIONS]
    ok = all(one.works or one.refused for one in tried)
    report = {"relgraph": rg.__version__, "python": platform.python_version(), "torch": torch.__version__}
    report |= {"tested": (minor(torch.__version__), minor(platform.python_version())) in TESTED}
    report |= {"packages": {package: installed(package) for package in PACKAGES}}
    report |= {"extras": {package: extra for package, (_, extra) in PACKAGES.items()}}
    cpu = {"machine": platform.machine(), "threads": torch.get_num_threads()}
    report |= {"devices": {"cpu": cpu, "cuda": cuda_as_json()}, "kernels": kernels_as_json()}
    parts = {"typical_calls": taken, "implementations": tried}
    if options.json:
        report |= {name: [one._asdict() for one in part] for name, part in parts.items()}
        print(json.dumps(report | {"ok": ok}, indent=2))
    else:
        lines = as_text(report)
        for part in parts.values():
            lines += ["", *map(str, part)] if part else []
        print("\n".join(lines))
    return 0 if ok else 1


def compile_kernels() -> int:
    """Compile the CPU kernels, print where they are or why there are none, and return the exit status."""
    try:
        path = compiler.compile_native()
    except UnavailableError as error:
        print(f"not compiled: {'; '.join(error.args)}")
        return 1
    known = build.load()
    works = isinstance(known, build.Kernels) and known.path == path
    print(f"compiled: {path}" if works else f"compiled, but not in use: {path}: {known}")
    return 0 if works else 1


def compile_exported_file() -> int:
    """Compile the file for exported programs, print where it is or why there is none, and return the exit status."""
    try:
        print(f"compiled: {exported.compile_exported()}")
    except UnavailableError as error:
        print(f"not compiled: {'; '.join(error.args)}")
        return 1
    return 0


def minor(version: str) -> str:
    """The first two numbers of a version."""
    return ".".join(version.split(".")[:2])


def gpus() -> list[torch.device]:
    """The GPUs of this machine."""
    return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]


def typical_calls(gpu: torch.device) -> list[Taken]:
    """What ``impl=None`` takes for some calls of 2 × 8 heads of 64 numbers over 256 tokens."""
    distances = rg.ClippedDistance(16)
    ring = torch.arange(256)
    edges = rg.EdgeLabels(torch.stack([ring, ring.roll(1)]), ring % 3, 3, q_len=256)
    calls: dict[str, tuple[rg.Labels, int, torch.dtype, dict[str, Any]]] = {
        "distances, bfloat16": (distances(256), 256, torch.bfloat16, {}),
        "distances, float32": (distances(256), 256, torch.float32, {}),
        "distances, float64": (distances(256), 256, torch.float64, {}),
        "distances, bfloat16, need_weights": (distances(256), 256, torch.bfloat16, {"need_weights": True}),
        "distances, bfloat16, one query row": (distances(1, 256), 1, torch.bfloat16, {}),
        "edges only, bfloat16": (edges, 256, torch.bfloat16, {}),
    }
    taken = []
    for name, (labels, q_len, dtype, options) in calls.items():
        query, key = (torch.zeros(2, 8, length, 64, device=gpu, dtype=dtype) for length in (q_len, 256))
        try:
            impl = rg.which_impl(query, key, key, labels.to(gpu), **options).impl
        except torch.OutOfMemoryError:
            impl = "no room"
        taken.append(Taken(str(gpu), name, impl))
    return taken


def installed(package: str) -> str | None:
    """The version of an optional package, without importing it; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown version" if find_spec(PACKAGES[package][0]) else None


def try_one(impl: str, device: str) -> Tried:
    """Try one implementation on every tiny problem that it can do."""
    refusals, done = [], 0
    for name, labels in problems().items():
        arguments = leaves(labels, torch.float32, device)
        placed = labels.to(device)
        try:
            reason = rg.which_impl(*call(arguments, placed)).refused.get(impl)
            if reason is not None:
                refusals.append(reason.removeprefix(f"impl={impl!r} "))
                continue
            wrong = difference(solve(impl, arguments, placed), solve("reference", leaves(labels), labels))
        except Exception as error:  # any failure belongs in the report
            return Tried(impl, device, False, f"{name}: {type(error).__name__}: {error}")
        if wrong is not None:
            return Tried(impl, device, False, f"{name}: {wrong}")
        done += 1
    return Tried(impl, device, True) if done else Tried(impl, device, False, refusals[-1], refused=True)


def problems() -> dict[str, rg.Labels]:
    """Tiny labelings of six tokens: edges only, and by distance."""
    edges = rg.EdgeLabels(torch.tensor([[0, 1, 2, 5], [1, 1, 0, 3]]), torch.tensor([0, 1, 2, 1]), 3, q_len=6)
    return {"edges only": edges, "distances": rg.ClippedDistance(1)(6)}


def leaves(labels: rg.Labels, dtype: torch.dtype = torch.float64, device: str = "cpu") -> list[Tensor]:
    """Query, key, value and four tables, with the same numbers in each call."""
    generator = torch.Generator().manual_seed(0)
    assert isinstance(labels.num_labels, int)
    shapes = [[1, 2, 6, 8]] * 3 + [[labels.num_labels, 8]] * 3 + [[labels.num_labels]]
    made = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [x.to(device, dtype).requires_grad_() for x in made]


def call(arguments: list[Tensor], labels: rg.Labels) -> tuple[Any, ...]:
    """The arguments of :func:`relation_attention`, in its order."""
    return (*arguments[:3], labels, *arguments[3:])


def solve(impl: str, arguments: list[Tensor], labels: rg.Labels) -> list[Tensor]:
    """The output, and the gradients of its sum of squares."""
    output = rg.relation_attention(*call(arguments, labels), impl=impl)
    return [output.detach(), *torch.autograd.grad(output.square().sum(), arguments)]


def difference(got: list[Tensor], wanted: list[Tensor]) -> str | None:
    """A description of the result that is too far from the reference, or None."""
    inputs = "query", "key", "value", "key_table", "value_table", "query_table", "bias_table"
    names = "output", *(f"gradient of {name}" for name in inputs)
    for name, mine, theirs in zip(names, got, wanted, strict=True):
        apart = (mine.cpu().double() - theirs).abs().max().item()
        if not apart <= TOLERANCE * (1.0 + theirs.abs().max().item()):
            return f"{name} is {apart:.1e} from the reference"
    return None


def as_text(report: dict[str, Any]) -> list[str]:
    """Versions, devices and kernels in lines."""
    lines = [f"{name:<18}{report[name]}" for name in ("relgraph", "python", "torch")]
    pairs = ", ".join(f"torch {torch} with Python {python}" for torch, python in sorted(TESTED))
    lines.append(f"{'':<18}{'tested together' if report['tested'] else 'not tested together; tested: ' + pairs}")
    for package, extra in report["extras"].items():
        advice = f"not installed: pip install {package} (extra {extra})"
        lines.append(f"{package:<18}{report['packages'][package] or advice}")
    (cpu, cuda), kernels = report["devices"].values(), report["kernels"]
    lines += ["", f"{'cpu':<18}{cpu['machine']}, {cpu['threads']} threads"]
    if cuda["devices"]:
        lines.append(f"{'cuda':<18}{cuda['version']}, driver {cuda['driver'] or 'unknown'}")
    else:
        lines.append(f"{'cuda':<18}{'no device' if cuda['version'] else 'torch is built without it'}")
    for one in cuda["devices"]:
        facts = f"compute capability {one['capability']}, {one['memory']:.1f} GiB"
        lines.append(f"{one['device']:<18}{one['name']}, {facts}")
    lines.append(f"{'cpu kernels':<18}{kernels['path'] or 'none: ' + kernels['why']}")
    return [*lines, *(f"{'':<18}{line}" for line in kernels.get("without", []))]


def kernels_as_json() -> dict[str, Any]:
    """Whether the kernels of ``native`` exist, where they are and what they use from torch, or why they are missing."""
    known = build.load()
    if isinstance(known, build.Missing):
        return {"built": False, "path": None, "why": str(known)}
    found = {name: bool(address) for name, address in vars(known.found).items()}
    without = [line for name, line in LOST.items() if not found[name]]
    return {"built": True, "path": str(known.path), "why": None, "found": found, "without": without}


def cuda_as_json() -> dict[str, Any]:
    """What torch was built for, the driver, and all GPUs with their memory in GiB."""
    devices = []
    for gpu in gpus():
        found = torch.cuda.get_device_properties(gpu)
        capability, memory = f"{found.major}.{found.minor}", found.total_memory / 2**30
        devices.append({"device": str(gpu), "name": found.name, "capability": capability, "memory": memory})
    return {"version": torch.version.cuda or torch.version.hip, "driver": driver(), "devices": devices}


def driver() -> str | None:
    """The version of NVIDIA's driver, as Linux reports it."""
    path = Path("/proc/driver/nvidia/version")
    found = re.search(r"\d+\.\d+(\.\d+)*", path.read_text(encoding="utf-8")) if path.is_file() else None
    return None if found is None else found[0]


if __name__ == "__main__":
    sys.exit(main())
