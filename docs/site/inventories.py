"""The page addresses of torch, PyG, networkx, pandas, transformers and Python, for links without a network.

``inventories.txt`` lists every target that relgraph's docstrings and pages refer to, with the address of its page. A
reference that is not in the list fails the build.
"""

from __future__ import annotations

import zlib
from pathlib import Path

LIST = Path(__file__).with_name("inventories.txt")


def read() -> dict[str, tuple[str, list[tuple[str, str, str]]]]:
    """By project: the root of its pages, and (name, role, address below the root) of every target."""
    projects: dict[str, tuple[str, list[tuple[str, str, str]]]] = {}
    targets: list[tuple[str, str, str]] = []
    for line in LIST.read_text(encoding="utf-8").splitlines():
        fields = line.split()
        if not fields or fields[0] == "#":
            continue
        if line[0].isspace():
            name, role, address = fields
            targets.append((name, role, address))
        else:
            project, root = fields
            targets = []
            projects[project] = (root, targets)
    return projects


def written(folder: Path) -> dict[str, tuple[str, str]]:
    """Write one inventory per project in Sphinx's format, version 2; return the value for ``intersphinx_mapping``."""
    folder.mkdir(parents=True, exist_ok=True)
    mapping = {}
    for project, (root, targets) in read().items():
        head = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n# zlib compressed entries follow\n"
        lines = "".join(f"{name} {role} 1 {address} -\n" for name, role, address in targets)
        path = folder / f"{project}.inv"
        path.write_bytes(head.encode() + zlib.compress(lines.encode()))
        mapping[project] = (root, str(path))
    return mapping
