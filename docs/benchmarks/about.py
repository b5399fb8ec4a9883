"""Describes the machine of a measurement: hardware, versions, threads, date, and free memory."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import relgraph as rg
from docs.benchmarks.measure import Rows, markdown

PACKAGES = ("torch", "triton", "torch-geometric", "transformers", "OpenNMT-py")
GIB = 2**30


def about(device: str) -> dict[str, object]:
    """Machine and versions, for the head of a JSON file."""
    found: dict[str, object] = {"device": device, "hardware": hardware(device), "threads": torch.get_num_threads()}
    found |= {"date": time.strftime("%Y-%m-%d"), "python": platform.python_version(), "relgraph": rg.__version__}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    found["torch"] = torch.__version__  # includes the build, which the package metadata leaves out
    return found


def hardware(device: str) -> str:
    """The processor's name."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def free_bytes(device: str) -> int:
    """The memory that is free now."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(torch.device(device))[0]
    info = Path("/proc/meminfo")
    for line in info.read_text().splitlines() if info.exists() else []:
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    raise ValueError("--memory must be given, in GB: this system does not say how much memory is free")


def line(found: dict[str, object]) -> str:
    """A sentence with machine and versions, to print with a table."""
    cores = f"{found['threads']} thread{'' if found['threads'] == 1 else 's'}"
    where = found["hardware"] if found["device"] != "cpu" else f"{found['hardware']}, {cores}"
    peers = ", ".join(f"{name} {found[name]}" for name in ("triton", "torch-geometric", "transformers", "OpenNMT-py"))
    return f"{where}; torch {found['torch']}, Python {found['python']}, {peers}; {found['date']}."


def publish(rows: Rows, device: str = "cpu", path: str | None = None) -> None:
    """Print the machine and the rows, and write both to a file if one is named."""
    found = about(device)
    print(f"{line(found)}\n\n{markdown(rows)}")
    if path:
        Path(path).write_text(json.dumps({"about": found, "rows": rows}, indent=1, ensure_ascii=False) + "\n")


def command(
    parser: argparse.ArgumentParser, measures: dict[str, Callable[..., Rows | None]], given: Sequence[str] | None
) -> None:
    """Parse the arguments, measure with a fixed seed, and publish the rows, if there are any."""
    parser.add_argument("what", choices=list(measures))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", help="also write the rows to this file")
    arguments = parser.parse_args(given)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    if (rows := measures[arguments.what](arguments)) is not None:
        publish(rows, path=arguments.json)
