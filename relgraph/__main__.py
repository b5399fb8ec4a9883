"""``python -m relgraph``: versions, devices, and which implementations work here and why not.

Values and gradients of every implementation are compared with ``reference`` in float64 on tiny problems. The exit
status is 1 if an implementation that should work fails, else 0. The kernels of ``native`` are compiled if they are not
there yet: so this is also the command that builds them ahead, for an image or a machine without a network.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

import relgraph as rg
from relgraph.impl import IMPLEMENTATIONS
from relgraph.impl.native import build

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


class Tried(NamedTuple):
    """Whether one implementation works on one kind of device, and why not."""

    impl: str
    device: str
    works: bool
    why: str | None = None
    refused: bool = False

    def __str__(self) -> str:
        state = "works" if self.works else "not here" if self.refused else "FAILS"
        return f"{self.impl:<12}{self.device:<6}{state}{f': {self.why}' if self.why else ''}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m relgraph", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    options = parser.parse_args(arguments)
    tried = [try_one(impl, device) for device in device_kinds() for impl in IMPLEMENTATIONS]
    ok = all(one.works or one.refused for one in tried)
    if options.json:
        print(json.dumps(as_json(tried, ok), indent=2))
    else:
        print("\n".join(as_text(tried)))
    return 0 if ok else 1


def device_kinds() -> list[str]:
    """The kinds of devices to try."""
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


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
    """What is too far from the reference, or None."""
    inputs = "query", "key", "value", "key_table", "value_table", "query_table", "bias_table"
    names = "output", *(f"gradient of {name}" for name in inputs)
    for name, mine, theirs in zip(names, got, wanted, strict=True):
        apart = (mine.cpu().double() - theirs).abs().max().item()
        if not apart <= TOLERANCE * (1.0 + theirs.abs().max().item()):
            return f"{name} is {apart:.1e} from the reference"
    return None


def as_text(tried: list[Tried]) -> list[str]:
    """The lines of the report."""
    lines = [f"{'relgraph':<18}{rg.__version__}", f"{'python':<18}{platform.python_version()}"]
    lines += [f"{'torch':<18}{torch.__version__}"]
    for package, (_, extra) in PACKAGES.items():
        advice = f"not installed: pip install 'relgraph[{extra}]'"
        lines.append(f"{package:<18}{installed(package) or advice}")
    gpus = cuda_names() or ["no device" if torch.version.cuda else "torch is built without it"]
    lines += ["", f"{'cpu':<18}{platform.machine()}, {torch.get_num_threads()} threads"]
    lines += [f"{'cuda':<18}{gpu}" for gpu in gpus]
    known = build.load()
    state = f"built: {known.path}" if isinstance(known, build.Kernels) else f"not built: {known}"
    return [*lines, f"{'cpu kernels':<18}{state}", "", *map(str, tried)]


def as_json(tried: list[Tried], ok: bool) -> dict[str, Any]:
    """The report as data."""
    return {
        "relgraph": rg.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "packages": {package: installed(package) for package in PACKAGES},
        "extras": {package: extra for package, (_, extra) in PACKAGES.items()},
        "devices": {"cpu": {"machine": platform.machine(), "threads": torch.get_num_threads()}, "cuda": cuda_names()},
        "kernels": kernels_as_json(),
        "implementations": [one._asdict() for one in tried],
        "ok": ok,
    }


def kernels_as_json() -> dict[str, Any]:
    """Whether the kernels of ``native`` are there, where, what they take from torch, or why they are not."""
    known = build.load()
    if isinstance(known, build.Missing):
        return {"built": False, "path": None, "why": str(known)}
    found = {name: bool(address) for name, address in vars(known.found).items()}
    return {"built": True, "path": str(known.path), "why": None, "found": found}


def cuda_names() -> list[str]:
    """The names of the CUDA devices."""
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


if __name__ == "__main__":
    sys.exit(main())
